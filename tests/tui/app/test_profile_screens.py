"""F5: what to measure, how far it is, and the report: flame graph, tables, difference, search, source."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.app_driver import Driver, drive
from textual.app import App, ComposeResult

from adbg.engine.protocol import messages as protocol
from adbg.profiles.region import parse_region
from adbg.profiles.report.flame import ROOT, Tree
from adbg.profiles.report.model import Frame, Iteration, NodeTime, Profile, Sample
from adbg.profiles.report.node_groups import with_stacks
from adbg.profiles.report.verdict import ITERATION_PARTS
from adbg.tui.app.profile import contents, report_words
from adbg.tui.app.profile.colours import kind_of
from adbg.tui.app.profile.dialog import ProfileScreen, offers
from adbg.tui.app.profile.icicle import Icicle
from adbg.tui.app.profile.report_app import ReportApp
from adbg.tui.app.profile.report_screen import ReportScreen
from adbg.tui.app.profile.sheets import functions, iterations
from adbg.tui.app.profile.source_screen import SourceScreen

WIDE, NARROW = (160, 45), (80, 24)
HERE = f"{__file__}:18"
STACKS = {
    f"main ({HERE});forward ({HERE});mm (libtorch_cpu.so)": 50,
    f"main ({HERE});forward ({HERE});tanh (libtorch_cpu.so)": 10,
    f"main ({HERE});backward (torch/_tensor.py:500);run (libtorch_cpu.so)": 30,
    f"main ({HERE})": 10,
}


def collapsed(path: Path, stacks: dict[str, int]) -> str:
    path.write_text("".join(f"{stack} {count}\n" for stack, count in stacks.items()))
    return str(path)


def icicle(app: Driver) -> Icicle:
    return app.app.screen.query_one(Icicle)


def here(app: Driver) -> str:
    """The frame under the cursor."""
    frame = app.app.screen.frame_here() if isinstance(app.app.screen, ReportScreen) else None
    return frame.name if frame is not None else ""


def report(size: tuple[int, int], path: str, body: Callable[[Driver], Awaitable[None]]) -> None:
    """Run ``body`` over the report of ``path`` alone, as `adbg profile FILE` shows it."""

    async def main() -> None:
        app = ReportApp(path, {})
        async with app.run_test(size=size, notifications=False) as pilot:
            driver = Driver(app, pilot, None, None)  # type: ignore[arg-type]  # there is no program
            await driver.until(lambda: isinstance(app.screen, ReportScreen), "the report")
            await driver.until(lambda: app.screen.contents is not None and icicle(driver).stacks is not None, "read")
            await body(driver)

    asyncio.run(asyncio.wait_for(main(), 90))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_the_flame_graph_is_walked_zoomed_searched_and_left_for_the_source(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    path = collapsed(tmp_path / "run.collapsed", STACKS)

    async def body(app: Driver) -> None:
        text = await app.shows("▏all 100", "▏main", "▏forward", "▏mm", "no verdict", "run.collapsed")
        assert max(map(len, text.splitlines())) <= size[0]
        line = next(line for line in text.splitlines() if "▏forward" in line)
        width = size[0] - 2
        assert line.index("▏backward") - line.index("▏forward") == int(width * 0.6), "as wide as its share"
        await app.press("j", "j")
        await app.until(lambda: here(app) == "forward", "the widest below")
        await app.shows("60, 60.0% of all · self 0", f"your Python  {__file__}:18"[-30:])
        await app.press("l")
        await app.until(lambda: here(app) == "backward", "beside it")
        await app.press("h", "enter")  # in full width
        await app.shows("100.0% of the zoom")
        assert "▏backward" not in app.text
        assert app.text.count("▏mm") == 1
        await app.press("escape")
        await app.shows("▏backward")

        await app.press("slash")
        await app.write("mm|tanh")
        await app.shows("/mm|tanh/", "60.0% in 2")
        await app.until(lambda: here(app) == "mm", "the first match")
        await app.press("n")
        await app.until(lambda: here(app) == "tanh", "the next")
        await app.press("N")
        await app.until(lambda: here(app) == "mm", "the one before")

        await app.press("i")  # the innermost above, in the order of their own weight
        await app.shows("inverted")
        rows = icicle(app).rows
        tree = icicle(app).stacks
        assert tree is not None
        names = [frame.name for span in rows[1] if (frame := tree.frame_of(span.node)) is not None]
        assert names == ["mm", "run", "tanh", "main"]
        await app.press("i")
        await app.until(lambda: "inverted" not in app.text, "as before")

        await app.until(lambda: icicle(app).has_focus, "focus")
        await app.pilot.click(Icicle, offset=(5, 2))
        await app.until(lambda: here(app) == "forward", "clicked")
        await app.press("o")
        await app.until(lambda: isinstance(app.app.screen, SourceScreen), "its source")
        code = app.app.screen.code
        await app.until(lambda: (code.path, code.current, code.cursor) == (__file__, 18, 17), "its line")
        await app.press("q")
        await app.until(lambda: here(app) == "forward", "back")
        await app.press("q")
        await app.until(lambda: app.app.return_code == 0, "left")

    report(size, path, body)


def test_the_table_is_sorted_and_grouped(tmp_path: Path) -> None:
    path = collapsed(tmp_path / "run.collapsed", STACKS)

    async def body(app: Driver) -> None:
        await app.press("tab")
        await app.shows("▾self", "by function")
        screen = app.app.screen
        assert isinstance(screen, ReportScreen)
        table = screen.table
        await app.until(lambda: here(app) == "mm", "most by itself")
        assert [item.name for item in table.sheet.items] == ["mm", "run", "main", "tanh", "forward", "backward"]
        await app.press("s", "s")
        await app.shows("▾cumul.")
        await app.until(lambda: here(app) == "main", "most with what it calls")
        await app.pilot.click("#report-columns", offset=(3, 0))
        await app.shows("▾self")
        for word in ("line", "file", "module", "origin", "phase"):
            await app.press("b")
            await app.shows(f"by {word}")
        await app.until(lambda: {item.name for item in table.sheet.items} == {"backward", "forward", "other"}, "phases")
        numbers = {item.name: item.numbers[0] for item in table.sheet.items}
        assert numbers == {"forward": 60.0, "backward": 30.0, "other": 10.0}

    report(WIDE, path, body)


def test_the_difference_to_an_earlier_profile(tmp_path: Path) -> None:
    collapsed(tmp_path / "old.collapsed", {**STACKS, f"main ({HERE})": 60, f"main ({HERE});gone ({HERE})": 50})
    path = collapsed(tmp_path / "new.collapsed", STACKS)

    async def body(app: Driver) -> None:
        await app.press("d")
        await app.write("old.collapsed")
        await app.shows("old.collapsed → new.collapsed", "self +/-", "in shares of each total", "gone")
        screen = app.app.screen
        assert isinstance(screen, ReportScreen)
        changes = {item.name: item for item in screen.table.sheet.items}
        assert changes["mm"].numbers[0] == pytest.approx(50 / 100 - 50 / 200)
        assert changes["gone"].numbers[0] == pytest.approx(-50 / 200)
        assert changes["main"].numbers[0] == pytest.approx(10 / 100 - 60 / 200)
        await app.press("tab")
        await app.shows(" more ", " less ")
        flame = icicle(app)
        await app.until(lambda: flame.stacks is not None, "flame")
        tree = flame.stacks
        assert tree is not None
        styles = {frame.name: flame._style(node) for node in range(1, len(tree)) if (frame := tree.frame_of(node))}
        assert styles["mm"].startswith("flame-more") and styles["main"] == "flame-same"
        await app.press("escape")
        await app.until(lambda: app.app.screen.contents.before is None, "the report of the one")

    report(WIDE, path, body)


def test_callers_and_calls_of_a_function_wherever_it_stands(tmp_path: Path) -> None:
    """`mm` is called in the forward and in the backward, and by itself."""
    more = {**STACKS, f"main ({HERE});backward (torch/_tensor.py:500);mm (libtorch_cpu.so);mm (libtorch_cpu.so)": 20}
    path = collapsed(tmp_path / "run.collapsed", more)

    async def body(app: Driver) -> None:
        await app.press("tab")
        await app.until(lambda: here(app) == "mm", "most by itself")
        await app.press("c")
        await app.shows("callers of mm", "▏all 70", "▏mm 70", "▏forward 50", "▏backward 20")
        await app.press("j", "j")
        await app.shows("50, 41.7% of all")
        await app.press("f")
        await app.shows("calls of forward", "▏all 60", "▏forward 60", "▏mm 50", "▏tanh 10")
        await app.press("enter", "0")
        await app.shows("▏all 120", "▏main 120")
        assert "calls of" not in app.text
        await app.press("question_mark")
        await app.shows("Keys of the report", "all of its callers")
        await app.press("escape", "j", "f")
        await app.shows("calls of main")
        await app.press("escape")
        await app.until(lambda: "calls of" not in app.text, "the whole")

    report(WIDE, path, body)


def test_from_the_report_to_the_source_and_the_graph_and_back(tmp_path: Path) -> None:
    path = collapsed(tmp_path / "run.collapsed", STACKS)

    async def body(app: Driver) -> None:
        watch, main = app.app.feed.profiles, app.app.main
        watch.open(path)
        await app.shows("▏all 100", "▏forward")
        screen = app.app.screen
        await app.press("j", "j", "enter", "o")
        await app.until(lambda: app.app.screen is main, "the main screen")
        await app.until(lambda: (main.code.path, main.code.current) == (__file__, 18), "its source")
        assert main.focused_panel == "source"
        await app.press("f5")
        await app.shows("100.0% of the zoom")
        assert app.app.screen is screen and here(app) == "forward"
        await app.press("o", "f5", "q")
        await app.until(lambda: app.app.screen is main and not screen.is_attached, "left for good")

        row = main.graph.model.rows[4]
        nodes = [
            {
                "name": name.partition("#")[0],
                "unique_name": name,
                "index": n,
                "calls": 5,
                "us": 9.0 - n,
                "total_us": 45.0,
                "gap_us": 1.0,
            }
            for n, name in enumerate((row.unique_name, "OtherBackward0#77"))
        ]
        (tmp_path / "nodes.json").write_text(json.dumps({"adbg_nodes": 1, "nodes": nodes, "iterations": []}))
        watch.open(str(tmp_path / "nodes.json"))
        await app.shows(row.unique_name, "in the graph")
        await app.press("j", "enter")
        await app.until(lambda: isinstance(app.app.screen, ReportScreen), "not in this graph: nothing happens")
        await app.press("k", "enter")
        await app.until(lambda: main.graph.index == 4 and app.app.screen is main, "the node")

    drive(WIDE, body)


def test_what_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("")
    collapsed(tmp_path / "y", STACKS)

    async def body(app: Driver) -> None:
        await app.command("profile open x")
        await app.shows("is no profile: it is empty")
        assert len(app.app.screen_stack) == 1
        await app.command("profile open y")
        await app.shows("▏all 100")

    drive(WIDE, body)


def answer(app: Driver, sent: list[protocol.Profile]) -> Any:
    """Of an agent without yep, which begins at once."""

    def do_profile(request: protocol.Profile) -> protocol.ProfileBody:
        sent.append(request)
        rows = [
            protocol.ProfilerRow("cprofile", "functions", "program", True),
            protocol.ProfilerRow("yep", "native", "program", False, "libprofiler is missing", "apt install it"),
        ]
        started = next((each for each in sent if each.action == "start"), request)
        state = protocol.ProfileState("running", started.profiler, started.region, iterations=3)
        if request.action == "start":
            app.agent.event(protocol.ProfileChanged(state))
        return protocol.ProfileBody(state, rows if request.action == "list" else [])

    return do_profile


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["160x45", "80x24"])
def test_f5_measures_and_the_report_opens(tmp_path: Path, size: tuple[int, int]) -> None:
    folder = tmp_path / "profiles" / "001-cprofile"
    folder.mkdir(parents=True)

    async def body(app: Driver) -> None:
        sent: list[protocol.Profile] = []
        app.agent.do_profile = answer(app, sent)  # type: ignore[attr-defined]
        await app.press("f5")
        text = await app.shows("▸ cprofile", "no: libprofiler is missing; apt install it", "none so far")
        assert max(map(len, text.splitlines())) <= size[0]
        await app.press("j", "enter")  # yep
        await app.shows("yep cannot run here")
        assert isinstance(app.app.screen, ProfileScreen)
        assert not [request for request in sent if request.action == "start"]
        await app.press("k", "tab", "tab")
        await app.until(lambda: getattr(app.app.focused, "id", "") == "profile-region", "the region's line")
        app.app.focused.value = ""
        await app.write("5 iterations after 2")
        await app.until(lambda: len(app.app.screen_stack) == 1, "accepted")
        started = next(request for request in sent if request.action == "start")
        assert (started.profiler, started.region) == ("cprofile", protocol.ProfileRegion("iterations", 5, 2))
        await app.until(lambda: "profile cprofile: 3 of 5" in app.status, "how many have passed")

        await app.press("f5")
        await app.shows("x or esc ends it now", "profile cprofile: 3 of 5")
        await app.press("x")
        await app.until(lambda: any(request.action == "stop" for request in sent), "ended")
        collapsed(folder / "profile.collapsed", STACKS)
        meta = {"profiler": "cprofile", "file": "profile.collapsed", "region": {"kind": "run"}, "seconds": 1.5}
        (folder / "meta.json").write_text(json.dumps(meta))
        done = protocol.ProfileState("done", "cprofile", started.region, str(folder), "profile.collapsed")
        app.agent.event(protocol.ProfileChanged(done))
        await app.shows("▏all 100", "▏forward")
        await app.press("q", "f5")
        await app.shows("001-cprofile  the run, 1.5 s")
        assert "profile cprofile" not in app.status

    drive(size, body, run_dir=str(tmp_path))


def test_whose_a_frame_is() -> None:
    kinds = {
        Frame("f", "/home/me/train.py", 3): "own",
        Frame("f", "/usr/lib/python3.11/queue.py", 3): "library",
        Frame("f", "/v/lib/python3.11/site-packages/numpy/core.py"): "library",
        Frame("f", "/v/lib/python3.11/site-packages/torch/_tensor.py"): "framework",
        Frame("f", "<frozen importlib._bootstrap>"): "library",
        Frame("at::native::mm", "", 0, "native", "libtorch_cpu.so"): "framework",
        Frame("poll", "", 0, "native", "libc.so.6"): "native",
        Frame("MmBackward0", "train.py", 3, "node"): "node",
    }
    assert {frame: kind_of(frame) for frame in kinds} == kinds


def test_lines_of_a_function_are_one_frame_at_its_heaviest() -> None:
    frames = (Frame("main", "a.py", 1), Frame("f", "a.py", 7), Frame("f", "a.py", 9), Frame("f", "b.py", 2))
    samples = (Sample((0, 1), 2.0), Sample((0, 2), 5.0), Sample((0, 3), 1.0))
    whole = contents.functions_of(Profile(frames, samples))
    tree = Tree(whole)
    found = {
        (frame.name, frame.file, frame.line): tree.weight[node]
        for node in range(1, 4)
        if (frame := tree.frame_of(node))
    }
    assert found == {("main", "a.py", 1): 8.0, ("f", "a.py", 9): 7.0, ("f", "b.py", 2): 1.0}
    assert {item.frame.line for item in functions(whole, contents.Grouping.FUNCTION).items} == {1, 9, 2}


def test_nodes_are_a_flame_graph_of_their_modules() -> None:
    rows = (
        NodeTime("Mm", "Mm#1", "backward", 10, 0.5, 0.25, file="a.py", line=3, module="net.layers.0"),
        NodeTime("Tanh", "Tanh#1", "backward", 10, 0.25, 0.0, module="net"),
    )
    tree = Tree(with_stacks(Profile(nodes=rows)))
    assert tree.weight[ROOT] == 1.0
    found = {frame.name: tree.weight[node] for node in range(1, len(tree)) if (frame := tree.frame_of(node))}
    assert found == {
        "backward": 1.0,
        "net": 1.0,
        "layers": 0.75,
        "0": 0.75,
        "Mm#1": 0.75,
        "gap before it": 0.25,
        "Tanh#1": 0.25,
    }


class Alone(App[None]):
    """A flame graph and nothing else."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.icicle = Icicle()
        self.flame = tree

    def compose(self) -> ComposeResult:
        yield self.icicle

    def on_mount(self) -> None:
        self.icicle.show(self.flame, "samples")


