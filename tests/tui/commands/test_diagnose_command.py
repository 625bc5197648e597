"""The command ``diagnose``: on with the first, a list, one in full, a kind, off; and ``info findings``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.watched_debugger import Watched

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.diagnosis.diagnose import look_again
from adbg.tui.debugger import events
from adbg.tui.debugger.findings import kinds

FOUND = protocol.Finding(
    1, "zero-grad", "error", 0.97, "gradients add up", cause=protocol.Cause("/train.py", 9, "", "opt.step()"),
    evidence=["norms 1, 2, 3"], next=["p grad"],
)  # fmt: skip
OTHER = protocol.Finding(2, "nonfinite", "note", 0.4, "may overflow", evidence=["x"], next=["b nan"])


class Detecting:
    """The agent's side."""

    def __init__(self, *findings: protocol.Finding) -> None:
        self.on = False
        self.asked: list[protocol.Diagnose] = []
        self.findings = list(findings)
        self.iterations = 3

    def __call__(self, request: protocol.Diagnose) -> protocol.DiagnosisBody:
        self.asked.append(request)
        if request.action != "state":
            self.on = request.action == "start"
        shown = self.findings if request.action == "state" else []
        return protocol.DiagnosisBody(self.on, shown, [protocol.Examined("nonfinite", "clear")], self.iterations)


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (kinds.DetectorText(("zero-grad",), "training", ""), kinds.DetectorText(("nonfinite",), "numbers", ""))
    monkeypatch.setattr(kinds, "detectors", lambda: found)


def detecting(watched: Watched, *findings: protocol.Finding) -> Detecting:
    agent = watched.stop_at("MmBackward0")
    answers = agent.do_diagnose = Detecting(*findings)  # type: ignore[attr-defined]
    return answers


def test_the_first_one_switches_it_on_and_looks(watched: Callable[..., Watched]) -> None:
    session = watched()
    answers = detecting(session, OTHER, FOUND)
    text = session.run("diagnose").text
    assert [each.action for each in answers.asked] == ["start", "state"]
    assert "2 findings so far: 1 error, 1 note" in text and text.index("gradients add up") < text.index("may overflow")
    assert "norms" not in text and "`diagnose N` shows" in text
    session.run("diagnose")
    assert [each.action for each in answers.asked] == ["start", "state", "state"]
    one = session.run("diagnose 1")
    assert "evidence  norms 1, 2, 3" in one.text and one.value["kind"] == "zero-grad"  # type: ignore[index]
    only = session.run("diagnose nonfinite")
    assert "may overflow" in only.text and "gradients" not in only.text
    answers.findings.remove(OTHER)
    session.debugger.findings.begin()
    assert session.run("diagnose nonfinite").text.startswith("nonfinite: nothing found so far, in 3 iterations")
    answers.findings.insert(0, OTHER)
    session.run("diagnose")
    answers.findings.append(protocol.Finding(3, "nonfinite", "note", 0.4, "came later"))
    assert "came later" in session.run("info findings").text and answers.asked[-1].action == "state"
    answers.findings.pop()
    for line, hint in (("diagnose 4", "1 to 3"), ("diagnose nonfinit", "closest: nonfinite")):
        with pytest.raises(CommandError, match=hint):
            session.run(line)


def test_switched_on_at_a_stop_it_says_from_when_on_it_watches(watched: Callable[..., Watched]) -> None:
    """Once: with the command, or as the app's screen opens."""
    session = watched()
    detecting(session, FOUND)
    debugger = session.debugger
    text = " ".join(session.run("diagnose").text.split())
    assert "it watches from the end of this backward on" in text and "it knows only what lies at this stop" in text
    assert "`restart` has it watch the whole run" in text
    assert "from the end of" not in session.run("diagnose").text
    session.run("diagnose stop")
    assert "\nit watches from the end of this backward on" in session.run("diagnose start").text
    session.run("diagnose stop")
    look_again(debugger)
    look_again(debugger)
    session.wait(events.Notice, 1)
    (told,) = (each.text for each in session.of(events.Notice) if "diagnosis" in each.text)
    assert told.startswith("diagnosis is on now: it watches from the end of this backward on")
    assert "watches from" not in watched().run("diagnose start").text, "it watches the whole run"


