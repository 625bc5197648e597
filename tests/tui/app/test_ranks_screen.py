"""The screen of the ranks: what it shows of each, at both sizes, and where Enter leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.app_driver import Driver
from support.scripted_agent import ScriptedAgent, ScriptedProgram

from adbg.engine.protocol.messages import CollectiveAt, GroupTimeout, RankState, State
from adbg.tui.app.app import AdbgApp
from adbg.tui.app.panels.ranks import layout
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.text.ranks import RankRow, seconds_text


def waiting(asked: State) -> RankState:
    """In a collective since 12.5 s."""
    at = CollectiveAt("all_reduce", 12, "0", True, 12.5)
    groups = [GroupTimeout("torch", "0", "gloo", 86400.0, 60.0, True)]
    return RankState(7, 7, rss=250 << 20, collective=at, timeouts=groups)


def prepare(agent: ScriptedAgent) -> None:
    if agent.rank:
        agent.on_begin = lambda: None
        agent.pause = lambda: None  # type: ignore[method-assign]
        agent.do_state = waiting  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [(160, 45), (80, 24)])
def test_where_each_rank_is_and_when_it_gives_up(size: tuple[int, int]) -> None:
    async def main() -> None:
        program = ScriptedProgram(3, prepare)
        debugger = Debugger(program, title="train.py")
        debugger.settings.add_breakpoint("Relu")
        app = AdbgApp(debugger)
        try:
            async with app.run_test(size=size) as pilot:
                driver = Driver(app, pilot, program, debugger)  # type: ignore[arg-type]
                await driver.until(lambda: debugger.stop is not None, "rank 0 stands")
                await driver.press("J")
                await driver.shows("3 ranks: 1 stopped, 2 running", "stopped: breakpoint", "waits in all_reduce #12")
                await driver.shows("waits 60 s for the other ranks", "ReluBackward0#1", "gives up in")
                wide = size[0] > 100
                assert ("250MiB" in driver.text) == wide and ("1001" in driver.text) == wide
                assert all(len(line) <= size[0] for line in driver.text.splitlines())
                program.agents[2].gone()
                await driver.shows("1 lost", "lost: no word of its end")
                await driver.press("j", "enter")
                await driver.until(lambda: debugger.current is not None and debugger.current.rank == 1, "rank 1")
                await driver.until(lambda: "3 ranks" not in driver.text, "the screen is left")
                await driver.press("f9")
                await driver.shows("3 ranks")
                await driver.press("escape")
                await driver.until(lambda: "3 ranks" not in driver.text, "the screen is left")
        finally:
            debugger.close()

    asyncio.run(asyncio.wait_for(main(), 100))


ROW = RankRow(3, 4, 4711, "running", False, False, waiting(State()), None, 0.4, 47.5)


def test_the_least_important_column_goes_first() -> None:
    everything = [number for number, _ in layout([ROW], 200)]
    for width in range(60, 160):
        columns = layout([ROW], width)
        assert sum(cells + 2 for _, cells in columns) <= width
        shown = [number for number, _ in columns]
        assert shown == [number for number in everything if number in shown] and {1, 2} <= set(shown)
    assert not [n for n, _ in layout([replace(ROW, state=None, gives_up=None)], 200) if n in (6, 7)], "empty ones go"


def test_seconds() -> None:
    assert [seconds_text(s) for s in (None, 0.04, 9.94, 12.5, 119, 150, 86399)] == [
        "", "0.0 s", "9.9 s", "12 s", "119 s", "2 min", "24 h",
    ]  # fmt: skip
