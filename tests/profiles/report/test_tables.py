"""Rows of sampled profiles, by every grouping, and the difference of two profiles; parts of an iteration by frames."""

from __future__ import annotations

import re

import pytest

from adbg.profiles.report.model import NATIVE, NODE, SAMPLES, SECONDS, Call, Frame, Profile, Sample
from adbg.profiles.report.phases import begins
from adbg.profiles.report.tables import Grouping, Order, comparable, difference, matching, table

TORCH = "/v/lib/python3.11/site-packages/torch"
FRAMES = (
    Frame("main", "/home/me/train.py", 10),  # 0
    Frame("forward", "/home/me/net.py", 5),  # 1
    Frame("forward", "/home/me/net.py", 6),  # 2
    Frame("Tensor.backward", f"{TORCH}/_tensor.py", 600),  # 3
    Frame("mkl_gemm", side=NATIVE, module="libtorch_cpu.so"),  # 4
    Frame("step", f"{TORCH}/optim/sgd.py", 80),  # 5
    Frame("__next__", f"{TORCH}/utils/data/dataloader.py", 700),  # 6
    Frame("linear", f"{TORCH}/nn/functional.py", 2),  # 7
)
STACKS = (
    Sample((0, 1, 7, 4), 4.0, "main"),
    Sample((0, 2, 7), 1.0, "main"),
    Sample((0, 3, 4), 6.0, "main"),
    Sample((3, 4), 2.0, "engine"),
    Sample((0, 5), 0.5, "main"),
    Sample((0, 6), 0.25, "main"),
    Sample((0,), 0.125, "main"),
)
PROFILE = Profile(FRAMES, STACKS, SECONDS)


def rows(grouping: Grouping) -> dict[str, tuple[float, float]]:
    return {f"{row.frame.name}:{row.frame.line}": (row.own, row.cumulative) for row in table(PROFILE, grouping).rows}


def test_functions_and_lines() -> None:
    assert rows(Grouping.FUNCTION)["forward:5"] == (0, 5), "one function, at the line that took more than the other"
    assert rows(Grouping.LINE)["forward:5"] == (0, 4) and rows(Grouping.LINE)["forward:6"] == (0, 1)
    assert rows(Grouping.FUNCTION)["mkl_gemm:0"] == (12, 12) and rows(Grouping.FUNCTION)["main:10"] == (0.125, 11.875)


@pytest.mark.parametrize(
    ("grouping", "wanted"),
    [
        (Grouping.SIDE, {"python": (1.875, 13.875), "native": (12, 12)}),
        (Grouping.ORIGIN, {"python": (0.125, 11.875), "framework": (13.75, 13.75)}),
        (Grouping.THREAD, {"main": (11.875, 11.875), "engine": (2, 2)}),
        (
            Grouping.PHASE,
            {
                "forward": (5, 5),
                "backward": (8, 8),
                "optimizer": (0.5, 0.5),
                "data": (0.25, 0.25),
                "other": (0.125, 0.125),
            },
        ),
        (Grouping.MODULE, {"libtorch_cpu.so": (12, 12), "/home/me/train.py": (0.125, 11.875)}),
    ],
)
def test_groups(grouping: Grouping, wanted: dict[str, tuple[float, float]]) -> None:
    found = {name[:-2]: both for name, both in rows(grouping).items()}
    assert found.items() >= wanted.items()
    assert sum(own for own, _ in found.values()) == pytest.approx(PROFILE.total), "self times add up to all"


def test_recursion_counts_once() -> None:
    recursive = Profile((Frame("f"), Frame("g")), (Sample((0, 1, 0, 1, 0), 3.0),), SECONDS)
    assert {row.frame.name: (row.own, row.cumulative) for row in table(recursive).rows} == {"f": (3, 3), "g": (0, 3)}


