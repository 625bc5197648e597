"""Hooks that the program registers on torch: on tensors, for accumulated gradients, on modules."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from adbg.engine.backends.base import HookCall, Need, Tap, Watcher
from adbg.engine.backends.common.observing.hooks import Measures, Told, ToldHook, alike
from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private, tensors
from adbg.engine.outside import DISGUISED, suppress

_is_compiling = torch.compiler.is_compiling
_Register = Callable[..., Any]
# Of modules: what registers a hook that no gradient is looked at for, and where the module keeps it.
_COUNTED = (
    ("register_forward_hook", "_forward_hooks"),
    ("register_forward_pre_hook", "_forward_pre_hooks"),
    ("register_full_backward_pre_hook", "_backward_pre_hooks"),
)


class HooksTap(Tap):
    need = Need.HOOKS

    def __init__(self, frames: FrameFilter, address: Callable[[Any], int]) -> None:
        self._frames = frames
        self._address = address
        self._told = Told()
        self.codes: set[types.CodeType] = set()
        self._put: list[tuple[Any, str, Any, Any]] = []
        self._measures = Measures(
            tensors.norm, _version, _hidden, lambda value: isinstance(value, torch.Tensor), _shared
        )

    def put_in(self, watcher: Watcher) -> None:
        self._told.watcher = watcher
        points = (
            (torch.Tensor, "register_hook", "tensor", "_backward_hooks"),
            (torch.Tensor, "register_post_accumulate_grad_hook", "accumulate", "_post_accumulate_grad_hooks"),
            (torch.nn.Module, "register_full_backward_hook", "module backward", "_backward_hooks"),
        )
        for owner, name, what, kept in points:
            self._place(owner, name, functools.partial(_registering, self, what=what, kept=kept))
        for name, kept in _COUNTED:
            self._place(torch.nn.Module, name, functools.partial(_counting, self, kept=kept))

    def _place(self, owner: Any, name: str, stand_in: Callable[[_Register], _Register]) -> None:
        original = vars(owner).get(name)
        if original is None:
            return
        ours = disguised(stand_in(original), original)
        DISGUISED.add(ours.__code__)
        self.codes.add(ours.__code__)
        setattr(owner, name, ours)
        self._put.append((owner, name, original, ours))

    def take_out(self) -> None:
        self._told.watcher = None
        for owner, name, original, ours in self._put:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
                DISGUISED.discard(ours.__code__)
        self._put = []

    def stand_in(self, on: Any, hook: Any, what: str, frame: types.FrameType) -> Any:
        """The hook itself where it is not the program's, or something compiles."""
        if self._told.watcher is None or _is_compiling() or self._frames.user_file(frame.f_code.co_filename) is None:
            return hook
        line = self._frames.live_line(frame)
        node = 0
        if what == "tensor":
            with private.undisturbed():  # asked of a class of the program's own, it would see the question
                node = self._address(on.grad_fn) if on.grad_fn is not None else 0
        return ToldHook(hook, what, line, "", self._told, self._measures, node)

    def registered(self, on: Any, hook: Any, what: str, kept: str) -> None:
        watcher = self._told.watcher
        if watcher is None or not isinstance(hook, ToldHook):
            return
        lasting = isinstance(on, torch.nn.Module) or on.is_leaf
        alive = alike(getattr(on, kept, None) or {}, hook)
        name = type(on).__name__ if isinstance(on, torch.nn.Module) else ""
        call = HookCall(
            "registered", hook._hook, None, None, False, hook._registered, name, None, id(on) if lasting else 0, alive
        )
        watcher.hook(call)

    def counted(self, on: Any, hook: Any, kept: str, frame: types.FrameType) -> None:
        """One that is told of as it is registered only: no gradient is handed to it."""
        watcher = self._told.watcher
        if watcher is None or _is_compiling() or self._frames.user_file(frame.f_code.co_filename) is None:
            return
        line, name, alive = self._frames.live_line(frame), type(on).__name__, alike(getattr(on, kept, None) or {}, hook)
        watcher.hook(HookCall("registered", hook, None, None, False, line, name, None, id(on), alive))


def _counting(tap: HooksTap, original: _Register, kept: str) -> _Register:
    counted, frame, strip, quietly = tap.counted, sys._getframe, strip_own, suppress
    codes, hidden = tap.codes, private.undisturbed

    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            handle = original(self, hook, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise
        with quietly(Exception), hidden():
            counted(self, hook, kept, frame(1))
        return handle

    return register


def _registering(tap: HooksTap, original: _Register, what: str, kept: str) -> _Register:
    stand_in, registered, frame, strip, quietly = tap.stand_in, tap.registered, sys._getframe, strip_own, suppress
    codes, hidden = tap.codes, private.undisturbed

    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        ours = hook
        with quietly(Exception):
            ours = stand_in(self, hook, what, frame(1))
        try:
            handle = original(self, ours, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise
        with quietly(Exception), hidden():
            registered(self, ours, what, kept)
        return handle

    return register


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def _shared(value: Any) -> bool:
    """The engine's buffer of the node and Python hold a gradient: 2 uses; where a sum has handed its own to another
    branch, too, that has it as well: 3."""
    count = getattr(value, "_use_count", None)
    return count is not None and int(count()) > 2


def _hidden(work: Callable[[], Any]) -> Any:
    with private.undisturbed():
        return work()
