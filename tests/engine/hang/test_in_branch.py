"""Verdicts on ranks of which some pass a collective by, for a condition on their data that is in the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from adbg.engine.hang.values import HangKind, HangVerdict, Life, RankFacts
from adbg.engine.hang.verdict import judge
from adbg.engine.protocol.messages import Collective, CollectivesBody, ProcessGroup
from adbg.engine.types import SourceLine

SOURCE = """
def reduced(loss):
    all_reduce(loss)  # LOSS
    return loss
def step(batch):
    loss = net(batch)
    if len(batch.boxes):  # TEST
        loss = reduced(loss)
    broadcast(norm)  # NORM
    if batch.full:  # FULL
        gather(batch)  # GATHER
    barrier()  # BARRIER
"""
DEFINED = "if len(batch.boxes):"


class Job:
    """Two ranks whose calls stand in one file."""

    def __init__(self, folder: Path, text: str = SOURCE) -> None:
        self.file = folder / "train.py"
        self.file.write_text(text)

    def at(self, mark: str) -> SourceLine:
        lines = self.file.read_text().splitlines()
        (line,) = [number for number, each in enumerate(lines, 1) if each.endswith(f"# {mark}")]
        return SourceLine(str(self.file), line, "step")

    def rank(self, number: int, calls: str, group: str = "0", waits: bool = True, rests: str = "") -> RankFacts:
        """``calls``: lines by their marks, one after the other; the last is not over where it ``waits``. Looked at
        twice, it rests at the last one, at the line marked ``rests``, or in front of the program."""
        ops = {"LOSS": "all_reduce", "NORM": "broadcast", "GATHER": "gather", "BARRIER": "barrier"}
        rows = [
            Collective(
                seq, group, seq, ops[mark], (4,), "float32", "SUM" if mark == "LOSS" else "", state="done",
                begun=float(seq), ended=seq + 0.5, place=self.at(mark),
            )
            for seq, mark in enumerate(calls.split(), 1)
        ]  # fmt: skip
        if waits:
            rows[-1] = replace(rows[-1], state="waiting", ended=None)
        frames = [rows[-1].place] if waits and rows[-1].place is not None else [SourceLine(str(self.file), 1, "idle")]
        frames = [self.at(rests)] if rests else frames
        groups = [ProcessGroup(name, [0, 1], "gloo") for name in sorted({"0", group, "1", "2"} - {""})]
        before = CollectivesBody(number, 10 + number, 100.0, 0.0, len(rows), groups, rows, frames, "", 5.0)
        at = CollectivesBody(number, 10 + number, 101.0, 0.0, len(rows), groups, rows, frames, "", 5.0)
        return RankFacts(number, Life.RUNNING, 10 + number, at, before)


def branch_told(verdict: HangVerdict) -> tuple[str, int]:
    assert verdict.branch is not None, verdict
    return verdict.branch.text, verdict.branch.test.line


def test_a_mismatch(tmp_path: Path) -> None:
    job = Job(tmp_path)
    verdict = judge([job.rank(0, "LOSS"), job.rank(1, "NORM")])
    assert verdict.kind is HangKind.MISMATCH and verdict.condition is None
    assert branch_told(verdict) == ("len(batch.boxes)", job.at("TEST").line)
    assert verdict.branch is not None and verdict.branch.call.line == job.at("TEST").line + 1, "the call of reduced"


def test_different_counts(tmp_path: Path) -> None:
    job = Job(tmp_path)
    verdict = judge([job.rank(0, "LOSS NORM BARRIER LOSS"), job.rank(1, "LOSS NORM BARRIER NORM")])
    assert (verdict.kind, verdict.culprits) == (HangKind.COUNTS, (1,)) and verdict.left is None
    assert branch_told(verdict) == ("len(batch.boxes)", job.at("TEST").line)


def test_a_deadlock_of_two_groups(tmp_path: Path) -> None:
    job = Job(tmp_path)
    verdict = judge([job.rank(0, "LOSS", "1"), job.rank(1, "BARRIER", "2")])
    assert verdict.kind is HangKind.DEADLOCK
    assert branch_told(verdict) == ("len(batch.boxes)", job.at("TEST").line)


def test_a_rank_that_did_not_come(tmp_path: Path) -> None:
    job = Job(tmp_path)
    verdict = judge([job.rank(0, "NORM BARRIER LOSS"), job.rank(1, "NORM BARRIER", waits=False, rests="BARRIER")])
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (1,))
    assert branch_told(verdict) == ("len(batch.boxes)", job.at("TEST").line)
    elsewhere = judge([job.rank(0, "NORM BARRIER LOSS"), job.rank(1, "NORM BARRIER", waits=False)])
    assert elsewhere.kind is HangKind.MISSING and elsewhere.branch is None


@pytest.mark.parametrize(
    ("calls", "groups", "kind"),
    [
        (("LOSS", "GATHER"), ("0", "0"), HangKind.MISMATCH),
        (("LOSS", "GATHER"), ("1", "2"), HangKind.DEADLOCK),
        (("NORM", "BARRIER"), ("0", "0"), HangKind.MISMATCH),
        (("NORM", "BARRIER"), ("1", "2"), HangKind.DEADLOCK),
    ],
)
def test_both_under_a_condition_or_none(
    tmp_path: Path, calls: tuple[str, str], groups: tuple[str, str], kind: HangKind
) -> None:
    """Which of two conditions parts the ranks is not known."""
    job = Job(tmp_path)
    verdict = judge([job.rank(number, *each) for number, each in enumerate(zip(calls, groups))])
    assert verdict.kind is kind and verdict.branch is None


def test_a_condition_on_the_rank_comes_first(tmp_path: Path) -> None:
    job = Job(tmp_path, SOURCE.replace(DEFINED, "if rank == 0:"))
    verdict = judge([job.rank(0, "LOSS"), job.rank(1, "NORM")])
    assert verdict.kind is HangKind.MISMATCH and verdict.condition is not None and verdict.branch is None


LOOP = """
def main():
    while True:
        if len(batch.boxes):  # TEST
            all_reduce(loss)  # LOSS
        if loss < 0.1:
            break
    barrier()  # BARRIER