def test_start_and_stop(watched: Callable[..., Watched]) -> None:
    session = watched()
    answers = detecting(session)
    assert "diagnosis is not on" in session.run("info findings").text
    with pytest.raises(CommandError, match="not on"):
        session.run("diagnose stop")
    assert "looks for zero-grad" in session.run("diagnose start deep zero-grad").text
    assert answers.asked == [protocol.Diagnose("start", ["zero-grad"], True)]
    session.run("diagnose start deep zero-grad")
    with pytest.raises(CommandError, match="on already"):
        session.run("diagnose start")
    text = session.run("diagnose").text
    assert "nothing found so far" in text and "not found so far: nonfinite" in text
    assert "off: nothing found, in 3 iterations" in session.run("diagnose stop").text
    assert session.debugger.settings.diagnosis is None and not answers.on


def test_start_deep_looks_closely_where_it_is_on(watched: Callable[..., Watched]) -> None:
    session = watched()
    answers = detecting(session)
    session.run("diagnose")
    assert "in every iteration, from the next one on" in session.run("diagnose start deep").text
    assert answers.asked[-1] == protocol.Diagnose("start", [], True)
    assert session.debugger.settings.diagnosis == answers.asked[-1]
    assert "already" in session.run("diagnose start").text and session.debugger.settings.diagnosis.deep
    with pytest.raises(CommandError, match="on already"):
        session.run("diagnose start deep zero-grad")


def test_no_iteration_was_watched(watched: Callable[..., Watched]) -> None:
    """It does not read as if something had been looked at."""
    session = watched()
    answers = detecting(session)
    answers.iterations = 0
    session.run("diagnose")
    text = session.run("diagnose").text
    assert text.startswith("nothing is known so far: no backward has ended since diagnosis was switched on")
    assert "nothing found" not in text and "not found" not in text and "0 iterations" not in text
    answers.findings = [FOUND]
    found = session.run("diagnose").text
    assert "gradients add up" in found and "0 iterations" not in found
    answers.findings = []
    other = watched()
    detecting(other).iterations = 0
    other.run("diagnose start")
    assert other.run("diagnose stop").text == "diagnosis is off: no backward was watched"


def test_what_comes_is_told_once(watched: Callable[..., Watched]) -> None:
    session = watched()
    detecting(session)
    agent = session.program.agents[0]
    for finding in (FOUND, FOUND, protocol.Finding(1, "zero-grad", "note", 0.0, "gradients add up")):
        agent.event(protocol.Found(finding))
    session.wait(events.Found, 2)
    assert [each.what for each in session.of(events.Found)] == ["told", "taken back"]
    assert session.debugger.findings.ranked() == []


def test_what_the_command_finds_and_lists_is_not_told_besides(watched: Callable[..., Watched]) -> None:
    """At a stop at NaN, the look of the command itself finds it: as diagnosis begins, or is asked."""
    session = watched()
    answers = detecting(session, FOUND)
    agent = session.program.agents[0]

    def looks(request: protocol.Diagnose) -> protocol.DiagnosisBody:
        agent.event(protocol.Found(FOUND))
        return answers(request)

    agent.do_diagnose = looks  # type: ignore[attr-defined]
    assert "gradients add up" in session.run("diagnose").text
    agent.event(protocol.Found(OTHER))
    session.wait(events.Found, 2)
    assert [each.worth_a_line for each in session.of(events.Found)] == [False, True]
    session.debugger.findings.begin()
    assert "nonfinite: nothing" in session.run("diagnose nonfinite").text
    session.wait(events.Found, 3)
    assert session.of(events.Found)[-1].worth_a_line, "it is of another kind, and not in that list"


def test_of_a_job_every_process_says_how_far_it_is(watched: Callable[..., Watched]) -> None:
    """The current one may be the launcher, which calls no backward; one that does not answer holds up nobody."""

    def refuses(_: protocol.Diagnose) -> protocol.DiagnosisBody:
        raise CommandError("not now", "later")

    session = watched(ranks=3)
    session.start()
    current = session.debugger.current
    assert current is not None
    here, busy, silent = sorted(session.program.agents, key=lambda agent: agent.rank != current.rank)
    for agent, count in ((here, 0), (busy, 7)):
        told = protocol.DiagnosisBody(True, [], [protocol.Examined("nonfinite", "clear")], count)
        agent.do_diagnose = lambda _, told=told: told  # type: ignore[attr-defined]
    silent.do_diagnose = refuses  # type: ignore[attr-defined]
    assert "nothing found so far, in 7 iterations" in session.run("diagnose").text
