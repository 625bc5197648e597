"""What is shown is of the present, or says that it is not: after `continue`, `restart`, the end, and in another
process."""

from __future__ import annotations

import pytest
from support.app_driver import Driver, drive

from adbg.engine.protocol import messages as protocol

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
