"""The app under fast fingers and pastes: what is typed behind `:` is text, and nothing pasted is ever a key."""

from __future__ import annotations

import pytest
from support.app_driver import _NAMES as KEY_NAMES
from support.app_driver import Driver, drive
from textual import events
from textual.widgets import Input
from textual.widgets._toast import ToastRack

WIDE = (160, 45)
NARROW = (80, 24)
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])


def type_ahead(app: Driver, text: str) -> None:
    """All keys at once, as they come from a terminal that has them in its buffer."""
    for char in text:
        app.app.post_message(events.Key(KEY_NAMES.get(char, char), char))


def typed(app: Driver) -> str:
    return app.app.query_one("#command", Input).value


@SIZES
@pytest.mark.parametrize("zoomed", [False, True], ids=["", "zoomed"])
@pytest.mark.parametrize("line", [":continue", ":p 2+40", ":quit o ? / B"])
def test_keys_that_come_at_once_behind_a_colon_are_text(size: tuple[int, int], zoomed: bool, line: str) -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        if zoomed:
            await app.press("z")
        type_ahead(app, line)
        await app.until(lambda: typed(app) == line[1:], "the line")
        assert len(app.app.screen_stack) == 1
        assert app.agent.position == 1 and "(adbg) print" not in app.app.main.transcript.text()

    drive(size, body)


def test_keys_that_come_at_once_behind_ctrl_x_are_text() -> None:
    async def body(app: Driver) -> None:
        app.app.post_message(events.Key("ctrl+x", None))
        type_ahead(app, "so cold")
        await app.until(lambda: typed(app) == "so cold", "the line")
        assert app.agent.position == 0 and len(app.app.screen_stack) == 1

    drive(WIDE, body)


@SIZES
def test_a_paste_is_a_command_behind_a_colon_and_nothing_elsewhere(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        app.app.post_message(events.Paste("sssc\nq"))
        await app.shows("paste into the console")
        assert app.agent.position == 1 and len(app.app.screen_stack) == 1 and typed(app) == ""
        app.app.post_message(events.Paste(":p 2+40\n"))
        await app.until(lambda: typed(app) == "p 2+40", "the pasted command")
        assert app.app.main.focused_panel == "console" and "(adbg) p" not in app.app.main.transcript.text()
        app.app.post_message(events.Paste(" - 1"))
        await app.until(lambda: typed(app) == "p 2+40 - 1", "the pasted rest")
        await app.press("escape", "o")
        app.app.post_message(events.Paste(":quit"))
        await app.pilot.pause(0.05)
        assert len(app.app.screen_stack) == 2 and typed(app) == "p 2+40 - 1"

    drive(size, body, toasts=True)


def test_ctrl_c_clears_the_line_first() -> None:
    async def body(app: Driver) -> None:
        await app.press("colon", "a", "b", "c")
        await app.press("ctrl+c")
        assert typed(app) == "" and app.app.main.focused_panel == "console"
        await app.press("ctrl+c")
        await app.shows("stopped already")
        assert app.program.signals == []
        console = app.app.query_one("#console-frame").region
        assert not app.app.screen.query_one(ToastRack).region.overlaps(console)

    drive(WIDE, body, toasts=True)


def test_tab_offers_what_the_node_saved() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.press("s")
        await app.stopped_at(2)
        names = [slot.expression for _, slot in app.app.main.value.model.slots if slot.expression.startswith("saved")]
        assert names
        await app.press("colon")
        type_ahead(app, "p sav")
        await app.until(lambda: typed(app) == "p sav", "the text")
        await app.press("tab")
        await app.until(lambda: typed(app) == "p saved", "the common part")
        await app.press("tab")
        await app.until(lambda: typed(app) in [f"p {name}" for name in names], "a saved name")

    drive(WIDE, body)