"""
SHORTER = LOOP.replace("while True:", "for batch in data:").replace("        if loss < 0.1:\n            break\n", "")
LOOPS = {
    "left": (LOOP, False),
    # By its end one rank may have come to the barrier, or by the branch.
    "shorter": (SHORTER, True),
    "shorter, by a counter": (SHORTER.replace("if len(batch.boxes):", "if step % 4 == 0:"), False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_one_rank_is_behind(tmp_path: Path, name: str) -> None:
    text, told = LOOPS[name]
    job = Job(tmp_path, text)
    verdict = judge([job.rank(0, "LOSS LOSS LOSS"), job.rank(1, "LOSS LOSS BARRIER")])
    assert verdict.kind is HangKind.COUNTS and verdict.left is not None
    assert (verdict.left.leaves is not None) == (name == "left")
    assert (verdict.branch is not None) == told, verdict.branch


def test_a_rank_that_rests_in_front_of_the_condition_has_not_passed_it_by(tmp_path: Path) -> None:
    text = """
def step(batch):
    extra = inbox.get()  # INBOX
    if len(batch.boxes):  # TEST
        all_reduce(loss)  # LOSS
"""
    job = Job(tmp_path, text)
    verdict = judge([job.rank(0, "LOSS LOSS"), job.rank(1, "LOSS", waits=False, rests="INBOX")])
    assert (verdict.kind, verdict.culprits) == (HangKind.MISSING, (1,)) and verdict.branch is None


START = """
def main():
    for batch in data:
        all_reduce(loss)  # LOSS
    broadcast(norm)  # NORM
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("calls", "kind"),
    [(("LOSS", "NORM"), HangKind.MISMATCH), (("LOSS LOSS LOSS", "LOSS LOSS NORM"), HangKind.COUNTS)],
)
def test_the_start_of_a_program_is_no_condition(tmp_path: Path, calls: tuple[str, str], kind: HangKind) -> None:
    job = Job(tmp_path, START.replace("    broadcast(norm)", "def other():\n    broadcast(norm)"))
    verdict = judge([job.rank(number, each) for number, each in enumerate(calls)])
    assert verdict.kind is kind and verdict.branch is None, verdict.branch
    job = Job(tmp_path, START)
    verdict = judge([job.rank(number, each) for number, each in enumerate(calls)])
    assert verdict.kind is kind and verdict.branch is None, verdict.branch
