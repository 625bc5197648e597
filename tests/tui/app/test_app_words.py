"""What the app says at sizes where not all fits, while nothing has stopped, and between two runs."""

from __future__ import annotations

import pytest
from support.app_driver import Driver, drive

from adbg.engine.protocol.messages import BackwardBegin, GraphBody
from adbg.engine.types import Evidence, NodeStop, Origin, Phase, Role, SourceLine, StopReason
from adbg.tui.app.banner import banner_text
from adbg.tui.debugger import events
from adbg.tui.text import cells as figures

WIDE = (160, 45)
NARROW = (80, 24)
NAN = Evidence(Role.GRAD_INPUTS, "grad_inputs[0]", 2688, 3, 0, Origin.MADE_HERE, slot=0)


def go_bad(app: Driver) -> None:
    """`continue` stops with a NaN behind node 2."""
    app.agent.do_continue = lambda arguments: app.agent.actions.put(  # type: ignore[method-assign]
        lambda: app.agent.stop_at(2, StopReason.NAN, Phase.AFTER, evidence=(NAN,))
    )


VERDICT = "✗ LogSoftmax (nan_at_sqrt.py:70) made NaN from finite gradients"
SHORT = "✗ LogSoftmax (nan_at_sqrt.py:70) made NaN from finite gradients — #2,"


def test_in_few_cells_the_banner_has_the_evidence_in_full_and_follows_the_width() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        go_bad(app)
        await app.press("c")
        await app.shows(SHORT)
        await app.stopped_at(2)
        await app.pilot.resize_terminal(*WIDE)
        await app.shows(f"{VERDICT} — #2, grad_inputs[0]: 3 of 2688 elements are nan")
        await app.pilot.resize_terminal(*NARROW)
        await app.shows(SHORT)

    drive(NARROW, body)


def test_the_banner_without_a_node_or_evidence_of_its_form() -> None:
    stop = NodeStop(StopReason.ERROR, Phase.ERROR, 1, 3, 0, 9, 0, 0, message="RuntimeError: no\nmore")
    assert banner_text(stop, 80) == "✗ Error at backward 3 — RuntimeError: no"


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (30, "train_pointer.py:45"), (19, "train_pointer.py:45"), (18, "train_pointer.…:45"), (10, "train_…:45"),
        (6, "tr…:45"), (5, ":45"), (3, ":45"), (2, ":…"),
    ],
)  # fmt: skip
def test_a_place_keeps_its_line_number(width: int, shown: str) -> None:
    assert figures.place_in("/a/train_pointer.py", 45, width) == shown
    assert len(shown) <= width


def test_the_forward_column_of_the_graph_ends_with_the_line() -> None:
    async def body(app: Driver) -> None:
        model = app.app.main.graph.model
        graph = app.app.main.graph
        for width in range(60, 120):
            room = graph.columns(width)["forward"]
            if room:
                row = next(i for i in range(graph.line_count()) if model.at(i).forward)
                forward = model.at(row).forward
                assert forward is not None
                assert figures.plain(graph.line(row, width)).endswith(f":{forward.line}")

    drive(WIDE, body)


def test_a_run_that_did_not_stop_yet_tells_where_it_is() -> None:
    async def body(app: Driver) -> None:
        process = app.debugger.current
        assert process is not None
        app.app.main.graph.model.load(GraphBody(-1, 0, 0, 0, []))
        app.app.main.graph.lines_changed()
        app.app.feed.put(events.Started())
        await app.shows("the program is running: i pauses at the next node")
        app.app.feed.put(events.BackwardBegan(process, BackwardBegin(5, 204, [], 0, iteration=5)))
        await app.shows("running: backward 5 · 204 nodes — i pauses at the next node")

    drive(WIDE, body)


