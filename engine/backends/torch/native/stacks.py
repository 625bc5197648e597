"""Forward stacks and modules taken by the extension as nodes are made: 0.1 us a node, nothing of anomaly mode.

Switched on "adbg-reader" or the thread that prepares; asked on any thread.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from adbg.engine.backends.torch.native.core import Core
from adbg.engine.own_files import SHOWN
from adbg.engine.types import SourceLine


class NativeTrace:
    """The stack of nodes: ``frames`` (code, lasti) innermost first, ``path`` of the innermost module. ``told``: under
    which ``SHOWN.version``, and its lines."""

    __slots__ = ("frames", "path", "told")

    def __init__(self, frames: tuple[tuple[types.CodeType, int], ...], path: str | None) -> None:
        self.frames = frames
        self.path = path
        self.told: tuple[int, tuple[SourceLine, ...]] = (-1, ())


class NativeStacks:
    """See above. ``on``: nodes that are made now have a stack."""

    def __init__(self, core: Core) -> None:
        self.on = False
        self._core = core
        self._traces: dict[int, NativeTrace] = {}
        self._lines: dict[tuple[int, int], tuple[types.CodeType, int]] = {}  # by address: equal ones may differ here

    def set(self, on: bool) -> str:
        """ "" where it is as asked, else why it cannot be: nothing was changed then."""
        module = self._core.module
        if module is None or (on and self._core.layout()):
            return self._core.why or self._core.layout()
        if on:
            module.modules(torch.nn.Module._wrapped_call_impl.__code__, "_modules")
        why: str = module.torch_stacks(on)
        if why:
            self._core.failed["stacks"] = why
        else:
            self.on = on
        return why

    def trace(self, node: Any) -> NativeTrace | None:
        module = self._core.module
        return self.numbered(module.torch_stack_number(node)) if module is not None else None

    def numbered(self, number: int) -> NativeTrace | None:
        module = self._core.module
        if not number or module is None:
            return None
        known = self._traces.get(number)
        if known is None:
            found = module.stack(number)
            if found is None:
                return None
            if len(self._traces) >= 1 << 14:
                self._traces.clear()
            known = self._traces[number] = NativeTrace(found[0], found[1])
        return known

    def roots(self) -> Iterable[Any]:
        """Modules that ran as the outermost ones."""
        module = self._core.module
        found: list[Any] = module.roots() if module is not None else []
        return found

    def user_lines(self, trace: NativeTrace, shown: Callable[[str], str | None]) -> tuple[SourceLine, ...]:
        version = SHOWN.version
        if trace.told[0] != version:
            files = [(shown(code.co_filename), code, lasti) for code, lasti in trace.frames]
            lines = [SourceLine(file, self._line(code, lasti), code.co_name) for file, code, lasti in files if file]
            trace.told = (version, tuple(lines))
        return trace.told[1]

    def _line(self, code: types.CodeType, lasti: int) -> int:
        known = self._lines.get((id(code), lasti))
        if known is None:
            if len(self._lines) >= 1 << 15:
                self._lines.clear()
            known = self._lines[id(code), lasti] = code, _line_at(code, lasti)
        return known[1]


def _line_at(code: types.CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno
