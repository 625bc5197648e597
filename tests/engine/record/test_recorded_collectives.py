"""The ledger in the run directory: written, read again, and absent in an older run."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.hang.recorded import facts_of_run
from adbg.engine.hang.values import HangKind
from adbg.engine.hang.verdict import judge
from adbg.engine.protocol.codec import to_json
from adbg.engine.protocol.messages import Collective, ProcessGroup
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
