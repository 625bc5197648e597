"""``next`` of a finding: commands that a user can type one after another, and that show something."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, FunctionCall, OperatorCall
from adbg.engine.names import file_matches
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.types import SourceLine

_AT_STOP = ("why alive", "info graph")
_AT_NODE = ("info node",)
_AT_LINE = re.compile(r"b (.+):(\d+)$")
_PLACED = re.compile(r"(b|list) ([^\s:/]+\.py):(\d+)(?= |$)")  # by the name of the file alone


class NodeLines:
    """The lines that recorded nodes, as far as operators were seen: ``b FILE:LINE`` stops at no other. 0.5 us an
    operator, 2 us where its line is new."""

    def __init__(self, backend: Backend) -> None:
        self._has_graph = backend.has_graph
        self._known: set[tuple[SourceLine, ...]] = set()
        self._places: dict[tuple[str, int], set[str]] = {}  # (name of the file, line): the files of that name

    def tell(self, event: str, *what: Any) -> None:
        with suppress(Exception):  # a tensor of the program's own class
            if event == "operator":
                self._operator(*what)
            elif event == "function":
                self._function(*what)

    def _operator(self, call: OperatorCall) -> None:
        if call.grad_mode and call.lines not in self._known and any(map(self._has_graph, call.results)):
            self._known.add(call.lines)
            for line in call.lines:
                self._put(line)

    def _function(self, call: FunctionCall) -> None:
        if call.line is not None:
            self._put(call.line)

    def _put(self, line: SourceLine) -> None:
        self._places.setdefault((os.path.basename(line.file), line.line), set()).add(line.file)

    def _recorded(self, file: str, line: int) -> bool:
        return any(file_matches(file, each) for each in self._places.get((os.path.basename(file), line), ()))

    def shown(self, commands: Sequence[str]) -> list[str]:
        """A line that recorded no node is listed instead, and no node of it is asked for."""
        if not self._places:
            return list(commands)
        kept: list[str] = []
        for command in commands:
            at = _AT_LINE.match(command)
            if at is not None and not self._recorded(at[1], int(at[2])):
                kept.append(f"list {at[1]}:{at[2]}")
            elif command not in _AT_NODE or not kept or not kept[-1].startswith("list "):
                kept.append(command)
        return list(dict.fromkeys(kept))


def told_apart(commands: Sequence[str], lines: Iterable[tuple[str, int]]) -> list[str]:
    """Where the program has several files of one name (``model.py`` of two packages), as much of the path as tells
    them apart: ``b model.py:30`` would stop in either. ``lines``: those of the finding, as (file, line)."""
    places = {(os.path.basename(file), line): file for file, line in lines}
    told: list[str] = []
    for command in commands:
        at = _PLACED.match(command)
        file = places.get((at[2], int(at[3]))) if at is not None else None
        if at is not None and file is not None:
            command = f"{at[1]} {_shortest(file)}:{at[3]}{command[at.end() :]}"
        told.append(command)
    return told


def _shortest(file: str) -> str:
    """The shortest end of the path, by whole components, that no other file of the program has."""
    name = os.path.basename(file)
    others: set[str] = set()
    for module in list(sys.modules.values()):
        with suppress(Exception):  # what a program puts there need not be a module
            each = os.path.abspath(module.__dict__.get("__file__") or "")
            if os.path.basename(each) == name and each != file and is_programs(each):
                others.add(each)
    parts = file.split("/")
    for count in range(1, len(parts)):
        end = "/".join(parts[-count:])
        if not any(file_matches(end, each) for each in others):
            return end if " " not in end else name
    return file if " " not in file else name


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
