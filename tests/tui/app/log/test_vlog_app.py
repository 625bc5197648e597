"""`adbg log` on a terminal: the panel over real logs, by its keys."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from adbg.engine.glog import format_record
from adbg.tui.app.log.folds import Filter
from adbg.tui.app.log.log_app import LogApp
from adbg.tui.app.log.nodes import node_index
from adbg.tui.app.log.search import Search
from adbg.tui.app.panels.graph_model import GraphModel

DATA = Path(__file__).resolve().parents[3] / "data" / "vlog"
Body = Callable[[LogApp, Pilot[None]], Awaitable[None]]


def drive(paths: list[Path], body: Body, size: tuple[int, int] = (160, 45), follow: bool = False) -> None:
    async def run() -> None:
        app = LogApp([str(path) for path in paths], follow=follow)
        async with app.run_test(size=size) as pilot:
            await until(lambda: len(app.shown.store) > 0)
            await body(app, pilot)

    asyncio.run(run())


async def until(wanted: Callable[[], object]) -> None:
    for _ in range(1000):
        if wanted():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


def lines(app: LogApp) -> list[str]:
    panel = app.shown
    return ["".join(text for text, _ in panel.line(line, 150)) for line in range(panel.line_count())]


def here(app: LogApp) -> str:
    return app.shown.store.line(app.shown.row_at(app.shown.cursor)).text


@pytest.mark.parametrize("size", [(160, 45), (80, 24)], ids=str)
def test_folding_by_keys(size: tuple[int, int]) -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        whole = app.shown.line_count()
        assert whole == 104
        app.shown.go_to(next(row for row in range(whole) if app.shown.store.line(row).text.startswith("Outer:Running")))
        await pilot.press("space")
        folded = app.shown.line_count()
        assert folded < whole and any("▸ Outer:Running PyLayer Apply" in line and "+" in line for line in lines(app))
        await pilot.press("space")
        assert app.shown.line_count() == whole
        await pilot.press("less_than_sign")
        top = app.shown.line_count()
        assert top < folded and all("│" not in line for line in lines(app))
        await pilot.press("greater_than_sign")
        assert top < app.shown.line_count() < whole
        for _ in range(12):
            await pilot.press("greater_than_sign")
        assert app.shown.line_count() == whole

    drive([DATA / "pylayer_nested_v3.log"], body, size)


def test_all_keys_are_told_on_a_narrow_terminal() -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        hints = app.query_one("#hints")
        assert hints.size.height == 1
        await pilot.press("question_mark")
        await pilot.pause()
        shown = " ".join(" ".join(strip.text for strip in hints.render_lines(hints.size.region)).split())
        assert shown.startswith("? Keys q Quit") and shown.endswith("[ ] File") and hints.size.height > 1
        await pilot.press("question_mark")
        await pilot.pause()
        assert hints.size.height == 1

    drive([DATA / "pylayer_nested_v3.log"], body, (80, 24))


def test_a_block_unfolds_to_its_whole_text_and_a_search_opens_it() -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"API_Name", "enter")
        await until(lambda: app.shown.line_count() > 104)
        await pilot.press("slash")
        await pilot.pause()
        assert app.screen.query_one(Input).value == ""
        await pilot.press("up")
        assert app.screen.query_one(Input).value == "API_Name"
        await pilot.press("escape")
        shown = lines(app)
        assert any("API_Name: gaussian1" in line for line in shown) and any("Shape: 2, 3," in line for line in shown)
        await pilot.press("space")
        assert app.shown.line_count() == 104

    drive([DATA / "pylayer_nested_v3.log"], body)


def test_filter_and_next_warning() -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        await pilot.press("e")
        assert "EnforceNotMet" in here(app)
        await pilot.press("E")
        assert "UserWarning" in here(app)
        await pilot.press("E")
        assert here(app).startswith("Traceback")
        app.shown.set_filter("level:W EnforceNotMet")
        assert app.shown.line_count() == 2 and "2 match" in app.shown.subtitle_text()
        app.shown.set_filter("")
        assert app.shown.line_count() == len(app.shown.store)

    drive([DATA / "exc_backward_csl2.log"], body)


def test_a_growing_log_is_followed_until_the_cursor_leaves_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(format_record("first", "nodes", 4))

    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        with path.open("a") as file:
            file.writelines(format_record(f"record {number}", "nodes", 4) for number in range(200))
        await until(lambda: here(app) == "record 199")
        assert "FOLLOW" in app.shown.subtitle_text()
        await pilot.press("g")
        with path.open("a") as file:
            file.write(format_record("one more", "nodes", 4))
        await until(lambda: len(app.shown.store) == 202)
        assert here(app) == "first" and "FOLLOW" not in app.shown.subtitle_text()
        await pilot.press("F")
        assert here(app) == "one more"

    drive([path], body, follow=True)


def test_gzipped_files_and_tabs(tmp_path: Path) -> None:
    packed = tmp_path / "promo.log.gz"
    packed.write_bytes(gzip.compress((DATA / "promo_v4.log").read_bytes()))

    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        assert app.main.number == 0
        await until(lambda: any("type promotion" in line for line in lines(app)))
        await pilot.press("right_square_bracket")
        assert app.main.number == 1
        await until(lambda: any("GradNodePyLayer_Outer" in line for line in lines(app)))

    drive([packed, DATA / "pylayer_nested_v3.log"], body)


def test_the_way_to_the_last_stop_is_open_whatever_is_folded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = (DATA / "pylayer_nested_v3.log").read_text()
    at = whole.index("\n", whole.index("Preparing", whole.rindex("Running PyLayer"))) + 1
    path.write_text(whole[:at])

    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        panel = app.shown
        await until(lambda: not panel.store.behind)
        panel.note("breakpoint: here", "00:01.000", stop=True)
        depth = panel.store.depths[-1]
        assert depth >= 2
        panel.fold_all(0)
        shown = lines(app)
        assert "breakpoint: here" in shown[-1] and here(app) == "breakpoint: here"
        assert any("▸" in line for line in shown) and len(shown) < len(panel.store)
        with path.open("a") as file:
            file.write(whole[at:])
        await until(lambda: not panel.store.behind and len(panel.store) > 100)
        panel.note("step: there", "00:02.000", stop=True)
        shown = lines(app)
        assert "step: there" in shown[-1] and not any("breakpoint: here" in line for line in shown)

    drive([path], body, follow=True)


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100,000 records, 12 MB; one of them is the needle."""
    path = tmp_path_factory.mktemp("log") / "long.log"
    record = format_record("SumGradNode(0x55eaf696a1b0) Found pending node: AddGradNode and more", "backward", 4)
    path.write_text(record * 90_000 + format_record("the needle", "nodes", 4) + record * 9_999)
    return path


