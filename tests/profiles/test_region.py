"""What part of a run a profile is of: the grammar, and its words."""

from __future__ import annotations

import pytest

from adbg.engine.errors import CommandError
from adbg.profiles.region import Region, parse_region
from adbg.tui.commands.profile import parse


@pytest.mark.parametrize(
    ("words", "region", "said"),
    [
        ("", Region("run"), "the run"),
        ("10 iterations", Region("iterations", 10, 1), "10 iterations after 1"),
        ("1 iteration after 0", Region("iterations", 1, 0), "1 iteration"),
        ("10 iterations after 3", Region("iterations", 10, 3), "10 iterations after 3"),
        (
            "5 iterations of train.py:41",
            Region("iterations", 5, 1, "train.py:41"),
            "5 iterations of train.py:41 after 1",
        ),
        ("5 iterations of t.py:4 after 0", Region("iterations", 5, 0, "t.py:4"), "5 iterations of t.py:4"),
        ("backward", Region("backward"), "one backward"),
        ("stop", Region("stop"), "to the next stop"),
        ("model.py:10-25", Region("lines", 1, place="model.py:10-25"), "model.py:10-25"),
        ("model.py:10 4 times", Region("lines", 4, place="model.py:10"), "model.py:10, 4 times"),
        ("node Mm*#3", Region("node", 500, spec="Mm*#3"), "node Mm*#3, 500 times"),
        ("node #12 --repeat 40", Region("node", 40, spec="#12"), "node #12, 40 times"),
    ],
)
def test_regions(words: str, region: Region, said: str) -> None:
    assert parse_region(words.split()) == region
    assert str(region) == said


@pytest.mark.parametrize(
    "words",
    [
        "10", "0 iterations", "-1 iterations", "10 iterations after", "10 iterations before 3", "10 iterations after x",
        "5 iterations of", "5 iterations of step", "5 iterations of t.py:4-9", "5 iterations of t.py:4 before 2",
        "backward twice", "forward", "model.py:25-10", "model.py:10 4", "node X --repeat 0", "node X 4", "node",
    ],
)  # fmt: skip
def test_no_regions(words: str) -> None:
    with pytest.raises(CommandError):
        parse_region(words.split())


def test_a_command_is_profiler_region_and_the_machine() -> None:
    request = parse(["yep", "10", "iterations", "after", "2", "pin", "0,2-3", "nice", "-5", "in", "/tmp/x"])
    assert (request.profiler, request.region.kind, request.region.count, request.region.warmup) == (
        "yep", "iterations", 10, 2,
    )  # fmt: skip
    assert (request.cores, request.nice, request.folder) == ("0,2-3", -5, "/tmp/x")
    assert parse(["3", "iterations"]).profiler == "cprofile"
    assert parse(["pyspy"]).profiler == "py-spy"
    assert parse(["node", "Mm"]).region.kind == "node", "a region of that name, no profiler"
    with pytest.raises(CommandError, match="did you mean cprofile"):
        parse(["cprofil"])
    with pytest.raises(CommandError, match="nice value"):
        parse(["cprofile", "run", "nice", "high"])
