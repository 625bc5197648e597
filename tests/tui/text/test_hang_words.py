"""The words of a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adbg.engine.hang.branch import Branch
from adbg.engine.hang.left_loop import LeftLoop
from adbg.engine.hang.values import Divergence, HangKind, HangVerdict, Life, Standing
from adbg.engine.protocol.messages import Collective
from adbg.engine.types import SourceLine
from adbg.tui.debugger.findings.hangs import hang_finding
from adbg.tui.text.hang import hang_lines, headline, ranks_text

ROW = Collective(4, "0", 4, "all_reduce", (4,), "float32", "SUM", state="waiting", place=SourceLine("/t.py", 3, "step"))
OTHER = replace(ROW, op="broadcast", reduce="", peer=0, place=SourceLine("/t.py", 6, "step"))
VERDICT = HangVerdict(
    HangKind.MISSING,
    0.95,
    group="0",
    description="default_pg",
    group_ranks=(0, 1, 2, 3),
    collective=ROW,
    waiting=(0, 1, 2),
    culprits=(3,),
    standings=(
        Standing(0, Life.RUNNING, 10, waits=ROW, place=ROW.place, seconds=12.0),
        Standing(3, Life.RUNNING, 13, place=SourceLine("/t.py", 9, "load"), call="torch.save", moved=False, cpu=0.0),
    ),
    timeout=60.0,
)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (
            VERDICT,
            "rank 3 did not come to all_reduce float32[4] SUM #4 of group default_pg (ranks 0-3): ranks 0-2 wait",
        ),
        (replace(VERDICT, kind=HangKind.DIED, waiting=()), "rank 3 died: no other rank waits in a collective"),
        (
            replace(VERDICT, kind=HangKind.COUNTS, calls={0: 5, 1: 5, 2: 5, 3: 4}),
            "different counts in group default_pg (ranks 0-3): rank 3 called all_reduce float32[4] SUM 4 times, the"
            " others 5 times",
        ),
        (
            replace(VERDICT, kind=HangKind.DEADLOCK, cycle=(0, 2, 1)),
            "deadlock: rank 0 waits for rank 2, rank 2 waits for rank 1, rank 1 waits for rank 0",
        ),
        (
            replace(VERDICT, kind=HangKind.MISMATCH, divergence=Divergence("0", 4, ("op",), {0: ROW, 1: OTHER})),
            "mismatch at #4 in group default_pg (ranks 0-3): the operation differs (rank 0 all_reduce float32[4] SUM,"
            " rank 1 broadcast float32[4] root rank 0)",
        ),
        (
            replace(VERDICT, kind=HangKind.STOPPED),
            "rank 3 is stopped in this debugger: ranks 0-2 wait in all_reduce float32[4] SUM #4 of group default_pg"
            " (ranks 0-3)",
        ),
        (
            replace(VERDICT, kind=HangKind.UNKNOWN, culprits=(), missing=(3,), confidence=0.4),
            "ranks 0-2 wait in all_reduce float32[4] SUM #4 of group default_pg (ranks 0-3), probably for rank 3: adbg"
            " is not in that process (confidence 0.4)",
        ),
        (
            replace(VERDICT, kind=HangKind.UNKNOWN, culprits=(2, 3), waiting=(0, 1), confidence=0.4),
            "ranks 0-1 wait in all_reduce float32[4] SUM #4 of group default_pg (ranks 0-3), for some of ranks 2-3: not"
            " known which of them are missing, or what they do (confidence 0.4)",
        ),
        (
            replace(VERDICT, kind=HangKind.UNKNOWN, waiting=(), collective=None, confidence=0.3),
            "no rank waits in a collective, and it is not known what rank 3 does (confidence 0.3)",
        ),
    ],
)
def test_headlines(verdict: HangVerdict, text: str) -> None:
    assert headline(verdict) == text


def test_the_table_the_time_out_and_what_to_do() -> None:
    text = "\n".join(hang_lines(VERDICT))
    assert "waits  all_reduce float32[4] SUM #4" in text and "in torch.save" in text
    assert "the process group gives up after 60 s: 48 s are left" in text and "next: " in text
    recorded = "\n".join(hang_lines(VERDICT, recorded=True))
    assert recorded.startswith("when the record ends: ") and "gives up" not in recorded
    assert "12 s" in text and "12 s" not in recorded  # how long a record was kept tells nothing of a wait


def test_a_divergence_that_the_table_shows_is_not_told_twice() -> None:
    found = Divergence("0", 4, ("op",), {0: ROW, 3: OTHER})
    here = replace(VERDICT, kind=HangKind.MISMATCH, divergence=found)
    both = (VERDICT.standings[0], replace(VERDICT.standings[1], waits=OTHER))
    assert "first divergence (#4):" in "\n".join(hang_lines(here))
    assert "first divergence" not in "\n".join(hang_lines(replace(here, standings=both)))


def test_a_lost_connection_and_how_a_process_ended_are_told() -> None:
    lost = replace(VERDICT.standings[1], life=Life.LOST)
    died = replace(VERDICT.standings[1], life=Life.DIED, how="killed by SIGKILL")
    text = "\n".join(hang_lines(replace(VERDICT, kind=HangKind.UNKNOWN, standings=(VERDICT.standings[0], lost))))
    assert "the connection is lost; whether it runs is not known" in text and "gone" not in text
    text = "\n".join(hang_lines(replace(VERDICT, kind=HangKind.DIED, standings=(VERDICT.standings[0], died))))
    assert "its process is gone (killed by SIGKILL)" in text


def test_calls_that_are_counted_in_part_say_from_where() -> None:
    whole = replace(VERDICT, kind=HangKind.COUNTS, calls={0: 3, 3: 2})
    assert "at /t.py:3 in step: rank 0 3 times, rank 3 2 times" in "\n".join(hang_lines(whole))
    text = "\n".join(hang_lines(replace(whole, calls_from=4)))
    assert "at /t.py:3 in step since #4: rank 0 3 times, rank 3 2 times" in text
    assert "rank 3 called all_reduce float32[4] SUM 2 times since #4, the others 3 times" in text


def test_a_loop_that_one_rank_has_left() -> None:
    loop = SourceLine("/t.py", 2, "step")
    counts = replace(VERDICT, kind=HangKind.COUNTS, calls={0: 3, 3: 2})
    left = replace(counts, left=LeftLoop(loop, "for epoch in range(9)", SourceLine("/t.py", 7, "step"), "stop(loss)"))
    text = "\n".join(hang_lines(left))
    assert "rank 3 has left the loop `for epoch in range(9)` at /t.py:2 in step under `stop(loss)` at /t.py:7" in text
    finding = hang_finding(left)
    assert finding is not None and finding.cause is not None and finding.cause.line == 7
    ended = replace(counts, left=LeftLoop(loop, "for x in data", None, "x > 9"))
    text = "\n".join(hang_lines(ended))
    assert (
        "come to the end of the loop `for x in data` at /t.py:2 in step, or left it under `x > 9`, and the oth" in text
    )
    finding = hang_finding(ended)
    assert finding is not None and finding.cause is not None and finding.cause.line == 3, "the call, as without it"


def test_a_condition_on_the_data_of_a_rank() -> None:
    branch = Branch(SourceLine("/t.py", 3, "step"), SourceLine("/t.py", 2, "step"), "not (batch.empty)")
    told = (
        "/t.py:3 in step leads there only where `not (batch.empty)`, at /t.py:2 in step: a rank where that does not"
        " hold passes it by; let all ranks come there, or decide it of what all of them have"
    )
    found = Divergence("0", 4, ("op",), {0: ROW, 3: OTHER})
    for verdict in (
        replace(VERDICT, kind=HangKind.MISMATCH, divergence=found, branch=branch),
        replace(VERDICT, kind=HangKind.COUNTS, calls={0: 3, 3: 2}, branch=branch),
        replace(VERDICT, kind=HangKind.DEADLOCK, cycle=(0, 3), branch=branch),
    ):
        lines = hang_lines(verdict)
        assert lines.count(told) == 1 and not lines[0].endswith(told), lines
        assert told in "\n".join(hang_lines(verdict, recorded=True))
        assert told not in "\n".join(hang_lines(replace(verdict, branch=None)))
        finding = hang_finding(verdict)
        assert finding is not None and finding.severity == "error" and told in finding.evidence
        assert finding.cause is not None and (finding.cause.file, finding.cause.line) == ("/t.py", 2)
    left = LeftLoop(SourceLine("/t.py", 1, "step"), "for x in data", SourceLine("/t.py", 7, "step"), "stop(loss)")
    finding = hang_finding(replace(VERDICT, kind=HangKind.COUNTS, calls={0: 3, 3: 2}, left=left, branch=branch))
    assert finding is not None and finding.cause is not None and finding.cause.line == 7, "the loop comes first"


def test_ranks() -> None:
    assert [ranks_text(each) for each in ((), (2,), (0, 1, 2, 5), (3, 1))] == [
        "",
        "rank 2",
        "ranks 0-2, 5",
        "ranks 1, 3",
    ]
