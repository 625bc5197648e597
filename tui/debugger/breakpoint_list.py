"""The user's breakpoints: one list with ids, sent to every process, and what the processes report about them, merged.

Pure data, no threads of its own: ``Settings`` and ``Incoming`` call it with the model's lock held.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from adbg.engine.errors import CommandError
from adbg.engine.places import parsed
from adbg.engine.protocol.messages import BreakpointRequest, BreakpointState
from adbg.engine.types import SpecKind

_IF = re.compile(r"\s+if\s+")
_SUFFIX = re.compile(r"\s+(?:before|after|every|ignore|backward|rank)\b")


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """One row. ``spec`` is as typed until an agent normalised it; ``hits`` is the sum over all processes;
    ``matches`` counts nodes of the current graph (None: there is none); ``ignore`` is the number of the first hit that
    stops (0: every hit)."""

    id: int
    spec: str
    condition: str = ""
    ignore: int = 0
    enabled: bool = True
    temporary: bool = False
    trace: bool = False
    commands: tuple[str, ...] = ()
    verified: bool = True
    message: str = ""
    matches: int | None = None
    hits: int = 0
    kind: SpecKind | None = None  # what it looks at; None until an agent parsed the spec
    file: str = ""  # of the kind line
    line: int = 0
    after: int = 0  # number of the start of the program that had ended when it was set
    met: bool | None = None  # some node was at its place; None: compared with no whole backward yet

    @property
    def command_text(self) -> str:
        """The command that sets it again, but for what it runs, how often it is ignored and whether it is enabled."""
        word = "trace" if self.trace else "tbreak" if self.temporary else "break"
        return f"{word} {self.spec}" + (f" if {self.condition}" if self.condition else "")

    @property
    def unmatched_text(self) -> str:
        """Said after the first backward that it was compared with."""
        what = "Tracepoint" if self.trace else "Breakpoint"
        why = f": {self.message}" if self.message else ""
        return f"{what} {self.id} ({self.spec}) matched nothing in this backward{why}. It stays set"

    @property
    def request(self) -> BreakpointRequest:
        hit = str(self.ignore) if self.ignore > 1 else ""
        return BreakpointRequest(self.spec, self.id, self.condition, hit, self.enabled, self.temporary, self.trace)


def without_condition(spec: str) -> str:
    """The spec without the ``if EXPR`` that it was typed with. EXPR ends where Python says, as in the agent's
    grammar."""
    found = _IF.search(spec)
    text = spec[found.end() :] if found is not None else ""
    for end in [len(text), *(tail.start() for tail in reversed(list(_SUFFIX.finditer(text))))]:
        with suppress(SyntaxError):
            if found is not None and parsed(text[:end].strip(), mode="eval"):
                return spec[: found.start()] + text[end:]
    return spec


class BreakpointList:
    """Ids count from 1 and are never used twice in a session, also not after ``delete``; a refused one has
    used none."""

    def __init__(self) -> None:
        self._rows: dict[int, Breakpoint] = {}
        self._states: dict[tuple[int, int], BreakpointState] = {}  # (process number, id)
        self._typed: dict[int, str] = {}
        self._last = 0
        self.version = 0  # grows with every change that a process must learn of

    def rows(self) -> tuple[Breakpoint, ...]:
        return tuple(self._rows.values())

    def get(self, number: int) -> Breakpoint:
        """Raises CommandError listing the valid ids."""
        if number not in self._rows:
            have = ", ".join(map(str, self._rows)) or "none is set"
            raise CommandError(f"no breakpoint number {number}", f"breakpoints: {have}")
        return self._rows[number]

    def add(self, spec: str, temporary: bool = False, trace: bool = False, after: int = 0) -> Breakpoint:
        self._last += 1
        row = Breakpoint(self._last, spec, temporary=temporary, trace=trace, after=after)
        self._rows[row.id] = row
        self.version += 1
        self._typed[row.id] = spec
        return row

    def change(
        self,
        number: int,
        *,
        condition: str | None = None,
        ignore: int | None = None,
        enabled: bool | None = None,
        commands: tuple[str, ...] | None = None,
    ) -> Breakpoint:
        """Change a row; None leaves a field as it is."""
        row = self.get(number)
        row = replace(
            row,
            spec=row.spec if condition is None else without_condition(row.spec),
            condition=row.condition if condition is None else condition,
            ignore=row.ignore if ignore is None else ignore,
            enabled=row.enabled if enabled is None else enabled,
            commands=row.commands if commands is None else commands,
        )
        self._rows[number] = row
        self.version += 1
        return row

    def put_back(self, row: Breakpoint) -> None:
        """As it was before a change that was refused."""
        now = self.get(row.id)
        self._rows[row.id] = replace(
            now, spec=row.spec, condition=row.condition, ignore=row.ignore, enabled=row.enabled
        )
        self.version += 1

    def remove(self, number: int) -> Breakpoint:
        row = self.get(number)
        del self._rows[number]
        self.version += 1
        self._states = {key: state for key, state in self._states.items() if key[1] != number}
        return row

    def withdraw(self, number: int) -> None:
        """Remove one that was refused, as if it had never been: its number is free again."""
        self.remove(number)
        if number == self._last:
            self._last -= 1

    def requests(self) -> list[BreakpointRequest]:
        return [replace(row.request, name=self._typed[row.id]) for row in self._rows.values()]

    def learn(self, process: int, states: list[BreakpointState]) -> bool:
        """Take in the report of process number ``process``; true when anything visible changed."""
        before = self.rows()
        for state in states:
            if state.id in self._rows:
                self._states[(process, state.id)] = state
                self._merge(state.id)
        return self.rows() != before

    def forget_process(self, process: int) -> None:
        """Its hits stay counted: they happened."""
        for (number, bp), state in list(self._states.items()):
            if number == process:
                self._states[(number, bp)] = replace(state, matches=None)

    def forget_hits(self) -> None:
        """The program is started again."""
        self._states.clear()
        for number, row in self._rows.items():
            self._rows[number] = replace(row, hits=0, matches=None, met=None, message="", verified=True)

    def _merge(self, number: int) -> None:
        states = [state for (_, bp), state in self._states.items() if bp == number]
        matches = [state.matches for state in states if state.matches is not None]
        best = max(matches) if matches else None
        talks = [state for state in states if state.message and (state.matches == best or not state.verified)]
        row = self._rows[number]
        parsed = next((state for state in states if state.spec), None)
        if parsed is not None:
            row = replace(row, spec=parsed.spec, kind=parsed.kind, file=parsed.file, line=parsed.line)
        self._rows[number] = replace(
            row,
            verified=all(state.verified for state in states),
            message=talks[-1].message if talks else "",
            matches=best,
            met=_met(states),
            hits=sum(state.hits for state in states),
        )


def _met(states: list[BreakpointState]) -> bool | None:
    """Of all processes: true where it was in one of them."""
    known = [state.met for state in states if state.met is not None]
    return any(known) if known else None
