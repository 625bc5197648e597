"""``why hang`` on real jobs over Paddle's gloo: the verdict against what the ranks themselves wrote down."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.hanging import HangingJob
from support.program import run

from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.values import HangKind
from adbg.engine.hang.verdict import judge

pytestmark = [pytest.mark.paddle, pytest.mark.timeout(300)]
pytest.importorskip("paddle")
SCRIPT = "paddle_hanging.py"


def test_different_operations_are_named_with_both_lines(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "mismatch", 2, tmp_path) as job:
        verdict = job.verdict(waiting=2)
        assert verdict.kind is HangKind.MISMATCH and verdict.confidence > 0.9
        source = (Path(__file__).parents[1] / "debuggees" / SCRIPT).read_text().splitlines()
        for each in verdict.standings:
            row, wrote = each.waits, job.called(each.rank)
            assert row is not None and row.place is not None
            assert (row.op, row.seq, row.shape) == (wrote[-1][0], len(wrote), (int(wrote[-1][1]),))
            assert f"dist.{row.op}(" in source[row.place.line - 1]


def test_gradients_of_data_parallel_and_a_killed_job(tmp_path: Path) -> None:
    """Paddle tells nothing of what its reducer calls: the frames do, and the record keeps it."""
    with HangingJob(SCRIPT, "parallel", 2, tmp_path) as job:
        verdict = job.verdict()
        assert (verdict.kind, verdict.culprits, verdict.waiting) == (HangKind.MISSING, (1,), (0,))
        assert (job.called(0)[-1], job.called(1)[-1]) == (["backward", "hangs"], ["sleep"])
        assert verdict.collective is not None and "gradients" in verdict.collective.op and verdict.confidence < 0.8
        job.until(lambda: bool(judge(facts_of_run(job.run_dir)).waiting), "the row of what hangs")
        job.kill()
    outcome = run([sys.executable, "-m", "adbg", "runs", "why", str(job.run_dir), "--json"])
    found = json.loads(outcome.stdout)
    assert (found["kind"], found["culprits"], found["waiting"]) == ("missing-rank", [1], [0])


def test_two_groups_in_other_orders(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "deadlock", 2, tmp_path) as job:
        verdict = job.verdict(waiting=2)
        assert (verdict.kind, verdict.cycle) == (HangKind.DEADLOCK, (0, 1))
        for each in verdict.standings:
            assert each.waits is not None and each.waits.group.endswith(job.called(each.rank)[-1][-1])
