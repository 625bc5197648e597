"""Hooks that the program registers on tensors and layers of Paddle."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import paddle

from adbg.engine.backends.base import HookCall, Need, Tap, Watcher
from adbg.engine.backends.common.observing.hooks import Measures, Told, ToldHook, alike, code_of
from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle import private, tensors
from adbg.engine.outside import DISGUISED, suppress

_MOST = 1_000  # leaves whose hooks are counted
# Of layers: what registers a hook, and where the layer keeps it.
_COUNTED = (
    ("register_forward_pre_hook", "_forward_pre_hooks"),
    ("register_forward_post_hook", "_forward_post_hooks"),
)


class HooksTap(Tap):
    need = Need.HOOKS

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._told = Told()
        self.codes: set[types.CodeType] = set()
        self._original: Any = None
        self._ours: Any = None
        self._put: list[tuple[str, Any, Any]] = []
        self._alive: dict[int, dict[Any, int]] = {}  # by leaf: Paddle does not show which hooks a tensor has
        self._measures = Measures(tensors.norm, _version, _hidden, tensors.is_tensor)

    def put_in(self, watcher: Watcher) -> None:
        self._told.watcher = watcher
        self._original = getattr(paddle.Tensor, "register_hook", None)
        if self._original is None:
            return
        ours: Any = disguised(_registering(self, self._original), self._original)
        DISGUISED.add(ours.__code__)
        self.codes.add(ours.__code__)
        setattr(paddle.Tensor, "register_hook", ours)  # noqa: B010  (a type of C++)
        self._ours = ours
        for name, kept in _COUNTED:
            of_layer: Any = vars(paddle.nn.Layer).get(name)
            if of_layer is not None:
                counting: Any = disguised(_counting(self, of_layer, kept), of_layer)
                DISGUISED.add(counting.__code__)
                self.codes.add(counting.__code__)
                setattr(paddle.nn.Layer, name, counting)
                self._put.append((name, of_layer, counting))

    def take_out(self) -> None:
        self._told.watcher = None
        placed: Any = paddle.Tensor.register_hook
        if self._ours is not None and placed is self._ours:
            setattr(paddle.Tensor, "register_hook", self._original)  # noqa: B010
            DISGUISED.discard(placed.__code__)
        self._ours = None
        for name, of_layer, counting in self._put:
            if vars(paddle.nn.Layer).get(name) is counting:
                setattr(paddle.nn.Layer, name, of_layer)
                DISGUISED.discard(counting.__code__)
        self._put = []
        self._alive = {}

    def stand_in(self, hook: Any, frame: types.FrameType) -> Any:
        if self._told.watcher is None or self._frames.user_file(frame.f_code.co_filename) is None:
            return hook
        if not callable(hook) or not paddle.in_dynamic_mode():
            return hook
        return ToldHook(hook, "tensor", self._frames.live_line(frame), "", self._told, self._measures)

    def registered(self, on: Any, hook: Any, handle: Any) -> None:
        watcher = self._told.watcher
        if watcher is None or not isinstance(hook, ToldHook):
            return
        target = id(on) if on.is_leaf and on.persistable else 0
        alive = 0
        if target and len(self._alive) < _MOST:
            counts = self._alive.setdefault(target, {})
            same = code_of(hook._hook)
            alive = counts[same] = counts.get(same, 0) + 1
            self._count_removal(handle, counts, same)
        line = hook._registered
        watcher.hook(HookCall("registered", hook._hook, None, None, False, line, "", None, target, alive))

    def counted(self, on: Any, hook: Any, kept: str, frame: types.FrameType) -> None:
        """One on a layer: told of as it is registered only."""
        watcher = self._told.watcher
        if watcher is None or self._frames.user_file(frame.f_code.co_filename) is None:
            return
        line, name, alive = self._frames.live_line(frame), type(on).__name__, alike(getattr(on, kept, None) or {}, hook)
        watcher.hook(HookCall("registered", hook, None, None, False, line, name, None, id(on), alive))

    @staticmethod
    def _count_removal(handle: Any, counts: dict[Any, int], same: Any) -> None:
        remove = handle.remove

        def counted() -> Any:
            counts[same] = max(0, counts.get(same, 0) - 1)
            return remove()

        handle.remove = counted


def _registering(tap: HooksTap, original: Callable[..., Any]) -> Callable[..., Any]:
    stand_in, registered, frame, strip, quietly = tap.stand_in, tap.registered, sys._getframe, strip_own, suppress
    codes = tap.codes

    def register_hook(self: Any, hook: Any) -> Any:
        ours = hook
        with quietly(Exception):
            ours = stand_in(hook, frame(1))
        try:
            handle = original(self, ours)
        except BaseException as error:
            strip(error, codes)
            raise
        with quietly(Exception):
            registered(self, ours, handle)
        return handle

    return register_hook


def _counting(tap: HooksTap, original: Callable[..., Any], kept: str) -> Callable[..., Any]:
    counted, frame, strip, quietly, codes = tap.counted, sys._getframe, strip_own, suppress, tap.codes

    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            handle = original(self, hook, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise
        with quietly(Exception):
            counted(self, hook, kept, frame(1))
        return handle

    return register


def _version(value: Any) -> int | None:
    return value.inplace_version if tensors.is_tensor(value) and tensors.defined(value) else None


def _hidden(work: Callable[[], Any]) -> Any:
    recorded = private.has_grad()
    private.set_has_grad(False)
    try:
        return work()
    finally:
        private.set_has_grad(recorded)
