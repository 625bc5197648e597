"""The console at the bottom: keys, pastes, its output scrolled and searched without the mouse."""

from __future__ import annotations

import threading

import pytest
from support.app_driver import Driver, drive
from textual import events

from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger.debugger import State

WIDE = (160, 45)
NARROW = (80, 24)
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])


def typed(app: Driver) -> str:
    return app.app.main.command.value


@SIZES
def test_a_colon_is_for_one_command_and_ctrl_x_for_more(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.press("colon")
        await app.write("step")
        await app.stopped_at(1)
        await app.until(lambda: app.app.main.focused_panel == "graph", "the panel before")
        await app.press("s")
        await app.stopped_at(2)
        await app.press("ctrl+x")
        await app.write(":p 1 + 1")
        await app.until(lambda: app.app.main.transcript.text().endswith("\n2"), "the colon is no part of the command")
        assert app.app.main.focused_panel == "console"

    drive(size, body)


@pytest.mark.parametrize("zoomed", [False, True], ids=["", "zoomed"])
def test_an_answer_of_many_lines_stays_in_sight_and_the_panels_have_the_keys(zoomed: bool) -> None:
    """It is read where the console is, as in a pager; its line of text gets no key that is not meant for it."""

    async def body(app: Driver) -> None:
        main = app.app.main
        await app.press(*("z" * zoomed), "colon")
        await app.write("help step")
        await app.shows("esc back to the panels")
        assert main.focused is main.transcript
        await app.press("j", "k", "escape")
        assert main.focused is main.graph and typed(app) == ""
        assert main.arrangement.zoomed == ("graph" if zoomed else "")
        await app.press("colon")
        await app.write("help next")
        await app.shows("runs into the next backward.")
        await app.press("s")
        await app.stopped_at(1)
        assert main.focused is main.graph and typed(app) == ""
        await app.press("colon")
        await app.write("help step")
        await app.shows("esc back to the panels")
        await app.press("5", "s")
        assert main.focused is main.command and typed(app) == "s" and "esc back" not in app.text
        assert "esc Panels" in app.text

    drive(NARROW, body)


def test_a_long_answer_is_shown_from_its_beginning() -> None:
    """And what comes after it from its end again, once the panels have the keys."""

    async def body(app: Driver) -> None:
        main = app.app.main
        await app.press("colon")
        await app.write("help break")
        await app.shows("lines below · page down")
        first = main.transcript.text().split("(adbg) help break\n")[1].split("\n")[0].rstrip()
        assert first[:40] in app.text, app.text
        await app.press("escape", "colon")
        await app.write("p 40 + 2")
        await app.shows("is not defined")  # at its end again

    drive(NARROW, body)


@SIZES
def test_a_click_into_a_panel_ends_the_one_command(size: tuple[int, int]) -> None:
    """Else the next key of the panel led into the console."""

    async def body(app: Driver) -> None:
        await app.press("colon")
        await app.pilot.click("#graph")
        await app.press("s")
        await app.stopped_at(1)
        assert app.app.main.focused_panel == "graph"

    drive(size, body)


def test_answers_stand_below_their_own_commands() -> None:
    async def body(app: Driver) -> None:
        go = threading.Event()
        app.agent.do_evaluate = lambda request: go.wait(20) and protocol.EvaluateBody("42", "int")  # type: ignore
        await app.press("ctrl+x")
        for line in ("print 6 * 7", "help finish", "display"):
            await app.write(line)
        await app.shows("2 commands waiting")
        assert "help finish" not in app.app.main.transcript.text()
        go.set()
        await app.until(lambda: "(adbg) display" in app.app.main.transcript.text(), "the last command")
        text = app.app.main.transcript.text()
        order = ["(adbg) print 6 * 7", "\n42", "(adbg) help finish", "Run to the end", "(adbg) display"]
        places = [text.index(each) for each in order]
        assert places == sorted(places) and "waiting" not in app.text

    drive(WIDE, body)


def test_the_stop_of_a_step_stands_below_it_however_soon_the_next_command_comes() -> None:
    async def body(app: Driver) -> None:
        await app.press("ctrl+x")
        app.app.post_message(events.Paste("step\nstep\nhelp finish\n"))
        await app.until(lambda: "(adbg) help finish" in app.app.main.transcript.text(), "the last command")
        lines = app.app.main.transcript.text().splitlines()
        kinds = [line.split(",")[0] for line in lines if line.startswith(("(adbg)", "Stopped"))]
        assert kinds[-5:] == ["(adbg) step", "Stopped", "(adbg) step", "Stopped", "(adbg) help finish"], lines

    drive(WIDE, body)


def test_z_zooms_the_console_while_nothing_is_typed() -> None:
    async def body(app: Driver) -> None:
        await app.press("ctrl+x", "z")
        assert app.app.main.arrangement.zoomed == "console" and typed(app) == ""
        await app.press("z", "p", "space", "z")
        assert app.app.main.arrangement.zoomed == "" and typed(app) == "p z"

    drive(WIDE, body)


def test_escape_and_a_key_right_behind_it_are_two_keys() -> None:
    """A terminal sends the bytes of alt+s; Textual makes that key of them."""

    async def body(app: Driver) -> None:
        await app.press("ctrl+x")
        app.app.post_message(events.Key("alt+s", "s"))
        await app.stopped_at(1)
        assert app.app.main.focused_panel == "graph" and typed(app) == ""
        await app.press("ctrl+x")
        app.app.post_message(events.Key("alt+shift+n", "N"))
        await app.shows("N next, P previous match")
        assert typed(app) == ""

    drive(WIDE, body)


def test_the_output_is_scrolled_and_searched_by_keys() -> None:
    async def body(app: Driver) -> None:
        transcript = app.app.main.transcript
        for number in range(100):
            transcript.write(f"line {number} {'needle' if number in (20, 40) else ''}")
        await app.press("ctrl+x")
        await app.shows("line 99")
        await app.press("pageup", "pageup")
        await app.until(lambda: "line 99" not in app.text, "scrolling")
        assert "below · page down" in app.text
        await app.press("pagedown", "pagedown", "pagedown")
        await app.shows("line 99")
        assert "below · page down" not in app.text
        await app.write("/needle")
        await app.shows("line 40 needle")
        await app.press("enter")
        await app.shows("line 20 needle")
        await app.press("enter")
        await app.shows("line 40 needle")
        await app.write("p 1 + 1")
        await app.until(lambda: "(adbg) p 1 + 1" in app.text and "line 40" not in app.text, "the end again")

    drive(WIDE, body)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"], ids=["lf", "cr", "crlf"])
def test_pasted_lines_run_one_after_the_other(end: str) -> None:
    """The one behind a step waits for the stop; the last, which has no end, is left to be finished."""

    async def body(app: Driver) -> None:
        await app.press("ctrl+x", "p", "space")
        app.app.post_message(events.Paste(end.join(["1 + 1", "step", "frame 0", "step", "p ind"])))
        await app.stopped_at(2)
        await app.until(lambda: typed(app) == "p ind", "the rest")
        text = app.app.main.transcript.text()
        echoed = [line.removeprefix("(adbg) ") for line in text.split("\n") if line.startswith("(adbg) ")]
        assert echoed[-4:] == ["p 1 + 1", "step", "frame 0", "step"]
        assert "the program is running" not in text
        assert app.app.main.command.history.lines[-4:] == echoed[-4:]

    drive(WIDE, body)


@SIZES
def test_what_a_program_asks_for_is_its_own_and_a_command_begun_is_not(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        main, program = app.app.main, app.program
        app.agent.finished = lambda: None  # type: ignore[method-assign]
        await app.press("c", "colon", "q", "u")
        await app.until(lambda: app.debugger.state is State.RUNNING, "running")
        program.wait = "line"
        await app.until(lambda: "WAITS FOR INPUT" in app.status, "the wait")
        assert typed(app) == "qu" and main.command.for_program == "", "half a command of adbg's"
        await app.press("backspace", "backspace")
        await app.shows("input ▸")
        await app.write("quit")
        app.app.post_message(events.Paste("5\r\nb\rz"))
        await app.until(lambda: typed(app) == "z", "the rest")
        await app.press("backspace", "5", "enter", "ctrl+d")
        await app.until(lambda: program.typed == b"quit\n5\nb\n5\n\x04", "all of it")
        assert "quit" not in main.command.history.lines and main.arrangement.zoomed == ""
        await app.write(":p 1 + 1")
        await app.until(lambda: main.command.history.lines[-1:] == [":p 1 + 1"], "a command")
        program.wait = "secret"
        await app.until(lambda: main.command.for_program == "secret", "the password")
        await app.press("x", "y")
        assert typed(app) == "xy" and "xy" not in app.text
        program.wait = ""
        await app.until(lambda: main.command.for_program == "", "the end of the wait")
        await app.until(lambda: main.focused_panel == "graph", "the panel that the colon was typed in")
        await app.press("ctrl+x")
        await app.shows("(adbg) ")
        assert typed(app) == "" and "WAITS" not in app.status

    drive(size, body)


def test_the_panel_before_has_the_keys_again_when_the_wait_is_over() -> None:
    async def body(app: Driver) -> None:
        main = app.app.main
        app.agent.finished = lambda: None  # type: ignore[method-assign]
        await app.press("4", "c")
        await app.until(lambda: app.debugger.state is State.RUNNING, "running")
        app.program.wait = "line"
        await app.until(lambda: main.focused_panel == "console", "the console")
        await app.write("Ada")
        app.program.wait = ""
        await app.until(lambda: main.focused_panel == "value", "the panel before")
        assert app.program.typed == b"Ada\n"
        await app.pilot.pause()  # the layout's last calls need the screen

    drive(WIDE, body)
