"""The frameworks' own debugging aids, as ``adbg/aids`` shows and switches them. On "adbg-reader"."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from adbg.engine.backends.base import Aid, Backend
from adbg.engine.errors import CommandError, NotStopped, Unsupported
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.observers import Observer
from adbg.engine.session.session import Session


class AidSwitches(Observer):
    """What the client switched; put back when it disconnects. Before a framework is imported, what is asked for is kept
    until one comes that has it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[str, str] = {}

    def answer(self, name: str, value: str) -> p.AidsBody:
        """``name`` "": list them all. Raises CommandError, Unsupported, NotStopped."""
        return self._session.change(lambda: self._answer(name, value))

    def _answer(self, name: str, value: str) -> p.AidsBody:
        backends = self._session.backends
        if name and value and not backends:
            return keep(self._kept, name, value)
        return switched(backends, name, value)

    def backend_added(self, backend: Backend) -> None:
        for problem in switch_kept(backend, self._kept):
            self._session.problems.say(problem)

    def detach(self) -> None:
        self._kept.clear()
        for backend in self._session.backends:
            try:
                aids = backend.aids()
                if aids is not None:
                    aids.restore()
            except own(Exception) as error:
                self._session.problems.defect("a framework's own aids are not as they were", error)


def switched(backends: Sequence[Backend], name: str, value: str) -> p.AidsBody:
    """Switch ``name`` to ``value``; "" lists them all.

    Raises:
        CommandError: no such aid or value; Unsupported: not in this build; NotStopped: no framework is imported yet.
    """
    found = [(backend.name, aids) for backend in backends if (aids := backend.aids()) is not None]
    if not backends:
        raise NotStopped("no framework is imported yet", "continue until the program imports one")
    if not found:
        names = ", ".join(backend.name for backend in backends)
        raise Unsupported(f"{names} has no aids of its own that adbg switches", "breakpoints do much of it: break nan")
    if not name:
        return p.AidsBody([_row(framework, aid) for framework, aids in found for aid in aids.list()])
    for framework, aids in found:
        if any(aid.name == name for aid in aids.list()):
            return p.AidsBody([_row(framework, aids.set(name, value))])
    known = [aid.name for _, aids in found for aid in aids.list()]
    close = difflib.get_close_matches(name, known, 3, 0.4) or known
    raise CommandError(f"unknown aid {name!r}", f"closest: {', '.join(close)}")


def keep(kept: dict[str, str], name: str, value: str) -> p.AidsBody:
    """Before a framework is imported: ``name`` is switched as soon as one is that has it."""
    kept[name] = value
    return p.AidsBody([p.AidRow("", name, value, "", "", "kept: switched when the framework is imported")])


def switch_kept(backend: Backend, kept: dict[str, str]) -> list[str]:
    """Switch what was kept, now that ``backend`` is there. Returns what could not be switched, and why."""
    found = backend.aids() if kept else None
    if found is None:
        return []
    problems = []
    known = {aid.name for aid in found.list()}
    for name in list(kept):
        value = kept.pop(name)
        try:
            if name not in known:
                raise CommandError(f"{backend.name} has no aid of that name", f"it has {', '.join(sorted(known))}")
            found.set(name, value)
        except own(Exception) as error:  # a framework that answers oddly must not keep its program from running
            problems.append(f"aids {name} {value}: {error}")
    return problems


def _row(framework: str, aid: Aid) -> p.AidRow:
    return p.AidRow(framework, aid.name, aid.value, aid.values, aid.what, aid.note)
