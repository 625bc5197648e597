"""What would show that a mode of ours is on torch's stack: warnings that name a line of adbg's, and two frames of
torch's own in every traceback out of ``Tensor.backward``. On the program's threads."""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from adbg.engine import shown_warnings
from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import DISGUISED, suppress


class RightLines:
    """Warnings name the innermost Python frame: where a mode handles a call of C++, the mode's. They are given again
    for the line that they would name without it, with all that the program's filters make of that.

    A filter lets every one of the mode's module pass. It is put into the list without ``warnings.simplefilter``, which
    would have Python forget what it has shown once.
    """

    def __init__(self, module: str, handle: types.CodeType, handler: types.CodeType) -> None:
        """Args: ``handle`` is called by ``handler``, and calls C++."""
        self._filter = ("always", None, Warning, re.compile(re.escape(module) + r"\Z"), 0)
        self._handle, self._handler = handle, handler
        self._on = False

    def put_in(self) -> None:
        if not self._on and shown_warnings.listen(self._shown):
            self._on = True
            self._let_pass()

    def _shown(self, message: Any) -> bool:
        frame = self._place() if message.filename == self._handle.co_filename else None
        if frame is None:
            return False
        known = frame.f_globals
        registry = known.setdefault("__warningregistry__", {})
        where = frame.f_code.co_filename, frame.f_lineno, known.get("__name__", "<string>")
        warnings.warn_explicit(message.message, message.category, *where, registry, source=message.source)
        return True

    def _let_pass(self) -> None:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if self._filter not in filters:
            filters.insert(0, self._filter)

    def take_out(self) -> None:
        if not self._on:
            return
        shown_warnings.forget(self._shown)
        self._on = False
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        if self._filter in filters:
            filters.remove(self._filter)

    def _place(self) -> types.FrameType | None:
        """The frame that called what the mode handles; None where it does not run."""
        frame: types.FrameType | None = sys._getframe(1)
        with suppress(Exception):
            while frame is not None and frame.f_code is not self._handle:
                frame = frame.f_back
            while frame is not None and frame.f_code in (self._handle, self._handler):
                frame = frame.f_back
            # A function of Python's calls itself through the mode, and warns of its caller.
            if frame is not None and frame.f_code.co_name == "handle_torch_function" and frame.f_back is not None:
                frame = frame.f_back.f_back
        return frame


class PlainBackward:
    """``Tensor.backward`` where our mode alone is on: it is called with the mode aside, as torch would do by calling it
    a second time."""

    def __init__(self, alone: Callable[[], bool], aside: Callable[[], None], back: Callable[[], None]) -> None:
        self._alone, self._aside, self._back = alone, aside, back
        self._put: tuple[Any, Any] | None = None

    def put_in(self) -> None:
        if self._put is not None:
            return
        theirs: Any = torch.Tensor.backward
        # In disguise it has torch's globals, and nothing of this module's.
        alone, aside, back, strip, plain = self._alone, self._aside, self._back, strip_own, _is_plain
        codes: set[types.CodeType] = set()

        def call(*args: Any, **kwargs: Any) -> Any:
            here = bool(args) and plain(args[0]) and alone()
            if here:
                aside()
            try:
                return theirs(*args, **kwargs)
            except BaseException as error:
                strip(error, codes)
                raise
            finally:
                if here:
                    back()

        ours = disguised(call, theirs)
        codes.add(ours.__code__)
        DISGUISED.add(ours.__code__)
        torch.Tensor.backward = ours  # type: ignore[method-assign]
        self._put = theirs, ours

    def take_out(self) -> None:
        if self._put is None:
            return
        theirs, ours = self._put
        if torch.Tensor.backward is ours:
            torch.Tensor.backward = theirs  # type: ignore[method-assign]
            DISGUISED.discard(ours.__code__)
        self._put = None


def _is_plain(value: Any) -> bool:
    """No class of the program's has a say in what is called on it."""
    kind = getattr(type(value), "__torch_function__", None)
    return getattr(kind, "__func__", kind) in (
        getattr(torch.Tensor.__torch_function__, "__func__", None), torch._C._disabled_torch_function_impl,
    )  # fmt: skip
