"""``next`` of a finding: commands that a user can type one after another, and that show something."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import Backend, FunctionCall, OperatorCall
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_AT_STOP = ("why alive", "info graph")
_AT_NODE = ("info node",)
_AT_LINE = re.compile(r"b (.+):(\d+)$")


class NodeLines:
    """The lines that recorded nodes, as far as operators were seen: ``b FILE:LINE`` stops at no other. 0.5 us an
    operator, 2 us where its line is new."""

    def __init__(self, backend: Backend) -> None:
        self._has_graph = backend.has_graph
        self._known: set[tuple[SourceLine, ...]] = set()
        self._places: set[tuple[str, int]] = set()  # (name of the file, line)

    def tell(self, event: str, *what: Any) -> None:
        with suppress(Exception):  # a tensor of the program's own class
            if event == "operator":
                self._operator(*what)
            elif event == "function":
                self._function(*what)

    def _operator(self, call: OperatorCall) -> None:
        if call.grad_mode and call.lines not in self._known and any(map(self._has_graph, call.results)):
            self._known.add(call.lines)
            self._places.update(map(_place, call.lines))

    def _function(self, call: FunctionCall) -> None:
        if call.line is not None:
            self._places.add(_place(call.line))

    def shown(self, commands: Sequence[str]) -> list[str]:
        """A line that recorded no node is listed instead, and no node of it is asked for."""
        if not self._places:
            return list(commands)
        kept: list[str] = []
        for command in commands:
            at = _AT_LINE.match(command)
            if at is not None and (os.path.basename(at[1]), int(at[2])) not in self._places:
                kept.append(f"list {at[1]}:{at[2]}")
            elif command not in _AT_NODE or not kept or not kept[-1].startswith("list "):
                kept.append(command)
        return list(dict.fromkeys(kept))


def _place(line: SourceLine) -> tuple[str, int]:
    return os.path.basename(line.file), line.line


def as_typed(commands: Sequence[str]) -> list[str]:
    """Behind breakpoints, what looks comes at the stop, after ``c``. What can only be asked at a stop has one
    first."""
    typed: list[str] = []
    if commands and commands[0] in _AT_STOP:
        typed = ["b backward"]
    for command in commands:
        looks = not command.startswith(("b ", "adbg ")) and command != "c"
        typed += ["c", command] if looks and typed and typed[-1].startswith("b ") else [command]
    return typed
