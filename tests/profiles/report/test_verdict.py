"""What bounds a step: arithmetic on the node timer's rows, and real profiles of work that is one or the other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import NATIVE, SECONDS, Frame, Iteration, NodeTime, Profile, Sample, Wait
from adbg.profiles.report.verdict import Bound, judge, split
from adbg.tui.text.profile_report import iteration_lines, verdict_lines

MS, US = 1e-3, 1e-6


def node(name: str, calls: int, total: float, gap: float, kernel: float | None = None, line: int = 0) -> NodeTime:
    return NodeTime(name, name, "backward", calls, total, gap, kernel, "net.py" if line else "", line)


def test_measured_kernels() -> None:
    nodes = (node("Mm", 10, 9 * MS, 1 * MS, 8 * MS, 4), node("Add", 10, 2 * MS, 1 * MS, 1 * MS, 5))
    verdict = judge(Profile(nodes=nodes, launch_cost=1.0))
    assert verdict is not None and verdict.bound is Bound.KERNEL and verdict.basis == "kernel"
    assert dict(verdict.parts) == pytest.approx({"kernel": 9 * MS, "scheduling": 4 * MS})
    assert [(line.line, line.calls) for line in verdict.lines] == [(4, 10), (5, 10)]


def test_by_the_launch_cost() -> None:
    nodes = (node("Mm", 10, 0.1 * MS, 0.2 * MS, line=4), node("Add", 1, 0.05 * MS, 0.01 * MS, line=5))
    verdict = judge(Profile(nodes=nodes, launch_cost=8 * US))
    assert verdict is not None and verdict.bound is Bound.SCHEDULING and verdict.basis == "launch"
    assert dict(verdict.parts) == pytest.approx({"scheduling": 298 * US, "kernel": 62 * US})
    assert [line.line for line in verdict.lines] == [4, 5]


def test_an_interrupted_call_decides_nothing() -> None:
    odd = NodeTime("Mm", "Mm", "backward", 10, 30 * MS, 0.1 * MS, median=9 * US)
    verdict = judge(Profile(nodes=(odd,), launch_cost=8 * US))
    assert verdict is not None and verdict.bound is Bound.SCHEDULING and verdict.total == pytest.approx(190 * US)


def test_the_loader() -> None:
    verdict = judge(Profile(nodes=(node("Mm", 1, MS, 0, MS),), iterations=(Iteration(1, 5 * MS, data=3 * MS),)))
    assert verdict is not None and verdict.bound is Bound.DATA and verdict.share == pytest.approx(0.6)


def test_of_one_backward_and_of_enough_of_them() -> None:
    nodes = (node("Mm", 40, 8 * MS, 4 * MS, 7 * MS, 4), node("Add", 80, 4 * MS, 0, 4 * MS, 5))
    whole = judge(Profile(nodes=nodes))
    one = judge(Profile(nodes=nodes, meta={"measured": 4, "backwards": 16}))
    assert whole is not None and whole.per == "" and one is not None and one.per == "backward"
    assert dict(one.parts) == pytest.approx({name: seconds / 4 for name, seconds in whole.parts})
    assert one.total == pytest.approx(sum(node.usual + node.gap for node in nodes) / 4) and one.share == whole.share
    assert [(line.line, line.calls, line.seconds) for line in one.lines] == [
        (4, 10, pytest.approx(7 * MS / 4)), (5, 20, pytest.approx(MS)),
    ]  # fmt: skip
    few = Profile(nodes=nodes, meta={"measured": 3, "backwards": 6})
    assert judge(few) is None
    assert verdict_lines(few, 200) == [
        "no verdict by nodes, measured in 3 of 6 backwards: another run might say another thing; from 4 on there is "
        "one (`--iterations 9`)"
    ]
    text = "\n".join(verdict_lines(Profile(nodes=nodes, meta={"measured": 4, "backwards": 16}), 300))
    assert "of the usual backward, measured in 4 of 16;" in text and "1.8ms in 10 nodes" in text


def test_two_parts_as_large_as_each_other_are_no_verdict() -> None:
    assert judge(Profile(nodes=(node("Mm", 10, 6 * MS, 4.5 * MS, 5.4 * MS),))) is None


def test_no_part_of_a_node_is_longer_than_the_node() -> None:
    """The median of few calls is a mean with the longest, times their number more than they took."""
    odd = NodeTime("Mm", "Mm", "backward", 3, 1.9 * MS, 0.1 * MS, median=0.75 * MS)
    scheduling, kernel = split(odd, 1 * US) or (0.0, 0.0)
    assert 0 < kernel <= odd.usual <= odd.total and scheduling + kernel == pytest.approx(odd.usual + odd.gap)


def test_iterations_in_which_adbg_was_at_work_are_not_the_programs() -> None:
    rows = [Iteration(n, total, backward=2 * MS) for n, total in ((4, 9 * MS), (6, 12 * MS), (8, 10 * MS))]
    hooked = [Iteration(n, 200 * MS, backward=2 * MS, disturbed=True) for n in (3, 5, 7)]
    first = Iteration(1, 2 * MS, backward=2 * MS, disturbed=True)
    (line,) = iteration_lines(Profile(iterations=(first, *rows, *hooked)), 120)
    assert line.startswith("iterations: median 10ms") and line.endswith("slowest 12ms (iteration 6)")
    (line,) = iteration_lines(Profile(iterations=(first, *hooked)), 120)
    assert line.endswith("slowest 200ms (iteration 3)"), "where there is no other"


def test_both_lines_of_one_run_have_one_set_of_numbers() -> None:
    """A first call, 40 times as long, is in neither."""
    odd = Iteration(2, 400 * MS, 90 * MS, 2 * MS, 100 * MS, 200 * MS)
    rows = [Iteration(n, (9 + n) * MS, 1 * MS, 2 * MS, 0.5 * MS, (5 + n) * MS) for n in (3, 4, 5, 6, 7)]
    wait = Wait("/home/me/train.py", 4, 60 * MS, 6)
    profile = Profile(nodes=(node("Mm", 1, MS, 0, MS),), iterations=(odd, *rows), waits=(wait,))
    text = "\n".join([*verdict_lines(profile, 300), *iteration_lines(profile, 300)])
    lists = re.findall(r"\(((?:\w+ [\d.]+(?:ms|µs),? ?)+)", text)
    told = [dict(re.findall(r"(\w+) ([\d.]+\w+)", each)) for each in lists]
    assert len(told) == 2 and told[0] == told[1] and told[0]["data"] == "10ms" and told[0]["forward"] == "1.0ms", text
    assert "medians" in text and "10ms in 1 batch, on average" in text, text


def test_samples_in_the_loader() -> None:
    """A kernel that the loader calls is its own time."""
    loader = Frame("__next__", "torch/utils/data/dataloader.py", 9)
    frames = (loader, Frame("mkl_sgemm", side=NATIVE, module="x.so"), Frame("main", "/home/me/train.py", 4))
    samples = (Sample((2, 0, 1), 2.0), Sample((2, 1), 1.0))
    verdict = judge(Profile(frames, samples, SECONDS, period=0.01))
    assert verdict is not None and verdict.bound is Bound.DATA and dict(verdict.parts)["kernel"] == 1.0
    assert [(line.file, line.calls) for line in verdict.lines] == [("/home/me/train.py", 200)]


def native(*names: str) -> Profile:
    """Samples of 1 s each, in functions that the interpreter calls; those of one name have one in common."""
    frames = {name: Frame(name, side=NATIVE, module="libtorch_cpu.so") for each in names for name in each.split(" < ")}
    frames["python"] = Frame("_PyEval_EvalFrameDefault", side=NATIVE, module="libpython3.11.so.1.0")
    numbers = {name: number for number, name in enumerate(frames)}
    samples = [
        Sample((numbers["python"], *(numbers[one] for one in reversed(each.split(" < ")))), 1.0) for each in names
    ]
    return Profile(tuple(frames.values()), tuple(samples), SECONDS, period=0.01)


KERNEL, LAUNCH, OTHER = "mkl_sgemm", "c10::Dispatcher::call", "alpha_hot"


@pytest.mark.parametrize(
    ("samples", "bound"),
    [
        ([LAUNCH] * 3 + [KERNEL], Bound.SCHEDULING),
        ([LAUNCH] * 3 + [KERNEL] + [OTHER], Bound.SCHEDULING),
        ([LAUNCH] * 3 + [KERNEL] + [OTHER] * 2, None),  # it may all be kernels' time
        ([KERNEL] * 3 + [LAUNCH] + [OTHER], Bound.KERNEL),
        ([KERNEL] * 3 + [LAUNCH] + [OTHER] * 2, None),
        ([f"{OTHER} < {KERNEL}"] * 3 + [LAUNCH], Bound.KERNEL),  # of what a kernel calls
        (["memcpy < at::native::cat_out"] * 3 + [LAUNCH], Bound.KERNEL),
        (["malloc"] * 3 + [OTHER], None),  # the interpreter's
        ([OTHER] * 3, None),
        (["PyObject_Call"] * 3 + [LAUNCH], None),  # Python of the program's own, for all that is known
        (["PyObject_Call"] * 2 + [KERNEL] * 2, None),
        (["PyObject_Call"] + [KERNEL] * 2, Bound.KERNEL),
        ([f"{LAUNCH} < call_init < PyImport_ImportModuleLevelObject"] * 9 + [KERNEL], Bound.KERNEL),
        (["gomp_barrier_wait"] * 9 + [LAUNCH], Bound.SCHEDULING),  # threads of a pool that wait
    ],
)
def test_what_is_not_known_turns_no_verdict(samples: list[str], bound: Bound | None) -> None:
    verdict = judge(native(*samples))
    assert verdict is None if bound is None else verdict is not None and verdict.bound is bound, verdict


def test_nothing_is_judged_without_a_measure() -> None:
    assert judge(Profile(nodes=(node("Mm", 1, MS, 0),))) is None
    assert judge(Profile()) is None
    few = tuple(Sample((0,), 0.01) for _ in range(3))
    assert judge(Profile((Frame("mkl_sgemm", side=NATIVE, module="x.so"),), few, SECONDS, period=0.01)) is None
    many = few * 100
    assert judge(Profile((Frame("mkl_sgemm", side=NATIVE, module="x.so"),), many, SECONDS, period=0.01)) is not None
    assert judge(Profile((Frame("0x7f00", side=NATIVE),), many, SECONDS, period=0.01)) is None, "addresses alone"


def test_the_node_timers_file(tmp_path: Path) -> None:
    """Without a measured launch cost, that of the nodes which compute nothing."""
    row = {"index": 1, "calls": 2, "gap_us": 5.0, "raw_us": 20.0, "us": 10.0, "forward_us": None, "module": "net.a"}
    mm = {"name": "MmBackward0", "unique_name": "MmBackward0#1", "total_us": 50.0, "file": "/m.py", "line": 3}
    view = {"name": "TBackward0", "unique_name": "TBackward0#2", "total_us": 24.0, "forward_us": 3.0}
    body = {
        "adbg_nodes": 1,
        "framework": "torch",
        "iterations": [{"backward": 1, "backward_us": 90.0, "outside_us": 10.0, "nodes": 2, "data_us": None}],
        "cost": {"per_node_us": 1.0, "how": "interleaved"},
        "nodes": [{**row, **mm}, {**row, **view}],
    }
    folder = tmp_path / "001-nodes"
    folder.mkdir()
    (folder / "nodes.json").write_text(json.dumps(body))
    meta = {
        "adbg": 1,
        "profiler": "nodes",
        "file": "nodes.json",
        "format": "nodes",
        "state": "partial",
        "why": "killed",
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    for path in (folder, folder / "nodes.json"):
        profile = detect.read(path)
        assert profile.meta["state"] == "partial"
        assert profile.launch_cost == pytest.approx(12 * 10 * US), "twelve times the median of the view"
        assert [(n.name, n.phase, n.forward) for n in profile.nodes] == [
            ("MmBackward0", "backward", None), ("TBackward0", "backward", pytest.approx(3 * US)),
        ]  # fmt: skip
        assert profile.nodes[0].gap == pytest.approx(10 * US) and profile.nodes[0].line == 3
        assert profile.iterations == (Iteration(1, pytest.approx(100 * US), None, pytest.approx(90 * US), None, None),)


@pytest.mark.parametrize(("framework", "says"), [("torch", "--with cprofile"), ("paddle", "on another thread")])
def test_a_wait_for_data_says_which_profiler_sees_the_dataset(framework: str, says: str) -> None:
    rows = tuple(Iteration(n, 9 * MS, 1 * MS, 1 * MS, 1 * MS, 6 * MS) for n in (2, 3, 4))
    profile = Profile(nodes=(node("Mm", 1, MS, 0, MS),), iterations=rows, meta={"framework": framework})
    text = verdict_lines(profile, 300)
    assert text[0].startswith("data-bound") and says in text[-1] and "py-spy" in text[-1], text


def read_ahead(number: int, disturbed: bool, behind: int) -> Iteration:
    """A loader needs 10 ms a batch, the step 4 ms, adbg's work 20 ms: of these the loader uses what it can."""
    data = {1: 0.0, 2: 0.0, 3: 2 * MS}.get(behind, 6 * MS)
    backward = 22 * MS if disturbed else 2 * MS
    return Iteration(number, data + backward + 2 * MS, 2 * MS, backward, None, data, disturbed)