def test_a_key_costs_the_same_in_a_hundred_thousand_frames() -> None:
    frames = tuple(Frame(f"function{n}", "a.py", n) for n in range(400))
    stacks = (Sample((0, 1 + n % 7, n % 97, n % 389, n % 211), 1.0 + n % 13) for n in range(60_000))
    tree = Tree(Profile(frames, tuple(stacks), lines="first"))
    assert len(tree) > 100_000

    async def main() -> None:
        app = Alone(tree)
        async with app.run_test(size=WIDE):
            flame, times = app.icicle, []
            for zoom in [*(span.node for span in flame.rows[2][:6]), ROOT] * 3:
                begun = time.perf_counter()
                flame._zoom_to(zoom)
                assert [flame.line(row, flame.size.width) for row in range(flame.line_count())]
                times.append(time.perf_counter() - begun)
            assert min(times) < 0.010, times

    asyncio.run(main())


def test_search_is_by_place_too() -> None:
    found = functions(Profile((Frame("f", "deep/model.py", 3),), (Sample((0,), 1.0),)), contents.Grouping.FUNCTION)
    assert found.find(re.compile("model"), 0, 1) == 0 and found.find(re.compile("none"), 0, 1) is None


def test_iterations_in_eighty_cells_have_all_their_parts() -> None:
    rows = (Iteration(1, 0.1, 0.02, 0.03, 0.01, 0.005), Iteration(2, 0.2, 0.02, 0.03, 0.01, 0.005))
    sheet = iterations(Profile(iterations=rows))
    for width in (76, 78, 158):
        heading = "".join(text for text, _ in sheet.heading(width))
        assert heading.split() == ["▾iteration", "total", *ITERATION_PARTS] and len(heading.rstrip()) <= width
    assert "".join(text for text, _ in sheet.line(0, 78)).split()[:3] == ["1", "100ms", "20ms"]
    assert {sheet.sorted_by(order).next_order(1) for order in range(len(sheet.columns))} == set(
        range(len(sheet.columns))
    ), "there is no name to sort by"


