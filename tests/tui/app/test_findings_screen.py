"""The screen of findings on F8: a list, the one under the cursor in full, and Enter into graph and source."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.app_driver import Driver, drive

from adbg.engine.errors import NotStopped
from adbg.engine.launch.command_line import program_python
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import SourceLine
from adbg.tui.app.panels.frames import lists_title
from adbg.tui.app.screens.findings import FindingsScreen
from adbg.tui.debugger.findings.store import Findings

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
            "Findings", "2 findings so far: 1 error, 1 warning, in 2 iterations", "error   test_findi", ":12  ",
            "zero-grad  optimizer.zero", "change    ", "norms 1.2, 2.3, 3.5, 4.1", "next      1  p grad",
            "not found so far, in 2 iterations: 1 other kind",
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
        stopped = app.debugger.stop
        await app.press("s")
        await app.until(lambda: app.debugger.stop not in (None, stopped), "the next stop")
        await app.until(lambda: (code.path, code.current) != (__file__, 30), "the line of that stop")

    drive(size, body)


def test_one_that_names_no_node_is_shown_at_a_node_of_its_line() -> None:
    async def body(app: Driver) -> None:
        rows = list(app.app.main.graph.model.rows.values())
        of_line = [row for row in rows if row.forward == rows[8].forward]
        made = min(of_line, key=lambda row: row.index)
        assert rows[8].forward is not None and made.index > 1
        told = replace(FIRST, forward=made.forward)
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True, [told], [], 2)  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("1 finding so far")
        await app.press("enter")
        await app.until(lambda: not isinstance(app.app.screen, FindingsScreen), "the main screen")
        await app.until(lambda: app.app.reader.selected == made.index, "the node that the line made")
        assert (app.app.main.code.path, app.app.main.code.current) == (__file__, 12), "and the line to change"

    drive(WIDE, body)


def test_after_the_end_the_graph_that_is_still_there_shows_the_node() -> None:
    async def body(app: Driver) -> None:
        name, absent = app.agent.names[-1], "NotHere0#7"
        gone = replace(second(absent), id=3, cause=None, forward=None, severity="note")
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True, [second(name), gone])  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("2 findings so far")
        app.program.end(app.agent)
        await app.until(lambda: not app.debugger.alive, "the end")
        await app.shows("cut short: 2 findings: 1 warning, 1 note until the program ended")
        await app.press("enter")
        await app.until(lambda: not isinstance(app.app.screen, FindingsScreen), "the main screen")
        graph = app.app.main.graph
        assert graph.selected is not None and graph.selected.unique_name == name
        assert 0 <= graph.cursor - graph.scroll_offset.y < graph.size.height, "in sight"
        assert (app.app.main.code.path, app.app.main.code.current) == (__file__, 30)
        await app.press("f8", "G", "enter")
        await app.shows(f"{absent} is not in the graph shown")

    drive(NARROW, body, toasts=True)


def test_one_that_comes_later_is_shown_and_none_is_said() -> None:
    async def body(app: Driver) -> None:
        seen = [0]
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(  # type: ignore[attr-defined]
            True, [], [protocol.Examined("in-place", "clear")], seen[0]
        )
        await app.press("f8")
        text = await app.shows(
            "nothing is known so far: no backward has ended since diagnosis was switched on", "let the program run"
        )
        assert "in-place" not in text and "nothing found" not in text, "no all-clear"
        seen[0] = 3
        await app.press("r")
        text = await app.shows(
            "nothing found so far, in 3 iterations", "looked for in 3 iterations, and not found so far: in-"
        )
        assert text.count("nothing found so far") == 1
        app.agent.event(protocol.Found(FIRST))
        await app.shows("1 finding so far, an error", "norms 1.2")
        await app.press("f8")
        assert len(app.app.screen_stack) == 1
        await app.shows("error of rank 0: zero-grad: optimizer.zero_grad()")
        await app.press("f8")
        app.agent.event(protocol.Found(replace(FIRST, severity="note", confidence=0.0)))
        await app.shows("nothing found so far, in 3 iterations", "taken back, it turned out otherwise: zero-grad")

    drive(WIDE, body)


def test_a_long_one_says_what_is_below_and_is_copied_whole() -> None:
    async def body(app: Driver) -> None:
        told = replace(FIRST, evidence=[f"proof {n}" for n in range(40)], cause=None)
        many = [told, *(replace(told, id=n, message=f"number {n}") for n in range(2, 21))]
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True, many)  # type: ignore[attr-defined]
        await app.press("f8")
        text = await app.shows("20 findings so far, all errors", "space ", "proof 0")
        below = int(text.rpartition("space ")[2].partition(" more lines")[0])
        shown = [n for n in range(40) if f"proof {n}" in text]
        assert below > 40 - len(shown) and "proof 39" not in text
        await app.press(*["space"] * 4)
        await app.shows("proof 39", "next      1  p grad")
        await app.press("space")
        await app.shows("proof 0")
        await app.press("G", "y")
        await app.until(lambda: "number 20" in app.app.clipboard and "proof 39" in app.app.clipboard, "all of it")
        await app.press("enter")
        await app.shows("this finding names no line and no node")

    drive(NARROW, body, toasts=True)


def test_a_next_command_is_run_by_its_number() -> None:
    """One of the prompt's runs there; one of a shell is copied, and the screen stays; any other number does nothing."""

    async def body(app: Driver) -> None:
        told = replace(FIRST, next=["p 40 + 2", "adbg diagnose --deep SCRIPT"])
        app.debugger.findings = app.debugger.incoming.findings = Findings((program_python(), "my train.py", "4"))
        app.agent.do_diagnose = lambda _: protocol.DiagnosisBody(True, [told])  # type: ignore[attr-defined]
        await app.press("f8")
        await app.shows("1  p 40 + 2", "2  adbg diagnose")
        await app.press("9", "2")
        await app.until(lambda: app.app.clipboard == "adbg diagnose --deep 'my train.py' 4", "it is copied")
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


@pytest.mark.parametrize(("before", "after"), [(NARROW, WIDE), (WIDE, NARROW)], ids=["wider", "narrower"])
def test_titles_fit_their_columns_when_the_terminal_changed_under_it(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    """The panels below are laid out as the screen is left."""

    async def body(app: Driver) -> None:
        main = app.app.main
        await app.press("f8")
        await app.until(lambda: isinstance(app.app.screen, FindingsScreen), "the findings")
        await app.pilot.resize_terminal(*after)
        await app.pilot.pause()
        await app.press("escape")
        await app.until(lambda: app.app.screen is main and app.app.size == after, "the main screen")

        def fits() -> bool:
            title = main.graph.heading(main.graph.size.width)[0][0]
            tabs = not main.lists.size.width or main.lists_bar.content == lists_title(main.lists)
            return title == str(main.head.content) and tabs

        await app.until(fits, "titles of the columns as they are")

    drive(before, body)


def test_all_keys_of_the_screen() -> None:
    async def body(app: Driver) -> None:
        await app.press("f8", "?")
        await app.shows(
            "Keys of the findings", "copy the finding, with all that proves it", "have the program look now"
        )
        await app.press("?")
        await app.until(lambda: isinstance(app.app.screen, FindingsScreen), "the findings again")

    drive(NARROW, body)