def run_of(hooked: Sequence[int], count: int) -> tuple[Iteration, ...]:
    last = [max((one for one in hooked if one < number), default=-9) for number in range(count)]
    return tuple(read_ahead(number, number in hooked, number - last[number]) for number in range(count))


def test_a_loader_that_used_the_time_of_adbgs_own_work() -> None:
    nodes = (node("Mm", 40, 0, 0.1 * MS, 0), node("Mul", 40, 4 * MS, 1 * MS, 0))
    meta = {"measured": 8, "backwards": 60}
    hooked = [0, 2, 4, 6, 8, 10, 14, 18]
    found = judge(Profile(nodes=nodes, iterations=run_of(hooked, 60), meta=meta))
    assert found is not None and found.bound is Bound.DATA
    assert dict(found.parts)["data"] == pytest.approx(6 * MS) and found.total == pytest.approx(10 * MS)
    few = Profile(nodes=nodes, iterations=run_of(hooked[:6], 12), meta={"measured": 6, "backwards": 12})
    assert judge(few) is None and "read ahead" in verdict_lines(few, 300)[0]
    synchronous = tuple(replace(row, data=1 * MS) for row in few.iterations)
    judged = judge(replace(few, iterations=synchronous))
    assert judged is not None and judged.bound is not Bound.DATA, "each batch waits as long: none was read ahead"
    fast = tuple(replace(row, data=0.1 * MS * (row.data or 0) / MS) for row in run_of(hooked, 60))
    judged = judge(Profile(nodes=nodes, iterations=fast, meta=meta))
    assert judged is not None and judged.bound is not Bound.DATA
