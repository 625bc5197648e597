"""Regions of ``torch.utils.checkpoint``: the operators of both passes, compared as the second pass runs (it may end
early: it stops at the last tensor that is needed)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint_module
from torch.overrides import TorchFunctionMode

from adbg.engine.backends.base import Need, RecomputeCall, Tap, Watcher
from adbg.engine.backends.common.observing.recomputes import Listening, Passes, Region
from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private, tensors
from adbg.engine.outside import DISGUISED, suppress

_is_compiling = torch.compiler.is_compiling
# What the first hold means nothing. ``detach`` is what the hooks of checkpoint do to what a custom function saves, in
# the second pass alone.
_LEFT_OUT = frozenset(("empty", "empty_like", "new_empty", "empty_strided", "detach"))

_MOST = 50  # tensors that are kept until a pass ends


class RecomputesTap(Tap):
    need = Need.RECOMPUTES

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._listening = Listening()
        self._original: Any = None
        self._ours: Any = None
        self.codes: set[Any] = set()

    def put_in(self, watcher: Watcher) -> None:
        self._listening.watcher = watcher
        self._original = vars(checkpoint_module).get("checkpoint")
        if self._original is None:
            return
        ours: Any = disguised(_checkpoint(self, self._original), self._original)
        self.codes.add(ours.__code__)
        DISGUISED.add(ours.__code__)
        checkpoint_module.checkpoint = self._ours = ours

    def take_out(self) -> None:
        self._listening.watcher = None
        placed: Any = vars(checkpoint_module)["checkpoint"] if self._ours is not None else None
        if self._ours is not None and placed is self._ours:
            checkpoint_module.checkpoint = self._original
            DISGUISED.discard(placed.__code__)
        self._ours = None

    def region(self, function: Any, kwargs: dict[str, Any], frame: Any) -> Any:
        """The function itself where nothing is to be seen."""
        if self._listening.watcher is None or _is_compiling() or not torch.is_grad_enabled():
            return function
        known = ("preserve_rng_state", "use_reentrant")
        keywords = {name: value for name, value in kwargs.items() if name in known}
        passes = Passes(function, self._frames.live_line(frame), keywords, self._listening.tell)
        return Region(function, passes, self._watched)

    def _watched(self, passes: Passes, args: Any, run: Callable[[], Any]) -> Any:
        if self._listening.watcher is None or _is_compiling():
            return run()
        with suppress(Exception), private.out_of_sight():
            passes.begin(tuple([tensors.norm(each) for each in args if isinstance(each, torch.Tensor)]))
        try:
            with _Log(self, passes):
                return run()
        finally:
            with suppress(Exception), private.out_of_sight():
                passes.end()


class _Log(TorchFunctionMode):
    def __init__(self, tap: RecomputesTap, passes: Passes) -> None:
        super().__init__()
        self._frames = tap._frames
        self._passes = passes
        # What differs in the second pass and carries no gradient, and where that began.
        self._differ: list[tuple[torch.Tensor, RecomputeCall]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except BaseException:
            # The last operator that saves something for backward ends the second pass from within.
            with suppress(Exception), private.out_of_sight():
                source = self._source(args)
                if source is not None:
                    self._passes.tell_once(source)
            raise
        with suppress(Exception), private.out_of_sight():
            name = getattr(func, "__name__", "")
            first = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(first, torch.Tensor) and name not in _LEFT_OUT and not name.startswith("__get"):
                line = self._frames.live_line(sys._getframe(1))
                number = any(type(each) in (int, float) for each in args)
                carries, source = first.requires_grad, self._source(args)
                held = self._passes.row(name, tensors.norm(first), line, number, carries, source)
                if held is not None and len(self._differ) < _MOST:
                    self._differ.append((first, held))
        return result

    def _source(self, args: Any) -> RecomputeCall | None:
        """Where what differs in ``args`` began to."""
        for each in args if self._differ else ():
            for value in each if isinstance(each, (tuple, list)) else (each,):
                for other, call in self._differ if isinstance(value, torch.Tensor) else ():
                    if value.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
                        return call
        return None


def _checkpoint(tap: RecomputesTap, original: Callable[..., Any]) -> Callable[..., Any]:
    region, frame, strip, quietly, codes = tap.region, sys._getframe, strip_own, suppress, tap.codes

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        ours = function
        with quietly(Exception):
            ours = region(function, kwargs, frame(1))
        try:
            return original(ours, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise

    return checkpoint
