"""What the panels draw, as text: widths, numbers, pictures, the layout at every size."""

from __future__ import annotations

import dataclasses
import math

import pytest
from rich.cells import cell_len
from support.replay_agent import recorded

from adbg.engine.names import short_op
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol.messages import GraphBody, NodeBody
from adbg.engine.types import GraphRow, NodeStop, Phase, StopReason, TensorMeta, TensorStats, TensorView, ValueState
from adbg.tui.app.layout import PANELS, SMALLEST, WIDE, Arrangement, Plan, plan
from adbg.tui.app.lines import plots
from adbg.tui.app.lines.wrapping import wrap
from adbg.tui.app.panels import value_lines as value
from adbg.tui.app.panels.graph import GraphPanel
from adbg.tui.app.panels.hints import fitting
from adbg.tui.app.panels.neighbourhood import HEIGHT, boxes
from adbg.tui.app.panels.status_bar import Status, line
from adbg.tui.app.panels.value_model import ValueModel
from adbg.tui.app.screens.dialogs import breakpoint_line
from adbg.tui.app.screens.grid import moved_slice
from adbg.tui.text import cells as figures
from adbg.tui.text.quantities import duration


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0.0, "0"),
        (0.0216, "2.2e-2"),
        (1.5, "1.5"),
        (-1234.56, "-1235"),
        (1e9, "1.0e9"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_take_seven_cells_at_most(given: float, text: str) -> None:
    assert figures.number(given) == text
    assert len(text) <= 7


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, "·"),
        (0.4, "0"),
        (41.2, "41"),
        (999.4, "999"),
        (999.6, "1.0ms"),
        (12345, "12ms"),
        (2.5e6, "2.5s"),
        (1.2e8, "120s"),
    ],
)
def test_durations_take_five_cells_at_most(us: float | None, text: str) -> None:
    assert duration(us, bare=True) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("BmmBackward0", "Bmm"), ("UnsafeViewBackward0", "UnsafeView"), ("AccumulateGrad", "AccumulateGrad"),
        ("GradNodePyLayer_Outer", "Outer"), ("matmul2GradNode", "matmul2"), ("OuterBackward", "Outer"),
        ("torch::autograd::CopySlices", "CopySlices"), ("Backward", "Backward"),
    ],
)  # fmt: skip
def test_short_names_of_both_frameworks(name: str, short: str) -> None:
    assert short_op(name) == short


def test_elision_keeps_whole_parts() -> None:
    assert figures.elide("abcdef", 4) == "abc…"
    assert figures.elide("abcdef", 6) == "abcdef"
    assert figures.elide_parameter("→layers.1.down.bias", 14) == "→…1.down.bias"
    assert figures.elide_parameter("→layers.1.down.bias", 8) == "→…bias"
    assert all(cell_len(figures.elide("日本語のテキスト", width)) <= width for width in range(12))


def test_wrapping_loses_nothing() -> None:
    text = "a stop with a long message that says what happened, why, and what to do next: supercalifragilistic"
    for width in (10, 24, 40):
        pieces = wrap(text, width)
        assert all(cell_len(piece) <= width for piece in pieces)
        assert "".join(piece.strip() for piece in pieces).replace(" ", "") == text.replace(" ", "")


def test_a_histogram_shows_every_bin_that_is_not_empty() -> None:
    lines = plots.histogram([0, 1, 1000, 500], 8, 2)
    assert [len(text) for text in lines] == [8, 8]
    assert lines[1][:2] == "  " and lines[1][2:4] == "▁▁" and lines[0][4:6] == "██" and lines[1][6:8] == "██"
    assert lines[0][6:8] == "  "


def test_a_heat_map_is_stretched_by_whole_factors_and_marks_what_is_not_finite() -> None:
    lines = plots.heatmap([[0.0, 1.0, math.nan], [-1.0, 0.5, math.inf]], 12, 4, False)
    assert all(sum(len(segment.text) for segment in row) == 12 for row in lines)
    assert len(lines) == 4
    colours = {
        str(segment.style.color.name) for row in lines for segment in row if segment.style and segment.style.color
    }
    assert {"#ff2d55", "#ff5fd2"} <= colours
    assert plots.colour(0.5, 1.0, False) != plots.colour(-0.5, 1.0, False)
    assert plots.colour(0.5, 1.0, True) == plots.colour(-0.5, 1.0, True)
    assert plots.heatmap([], 10, 3, True) == []


