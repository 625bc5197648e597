"""Begin, end and norm of every node on Paddle, written down by the extension. One process tries all of it
(``paddle_events_program.py``)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, run

pytest.importorskip("paddle.autograd")
FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64")


@pytest.fixture(scope="module")
def told(extension: Path) -> tuple[dict[str, Any], str]:
    path = os.pathsep.join((str(ROOT / "tests"), str(ROOT)))
    env = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    program = ROOT / "tests" / "engine" / "native" / "paddle_events_program.py"
    done = run([sys.executable, program], cwd=ROOT, env=env, limit=110)
    assert done.status == 0, str(done)
    # Not by its place: what Paddle's C++ wrote may come behind it where Python's output is buffered
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found, done.stdout


def test_every_node_in_its_order_with_the_norm_that_a_hook_is_given(told: tuple[dict[str, Any], str]) -> None:
    found = told[0]["norms"]
    assert found["same"] == [True] * 4 and found["collects"] == [True] * 4
    alone, beside = found["alone"], found["beside"]
    assert len(alone) > 100 and {"Conv2dGradNodeFinal", "ConcatGradNode", "GradNodeAccumulation"} <= {
        row[0] for row in alone
    }
    # Written down beside hooks and without; taken in two parts, and in one; each index is the place in the order.
    assert [row[:3] for row in alone] == [row[:3] for row in beside]
    assert [row[1] for row in alone] == found["order"] and [row[2] for row in alone] == list(range(1, len(alone) + 1))
    assert found["begins"] == sorted(found["begins"]) and all(us > 0 for us in found["us"])
    hooks = dict(found["hooked"])
    assert len(hooks) == len(beside)
    for row in beside:
        assert row[3] == pytest.approx(hooks[row[1]], rel=1e-5, abs=1e-30), row
    assert [row[3] for row in alone] == pytest.approx([row[3] for row in beside], rel=1e-6)
    assert not any(row[4] or row[5] for row in alone)


def test_calls_with_the_same_graph_are_told_from_others(told: tuple[dict[str, Any], str]) -> None:
    for first, second in told[0]["norms"]["twins"]:
        assert first == second and first[0] and first[1]
    ((other, _),) = told[0]["norms"]["other"]
    assert other != first[0], "another line has called the forward"


def test_every_kind_of_gradient(told: tuple[dict[str, Any], str]) -> None:
    found = told[0]["kinds"]
    for kind in FLOATS:
        collects, rows = found[kind]
        assert collects and [row[0] for row in rows] == ["ScaleGradNode", "GradNodeAccumulation"], kind
        assert [row[3] for row in rows] == pytest.approx([5.0, 10.0], rel=1e-2 if kind == "bfloat16" else 1e-6), kind
    assert [row[3] for row in found["strided"]] == pytest.approx([55**0.5] * 3, rel=1e-6)


def test_numbers_that_are_not_finite_are_those_that_paddle_tells(told: tuple[dict[str, Any], str]) -> None:
    found, printed = told
    said = [line for line in printed.splitlines() if "[PRECISION]" in line]
    assert "op=sqrt_grad" in said[0], said
    rows = found["kinds"]["infinite"]
    behind = [row[0] for row in rows].index("SqrtGradNode") + 1  # what sqrt_grad made flows into the next node
    assert [row[4] for row in rows] == [place >= behind for place in range(len(rows))]


def test_nested_calls_and_exceptions(told: tuple[dict[str, Any], str]) -> None:
    found = told[0]["calls"]
    raised, ((outer, rows), (inner, within)) = found["nested"]
    assert raised == "" and outer and inner
    assert [row[0] for row in rows] == [
        "SumGradNode", "TanhGradNode", "GradNodePyLayer_Inner", "ScaleGradNode", "GradNodeAccumulation",
    ]  # fmt: skip
    assert [row[0] for row in within] == ["SumGradNode", "TanhGradNode", "GradNodeAccumulation"]
    raised, ((_, rows),) = found["fails"]
    assert raised == "OSError"
    assert [(row[0], row[5]) for row in rows] == [
        ("SumGradNode", False), ("TanhGradNode", False), ("GradNodePyLayer_Fails", True),
    ]  # fmt: skip


def test_what_is_left_to_the_python_hooks(told: tuple[dict[str, Any], str]) -> None:
    """A hook of the script's in front of a node, and ``paddle.grad``."""
    hooked, partial, gradient = told[0]["calls"]["left"]
    assert not hooked and not partial
    assert gradient == pytest.approx([(1 - 0.9640275800758169**2) * 7.0 * 2.0], rel=1e-5)


def test_wrong_arguments_are_python_errors(told: tuple[dict[str, Any], str]) -> None:
    assert told[0]["errors"] == {"raised_nothing": [], "outside": None, "null": None, "open": None}
