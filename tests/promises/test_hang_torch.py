"""``why hang`` on real jobs over gloo that hang: the verdict against what the ranks themselves wrote down."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.hanging import HangingJob
from support.program import run

from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.values import HangKind, HangVerdict
from adbg.engine.hang.verdict import judge
from adbg.tui.debugger.findings.hangs import hang_finding
from adbg.tui.text.hang import hang_lines

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
SCRIPT = "hanging.py"


def line_of(text: str) -> int:
    """Of the debuggee, where ``text`` stands once."""
    source = (Path(__file__).parents[1] / "debuggees" / SCRIPT).read_text().splitlines()
    (number,) = [number for number, line in enumerate(source, 1) if line.strip() == text]
    return number


def numbered(job: HangingJob, rank: int) -> int:
    """How many collectives the rank itself says that it called."""
    return sum(words[0] in ("all_reduce", "broadcast", "barrier") for words in job.called(rank))


def row_of(verdict: HangVerdict, rank: int) -> tuple[str, int, int]:
    """(operation, number, line) of what a rank waits in."""
    row = next(each.waits for each in verdict.standings if each.rank == rank)
    assert row is not None and row.place is not None
    return row.op, row.seq, row.place.line


def test_different_operations_are_named_with_both_lines(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "mismatch", 2, tmp_path) as job:
        verdict = job.verdict(waiting=2)
        assert verdict.kind is HangKind.MISMATCH and verdict.confidence > 0.9
        assert verdict.divergence is not None and verdict.divergence.differ == ("op",)
        for rank in (0, 1):
            op, seq, line = row_of(verdict, rank)
            assert (op, seq) == (job.called(rank)[-1][0], numbered(job, rank)) == (op, 4)
            assert line == line_of("dist.broadcast(me.value, 0)" if rank else "dist.all_reduce(me.value)  # alone")
        text = "\n".join(hang_lines(verdict))
        assert "all_reduce float32[4] SUM" in text and "broadcast float32[4] root rank 0" in text


def test_a_rank_with_one_batch_more(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "counts", 2, tmp_path) as job:
        verdict = job.verdict(waiting=2)
        assert verdict.kind is HangKind.COUNTS and verdict.culprits == (1,)
        wrote = {rank: sum(words[-1] == "batch" for words in job.called(rank)) for rank in (0, 1)}
        assert verdict.calls == wrote == {0: 5, 1: 4}


def test_a_call_that_only_one_rank_comes_to(tmp_path: Path) -> None:
    """The other one called its line once more, as one with a batch more would: the source tells them apart."""
    with HangingJob(SCRIPT, "saved", 2, tmp_path) as job:
        verdict = job.verdict(waiting=2)
        assert verdict.kind is HangKind.MISMATCH and verdict.culprits == (0,)
        assert [row_of(verdict, rank)[0] for rank in (0, 1)] == [job.called(rank)[-1][0] for rank in (0, 1)]
        assert [row_of(verdict, rank)[1] for rank in (0, 1)] == [numbered(job, rank) for rank in (0, 1)]
        assert verdict.condition is not None and verdict.condition.call.line == line_of("keep(me)")
        assert verdict.condition.text == "step % 2 == 1 and me.rank == 0"
        text = "\n".join(hang_lines(verdict))
        assert "barrier is called under a condition on the rank: step % 2 == 1 and me.rank == 0 at " in text
        finding = hang_finding(verdict)
        assert finding is not None and finding.cause is not None and finding.cause.text == "keep(me)"


def test_gradients_of_ddp_are_seen_and_a_killed_job_is_explained(tmp_path: Path) -> None:
    """The collective that hangs was called by C++; afterwards, all ranks are killed at once."""
    with HangingJob(SCRIPT, "ddp", 2, tmp_path) as job:
        verdict = job.verdict()
        assert verdict.kind is HangKind.MISSING and (verdict.culprits, verdict.waiting) == ((1,), (0,))
        row = verdict.collective
        assert row is not None and row.place is not None and row.source == "flight recorder"
        assert row.place.line == line_of("model(me.value).sum().backward()  # hangs")
        resting = next(each for each in verdict.standings if each.rank == 1)
        assert resting.place is not None and resting.place.line == line_of("time.sleep(LONG)  # behind a backward")
        # the ledger's own thread writes it down when it was the same at two looks
        job.until(lambda: bool(judge(facts_of_run(job.run_dir)).waiting), "the row of the collective that hangs")
        job.kill()
        job.until(lambda: not any(p.alive for p in job.debugger.run.processes if p.info.rank is not None), "their end")
    outcome = run([sys.executable, "-m", "adbg", "runs", "why", str(job.run_dir), "--json"])
    found = json.loads(outcome.stdout)
    assert (found["type"], found["kind"]) == ("hang", "missing-rank")
    assert (found["culprits"], found["waiting"]) == ([1], [0])
    assert (found["collective"]["op"], found["collective"]["seq"]) == (row.op, row.seq)


def test_four_ranks_that_wait_round_about(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "ring", 4, tmp_path) as job:
        verdict = job.verdict(waiting=4)
        assert (verdict.kind, verdict.cycle) == (HangKind.DEADLOCK, (0, 1, 2, 3))
        for rank in range(4):
            row = next(each.waits for each in verdict.standings if each.rank == rank)
            assert row is not None and row.group == job.called(rank)[-1][-1]


def test_a_rank_in_a_long_call_and_one_that_is_killed(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "kernel", 2, tmp_path) as job:
        verdict = job.verdict()
        assert verdict.kind is HangKind.LONG_KERNEL and verdict.culprits == (1,)
        assert job.called(1)[-1] == ["mm"] and job.called(0)[-1] == ["all_reduce", "4", "hangs"]
        process = next(each for each in job.debugger.run.processes if each.info.rank == 1)
        os.kill(job.pid(1), signal.SIGKILL)
        job.until(lambda: not process.alive, "its end")
        verdict = job.verdict(waiting=0)  # gloo may end the call of the other with an error
        assert verdict.kind is HangKind.DIED and verdict.culprits == (1,)


def test_nothing_hangs_while_all_go_on(tmp_path: Path) -> None:
    with HangingJob(SCRIPT, "fine", 2, tmp_path) as job:
        for _ in range(3):
            verdict = job.verdict(waiting=0)
            assert verdict.kind is HangKind.NOTHING, hang_lines(verdict)
        assert hang_lines(verdict)[0] == "nothing hangs: rank 0 moves, rank 1 moves"
