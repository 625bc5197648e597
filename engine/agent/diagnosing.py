"""Diagnosis of this process, switched on and off by the front end. The first start loads the detectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError
from adbg.engine.outside import own
from adbg.engine.protocol import messages as p
from adbg.engine.session.stop_point import PausedPoint

if TYPE_CHECKING:
    from adbg.engine.agent.agent import Agent
    from adbg.engine.diagnosis.diagnosis import Diagnosis


class Diagnosing:
    """Findings go to the client and into the record. They name lines of the forward: stacks of nodes, which an attach
    leaves off, are on as long as diagnosis is.

    Attributes:
        stacks: they are on for this alone, and go off with it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._now: Diagnosis | None = None
        self.stacks = False

    def answer(self, request: p.Diagnose, point: PausedPoint | None = None) -> p.DiagnosisBody:
        """Answer ``adbg/diagnose``, with a ``point`` on the thread that stands there.

        Raises:
            CommandError: it is on already, and was asked for other kinds, or another number of iterations.
        """
        if request.action == "start":
            self._start(request)
        found = self._now
        if found is None:
            return p.DiagnosisBody(False)
        if request.action == "stop":
            found.stop(point is not None)
        elif point is not None and found.active:
            found.look(point)
        on = found.active and not found.stopping
        return p.DiagnosisBody(on, found.findings(), found.examined(), found.iteration)

    def _start(self, request: p.Diagnose) -> None:
        from adbg.engine.diagnosis.diagnosis import Diagnosis

        now, session = self._now, self._agent.session
        if now is not None and now.active and not now.stopping:
            if (now.only, now.iterations) != (frozenset(request.only), request.iterations):
                raise CommandError("diagnosis is on already, for other things", "`diagnose stop`, then start it again")
            if request.deep:
                now.look_closely()
            return
        if now is not None:
            session.unobserve(now)
        if not session.stacks:
            self.stacks = True
            session.set_stacks(True)
        self._now = made = Diagnosis(session, self._told, request.only, request.deep, request.iterations, True)
        session.observe(made)
        made.began()

    def _told(self, event: Any) -> None:
        if self.stacks and isinstance(event, p.DiagnosisEnds):
            self.stacks = False
            self._agent.session.set_stacks(False)
        self._agent.event(event)
        self._agent.record.note_diagnosis(event)

    def program_starts(self) -> None:
        """Before the script goes on: on the main thread, or in a child on the one that imports a framework, of which
        nothing has run yet; in a forked one on that which begins to train, of whose first step a part may have run."""
        if self._now is not None:
            try:
                self._now.program_starts()
            except own(Exception) as defect:
                self._agent.session.problems.defect("diagnosis did not begin", defect)

    def program_ends(self, error: BaseException | None, interrupted: bool) -> None:
        """On the main thread, ``error`` if that ends it; ``interrupted``: Ctrl-C does."""
        if self._now is None:
            return
        try:
            self._now.program_ends(error, interrupted)
        except own(Exception) as defect:
            self._agent.session.problems.defect("diagnosis did not come to its end", defect)