def test_the_head_has_the_usual_iteration_and_the_whole_verdict() -> None:
    node = NodeTime("MmBackward0", "MmBackward0#1", "backward", 10, 1e-3, 0.0, None, "/a/m.py", 4, "", 1e-4)
    rows = tuple(Iteration(n, 0.1, 0.02, 0.03, 0.01, 0.005) for n in range(1, 12))
    profile = Profile(nodes=(node,), iterations=rows, unit="seconds", launch_cost=1e-5)
    head = contents.Contents("x/001-nodes", profile).head()
    assert sum("iterations: median 100ms (forward 20ms" in line for line in head) == 1
    for width, low in ((76, True), (156, False)):
        told = ["".join(text for text, _ in line) for line in report_words.head(head, width, low)]
        assert max(map(len, told)) <= width and len(told) <= 8
        assert any("iterations: median" in line for line in told)
        assert " ".join(" ".join(told).split()).startswith(" ".join(head[0].split())), "nothing of the verdict is cut"
    for view in (contents.FLAME, contents.NODES, contents.TABLE):
        keys = report_words.keys(view, 80)
        assert len(keys) <= 74 and "tab" in keys and "w write" in keys


def test_f5_offers_the_iterations_that_the_prompt_and_the_command_line_take() -> None:
    words = offers("model.py:3", "", "")[0].words
    assert parse_region(words.split()) == parse_region(["10", "iterations"]), "the same warm-up everywhere"


def test_the_difference_of_a_copy_in_another_folder() -> None:
    def of(folder: str, count: int) -> contents.Contents:
        frames = (Frame("step", f"/{folder}/train.py", 3), Frame("add", "/lib/x.py", 9))
        meta = {"profiler": "cprofile", "iterations": count}
        return contents.Contents(
            f"{folder}/profiles/001-cprofile",
            Profile(frames, (Sample((0,), 1.0), Sample((0, 1), 1.0)), "seconds", lines="first", meta=meta),
        )

    before, after = of("one", 10), of("two", 20)
    both = contents.Contents(after.path, after.profile, before)
    changes = both.sheet(contents.CHANGES)
    assert [(item.name, item.numbers[2:]) for item in changes.items] == [
        ("step", (pytest.approx(0.1), pytest.approx(0.05))),
        ("add", (pytest.approx(0.1), pytest.approx(0.05))),
    ]
    assert "one/profiles/001-cprofile" in both.head()[-1] and "10 and 20 were measured" in both.head()[-1]
    assert set(both.tints(False) or []) == {"flame-same"}, "no frame is only in one of them"
