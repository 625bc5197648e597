"""The app under Textual's pilot, over a ``ReplayProgram``: keys in, text of the screen out, waits by condition."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from adbg.tui.app.app import AdbgApp
from adbg.tui.debugger.debugger import Debugger
from support.patience import patience
from support.replay_agent import ReplayAgent, ReplayProgram

LIMIT = 20.0  # seconds
_NAMES = {
    " ": "space", "(": "left_parenthesis", ")": "right_parenthesis", "[": "left_square_bracket",
    "]": "right_square_bracket", "#": "number_sign", "=": "equals_sign", "*": "asterisk", ".": "full_stop",
    ":": "colon", ">": "greater_than_sign", "/": "slash", "?": "question_mark", "+": "plus", "-": "minus",
    "_": "underscore", "'": "apostrophe", "&": "ampersand", ",": "comma",
}  # fmt: skip


class Driver:
    """One session."""

    def __init__(self, app: AdbgApp, pilot: Pilot[int], program: ReplayProgram, debugger: Debugger) -> None:
        self.app = app
        self.pilot = pilot
        self.program = program
        self.debugger = debugger

    @property
    def agent(self) -> ReplayAgent:
        return self.program.agent

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    @property
    def status(self) -> str:
        return self.text.splitlines()[0]

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait until ``condition`` is true; a failure shows the screen."""
        deadline = time.monotonic() + patience(LIMIT)
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what or condition} did not come; the screen is:\n{self.text}"
            await self.pilot.pause(0.02)
        return value

    async def shows(self, *texts: str) -> str:
        """Wait until the screen has all ``texts``."""
        await self.until(lambda: all(text in self.text for text in texts), f"{texts!r}")
        return self.text

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def write(self, line: str) -> None:
        """Type into whatever has the focus, then enter."""
        await self.pilot.press(*(_NAMES.get(char, char) for char in line), "enter")

    async def command(self, line: str) -> None:
        """A console command, from wherever the focus is."""
        if self.app.main.focused_panel != "console":
            await self.pilot.press("ctrl+x")
        await self.write(line)

    async def stopped_at(self, index: int) -> None:
        """Wait until the panels show the stop at node ``index``, completely."""
        await self.until(
            lambda: self.app.main.graph.model.here == index and self.app.main.graph.model.rows, f"stop at {index}"
        )
        await self.until(lambda: self.app.lookups.idle and self.app.feed.idle, "answers")
        await self.pilot.pause()


@contextlib.asynccontextmanager
async def running(size: tuple[int, int], run_dir: str = "", toasts: bool = False) -> AsyncIterator[Driver]:
    """The app, stopped where the first backward begins. ``toasts``: notifications are drawn."""
    program = ReplayProgram()
    program.run_dir = run_dir
    debugger = Debugger(program, entry=True, title="train.py")
    app = AdbgApp(debugger)
    try:
        async with app.run_test(size=size, notifications=toasts) as pilot:
            driver = Driver(app, pilot, program, debugger)
            await driver.shows("STOPPED")
            await driver.stopped_at(0)
            yield driver
            assert not app.failures.recent, app.failures.recent
    finally:
        debugger.close()


def drive(
    size: tuple[int, int], body: Callable[[Driver], Awaitable[None]], run_dir: str = "", toasts: bool = False
) -> None:
    """Run ``body`` over a fresh app."""

    async def main() -> None:
        async with running(size, run_dir, toasts) as driver:
            await body(driver)

    asyncio.run(asyncio.wait_for(main(), 90))
