"""The screen of findings on F8: a list, the one under the cursor in full, and Enter into graph and source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.app_driver import Driver, drive

from adbg.engine.errors import NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import SourceLine
from adbg.tui.app.screens.findings import FindingsScreen

WIDE, NARROW = (160, 45), (80, 24)
CAUSE = protocol.Cause(__file__, 12, "step", "from adbg.engine.types import SourceLine")
MESSAGE = "optimizer.zero_grad() is never called: gradients of fc1.weight and 3 more add up over 4 iterations"
FIRST = protocol.Finding(
    1, "zero-grad", "error", 0.97, MESSAGE, backward=2, cause=CAUSE,
    evidence=["norms 1.2, 2.3, 3.5, 4.1", "no zero_grad between step 1 and step 4"], next=["p grad"],
)  # fmt: skip


def second(name: str) -> protocol.Finding:
    node = protocol.FoundAt(name.partition("#")[0], name, "fc2", None)
    line = protocol.Cause(__file__, 30, "forward", "x = x / 0")
    made = SourceLine(__file__, 29, "forward")
    return protocol.Finding(2, "nonfinite", "warning", 0.8, "a division by zero", node, 2, 2, made, line, ["saved 0.0"])


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_a_list_what_proves_it_and_where_it_is(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        asked: list[str] = []
        name = app.agent.names[4]

        def answer(request: protocol.Diagnose) -> protocol.DiagnosisBody:
            asked.append(request.action)
            shown = [FIRST, second(name)] if request.action == "state" else []
            return protocol.DiagnosisBody(True, shown, [protocol.Examined("in-place", "clear")], 2)

        app.agent.do_diagnose = answer  # type: ignore[attr-defined]
        await app.press("f8")
        text = await app.shows(
            "Findings", "2 findings: 1 error, 1 warning", "error   test_findings_sc", "zero-grad  optimizer.zero",
            "change    ", "norms 1.2, 2.3, 3.5, 4.1", "next      1  p grad", "1 other kind of findings", "so far",
        )  # fmt: skip
        assert asked == ["start", "state"] and max(len(line) for line in text.splitlines()) <= size[0]
        await app.press("j")
        await app.shows("x = x / 0", "saved 0.0", f"{name}, of module fc2", "certainty 80%")
        await app.press("enter")
        await app.until(lambda: not isinstance(app.app.screen, FindingsScreen), "the main screen")
        code, graph = app.app.main.code, app.app.main.graph
        await app.until(lambda: (code.path, code.current) == (__file__, 30), "the line to change")
        row = graph.selected
        assert row is not None and row.unique_name == name

    drive(size, body)


def test_one_that_comes_later_is_shown_and_none_is_said() -> None:
    async def body(app: Driver) -> None:
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True)  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("nothing found", "diagnosis is on now")
        app.agent.event(protocol.Found(FIRST))
        await app.shows("1 finding: 1 error", "norms 1.2")
        await app.press("f8")
        assert len(app.app.screen_stack) == 1
        await app.shows("error of rank 0: zero-grad: optimizer.zero_grad()")

    drive(WIDE, body)


def test_a_next_command_is_run_by_its_number() -> None:
    """One of the prompt's runs there; one of a shell is copied, and the screen stays; any other number does nothing."""

    async def body(app: Driver) -> None:
        told = replace(FIRST, next=["p 40 + 2", "adbg diagnose --deep SCRIPT"])
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True, [told])  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("1  p 40 + 2", "2  adbg diagnose")
        await app.press("9", "2")
        await app.until(lambda: app.app.clipboard == "adbg diagnose --deep SCRIPT", "it is copied")
        assert isinstance(app.app.screen, FindingsScreen)
        await app.press("1")
        await app.until(lambda: not isinstance(app.app.screen, FindingsScreen), "the main screen")
        await app.shows("p 40 + 2")

    drive(WIDE, body)


def test_what_cannot_be_asked_is_said() -> None:
    async def body(app: Driver) -> None:
        def refuse(_: object) -> protocol.DiagnosisBody:
            raise NotStopped("not now", "later")

        app.agent.do_diagnose = refuse  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("not now")

    drive(WIDE, body)