def test_the_output_of_two_runs_is_kept_apart() -> None:
    async def body(app: Driver) -> None:
        app.program.on_output("stdout", b"first run\nhalf a line")
        await app.shows("half a line")
        await app.command("restart")
        await app.until(lambda: app.program.starts == 2, "the second start")
        await app.until(lambda: app.app.main.graph.model.here == 0 and "begin" in app.status, "the first stop")
        app.program.on_output("stdout", b"second run\n")
        await app.until(lambda: "second run" in app.app.feed.output.lines, "the output")
        assert app.app.feed.output.lines[0] == "first run"
        assert app.app.feed.output.lines[1].startswith("half a line")  # the first run may have said more at its end
        assert app.app.feed.output.lines[2:] == ["── restarted ──", "second run", ""]
        await app.press("ctrl+x", "o")
        await app.shows("first run", "── restarted ──", "second run")

    drive(WIDE, body)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_help_explains_the_signs_of_the_graph(size: tuple[int, int]) -> None:
    async def body(app: Driver) -> None:
        await app.press("question_mark")
        lines = [figures.plain(spans) for spans in app.app.screen.query_one("#help-text")._lines]
        assert all(len(line) <= size[0] for line in lines)
        start = lines.index("Reading the graph")
        legend = "\n".join(lines[start : lines.index("", start)])
        for sign in ("Mm +2ac", "·", "Σ299µs", "»", "⤓#45", "● ▶ ○", "│ ╭ ╯ ─"):
            assert sign in legend
        assert any("custom Function (PyLayer)" in line for line in lines)

    drive(size, body)


def test_long_source_lines_are_read_sideways(tmp_path: object) -> None:
    path = f"{tmp_path}/long.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write("value = 1\n" + "total = " + " + ".join(f"value_{i:03d}" for i in range(40)) + "  # END\n")

    async def body(app: Driver) -> None:
        code = app.app.main.code
        code.show(SourceLine(path, 2, "main"))
        await app.press("3")
        await app.shows("value_000")
        assert "# END" not in app.text
        for _ in range(100):
            await app.press("l")
        await app.shows("# END")
        text = figures.plain(code.line(1, code.size.width))
        assert text.startswith("▶   2 …") and text.endswith("# END")
        at = code.column
        await app.press("right")
        assert code.column == at  # nothing is further right
        await app.press("h", "left")
        assert code.column == at - 16
        code.show(SourceLine(path, 1, "main"))
        assert code.column == 0

    drive(WIDE, body)


def test_of_a_line_that_is_too_long_the_indentation_goes_first(tmp_path: object) -> None:
    path = f"{tmp_path}/deep.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{' ' * 20}loss = {'x' * 25}(END)\n{' ' * 20}short = 1\n{' ' * 4}loss = {'x' * 200}(FAR)\n")

    async def body(app: Driver) -> None:
        code = app.app.main.code
        await app.until(lambda: code.size.width > 0, "the panel is there")
        room = code.size.width - 6
        assert 36 <= room < 56, "the first line fits without its indentation alone"
        code.show(SourceLine(path, 1, "main"))
        assert code.column == 20 + 37 - room
        assert figures.plain(code.line(0, code.size.width)).endswith("(END)")
        code.show(SourceLine(path, 2, "main"))
        assert code.column == 0, "all of it fits"
        code.show(SourceLine(path, 3, "main"))
        assert code.column == 4, "what it says is never left out"

    drive(WIDE, body)


def test_a_line_shown_while_the_panel_gets_its_size_stays_in_sight(tmp_path: object) -> None:
    path = f"{tmp_path}/late.py"
    with open(path, "w", encoding="utf-8") as file:
        file.write("".join(f"line_{i}\n" for i in range(1, 200)))

    async def body(app: Driver) -> None:
        code = app.app.main.code
        code.show(SourceLine(path, 1, "main"))
        await app.shows("line_1")
        code.on_resize(None)
        code.show(SourceLine(path, 150, "main"))
        await app.shows("line_150")
        await app.pilot.pause(0.1)
        assert "line_150" in app.text

    drive(WIDE, body)