async def indexed(app: LogApp) -> None:
    await until(lambda: len(app.shown.store) == 100_000 and app.shown.store._reader is None)


class Brake:
    """Searches and filters look at one piece and no more until ``held`` is False."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = True
        for kind in (Search, Filter):
            monkeypatch.setattr(kind, "advance", self._braked(kind.advance))  # type: ignore[attr-defined]

    def _braked(self, advance: Callable[[Any, float], bool]) -> Callable[[Any, float], bool]:
        moved: set[object] = set()

        def advance_a_little(looking: Any, seconds: float) -> bool:
            if self.held and looking in moved:
                return False
            moved.add(looking)
            return advance(looking, 0.0 if self.held else seconds)

        return advance_a_little


def test_a_long_search_lets_the_keys_through_and_ends_where_the_match_is(
    long_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake = Brake(monkeypatch)

    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        await indexed(app)
        panel = app.shown
        await pilot.press("slash", *"needle", "enter")
        await until(lambda: "searching for needle" in panel.subtitle_text())
        assert "searching for needle" in app.screen.query_one("#file0").border_subtitle  # type: ignore[operator]
        await pilot.press("j", "j")
        assert panel.cursor == 2 and "esc stops" in panel.subtitle_text()
        brake.held = False
        await until(lambda: here(app) == "the needle")
        assert "searching" not in panel.subtitle_text()

    drive([long_log], body)


def test_escape_gives_up_a_search_and_a_filter_and_the_cursor_stays(
    long_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake = Brake(monkeypatch)

    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        await indexed(app)
        panel = app.shown
        panel.select(500)
        await pilot.pause(0.1)
        top = panel.scroll_offset.y
        await pilot.press("slash", *"needle", "enter")
        await until(lambda: "searching for needle" in panel.subtitle_text())
        await pilot.press("escape")
        assert "searching" not in panel.subtitle_text() and (panel.cursor, panel.scroll_offset.y) == (500, top)
        panel.select(95_000)
        panel.set_filter("pending")
        await until(lambda: 0 < panel.line_count() < 95_000)
        assert "filtered" in panel.subtitle_text()
        await pilot.press("escape")
        assert panel.view.filter_text == "" and panel.line_count() == 100_000 and panel.cursor == 95_000
        brake.held = False
        panel.set_filter("pending")
        await until(lambda: panel.line_count() == 99_999 and panel.cursor == 94_999)
        assert "looked at" not in panel.subtitle_text()
        await pilot.press("slash", *"needle", "enter")
        await asyncio.sleep(0.05)
        assert panel.cursor == 94_999, "what the filter hides is not found"

    drive([long_log], body)


def test_lines_kept_while_scrolling_are_those_made_anew() -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        panel = app.shown
        for keys in (
            ["j"] * 30, ["ctrl+d", "k", "ctrl+f"], ["space"], ["k"] * 5, ["T"], ["m", "j"], ["slash", *"grad", "enter"],
            ["less_than_sign"], ["greater_than_sign", "G"], ["g"], ["tab"],
        ):  # fmt: skip
            await pilot.press(*keys)
            await pilot.pause()
            shown = [panel.render_line(y).text for y in range(panel.size.height)]
            styles = [[segment.style for segment in panel.render_line(y)] for y in range(panel.size.height)]
            panel._kept.clear()
            assert shown == [panel.render_line(y).text for y in range(panel.size.height)], keys
            assert styles == [[segment.style for segment in panel.render_line(y)] for y in range(panel.size.height)]
        assert any("grad" in line.lower() for line in shown)

    drive([DATA / "pylayer_nested_v3.log"], body, (120, 30))


def test_a_record_about_a_node_names_it_and_the_node_finds_its_record() -> None:
    async def body(app: LogApp, pilot: Pilot[None]) -> None:
        panel = app.shown
        app.screen.set_focus(None)
        await until(lambda: not panel.has_focus)
        assert panel.show_node("GradNodeAccumulation", 7, 2)
        assert here(app) == "GradNodeAccumulation(0x55eafadf1630) Preparing"
        assert panel.show_node("MatmulGradNode", 5, 1) and here(app).startswith("MatmulGradNode(0x55eafaea1470)")
        assert not panel.show_node("NoSuchNode", 1, 1)
        told: list[object] = []
        panel.post_message = lambda message: told.append(message) or True  # type: ignore[method-assign,func-returns-value]
        row = panel.row_at(panel.cursor)
        assert panel._links.ask_node(row) and panel._answer(1.0) is False
        del panel.post_message
        (message,) = told
        assert isinstance(message, panel.NodeWanted)
        assert (message.name, message.index, message.occurrence) == ("MatmulGradNode", 0, 1)

    drive([DATA / "pylayer_nested_v3.log"], body)
    assert node_index(GraphModel(), "MatmulGradNode", 0, 1) == 0
