"""What the steps of a training loop do on torch: optimizers, zero_grad, clipping, schedulers, weights that are loaded.

A step is seen by torch's own global hooks, which every subclass of Optimizer calls. All else is stood in for.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from adbg.engine.backends.base import Need, OptimizerEvent, Tap, Watcher
from adbg.engine.backends.base.graph import Graph
from adbg.engine.backends.base.observing import Keeping
from adbg.engine.backends.common.observing.states import given_values
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.observing.stand_ins import TorchStandIns, capturing
from adbg.engine.backends.torch.tensors import finite
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_is_compiling = torch.compiler.is_compiling


class _Making(threading.local):
    schedulers = 0  # being made on this thread: one makes a first step of its own


class StepsTap(Tap):
    need = Need.STEPS

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._stand_ins = TorchStandIns()
        self._watcher: Watcher | None = None
        self._handles: list[Any] = []
        self._making = _Making()

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._making = _Making()
        self._handles = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ended),
        ]
        put = self._stand_ins.put
        put(Optimizer, "__init__", self._making_begins, self._optimizer_made)
        put(Optimizer, "zero_grad", self._first, self._zeroed)
        put(torch.nn.Module, "zero_grad", self._first, self._module_zeroed)
        put(torch.nn.Module, "load_state_dict", self._load_begins, self._loaded)
        put(torch.nn.Module, "state_dict", self._listing, self._listed)
        clip: Any = torch.nn.utils.clip_grad
        inner = hasattr(clip, "_clip_grads_with_norm_")  # also where the script imported clip_grad_norm_ before
        put(clip, "_clip_grads_with_norm_" if inner else "clip_grad_norm_", self._clip_begins, self._clipped)
        put(torch.nn.utils, "clip_grads_with_norm_" if inner else "clip_grad_norm_", self._clip_begins, self._clipped)
        for owner in (torch.nn.utils, clip):
            put(owner, "clip_grad_value_", self._clip_begins, self._clipped)
        for kind in _kinds(LRScheduler):
            # step warns of its caller's line: a frame between them would give it another
            within = kind is LRScheduler and "_update_lr" in vars(kind)
            put(kind, "__init__", self._scheduler_begins, self._scheduler_made)
            put(kind, "_update_lr" if within else "step", self._schedule_begins, self._scheduled)

    def take_out(self) -> None:
        self._watcher = None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stand_ins.restore()

    def _tell(
        self, what: str, optimizer: Any, line: SourceLine | None, tensors: Sequence[Any] | None = None, **more: Any
    ) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        with private.undisturbed():
            held = _held(optimizer) if tensors is None else tensors
            event = OptimizerEvent(what, optimizer, held, line, _rates(optimizer), **more)
            # A step takes whatever has a gradient: a network may be frozen behind the backward that made it.
            event.frozen = tuple(at for at, value in enumerate(held) if not value.requires_grad and value.grad is None)
            watcher.optimizer(event)

    # ---- optimizers

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return args[0], self._frames.live_line(frame)

    def _making_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return args[0], self._frames.line_of_making(frame, args[0])

    def _optimizer_made(self, told: Any, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._tell("made", *told)

    def _zeroed(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._tell("zeroed", *told)

    def _module_zeroed(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._tell("zeroed", None, told[1], tuple(told[0].parameters()))

    def _listing(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        """None within another one: a module asks those that it holds, by keyword."""
        return self._frames.live_line(frame) if "prefix" not in kwargs else None

    def _listed(self, line: Any, result: Any, error: BaseException | None) -> None:
        if error is None and line is not None:
            self._tell("listed", None, line, ())

    def _load_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return args[0], self._frames.live_line(frame), given_values(args[0], args, kwargs)

    def _loaded(self, told: Any, result: Any, error: BaseException | None) -> None:
        missing, unexpected = (tuple(getattr(result, name, ())) for name in ("missing_keys", "unexpected_keys"))
        self._tell(
            "loaded", None, told[1], tuple(told[0].parameters()), missing=missing, unexpected=unexpected, given=told[2]
        )

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _is_compiling() and not capturing():
            with suppress(Exception):
                self._tell("step", optimizer, self._frames.live_line(sys._getframe(1)))

    def _step_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not _is_compiling() and not capturing():
            with suppress(Exception):
                self._tell("stepped", optimizer, self._frames.live_line(sys._getframe(1)))

    # ---- clipping

    def _clip_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        given = args[0] if args else kwargs.get("parameters")
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
        if isinstance(given, torch.Tensor):
            given = (given,)
        tensors = tuple(given) if isinstance(given, (list, tuple)) else ()  # a generator can be read once: by torch
        total = args[2] if len(args) > 2 else kwargs.get("total_norm")
        norm = None
        if isinstance(total, torch.Tensor):
            with private.undisturbed():
                norm = float(total)
        return tensors, limit, norm, self._frames.live_line(frame)

    def _clipped(self, told: Any, result: Any, error: BaseException | None) -> None:
        if error is None:
            tensors, limit, norm, line = told
            limit = float(limit) if limit is not None else None
            self._tell("clipped", None, line, tensors, norm=norm, limit=limit)

    # ---- schedulers

    def _scheduler_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        self._making.schedulers += 1
        return args[0], self._frames.line_of_making(frame, args[0])

    def _scheduler_made(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._making.schedulers -= 1
        scheduler, line = told
        if error is None and not self._making.schedulers:
            self._tell("scheduler", getattr(scheduler, "optimizer", None), line, scheduler=scheduler)

    def _schedule_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        if self._making.schedulers:
            return None
        self._making.schedulers += 1  # what it steps in turn is no step of the program's
        return args[0], self._frames.live_line(frame)

    def _scheduled(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._making.schedulers -= 1
        scheduler, line = told
        if error is None:
            self._tell("scheduled", getattr(scheduler, "optimizer", None), line, scheduler=scheduler)


def _held(optimizer: Any) -> tuple[Any, ...]:
    groups = getattr(optimizer, "param_groups", None) or ()
    return tuple(value for group in groups for value in group.get("params", ()) if isinstance(value, torch.Tensor))


def _rates(optimizer: Any) -> tuple[float, ...]:
    rates = [group.get("lr") for group in getattr(optimizer, "param_groups", None) or ()]
    return tuple(float(rate) for rate in rates if isinstance(rate, (int, float)) or _on_cpu(rate))


def state_of(optimizer: Any, tensor: torch.Tensor) -> tuple[float | None, Mapping[str, Any]]:
    """See ``Keeping.optimizer_state``. The fused steps compute with float32 throughout."""
    groups = getattr(optimizer, "param_groups", None) or ()
    group: Any = next((each for each in groups if any(value is tensor for value in each.get("params", ()))), {})
    eps: Any = group.get("eps")
    states = getattr(optimizer, "state", None)
    kept = states.get(tensor) if isinstance(states, dict) else None  # a defaultdict: [] would make one
    told = type(eps) in (int, float) and not group.get("fused")
    return float(eps) if told else None, kept if isinstance(kept, dict) else {}


class TorchKeeping(Keeping):
    """Nodes are numbered as they are made."""

    def __init__(
        self,
        mark: Callable[[], int | None],
        older: Callable[[Any, int, int], int],
        last_root: Callable[[], int | None],
    ) -> None:
        self._mark = mark
        self._older = older
        self._last_root = last_root

    def forward_mark(self) -> int | None:
        return self._mark()

    def used_up_mark(self) -> int | None:
        root = self._last_root()
        return None if root is None else root + 1  # of a graph, no node is younger than its root

    def number_of(self, graph: Graph, key: int) -> int | None:
        known: Any = graph  # of torch: its number alone, where a description costs 50 us
        return private.sequence(known.node(key)) if known.far is None else known.far.number(key)

    def finite(self, values: Sequence[Any]) -> bool:
        return finite(values)

    def nodes_before(self, value: Any, mark: int, most: int) -> int:
        return self._older(value, mark, most)

    def random_state(self) -> int | None:
        state = torch.default_generator.get_state()
        return hash(ctypes.string_at(state.data_ptr(), state.numel()))  # 9 us; its bytes by torch's own means are ops

    def optimizer_state(self, optimizer: Any, tensor: Any) -> tuple[float | None, Mapping[str, Any]]:
        return state_of(optimizer, tensor)


def _on_cpu(rate: Any) -> bool:
    return isinstance(rate, torch.Tensor) and rate.device.type == "cpu" and rate.numel() == 1


def _kinds(kind: Any) -> list[Any]:
    """torch's own classes below ``kind`` that define ``__init__`` or ``step``."""
    inner = [each for sub in kind.__subclasses__() if sub.__module__.startswith("torch.") for each in _kinds(sub)]
    return [kind, *inner]
