"""The app over a program that answers with what a real one answered: keys, panels, console, layout."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from rich.cells import cell_len
from support.app_driver import Driver, drive
from textual.widgets import Input

from adbg.tui.app.keymap import BY_ID, KEYS
from adbg.tui.app.screens.dialogs import BreakpointScreen, LineScreen, QuitScreen, TooSmall
from adbg.tui.app.screens.grid import GridScreen
from adbg.tui.app.screens.help import HelpScreen
from adbg.tui.app.screens.output import OutputScreen
from adbg.tui.commands.table import TABLE
from adbg.tui.debugger.debugger import State

WIDE = (160, 45)
NARROW = (80, 24)
SIZES = pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])


@SIZES
def test_the_first_stop_shows_where_it_is_and_what_to_do(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        text = await app.shows("STOPPED", "bwd#1", "begin", "0/204", "1 Graph", "NllLoss", "s next node")
        assert "? Help" in text.splitlines()[-1]
        assert text.splitlines()[0].startswith(" ■ STOPPED")
        assert len(text.splitlines()) == size[1]
        assert max(len(line) for line in text.splitlines()) <= size[0]

    drive(size, body)


def test_a_step_moves_every_panel() -> None:
    async def body(app: Driver) -> None:
        for index in range(1, 6):
            await app.press("s")
            await app.stopped_at(index)
        text = app.text
        assert "#5" in app.status and "5/204" in app.status
        assert "f32 [192,14] cpu" in text  # the value
        assert "tiny_gpt.py:83" in text and "return self.head" in text  # the source
        assert "neighbourhood of #5" in text and "#4 UnsafeView" in text and "#7 T" in text
        assert "fwd  forward" in text  # the stack
        assert "step: before MmBackward0#9 #5" in text  # the log
        assert "(adbg) step" in text  # the console
        assert app.app.main.graph.selected is not None and app.app.main.graph.selected.index == 5
        assert "s next node" not in text  # the tip is gone

    drive(WIDE, body)


def test_the_selection_is_the_same_everywhere() -> None:
    async def body(app: Driver) -> None:
        for index in (1, 2, 3, 4, 5):
            await app.press("s")
            await app.stopped_at(index)
        await app.press("j")
        await app.shows("neighbourhood of #6")
        await app.until(
            lambda: app.app.reader.shown_node is not None and app.app.reader.shown_node.index == 6, "node 6"
        )
        assert "· #6" in app.text
        assert "ViewBackward0" in app.app.main.lists.frames[0].name
        await app.press("h")
        await app.shows("neighbourhood of #5")
        await app.press("l")
        await app.shows("neighbourhood of #6")
        await app.press("H")
        await app.shows("neighbourhood of #5", "grad_outputs[0] · #5")

    drive(WIDE, body)


def test_moving_fast_asks_for_the_node_that_was_reached_only() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        asked = len([r for r in app.agent.requests if type(r).__name__ == "Node"])
        for _ in range(8):
            app.app.main.graph.action_move(1)
        await app.until(
            lambda: (
                app.app.main.graph.selected is not None
                and app.app.reader.selected == app.app.main.graph.selected.index > 1
            )
        )
        await app.until(
            lambda: (
                app.app.reader.shown_node is not None and app.app.reader.shown_node.index == app.app.reader.selected
            ),
            "the node",
        )
        assert len([r for r in app.agent.requests if type(r).__name__ == "Node"]) == asked + 1

    drive(WIDE, body)


def test_leaves_unfold_and_fold() -> None:
    async def body(app: Driver) -> None:
        model = app.app.main.graph.model
        row = next(r for r in model.rows.values() if any(model.rows[to].accumulate for to in r.edges))
        app.app.main.graph.select_index(row.index)
        await app.shows("→" + (model.leaves(row)[0].parameter or ""))
        before = len(model.visible)
        await app.press("space")
        assert len(model.visible) == before + len([to for to in row.edges if model.rows[to].accumulate])
        await app.shows("leaf")
        await app.press("space")
        assert len(model.visible) == before

    drive(WIDE, body)


def test_a_breakpoint_at_the_cursor_and_its_mark() -> None:
    async def body(app: Driver) -> None:
        await app.press("j", "j", "j", "j", "b")
        await app.shows("Breakpoints 1", "(adbg) break MmBackward0#9")
        assert [row.spec for row in app.debugger.settings.breakpoints] == ["MmBackward0#9"]
        await app.until(lambda: app.app.main.graph.model.rows[5].breakpoints == (1,), "the mark")
        await app.shows("◆")
        await app.press("c")
        await app.stopped_at(5)
        assert "bp 1" in app.status and "MmBackward0#9" in app.status
        await app.press("b")
        await app.until(lambda: not app.debugger.settings.breakpoints, "removal")
        await app.shows("Breakpoints 0")

    drive(WIDE, body)


def test_the_breakpoint_dialog_writes_a_command() -> None:
    async def body(app: Driver) -> None:
        await app.press("B")
        assert isinstance(app.app.screen, BreakpointScreen)
        app.app.screen.query_one("#condition", Input).value = "norm(grad_outputs[0]) > 1"
        app.app.screen.query_one("#every", Input).value = "2"
        await app.shows("break NllLossBackward0#1 every 2 if norm(grad_outputs[0]) > 1")
        await app.press("enter")
        await app.until(lambda: app.debugger.settings.breakpoints, "the breakpoint")
        sent = app.agent.breakpoints[-1].name
        assert sent == "NllLossBackward0#1 every 2 if norm(grad_outputs[0]) > 1"

    drive(WIDE, body)


def dialog_fields(app: Driver) -> list[str]:
    return [app.app.screen.query_one(f"#{name}", Input).value for name in ("spec", "condition", "every", "ignore")]


def test_a_breakpoint_that_is_there_is_edited() -> None:
    async def body(app: Driver) -> None:
        await app.command("break Mm* if index > 3")
        await app.command("tbreak NllLossBackward0#1 every 2")
        await app.until(lambda: len(app.debugger.settings.breakpoints) == 2, "the breakpoints")
        await app.until(lambda: app.app.runner.busy is False, "the commands")
        app.app.main.action_show_list("breakpoints")
        await app.press("B")
        await app.shows("Breakpoint 1")
        assert dialog_fields(app) == ["Mm*", "index > 3", "", ""]
        app.app.screen.query_one("#condition", Input).value = "index > 4"
        await app.press("enter")
        await app.until(lambda: len(app.app.screen_stack) == 1, "the end of the dialog")
        assert [row.spec for row in app.debugger.settings.breakpoints] == [
            "NllLossBackward0#1 every 2", "Mm* if index > 4",
        ]  # fmt: skip
        app.app.main.graph.focus()
        await app.press("g", "B")
        await app.shows("Breakpoint 2", "nothing is changed")
        assert dialog_fields(app) == ["NllLossBackward0#1", "", "2", ""]
        app.app.screen.query_one("#condition", Input).value = "index > 5"
        await app.shows("condition 2 index > 5")
        await app.press("enter")
        await app.until(lambda: len(app.app.screen_stack) == 1, "the end of the dialog")
        row = app.debugger.settings.breakpoint(2)
        assert (row.condition, row.temporary) == ("index > 5", True), "in place: the same number"

    drive(WIDE, body)


@SIZES
def test_what_is_refused_stays_in_the_dialog_with_the_reason(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.press("B")
        app.app.screen.query_one("#spec", Input).value = "???"
        app.app.screen.query_one("#condition", Input).value = "index >"
        await app.press("enter")
        await app.until(lambda: "???" in str(app.app.screen.query_one("#problem").render()), "the reason")
        assert dialog_fields(app)[:2] == ["???", "index >"] and not app.debugger.settings.breakpoints
        app.app.screen.query_one("#spec", Input).value = "Mm*"
        await app.press("enter")
        await app.until(lambda: len(app.app.screen_stack) == 1, "the end of the dialog")
        assert len(app.debugger.settings.breakpoints) == 1

    drive(size, body)


@SIZES
def test_off_is_seen_however_long_the_breakpoint_is(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.command("break Mm* if index > 3 and norm(grad_outputs[0]) > 0.001 and index < 1000000 and index != 7")
        await app.command("disable 1")
        await app.until(lambda: not app.debugger.settings.breakpoint(1).enabled, "the command")
        show = app.app.main.action_show_lower if size == NARROW else app.app.main.action_show_list
        show("breakpoints")
        await app.shows("off Mm* if index")

    drive(size, body)


@SIZES
def test_the_console_runs_commands_and_tells_errors_without_traceback(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.command("p 1 + 1")
        await app.until(lambda: app.app.main.transcript.text().splitlines()[-1] == "2", "the answer")
        await app.command("nonsense")
        await app.until(lambda: "unknown command 'nonsense'" in app.app.main.transcript.text(), "the error")
        assert "Traceback" not in app.text
        await app.press("up", "up")
        assert app.app.query_one("#command", Input).value == "p 1 + 1"
        await app.press("down")
        assert app.app.query_one("#command", Input).value == "nonsense"

    drive(size, body)


def test_letters_are_text_in_the_console_and_keys_outside() -> None:
    async def body(app: Driver) -> None:
        await app.press("colon", "s", "n", "q")
        assert app.app.query_one("#command", Input).value == "snq"
        assert app.agent.position == 0
        await app.press("ctrl+x")
        assert app.app.main.focused_panel == "graph"
        await app.press("s")
        await app.stopped_at(1)

    drive(WIDE, body)


def test_an_empty_line_repeats_a_step_only() -> None:
    async def body(app: Driver) -> None:
        await app.command("step")
        await app.stopped_at(1)
        await app.press("enter")
        await app.stopped_at(2)
        await app.command("p 1 + 1")
        await app.until(lambda: app.app.main.transcript.text().endswith("\n2"), "the answer")
        await app.press("enter")
        await app.pilot.pause(0.1)
        assert app.agent.position == 2

    drive(WIDE, body)


def test_tab_completes_and_the_suggestion_comes_from_history() -> None:
    async def body(app: Driver) -> None:
        await app.press("ctrl+x", "c", "o", "n", "t", "tab")
        await app.until(lambda: app.app.query_one("#command", Input).value.startswith("continue"), "completion")
        app.app.query_one("#command", Input).value = ""
        await app.write("p 1 + 1")
        await app.press("p")
        command = app.app.query_one("#command", Input)
        await app.until(lambda: command._suggestion == "p 1 + 1", "the suggestion")
        await app.press("right")
        assert command.value == "p 1 + 1"

    drive(WIDE, body)


def test_an_edit_is_sent_and_the_value_is_read_again() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        read = len(app.agent.tensors)
        await app.command("set grad_outputs[0] = grad_outputs[0] * 2")
        await app.until(lambda: app.agent.edits == [("grad_outputs[0]", "grad_outputs[0] * 2")], "the edit")
        await app.until(lambda: len(app.agent.tensors) > read, "the value")
        await app.shows("edited")

    drive(WIDE, body)


def test_values_are_cycled_sliced_and_opened_as_a_grid() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.press("s")
        await app.stopped_at(2)
        names = [slot.name for _, slot in app.app.main.value.model.slots]
        assert names[0] == "grad_outputs[0]" and len(names) > 1
        await app.press("right_square_bracket")
        await app.shows(f"4 Value  {app.app.main.value.model.slots[1][1].expression}")
        await app.press("left_square_bracket", "x")
        assert isinstance(app.app.screen, LineScreen)
        app.app.screen.query_one(Input).value = "[0:8, 0:4]"
        await app.press("enter")
        await app.until(lambda: app.agent.tensors[-1].slice == "[0:8, 0:4]", "the slice")
        await app.press("4", "enter")
        await app.until(lambda: isinstance(app.app.screen, GridScreen), "the grid")
        await app.shows("h j k l move", "exact")
        await app.press("escape")
        assert len(app.app.screen_stack) == 1

    drive(WIDE, body)


@SIZES
def test_help_is_made_from_the_live_bindings(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        app.app.set_keymap({"step": "f12"})
        await app.press("f1")
        screen = app.app.screen
        assert isinstance(screen, HelpScreen)
        lines = [("".join(text for text, _ in spans)) for spans in screen.query_one("#help-text")._lines]
        step = next(line for line in lines if BY_ID["step"].text in line)
        assert step.strip().startswith("f12")
        whole = "\n".join(lines)
        shown = [key for key in KEYS if key.text[:20] in whole]
        assert {key.id for key in KEYS} == {key.id for key in shown}
        assert "break SPEC" in whole.replace("  ", " ") or "break " in whole
        assert all(cell_len(line) <= size[0] - 2 for line in lines)
        words = " ".join(whole.split())
        assert size[0] > 100 or all(key.text in words for key in KEYS), "what does not fit goes on below"
        assert size[0] > 100 or all(row.summary in words for row in TABLE.commands())
        await app.press("escape", "f12")
        await app.stopped_at(1)
        await app.shows("f12 Step")

    drive(size, body)


def test_every_hint_does_what_it_says_by_mouse() -> None:
    async def body(app: Driver) -> None:
        line = app.text.splitlines()[-1]
        await app.pilot.click("#hints", offset=(line.index("s Step"), 0))
        await app.stopped_at(1)
        await app.pilot.click("#hints", offset=(line.index("z Zoom"), 0))
        assert app.app.main.arrangement.zoomed == "graph"

    drive(WIDE, body)


def test_a_click_selects_a_node() -> None:
    async def body(app: Driver) -> None:
        await app.pilot.click("#graph", offset=(20, 9))
        await app.until(lambda: app.app.reader.selected == app.app.main.graph.model.visible[9], "the selection")
        await app.pilot.click("#vlog", offset=(5, 0))
        assert app.app.main.focused_panel == "vlog"

    drive(WIDE, body)


def test_digits_focus_and_zoom_and_sizes_change() -> None:
    async def body(app: Driver) -> None:
        for digit, panel, title in (("2", "vlog", "2 Log"), ("3", "source", "3 Source"), ("4", "value", "4 Value")):
            await app.press(digit)
            assert app.app.main.focused_panel == panel
            await app.press(digit)
            await app.shows(title)
            assert "1 Graph" not in app.text
            await app.press("z")
            await app.shows("1 Graph")
        await app.press("1")
        width = app.app.query_one("#graph-frame").size.width
        await app.press("plus")
        await app.until(lambda: app.app.query_one("#graph-frame").size.width > width, "growth")
        await app.press("underscore")
        await app.until(lambda: app.app.query_one("#graph-frame").size.width < width, "the smallest")
        await app.press("equals_sign")
        await app.until(lambda: app.app.query_one("#graph-frame").size.width == width, "the start")

    drive(WIDE, body)


@SIZES
def test_tab_goes_from_panel_to_panel(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        main = app.app.main
        for panel in ("vlog", "source", "value", "console"):
            await app.press("tab")
            assert main.focused_panel == panel and main.focused is main.widget_of(panel)
            assert main.focused is not None and main.focused.size.height > 0
        await app.press("escape")
        assert main.focused_panel == "value"
        await app.press("shift+tab", "shift+tab")
        assert main.focused_panel == "vlog"

    drive(size, body)


def test_narrow_tabs_reach_every_panel() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.shows("[4 Value]", "grad_outputs[0]")
        await app.press("2")
        await app.shows("[2 Log]", "before NllLossBackward0#1")
        await app.press("3")
        await app.shows("[3 Source]", "F.cross_entropy")
        await app.press("right_square_bracket")
        await app.press("right_square_bracket")
        await app.shows("[Bps]", "no breakpoint")
        await app.press("left_square_bracket")
        await app.shows("[Stack]", "fwd")
        await app.press("colon")
        await app.shows("5 Console")

    drive(NARROW, body)


def test_resizing_both_ways_keeps_the_state() -> None:
    async def body(app: Driver) -> None:
        for index in (1, 2, 3):
            await app.press("s")
            await app.stopped_at(index)
        await app.press("j", "j")
        selected = app.app.reader.selected
        await app.pilot.resize_terminal(*NARROW)
        await app.shows("[4 Value]")
        assert app.app.has_class("-narrow") or app.app.screen.has_class("-narrow")
        assert app.app.reader.selected == selected
        assert max(map(len, app.text.splitlines())) <= 80 and len(app.text.splitlines()) == 24
        await app.pilot.resize_terminal(50, 12)
        await app.until(lambda: isinstance(app.app.screen, TooSmall), "the refusal")
        await app.shows("terminal too small", "needs 60x15")
        await app.press("s", "q")
        assert app.agent.position == 3
        await app.pilot.resize_terminal(*WIDE)
        await app.shows("5 Console", "4 Value", "2 Log")
        assert app.app.reader.selected == selected and len(app.app.screen_stack) == 1
        assert app.app.main.graph.selected is not None and app.app.main.graph.selected.index == selected
        await app.press("s")
        await app.stopped_at(4)

    drive(WIDE, body)


def test_program_output_is_shown_with_carriage_returns_and_takes_input() -> None:
    async def body(app: Driver) -> None:
        app.program.on_output("stdout", b"epoch 1\n 10%|#   |\r 50%|##  |\r100%|####|")
        await app.shows("│ epoch 1", "100%|####|")
        assert " 50%" not in app.text
        await app.press("o")
        assert isinstance(app.app.screen, OutputScreen)
        await app.shows("Program output", "epoch 1", "100%|####|")
        app.program.on_output("stdout", b"\nname? ")
        await app.shows("name?")
        await app.press("i")
        await app.write("Ada")
        await app.until(lambda: app.program.typed == b"Ada\n", "the input")
        await app.press("escape", "escape")
        assert len(app.app.screen_stack) == 1

    drive(WIDE, body)


def test_a_nan_stop_is_told_in_red_with_its_evidence() -> None:
    from adbg.engine.types import Evidence, Origin, Phase, Role, StopReason

    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        app.agent.stopped = False
        app.agent.go = lambda action: app.agent.actions.put(action)  # type: ignore[method-assign]
        found = Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 2688, 3, 0, Origin.MADE_HERE, slot=0)
        app.agent.do_continue = lambda arguments: app.agent.actions.put(  # type: ignore[method-assign]
            lambda: app.agent.stop_at(2, StopReason.NAN, Phase.AFTER, evidence=(found,))
        )
        await app.press("c")
        await app.shows(
            "✗ LogSoftmax (nan_at_sqrt.py:70) made NaN from finite gradients — #2", "3 of 2688 elements are nan"
        )
        assert app.status.startswith(" ■ NAN")
        await app.stopped_at(2)
        assert app.app.main.graph.model.rows[2].nonfinite
        assert app.app.screen.query_one("#banner").has_class("-bad")
        await app.press("g", "e")
        await app.until(lambda: app.app.reader.selected == 2, "the NaN row")

    drive(WIDE, body)


def test_the_end_is_told_and_panels_stay() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        app.program.code = 3
        await app.press("c")
        await app.shows("EXITED 3", "exited with status 3")
        assert "NllLoss" in app.text
        await app.press("j", "j", "s")
        await app.until(lambda: "the program has ended" in app.app.main.transcript.text(), "the refusal")
        await app.press("q")
        await app.until(lambda: app.app.return_value == 3, "the exit")

    drive(WIDE, body)


def test_quit_asks_while_a_script_runs() -> None:
    async def body(app: Driver) -> None:
        await app.press("q")
        assert isinstance(app.app.screen, QuitScreen)
        await app.shows("end the script and leave", "detach", "\n y End it  d Detach  n Stay")
        assert "s Step" not in app.text, "the keys of the panels do nothing now"
        await app.press("n")
        assert len(app.app.screen_stack) == 1
        await app.shows("s Step  n Next")
        await app.press("q", "y")
        await app.until(lambda: app.app.return_value == 0, "the exit")

    drive(WIDE, body)


def test_the_question_says_that_the_script_ended_while_it_was_asked() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.press("q")
        await app.shows("The script is stopped.", "detach: the script continues")
        app.program.code = 3
        app.app.run_line("continue")
        await app.shows("The script has ended.", "y, ctrl+q  leave")
        await app.until(lambda: "detach: the script continues" not in app.text, "the other question")
        await app.press("y")
        await app.until(lambda: app.app.return_value == 3, "the exit")

    drive(WIDE, body)


def test_ctrl_c_at_a_stop_never_reaches_the_script() -> None:
    async def body(app: Driver) -> None:
        for _ in range(4):
            await app.press("ctrl+c")
        await app.shows("stopped already")
        assert app.program.signals == [] and app.debugger.state is State.STOPPED

    drive(WIDE, body)


def test_ctrl_q_asks_while_a_script_is_there_and_the_second_one_ends_it() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.press("colon", "x", "ctrl+q")
        await app.shows("end the script and leave")
        assert app.app.return_value is None and app.app.is_running
        await app.press("escape")
        assert len(app.app.screen_stack) == 1 and app.debugger.alive
        await app.press("ctrl+q", "ctrl+q")
        await app.until(lambda: app.app.return_value == 0, "the exit")

    drive(WIDE, body)


def test_ctrl_q_leaves_at_once_when_the_script_has_ended() -> None:
    async def body(app: Driver) -> None:
        await app.press("c")
        await app.shows("EXITED")
        await app.press("ctrl+q")
        await app.until(lambda: app.app.return_value is not None, "the exit")

    drive(WIDE, body)


def test_ctrl_q_on_a_terminal_that_is_too_small_needs_two() -> None:
    async def body(app: Driver) -> None:
        await app.pilot.resize_terminal(50, 10)
        await app.shows("terminal too small", "ctrl+q quits")
        await app.press("ctrl+q")
        await app.shows("ctrl+q again")
        assert app.app.return_value is None
        await app.press("ctrl+q")
        await app.until(lambda: app.app.return_value == 0, "the exit")

    drive(WIDE, body)


def test_the_palette_comes_from_the_command_table() -> None:
    async def body(app: Driver) -> None:
        await app.press("ctrl+p")
        await app.shows("a command")
        await app.press("i", "n", "f", "o")
        await app.shows("info")
        await app.press("escape")
        await app.until(lambda: len(app.app.screen_stack) == 1, "closing")

    drive(WIDE, body)


def test_the_log_takes_room_once_it_has_something_to_say(tmp_path: Path) -> None:
    async def body(app: Driver) -> None:
        def height() -> int:
            return int(app.app.query_one("#vlog-frame").region.height)

        for index in (1, 2):
            await app.press("s")
            await app.stopped_at(index)
        assert height() == 3 and "step: before" in app.text, "the last stop, in one line"
        await app.press("2")
        await app.until(lambda: height() > 10, "room for a panel that is looked at")
        await app.press("1")
        await app.until(lambda: height() == 3, "and not for one that is not")
        (tmp_path / "vlog-r0.log").write_text("I1121 00:54:27.615494  11 calls:3] run_backward\nI1121 00:54:28")
        await app.until(lambda: height() > 10, "room for a record")

    drive(WIDE, body, run_dir=str(tmp_path))


def test_brackets_are_shown_in_the_palette() -> None:
    async def body(app: Driver) -> None:
        await app.press("ctrl+p")
        await app.shows("a command")
        await app.press(*"cont")
        await app.shows("continue [N | all] [&]")
        await app.press(*(["backspace"] * 4), *"print")
        await app.shows("print [/FORMAT] EXPR")

    drive(WIDE, body)


def test_no_text_that_is_made_at_run_time_is_read_as_markup() -> None:
    """Textual reads a str as markup, and "[N]" or a user's "[/]" is gone, or ends the app: what is put together at run
    time goes through ``Content``, or says that it is none."""
    found = []
    for path in (Path(__file__).parents[3] / "tui" / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                plain = any(keyword.arg == "markup" for keyword in node.keywords)
                made = bool(node.args) and not isinstance(node.args[0], (ast.Constant, ast.Call))
                is_set = isinstance(node.args[0], (ast.Name, ast.JoinedStr, ast.BinOp)) if node.args else False
                if (name == "notify" and made and not plain) or (name in ("Static", "Label") and is_set and not plain):
                    found.append(f"{path.name}:{node.lineno} {name}")
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                title = node.targets[0].attr in ("border_title", "border_subtitle")
                if title and not isinstance(node.value, (ast.Constant, ast.Call)):
                    found.append(f"{path.name}:{node.lineno} {node.targets[0].attr}")
    assert not found


def test_the_log_of_the_run_is_followed_filtered_and_searched(tmp_path: object) -> None:
    log = f"{tmp_path}/vlog-r0.log"
    with open(log, "w", encoding="utf-8") as file:
        file.write(
            "I1121 00:54:27.615494  11 calls:3] run_backward\n\tI1121 00:54:27.615600  11 nodes:4] MmBackward0 inner\n"
        )

    async def body(app: Driver) -> None:
        await app.shows("run_backward", "MmBackward0 inner", "54:27.615")
        with open(log, "a", encoding="utf-8") as file:
            file.write("W1121 00:54:28.000000  11 nodes:4] something is off\n")
        await app.shows("something is off")
        await app.press("2", "ampersand")
        await app.write("run_back")
        await app.until(lambda: app.app.main.vlog.line_count() == 1, "the filter")
        assert "something is off" not in app.text
        await app.press("ampersand")
        await app.pilot.pause()
        line = app.app.screen.query_one(Input)
        assert line.value == ""
        await app.press("up")
        assert line.value == "run_back" and line.cursor_position == len("run_back")
        await app.press("down", "enter")
        await app.shows("something is off")
        await app.press("g", "slash")
        await app.write("inner")
        await app.until(lambda: app.app.main.vlog.row_at(app.app.main.vlog.cursor) == 1, "the match")
        await app.press("ampersand")
        await app.write("level:x")
        await app.until(lambda: "invalid level" in app.app.main.transcript.text(), "the error")

    drive(WIDE, body, str(tmp_path))


def test_long_output_is_broken_and_every_size_shows_all_of_it() -> None:
    async def body(app: Driver) -> None:
        app.program.on_output("stdout", ("x" * 300 + "END\nnext\n").encode())
        await app.until(lambda: app.app.feed.output.finished == 2, "the output")
        await app.press("o")
        await app.shows("END", "next")
        assert app.text.count("x") >= 300
        await app.pilot.resize_terminal(*NARROW)
        await app.until(lambda: app.text.count("x") >= 300 and "END" in app.text and "next" in app.text, "all of it")
        app.program.on_output("stdout", b"more\rMORE")
        await app.shows("MORE")

    drive(WIDE, body)


def test_the_begin_shows_who_called_backward_until_the_cursor_moves() -> None:
    async def body(app: Driver) -> None:
        await app.until(lambda: app.app.main.lists.frames, "the stack")
        assert any(row.kind == "live" for row in app.app.main.lists.frames)
        assert "loss.backward()" in app.text
        await app.press("j")
        await app.until(
            lambda: app.app.reader.shown_node is not None and app.app.reader.shown_node.index == 2, "node 2"
        )
        assert not any(row.kind == "live" for row in app.app.main.lists.frames)
        await app.press("H")
        await app.until(lambda: any(row.kind == "live" for row in app.app.main.lists.frames), "the stop's stack")

    drive(WIDE, body)


def test_a_restart_begins_anew_without_complaints_about_the_old_run() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.command("restart")
        await app.until(lambda: app.program.starts == 2, "the second start")
        await app.until(lambda: app.app.main.graph.model.here == 0 and "begin" in app.status, "the first stop")
        text = app.app.main.transcript.text()
        assert "no agent" not in text and "restart runs it again" not in text
        await app.press("ctrl+x", "s")
        await app.stopped_at(1)

    drive(WIDE, body)


def test_titles_of_columns_follow_the_lanes() -> None:
    """Further down there are more lanes, which take their room from the other columns."""

    async def body(app: Driver) -> None:
        graph, head = app.app.main.graph, app.app.main.head
        first = str(head.content)
        await app.press("G")
        await app.until(lambda: graph.heading(graph.size.width)[0][0] != first, "other columns")
        await app.until(lambda: graph.heading(graph.size.width)[0][0] == str(head.content), "their titles")

    drive((80, 40), body)


def test_that_it_is_detached_is_said_once() -> None:
    async def body(app: Driver) -> None:
        await app.command("detach")
        await app.shows("the program continues without the debugger")
        await app.until(lambda: app.app.feed.idle, "all events")
        await app.pilot.pause(0.2)
        assert app.text.count("continues without the debugger") == 1, app.text

    drive(WIDE, body)