def stats(**changes: object) -> TensorStats:
    plain = TensorStats(64, None, -1.9e-2, 2.1e-2, 3e-6, 1.5e-3, 0.19, 0, 30, 4, 30, 0, 0, (1, 4, 9, 20, 16, 9, 4, 1))
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [30, 46, 80, 140])
def test_the_lines_of_a_value_fit_and_say_what_is_wrong(width: int) -> None:
    meta = TensorMeta((64, 256), "f32", "cpu", 65536, 16384)
    sick = stats(nan=3, pos_inf=1)
    lines = [value.meta_line(meta, sick, width), value.range_line(sick, width), value.counts_line(sick, width)]
    lines += value.histogram_lines(sick, width, 3) + value.compact_lines(TensorView("g", meta, sick), width)
    for spans in lines:
        assert figures.width_of(spans) <= width
    assert "NaN 3" in figures.plain(value.counts_line(sick, width))
    assert ("3", "bad") in value.counts_line(sick, width)
    assert value.sample_text(stats(sampled=1000)) == "sample of 1,000 in 64"


def test_the_slot_stays_chosen_from_node_to_node() -> None:
    data = recorded()
    bodies = [wire.from_json(NodeBody, entry["node"]) for entry in data["stops"] if "node" in entry]
    with_saved = next(body for body in bodies if len(body.saved) > 1)
    model = ValueModel()
    model.show_node(with_saved)
    assert model.target == "grad_outputs[0]"
    model.choose(len(model.slots) - 1)
    assert model.slots[model.chosen][0] == "saved"
    model.show_node(bodies[0])
    model.choose(0)
    model.show_node(with_saved)
    assert model.target == "grad_outputs[0]"
    model.prefer(model.slots[1][1].name)
    model.show_node(with_saved)
    assert model.chosen == 1
    model.show_node(None)
    assert model.slots == [] and model.target == ""


def test_a_value_that_is_not_kept_gives_way_to_one_that_is() -> None:
    data = recorded()
    later = next(wire.from_json(NodeBody, body) for body in data["nodes"].values() if body["saved"])
    assert later.grad_outputs[0].meta is not None and later.grad_outputs[0].meta.state is ValueState.NOT_KEPT
    model = ValueModel()
    model.show_node(later)
    assert model.slots[model.chosen][0] == "saved"


def graph_panel() -> GraphPanel:
    panel = GraphPanel()
    panel.model.load(wire.from_json(GraphBody, recorded()["graph"]))
    return panel


@pytest.mark.parametrize("width", [28, 40, 58, 62, 78, 158])
def test_rows_of_the_graph_fit_and_align(width: int) -> None:
    panel = graph_panel()
    rows = [panel.line(row, width) for row in range(len(panel.model.visible))]
    assert all(figures.width_of(spans) <= width for spans in rows)
    columns = panel.columns(width)
    start = 2 + columns["index"] + 2 + columns["lanes"] + 1
    for row, spans in enumerate(rows):
        text = figures.plain(spans)
        node = panel.model.at(row)
        name = "leaf" if node.accumulate else short_op(node.name)
        assert text[start:].startswith(figures.elide(name, columns["op"]))
        assert text[2 : 2 + columns["index"]].strip() == str(node.index)


def test_wide_rows_have_every_column_and_narrow_ones_the_important() -> None:
    panel = graph_panel()
    wide = panel.columns(158)
    assert all(wide.values())
    narrow = panel.columns(40)
    assert narrow["forward"] == 0 and narrow["op"] >= 8
    head = figures.plain(panel.heading(158))
    row = figures.plain(panel.line(2, 158))
    assert head.index("shape") == row.index("[")


def row_of(index: int, name: str, **more: object) -> GraphRow:
    return GraphRow(index, index, name, name + "#1", "done", shape=(2, 4), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [20, 44, 62, 120])
@pytest.mark.parametrize("fan", [0, 1, 3, 7])
def test_the_neighbourhood_has_a_box_for_each_side(width: int, fan: int) -> None:
    feeders = [row_of(i, "ViewBackward0") for i in range(fan)]
    fed = [row_of(20 + i, "MmBackward0") for i in range(fan)]
    lines = boxes(row_of(10, "BmmBackward0", module="layers.0"), feeders, fed, 2, width)
    if width < 44:
        assert lines == []
        return
    assert len(lines) == HEIGHT
    assert all(figures.width_of(spans) <= width for spans in lines)
    text = "\n".join(figures.plain(spans) for spans in lines)
    assert "#10 Bmm" in text
    assert text.count("▶") == 2 * (fan if fan <= 3 else 2)
    assert ("+5 more" in text) == (fan == 7)


def test_the_status_bar_drops_fields_that_do_not_fit_and_never_cuts_one() -> None:
    stop = NodeStop(StopReason.BREAKPOINT, Phase.BEFORE, 1, 1, 113, 1045, 0, 0, (1,), iteration=42)
    status = Status("stopped", stop, breakpoint="Bmm", here=113, total=1045, us=41.0, sum_us=12300.0, memory="41MiB")
    status = dataclasses.replace(status, nonfinite=0, log_lines=1284, framework="torch 2.13.0", iteration=42)
    whole = figures.plain(line(status, 220)).split(" │ ")
    for width in range(60, 200):
        text = figures.plain(line(status, width))
        assert cell_len(text) <= width
        for part in text.split(" │ "):
            assert part in whole or "113/1045" in part
        assert "113/1045" in text
    assert "NaN" not in figures.plain(line(Status("running"), 100))
    assert "%" not in figures.plain(line(Status("running"), 100))
    assert figures.plain(line(Status("exited", exit_code=3, exit_text="exited with status 3"), 100)).startswith(
        " ● EXITED 3"
    )