def test_orders_and_search() -> None:
    calls = (Call(0, 10, 5, 1.0, 5.0), Call(1, 2, 2, 3.0, 3.0), Call(7, 100, 100, 2.0, 2.0))
    counted = Profile(FRAMES, (), SECONDS, calls, lines="first")

    def names(order: Order) -> list[str]:
        return [row.frame.name for row in table(counted, order=order).rows]

    assert names(Order.SELF) == ["forward", "linear", "main"] and names(Order.CUMULATIVE) == [
        "main",
        "forward",
        "linear",
    ]
    assert names(Order.CALLS) == ["linear", "main", "forward"] and names(Order.PER_CALL) == [
        "forward",
        "main",
        "linear",
    ]
    assert names(Order.NAME) == ["forward", "linear", "main"]
    found = matching(table(counted).rows, re.compile("net.py:5$|^lin"))
    assert [row.frame.name for row in found] == ["linear"]
    assert [row.frame.name for row in matching(table(counted).rows, re.compile(r"net\.py:5"))] == ["forward"]


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        (Frame("backward", "torch/autograd/__init__.py"), "backward"),
        (Frame("torch::autograd::Engine::thread_main(int)", side=NATIVE), "backward"),
        (Frame("egr::RunBackward(std::vector<int>)", side=NATIVE), "backward"),
        (Frame("Optimizer.profile_hook_step.<locals>.wrapper", "torch/optim/optimizer.py"), "optimizer"),
        (Frame("step", "/v/site-packages/paddle/optimizer/optimizer.py"), "optimizer"),
        (Frame("__next__", "paddle/io/dataloader/dataloader_iter.py"), "data"),
        (Frame("_find_and_load", "<frozen importlib._bootstrap>"), "other"),
        (Frame("backward", "/home/me/net.py"), None),
        (Frame("step", "/home/me/net.py"), None),
    ],
)
def test_what_begins_a_part(frame: Frame, phase: str | None) -> None:
    assert begins(frame) == phase


@pytest.mark.parametrize(
    ("frame", "origin"),
    [
        (Frame("f", "/home/me/train.py"), "python"),
        (Frame("f", f"{TORCH}/_tensor.py"), "framework"),
        (Frame("f", "torch/_tensor.py"), "framework"),
        (Frame("f", "/v/site-packages/torchvision/x.py"), "python"),
        (Frame("f", "/home/me/torch_models/x.py"), "python"),
        (Frame("at::native::mul(int)", side=NATIVE), "framework"),
        (Frame("x", side=NATIVE, module="libpaddle.so"), "framework"),
        (Frame("malloc", side=NATIVE, module="libc.so.6"), "native"),
        (Frame("MmBackward0", side=NODE), "node"),
    ],
)
def test_whose_a_frame_is(frame: Frame, origin: str) -> None:
    assert frame.origin == origin


def test_the_difference_of_two() -> None:
    moved = Frame("forward", "/home/me/net.py", 50)
    before = Profile(FRAMES[:3], (Sample((0, 1), 4.0), Sample((0,), 1.0)), SECONDS)
    after = Profile((FRAMES[0], moved, FRAMES[7]), (Sample((0, 1), 1.0), Sample((0, 2), 2.0)), SECONDS)
    found = difference(before, after, shares=False)
    assert {change.frame.name: (change.own, change.cumulative) for change in found.changes} == {
        "forward": (-3, -3), "linear": (2, 2), "main": (-1, -2),
    }  # fmt: skip
    assert [change.frame.name for change in found.changes] == ["forward", "linear", "main"], "the largest first"
    assert sum(change.own for change in found.changes) == after.total - before.total
    assert comparable(before, after)
    twins = [Frame("__init__", "/home/me/net.py", line) for line in (3, 30)]
    one = Profile(tuple(twins), (Sample((0,), 1.0), Sample((1,), 5.0)), SECONDS, lines="first")
    other = Profile(tuple(twins[::-1]), (Sample((0,), 2.0), Sample((1,), 6.0)), SECONDS, lines="first")
    assert [change.own for change in difference(one, other, shares=False).changes] == [5, -3], "by line"
    in_samples = Profile(before.frames, before.samples, SAMPLES)
    assert not comparable(in_samples, after)
    shares = difference(in_samples, after, shares=True)
    assert {c.frame.name: c.own for c in shares.changes}["linear"] == pytest.approx(2 / 3)
