"""Keys do what the hand expects: steps typed ahead, chains walked, the value edited from what it is, slices that are
refused, the next NaN of a grid."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from support.app_driver import Driver, drive

from adbg.engine.backends.common.slices import resolve
from adbg.engine.backends.common.tensors import blocks, window_of
from adbg.engine.types import Phase, StopReason, TensorMeta, TensorView
from adbg.tui.app.panels.frames import banner_lines
from adbg.tui.app.screens.dialogs import LineScreen
from adbg.tui.app.screens.grid_search import extent, moved_slice, next_nonfinite
from adbg.tui.app.typeahead import StepsAhead
from adbg.tui.app.value_actions import value_source

WIDE = (160, 45)


def test_steps_typed_while_a_step_is_under_way_follow_it() -> None:
    async def body(app: Driver) -> None:
        held: list[Any] = []
        app.agent.go = held.append  # type: ignore[method-assign]  # the step takes its time
        await app.press("s")
        await app.until(lambda: held, "the step")
        await app.press("s", "s")
        del app.agent.go
        app.agent.go(held[0])
        await app.stopped_at(3)

    drive(WIDE, body)


def test_what_is_no_step_ends_the_steps_typed_ahead() -> None:
    """A NaN is not run past by a key that was typed before it was found."""

    async def body(app: Driver) -> None:
        held: list[Any] = []
        app.agent.go = held.append  # type: ignore[method-assign]
        await app.press("s")
        await app.until(lambda: held, "the step")
        await app.press("s", "s")
        del app.agent.go
        app.agent.go(lambda: app.agent.stop_at(2, StopReason.NAN, Phase.AFTER))
        await app.shows(
            "typed ahead and not run: step, step. They were to follow a step, but the program stopped at a NaN"
        )
        assert "press the key again to go on" in app.app.main.transcript.text()
        await app.stopped_at(2)
        assert app.agent.position == 2

    drive(WIDE, body)


def test_a_held_key_does_not_pile_up() -> None:
    ahead = StepsAhead()
    assert [ahead.put("step") for _ in range(30)].count(True) == StepsAhead.MOST
    assert len(ahead) == StepsAhead.MOST


def test_l_walks_a_chain_to_its_end_and_h_back_the_same_way() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        graph = app.app.main.graph
        edges = {index: row.edges for index, row in graph.model.rows.items()}
        way = [1]
        for _ in range(12):
            await app.press("l")
            await app.until(lambda: graph.index != way[-1], "the next node")
            assert graph.index in edges[way[-1]], "not a node that this one feeds"
            way.append(graph.index)
        assert way == sorted(way)
        await app.press("h")
        assert graph.index == way[-2]

    drive(WIDE, body)


def test_the_value_is_edited_from_what_it_is_and_a_saved_one_not_at_all() -> None:
    async def body(app: Driver) -> None:
        for index in (1, 2, 3, 4, 5):
            await app.press("s")
            await app.stopped_at(index)
        await app.until(lambda: app.app.main.value.model.view is not None, "the value")
        await app.press("v")
        await app.until(lambda: isinstance(app.app.screen, LineScreen), "the question")
        assert app.app.screen.query_one("Input").value == "grad_outputs[0]"  # type: ignore[attr-defined]
        await app.press("escape")
        model = app.app.main.value.model
        while model.slots[model.chosen][0] != "saved":
            assert app.app.main.value.cycle(1)
        await app.press("v")
        await app.shows("a saved tensor cannot be set")

    drive(WIDE, body, toasts=True)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [(1.0, "f32", "1"), (0.10000000149011612, "f32", "0.100000001"), (0.1, "f64", "0.1"),
     (math.nan, "f32", "float('nan')"),
     (1 / 3, "f64", "0.33333333333333331"), (-math.inf, "f32", "float('-inf')")],
)  # fmt: skip
def test_a_single_number_is_written_as_it_is(value: float, dtype: str, text: str) -> None:
    window = window_of((1,), "", 2, 2, False, lambda indices, rows, cols: ((1,), (((value,),), "exact")))
    meta = TensorMeta(dtype=dtype, shape=(1,), numel=1)
    assert value_source("g", TensorView("g", meta, window=window)) == text
    read = eval(text)
    assert read == pytest.approx(value, rel=1e-7, nan_ok=True)


def test_t_on_the_current_node_says_so() -> None:
    async def body(app: Driver) -> None:
        await app.press("s")
        await app.stopped_at(1)
        await app.press("t")
        await app.shows("#1 is the current node")

    drive(WIDE, body, toasts=True)


# ---- the grid


class Numbers:
    """A tensor of plain lists, read as the backends read theirs; counts what was asked."""

    def __init__(self, tall: int, wide: int, spoilt: set[tuple[int, int]]) -> None:
        self.tall, self.wide, self.spoilt = tall, wide, spoilt
        self.asked = 0

    def read(self, slice_text: str, rows: int, cols: int) -> Any:
        self.asked += 1
        indices = resolve(slice_text, (self.tall, self.wide))
        picked = [list(range(n)[index]) if isinstance(index, slice) else [index] for index, n in
                  zip(indices, (self.tall, self.wide))]  # fmt: skip
        lines = [[math.nan if (r, c) in self.spoilt else float(r) for c in picked[1]] for r in picked[0]]

        def maxima(top: int, tall: int, wide: int) -> list[float]:
            strip = lines[top : top + tall]
            starts = range(0, len(picked[1]), wide)
            return [
                max((n for line in strip for n in line[start : start + wide]), key=lambda n: (n != n, n))
                for start in starts
            ]

        return blocks(len(lines), len(picked[1]), rows, cols, lambda: lines, maxima)[0]


@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_every_number_in_order_and_begins_again(seed: int) -> None:
    rng = random.Random(seed)
    tall, wide = rng.choice([(1, 700), (700, 1), (300, 520), (3, 4)])
    spoilt = {(rng.randrange(tall), rng.randrange(wide)) for _ in range(4)}
    numbers = Numbers(tall, wide, spoilt)
    place = (-1, -1)
    for expected in [*sorted(spoilt), min(spoilt)]:
        found = next_nonfinite(f"[0:{tall}, 0:{wide}]", *place, numbers.read)
        assert found is not None and found[1:] == expected
        place = found[1:]
    assert numbers.asked <= 12 * (len(spoilt) + 1)
    assert next_nonfinite(f"[0:{tall}, 0:{wide}]", -1, -1, Numbers(tall, wide, set()).read) is None


def test_the_search_keeps_to_the_slice() -> None:
    spoilt = {(5, 5), (6, 9), (20, 11), (7, 8)}
    numbers = Numbers(30, 30, spoilt)
    text = "[4:20, 1:30:2]"  # without row 20 and the even columns
    assert extent(text) == (16, 15)
    first = next_nonfinite(text, -1, -1, numbers.read)
    assert first == (text, 1, 2)  # (5, 5)
    assert next_nonfinite(text, 1, 2, numbers.read) == (text, 2, 4)  # (6, 9)
    assert next_nonfinite(text, 2, 4, numbers.read) == first
    assert moved_slice(text, 1, 2, 1, 1)[0] == "[5:6, 5:7:2]"


def test_the_search_goes_through_the_planes() -> None:
    spoilt = {(0, 1): {(2, 2)}, (1, 0): {(0, 3), (1, 1)}}

    def read(slice_text: str, rows: int, cols: int) -> Any:
        first, second, *rest = slice_text.strip("[]").split(", ")
        return Numbers(4, 5, spoilt.get((int(first), int(second)), set())).read(", ".join(rest), rows, cols)

    at, found = ("[0, 0, 0:4, 0:5]", -1, -1), []
    for _ in range(4):
        place = next_nonfinite(*at, read, (2, 3, 4, 5))
        assert place is not None
        at = place
        found.append(at)
    planes = "[0, 1, 0:4, 0:5]", "[1, 0, 0:4, 0:5]"
    assert found == [(planes[0], 2, 2), (planes[1], 0, 3), (planes[1], 1, 1), (planes[0], 2, 2)]
    assert next_nonfinite("[0, 0, 0:4, 0:5]", -1, -1, read) is None  # kept to what was typed


# ---- the banner


def test_a_long_banner_goes_on_in_a_second_line_and_ends_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "✗ NaN at Log (vae.py:21) — " + " ".join(f"grad_inputs[{n}]: {n}4321/98765 nan" for n in range(9))
    monkeypatch.setattr("adbg.tui.app.panels.frames.banner_text", lambda stop, width: words)
    for width in (58, 70, 78, 158):
        lines = banner_lines(None, width)  # type: ignore[arg-type]
        assert len(lines) == 2 and all(len(line) <= width for line in lines)
        assert lines[1].endswith(" …")
        shown = " ".join(lines).removesuffix(" …").split()
        assert shown == words.split()[: len(shown)] and len(shown) > 8


def test_n_after_a_search_is_the_next_match_until_escape() -> None:
    """As in less, vim and lazygit: a step cannot be taken back."""

    async def body(app: Driver) -> None:
        before = app.agent.position
        await app.press("1", "slash")
        await app.write("Backward")
        await app.until(lambda: app.app.main.searching, "the search")
        first = app.app.main.graph.selected
        await app.press("n")
        await app.until(lambda: app.app.main.graph.selected is not first, "the next match")
        assert app.agent.position == before, "the program stands where it stood"
        await app.press("escape", "n")
        await app.until(lambda: app.agent.position != before, "the step")

    drive(WIDE, body)


def test_enter_in_the_quit_dialog_ends_nothing() -> None:
    async def body(app: Driver) -> None:
        await app.press("q", "enter", "q")
        await app.shows("end the script and leave")
        await app.press("n")
        await app.until(lambda: len(app.app.screen_stack) == 1, "the main screen")
        assert app.app.debugger.alive

    drive(WIDE, body)