def test_a_bad_stop_is_named_by_its_reason() -> None:
    stop = NodeStop(StopReason.NAN, Phase.AFTER, 1, 9, 199, 204, 0, 0)
    assert figures.plain(line(Status("stopped", stop), 80)).startswith(" ■ NAN ")


def areas(chosen: Plan) -> int:
    sizes = (chosen.graph, chosen.vlog, chosen.source, chosen.value)
    return sum(width * height for width, height in sizes)


@pytest.mark.parametrize("focused", PANELS)
def test_the_panels_fill_the_screen_at_every_size(focused: str) -> None:
    for width in range(SMALLEST[0], 240, 7):
        for height in range(SMALLEST[1], 80, 3):
            for zoomed in ("", focused):
                for lower in ("value", "stack"):
                    chosen = plan(width, height, Arrangement(zoomed, lower), focused, banner=1)
                    assert not chosen.small
                    assert areas(chosen) + width * chosen.console == width * (height - 3), (width, height, chosen)
                    assert chosen.narrow == (width < WIDE[0] or height < WIDE[1])
                    shown = {name for name in PANELS if getattr(chosen, name) not in ((0, 0), 0)}
                    assert focused in shown or (chosen.narrow and focused in ("vlog", "source", "value") and not zoomed)
                    if zoomed:
                        assert zoomed in shown


def test_too_small_is_said() -> None:
    assert plan(59, 40, Arrangement(), "graph").small
    assert plan(100, 14, Arrangement(), "graph").small


def test_resizing_moves_the_border_and_comes_back() -> None:
    start = plan(160, 45, Arrangement(), "graph")
    larger = plan(160, 45, Arrangement().resized("graph", 1), "graph")
    assert larger.graph[0] == start.graph[0] + 8
    value_up = plan(160, 45, Arrangement().resized("value", 1), "value")
    assert value_up.value[0] > start.value[0]
    least = Arrangement()
    for _ in range(40):
        least = least.resized("vlog", -1)
    assert plan(160, 45, least, "vlog").vlog[1] >= 4
    assert plan(160, 45, least.even(), "graph") == start


def test_hints_are_whole() -> None:
    hints = [("s", "Step", "a"), ("n", "Next", "b"), ("ctrl+x", "Console", "c")]
    assert fitting(hints, 80) == hints
    assert fitting(hints, 16) == hints[:2]
    assert fitting(hints, 3) == []


def test_the_dialog_writes_the_grammar() -> None:
    assert (
        breakpoint_line("Bmm*", "norm(g) > 1", True, "2", "3", False, False)
        == "break Bmm* after every 2 ignore 3 if norm(g) > 1"
    )
    assert breakpoint_line(" nan ", "", False, "1", "0", True, False) == "tbreak nan"
    assert breakpoint_line("Mm", "", False, "", "", True, True) == "trace Mm"


def test_a_window_is_moved_inside_its_slice() -> None:
    assert moved_slice("[0, 0:64, 0:256]", (64, 256), 10, 20, 8, 4) == ("[0, 10:18, 20:24]", 10, 20)
    assert moved_slice("[0, 0:64, 0:256]", (64, 256), 1000, 1000, 8, 4) == ("[0, 56:64, 252:256]", 56, 252)
    assert moved_slice("[0:5]", (5,), 3, 3, 8, 4) == ("[1:5]", 0, 1)
    assert moved_slice("[]", (), 1, 1, 8, 4) == ("[]", 0, 0)


def test_a_gradient_that_is_not_shown_is_not_none() -> None:
    hidden = TensorMeta(None, note="only where it arrives", state=ValueState.HIDDEN)
    undefined = TensorMeta(None, state=ValueState.UNDEFINED)
    bodies = [entry["node"] for entry in recorded()["stops"] if "node" in entry]
    body = wire.from_json(NodeBody, bodies[0])
    given = [
        dataclasses.replace(body.grad_outputs[0], name=f"grad_inputs[{place}]", meta=meta)
        for place, meta in enumerate((hidden, undefined))
    ]
    model = ValueModel()
    model.show_node(dataclasses.replace(body, grad_outputs=[], grad_inputs=given, saved=[]))
    text = "".join(piece for line in value.slot_lines(model, 80)[0] for piece, _ in line)
    assert "grad_inputs[0] not known" in text and "grad_inputs[1] none" in text
    assert value.meta_text(hidden) == "not known"
    assert value.note_lines(hidden, 80) == [[("only where it arrives", "warn")]]
    assert value.note_lines(undefined, 80) == []
