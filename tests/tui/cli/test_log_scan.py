"""The quick way through a long log says what the parser's records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.program import adbg

from adbg.engine.glog import parse
from adbg.tui.cli.log_scan import Folder, Scanner, View

LOGS = sorted((Path(__file__).parents[2] / "data" / "vlog").glob("*.log"))
PATTERNS = (
    "cast1", "API_Name: \\w+1", "(?i)RUN", "^\\(", "Shape: .*,$", "\\s\\(", "grad\\.cc", "[^a-z]+Input", "→", "x|Err",
)  # fmt: skip
VIEWS = [
    View(), View(full=True), View(level=3), View(level=4), View(level=0), View(depth=1), View(depth=0, level=4),
    *(View(pattern=re.compile(text)) for text in PATTERNS),
    View(pattern=re.compile("Shape"), level=3, full=True), View(pattern=re.compile("grad"), depth=1, level=4),
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_lines_are_those_of_the_records(path: Path, view: View) -> None:
    data = "caf\u00e9 in front\n".encode() + path.read_bytes()
    folder = Folder(view)
    expected = [*folder.lines(parse(data)), *folder.rest()]
    for size in (97, 5000, len(data)):
        scanner = Scanner(view)
        found = [line for at in range(0, len(data), size) for line in scanner.feed(data[at : at + size])]
        assert [*found, *scanner.close()] == expected


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_record_is_one_line_unless_all_are_asked_for(path: Path) -> None:
    records = parse(path.read_bytes())
    whole = adbg("log", "--batch", "--full", path).stdout.splitlines()
    short = adbg("log", "--batch", path).stdout.splitlines()
    foreign = sum(1 + len(record.continuation) for record in records if not record.severity)
    assert len(short) == foreign + sum(1 for record in records if record.severity)
    assert len(whole) >= len(short)
    assert not any("\t" in line for line in short if "… +" in line)
