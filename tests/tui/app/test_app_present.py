"""What is shown is of the present, or says that it is not: after `continue`, `restart`, the end, and in another
process."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from support.app_driver import Driver, drive
from support.scripted_agent import ScriptedProgram

from adbg.engine.protocol import messages as protocol
from adbg.tui.app.app import AdbgApp
from adbg.tui.debugger.debugger import Debugger

WIDE = (160, 45)
NARROW = (80, 24)
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
PAST = "as at the last stop"


async def step_to(app: Driver, last: int) -> None:
    for index in range(1, last + 1):
        await app.press("s")
        await app.stopped_at(index)


@SIZES
def test_a_program_that_runs_on_has_no_figures_of_its_last_stop(size: tuple[int, int]) -> None:
    """`c` left "4/204", the time of node 4 and the sum as if they were of now."""

    async def body(app: Driver) -> None:
        await step_to(app, 4)
        assert "4/204" in app.status and PAST not in app.text
        app.agent.do_continue = lambda arguments: protocol.ContinueBody()  # type: ignore[method-assign]  # and runs
        await app.press("c")
        await app.shows("RUNNING", PAST)
        assert not any(piece in app.status for piece in ("/204", "Σ", "non-finite", "#4", "edited", "%"))
        titles = [line for line in app.text.splitlines() if "1 Graph" in line]
        assert titles and all(PAST in line for line in titles)
        # one node of it ran meanwhile: that is news
        app.agent.event(protocol.NodesRan(1, [protocol.NodeRan(7, 3.0, 0.5, False)]))
        await app.until(lambda: "7/204" in app.status, "progress")
        # the next stop is the present again
        app.agent.go(lambda: app.agent.stop_at(9))
        await app.stopped_at(9)
        await app.until(lambda: PAST not in app.text, "the present")
        assert "9/204" in app.status

    drive(size, body)


@SIZES
def test_the_end_leaves_the_last_stop_to_be_read_as_such(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await step_to(app, 3)
        await app.press("c")
        await app.shows("EXITED", PAST)
        assert "/204" not in app.status and "Σ" not in app.status

    drive(size, body)


def test_a_node_that_was_not_read_shows_no_other_ones_values() -> None:
    """Values and stack of the last stop's node stood beside it."""

    async def body(app: Driver) -> None:
        await step_to(app, 3)
        value, lists = app.app.main.value, app.app.main.lists
        await app.until(lambda: value.model.target, "the values of the stop")
        await app.press("c")
        await app.shows("EXITED", PAST)
        assert value.model.target, "what was read stays"
        await app.press("1", "j", "j")
        rows, reader = app.app.main.graph.model.rows, app.app.reader
        await app.until(lambda: f"`b {rows[reader.selected].unique_name}`" in value.waiting, "that it was not read")
        assert not value.model.target and rows[reader.selected].unique_name in lists.frames[0].name

    drive(WIDE, body)


@SIZES
def test_a_restart_shows_nothing_of_the_run_before(size: tuple[int, int]) -> None:
    """The numbers and the graph of the dead run stood there until the next stop."""

    async def body(app: Driver) -> None:
        await step_to(app, 4)
        await app.press("c")
        await app.shows("EXITED")
        assert "LogSoftmax" in app.text
        started: list[str] = []

        def begin(arguments: protocol.ConfigurationDone) -> protocol.Empty:
            started.append("it runs, and does not stop yet")
            return protocol.Empty()

        original = type(app.agent).do_configurationDone
        type(app.agent).do_configurationDone = lambda agent, arguments: begin(arguments)  # type: ignore[method-assign]
        try:
            await app.command("restart")
            await app.shows("RUNNING")
            await app.until(lambda: started and not app.app.main.graph.model.total, "an empty graph")
            lines = app.text.partition("5 Console")[0].splitlines()
            panels = "\n".join(line for line in lines if "step: before" not in line)  # but the log, which is of times
            for old in ("LogSoftmax", "/204", "EXITED", "iter", "Σ", "bwd#", PAST, "grad_outputs[0]"):
                assert old not in panels, old
        finally:
            type(app.agent).do_configurationDone = original  # type: ignore[method-assign]
        app.agent.actions.put(lambda: app.agent.stop_at(2))
        await app.stopped_at(2)
        await app.shows("LogSoftmax", "2/204")

    drive(size, body)


def test_the_status_bar_names_the_process_and_another_one_is_said() -> None:
    async def main() -> None:
        program = ScriptedProgram(ranks=2)
        debugger = Debugger(program, title="train.py")
        debugger.settings.add_breakpoint("Relu")
        app = AdbgApp(debugger)
        try:
            async with app.run_test(size=WIDE) as pilot:
                driver = Driver(app, pilot, program, debugger)  # type: ignore[arg-type]
                await driver.until(lambda: debugger.model.waiting, "both have stopped")
                first = debugger.current
                assert first is not None
                await driver.until(
                    lambda: f"process {first.number} rank {first.rank} of 2" in driver.status, "its name"
                )
                other = 3 - first.number
                await driver.command(f"process {other}")
                await driver.until(lambda: f"process {other} " in driver.status, "the other one")
                await driver.shows(f"Shown now: process {other}")
        finally:
            debugger.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_breakpoint_that_matches_nothing_stays_in_the_status_bar() -> None:
    async def body(app: Driver) -> None:
        await app.command("break Nowhere")
        await app.until(lambda: app.agent.breakpoints, "the breakpoint")
        state = app.agent.state(app.agent.breakpoints[0])
        for met, shown in ((False, True), (True, False)):
            app.agent.event(protocol.BreakpointChanged("changed", dataclasses.replace(state, met=met)))
            await app.until(lambda shown=shown: ("bp 1 matches nothing so far" in app.status) == shown, f"{met=}")

    drive(WIDE, body)
