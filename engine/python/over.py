"""What is still known of a call that is over: a forward frame of which a stack kept file, line and function.

Its locals are gone. Its module lives, so a name is read there if the function itself had no local of that name (by the
code that its source compiles to). Runs on the parked thread; a file is compiled once (1 ms for 300 lines).
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class OverFrame:
    """A frame that ended. ``elsewhere(name)`` tells of a running frame that has the name, "" where none has."""

    line: SourceLine
    elsewhere: Callable[[str], str] = field(default=lambda name: "")

    def __str__(self) -> str:
        return f"{self.line.function} ({os.path.basename(self.line.file)}:{self.line.line})"

    def globals(self) -> Mapping[str, Any]:
        """Names of its module that the function did not hide; {} where that cannot be told."""
        names = _module_names(self.line.file)
        if names is None or self.line.function == "<module>":
            return names or {}
        hidden = _local_names(self.line.file, self.line.line, self.line.function)
        return {} if hidden is None else {name: value for name, value in names.items() if name not in hidden}

    def had(self, name: str) -> bool:
        """Whether it was a local of that function; False where the source does not tell."""
        return name in (_local_names(self.line.file, self.line.line, self.line.function) or ())

    def refusal(self, name: str) -> tuple[str, str]:
        """Why ``name`` is not known here, and what to do."""
        return (
            f"{name!r} is not known in {self}: its locals as the forward had them are gone",
            self.elsewhere(name) or "what it saved is in `saved`; `where` shows the frames that run",
        )

    def refuse_locals(self) -> None:
        raise CommandError(f"the locals of {self} are gone: that call of the forward is over", "select a live frame")


def _module_names(file: str) -> Mapping[str, Any] | None:
    for name in ("__main__", *list(sys.modules)):
        module = sys.modules.get(name)
        found = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
        if isinstance(found, str) and os.path.abspath(found) == file:
            return vars(module)
    return None


@functools.lru_cache(maxsize=256)
def _local_names(file: str, line: int, function: str) -> frozenset[str] | None:
    """Locals of the function that has ``line``; None where the source does not tell."""
    try:
        code = compile("".join(linecache.getlines(file)), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [
        {*inner.co_varnames, *inner.co_cellvars, *inner.co_freevars}
        for inner in _codes(code)
        if inner.co_name == function and any(line == place for _, _, place in inner.co_lines())
    ]
    return frozenset().union(*found) if found else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)
