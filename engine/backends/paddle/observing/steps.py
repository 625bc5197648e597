"""What the steps of a training loop do on Paddle: optimizers, clear_grad, clipping, schedulers, weights being set."""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import paddle
from paddle.nn import ClipGradByNorm, Layer
from paddle.nn.clip import ClipGradBase
from paddle.optimizer import Optimizer
from paddle.optimizer.lr import LRScheduler

from adbg.engine.backends.base import Need, OptimizerEvent, Tap, Watcher
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.observing.states import given_values
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle.observing.modules import static, unseen
from adbg.engine.backends.paddle.tensors import norm as norm_of
from adbg.engine.types import SourceLine

_CLIPS = 64  # calls of ``grad_clip`` whose norms are taken: 20 us a gradient


class _Inside(threading.local):
    def __init__(self) -> None:
        self.calls: set[int] = set()  # ids of the optimizers that step: one may call its base's
        self.making: set[int] = set()
        self.schedulers = 0  # being made or stepping on this thread
        self.stepping: list[Any] = []  # the optimizers themselves, as long as they do


class StepsTap(Tap):
    need = Need.STEPS

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._stand_ins = StandIns(static)
        self._watcher: Watcher | None = None
        self._inside = _Inside()
        self._own: set[Any] = set()  # classes of the program's that are watched
        self._clips = 0  # by ``grad_clip``, whose norms were taken

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._inside = _Inside()
        put = self._stand_ins.put
        self._own = set()
        for kind in _kinds(Optimizer):
            put(kind, "__init__", self._making_begins, self._made)
            self._put_in(kind)
        for kind in Optimizer.__subclasses__():
            self._put_in_own(kind)
        put(Layer, "clear_gradients", self._first, self._layer_cleared)
        for name in ("set_state_dict", "set_dict", "load_dict"):
            put(Layer, name, self._load_begins, self._loaded)
        put(Layer, "state_dict", self._listing, self._listed)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            put(paddle.nn.utils, name, self._clip_begins, self._clipped)
        put(ClipGradBase, "__call__", self._own_clip_begins, self._own_clipped)
        for kind in _kinds(LRScheduler):
            put(kind, "__init__", self._scheduler_begins, self._scheduler_made)
            put(kind, "step", self._schedule_begins, self._scheduled)

    def _put_in(self, kind: Any) -> None:
        for name in ("step", "minimize"):
            self._stand_ins.put(kind, name, self._step_begins, self._stepped)
        self._stand_ins.put(kind, "clear_grad", self._first, self._cleared)

    def _put_in_own(self, kind: Any) -> None:
        """Classes of the program's, and those below them: a step of their own calls none of Paddle's."""
        if kind.__module__.partition(".")[0] != "paddle" and kind not in self._own:
            self._own.add(kind)
            self._put_in(kind)
        for inner in type.__subclasses__(kind):
            self._put_in_own(inner)

    def take_out(self) -> None:
        self._watcher = None
        self._stand_ins.restore()

    def _tell(
        self, what: str, optimizer: Any, line: SourceLine | None, tensors: Sequence[Any] | None = None, **more: Any
    ) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        with unseen():
            held = _held(optimizer) if tensors is None else tensors
            event = OptimizerEvent(what, optimizer, held, line, _rates(optimizer), **more)
            event.factors = _factors(optimizer)
            event.decides = _decides(optimizer)
            event.frozen = tuple(place for place, value in enumerate(held) if value.stop_gradient)
            watcher.optimizer(event)

    # ---- optimizers

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return args[0], self._frames.live_line(frame)

    def _making_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        if id(args[0]) in self._inside.making:
            return None
        self._inside.making.add(id(args[0]))
        return args[0], self._frames.line_of_making(frame, args[0])

    def _made(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._inside.making.discard(id(told[0]))
        if error is None:  # its attribute clear_gradients is the stand-in of clear_grad now, and stays it
            for kind in type(told[0]).__mro__:
                if issubclass(kind, Optimizer):
                    self._put_in_own(kind)
            self._tell("made", *told)

    def _cleared(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._tell("zeroed", *told)

    def _layer_cleared(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._tell("zeroed", None, told[1], tuple(told[0].parameters()))

    def _listing(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return self._frames.live_line(frame)

    def _listed(self, line: Any, result: Any, error: BaseException | None) -> None:
        if error is None and line is not None:
            self._tell("listed", None, line, ())

    def _load_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return args[0], self._frames.live_line(frame), given_values(args[0], args, kwargs)

    def _loaded(self, told: Any, result: Any, error: BaseException | None) -> None:
        pair = result if isinstance(result, tuple) and len(result) == 2 else ((), ())  # names of no use to either side
        missing, unexpected = (tuple(map(str, each)) for each in pair)
        self._tell(
            "loaded", None, told[1], tuple(told[0].parameters()), missing=missing, unexpected=unexpected, given=told[2]
        )

    def _step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        optimizer, line = args[0], self._frames.live_line(frame)
        if id(optimizer) in self._inside.calls:
            return None
        self._inside.calls.add(id(optimizer))
        self._inside.stepping.append(optimizer)
        self._tell("step", optimizer, line, scheduler=_scheduler_of(optimizer))
        return optimizer, line

    def _stepped(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._inside.calls.discard(id(told[0]))
        self._inside.stepping = [each for each in self._inside.stepping if each is not told[0]]
        if error is None:
            self._tell("stepped", *told)

    # ---- clipping

    def _clip_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        given = args[0] if args else kwargs.get("parameters")
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value"))
        if isinstance(given, paddle.Tensor):
            given = (given,)
        tensors = tuple(given) if isinstance(given, (list, tuple)) else ()  # a generator can be read once: by Paddle
        return tensors, limit, self._frames.live_line(frame)

    def _clipped(self, told: Any, result: Any, error: BaseException | None) -> None:
        if error is None:
            tensors, limit, line = told
            with unseen():
                norm = float(result) if isinstance(result, paddle.Tensor) else None
            self._tell("clipped", None, line, tensors, norm=norm, limit=float(limit) if limit is not None else None)

    def _own_clip_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        """``grad_clip`` of an optimizer, within its step: it gives other gradients, and leaves ``.grad`` as it is."""
        clip, given = args[0], args[1] if len(args) > 1 else kwargs["params_grads"]
        limit = getattr(clip, "clip_norm", None)
        if limit is None or self._clips >= _CLIPS or not self._inside.stepping:
            return None
        self._clips += 1
        clipped = [(value, grad) for value, grad in given if grad is not None and getattr(value, "need_clip", True)]
        with unseen():
            norms = [norm_of(grad) for _, grad in clipped]
        norm = max(norms, default=0.0) if isinstance(clip, ClipGradByNorm) else math.hypot(*norms)
        return tuple(value for value, _ in clipped), norm, float(limit), self._frames.live_line(frame)

    def _own_clipped(self, told: Any, result: Any, error: BaseException | None) -> None:
        stepping = self._inside.stepping
        if error is None and stepping:
            given, norm, limit, line = told
            self._tell("clipped", stepping[-1], line, given, norm=norm, limit=limit)

    # ---- schedulers

    def _scheduler_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        self._inside.schedulers += 1
        return args[0], self._frames.line_of_making(frame, args[0])

    def _scheduler_made(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._inside.schedulers -= 1
        scheduler, line = told
        if error is None and not self._inside.schedulers:
            self._tell("scheduler", None, line, (), scheduler=scheduler)

    def _schedule_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        if self._inside.schedulers:
            return None
        self._inside.schedulers += 1  # what it steps in turn is no step of the program's
        return args[0], self._frames.live_line(frame)

    def _scheduled(self, told: Any, result: Any, error: BaseException | None) -> None:
        self._inside.schedulers -= 1
        scheduler, line = told
        if error is None:
            self._tell("scheduled", None, line, (), scheduler=scheduler)


def _held(optimizer: Any) -> tuple[Any, ...]:
    held = getattr(optimizer, "_parameter_list", None) or ()
    tensors = (each for entry in held for each in (entry["params"] if isinstance(entry, dict) else (entry,)))
    return tuple(value for value in tensors if isinstance(value, paddle.Tensor))


def _scheduler_of(optimizer: Any) -> Any:
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if isinstance(rate, LRScheduler) else None


def state_of(optimizer: Any, tensor: paddle.Tensor) -> tuple[float | None, dict[str, Any]]:
    """See ``Keeping.optimizer_state``."""
    eps: Any = getattr(optimizer, "_epsilon", None)
    kept = getattr(optimizer, "_accumulators", None)
    for entry in getattr(optimizer, "_param_groups", None) or ():
        if isinstance(entry, dict) and any(value is tensor for value in entry.get("params", ())):
            eps = entry.get("epsilon", eps)
    kept = kept if isinstance(kept, dict) else {}
    states = {str(name): each[tensor.name] for name, each in kept.items() if tensor.name in each}
    return float(eps) if type(eps) in (int, float) else None, states


def _rates(optimizer: Any) -> tuple[float, ...]:
    if not isinstance(optimizer, Optimizer):
        return ()
    rate = getattr(optimizer, "_learning_rate", None)
    rate = rate.last_lr if isinstance(rate, LRScheduler) else rate
    if not isinstance(rate, (int, float)):
        return ()
    return tuple(rate * factor for factor in _factors(optimizer)) or (float(rate),)


def _decides(optimizer: Any) -> Any:
    """AdamW asks its one, Lamb the other."""
    kept = getattr(optimizer, "__dict__", {})
    return kept.get("_apply_decay_param_fun") or kept.get("_exclude_from_weight_decay_fn")


def _factors(optimizer: Any) -> tuple[float, ...]:
    """Of the groups that it was given: Paddle multiplies its own rate by theirs."""
    groups = getattr(optimizer, "_param_groups", None) or ()
    factors = [entry.get("learning_rate", 1.0) for entry in groups if isinstance(entry, dict)]
    return tuple(float(factor) for factor in factors if isinstance(factor, (int, float)))


def _kinds(kind: Any) -> Iterator[Any]:
    """Paddle's own classes; one of the user's calls these."""
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__.partition(".")[0] == "paddle":
            yield from _kinds(inner)
