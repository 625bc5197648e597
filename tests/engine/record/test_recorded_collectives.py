"""The ledger in the run directory: written, read again, and absent in an older run."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from adbg.engine.agent.run_record import RunRecord
from adbg.engine.errors import CommandError
from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.values import HangKind
from adbg.engine.hang.verdict import UNKNOWN_RANK, judge
from adbg.engine.protocol.codec import to_json
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.protocol.rendezvous import SessionConfig
from adbg.engine.record.files import events_path
from adbg.engine.record.reader import RunReader
from adbg.engine.record.recorder import Recorder
from adbg.engine.types import SourceLine

ROW = Collective(
    1, "0", 3, "broadcast", (2, 3), "int64", "", 1, True, "waiting", SourceLine("/t.py", 4, "f"), 7, "N", 2, 5.0, None,
    "ledger",
)  # fmt: skip


def recorded(run: Path, rank: int, rows: list[Collective]) -> None:
    recorder = Recorder.open(run, rank)
    recorder.update_info(process_groups=[to_json(ProcessGroup("0", [0, 1], "gloo", "default_pg", 3, 60.0))])
    for row in rows:
        recorder.collective(row)
    assert recorder.flush(10)


def test_a_row_comes_back_as_it_was_and_its_end_replaces_it(tmp_path: Path) -> None:
    recorded(tmp_path, 0, [ROW])
    reader = RunReader(tmp_path)
    assert reader.collectives() == [ROW]
    over = replace(ROW, state="done", ended=6.0)
    other = replace(ROW, id=2, shape=None, peer=None, place=None, begun=None)
    recorder = Recorder.open(tmp_path / "more")
    for row in (ROW, other, over):
        recorder.collective(row)
    assert recorder.flush(10)
    assert RunReader(tmp_path / "more").collectives() == [over, other]
    assert RunReader(tmp_path / "more").collectives(last=1) == [other]


def test_a_run_of_before_the_ledger_is_read(tmp_path: Path) -> None:
    recorded(tmp_path, 0, [ROW])
    db = sqlite3.connect(events_path(tmp_path, "0"))
    db.execute("DROP TABLE collective")
    db.close()
    assert RunReader(tmp_path).collectives() == []


def test_the_verdict_of_a_record(tmp_path: Path) -> None:
    recorded(tmp_path, 0, [replace(ROW, op="all_reduce", peer=None)])
    recorded(tmp_path, 1, [ROW])
    verdict = judge(facts_of_run(tmp_path))
    assert verdict.kind is HangKind.MISMATCH and verdict.group_ranks == (0, 1)
    assert verdict.description == "default_pg"


def test_a_run_without_collectives_says_so(tmp_path: Path) -> None:
    recorder = Recorder.open(tmp_path)
    assert recorder.flush(10)
    with pytest.raises(CommandError, match="no collective is recorded"):
        facts_of_run(tmp_path)


def test_a_process_of_unknown_rank_does_not_stand_for_rank_0(tmp_path: Path) -> None:
    recorded(tmp_path, 0, [replace(ROW, op="all_reduce", peer=None)])
    recorded(tmp_path, 1, [ROW])
    recorded(tmp_path, 2, [replace(ROW, seq=1, state="done")])
    (info,) = tmp_path.glob("run-r2.json")
    known = json.loads(info.read_text())
    info.write_text(json.dumps({**known, "rank": None}))
    facts = facts_of_run(tmp_path)
    assert [each.rank for each in facts] == [0, 1]
    verdict = judge(facts)
    assert verdict.kind is HangKind.MISMATCH and UNKNOWN_RANK in verdict.notes


def test_a_worker_of_a_rank_does_not_stand_for_it(tmp_path: Path) -> None:
    """A second process of rank 1 came later, and has issued less."""
    for rank, rows in ((0, [ROW]), (1, [ROW]), (1, [])):
        recorded(tmp_path, rank, rows)
    assert [len(facts.at.rows) for facts in facts_of_run(tmp_path) if facts.at is not None] == [1, 1]


def test_a_run_of_which_no_rank_is_known_says_so(tmp_path: Path) -> None:
    for rank in (0, 1):
        recorded(tmp_path, rank, [ROW])
    for info in tmp_path.glob("run*.json"):
        info.write_text(json.dumps({**json.loads(info.read_text()), "rank": None}))
    with pytest.raises(CommandError, match=r"ranks .* are not known"):
        facts_of_run(tmp_path)


@pytest.mark.parametrize("rank", [1, None])
def test_the_rank_is_written_down_as_it_is_known_with_the_groups(tmp_path: Path, rank: int | None) -> None:
    """The record was opened before, under the number 0."""
    session: Any = SimpleNamespace(rank=0, observe=lambda observer: None)
    record = RunRecord(session, Mock(), SessionConfig("", "", str(tmp_path)), "")
    record.open()
    assert record.recorder is not None
    record.note_groups([ProcessGroup("0", [0, 1])], rank)
    assert record.recorder.flush(10)
    assert RunReader(tmp_path, "0").info["rank"] is rank
    record.close()
