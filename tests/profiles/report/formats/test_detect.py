"""Which format a file is of, where its first 64 KB do not say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect
from adbg.profiles.report.formats.problem import FormatError

DEEP = ";".join(f"again (recursion.py:{line})" for line in range(4000))


@pytest.mark.parametrize("end", ["", "\n", "\nmain (a.py:1) 3\n"])
def test_stacks_whose_first_line_is_long(tmp_path: Path, end: str) -> None:
    path = tmp_path / "deep.collapsed"
    path.write_text(f"{DEEP} 7{end}")
    assert path.stat().st_size > 64 << 10 and detect.is_profile(path)
    first = detect.read(path).samples[0]
    assert (len(first.stack), first.weight) == (4000, 7.0)


def test_a_file_without_a_line_end_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("word " * 30_000)
    assert detect.kind_of(path) is None


def test_what_adbg_wrote_beside_it_is_taken_where_the_content_does_not_say(tmp_path: Path) -> None:
    """A trace whose events come behind 100 KB of what the framework tells of itself."""
    (tmp_path / "meta.json").write_text(json.dumps({"profiler": "torch", "file": "trace.json", "format": "chrome"}))
    events = [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]
    (tmp_path / "trace.json").write_text(json.dumps({"properties": "x" * 100_000, "traceEvents": events}))
    assert detect.kind_of(tmp_path / "trace.json") is None
    assert detect.read(tmp_path).total == pytest.approx(2e-6)
    assert detect.read(tmp_path / "trace.json").total == pytest.approx(2e-6)
    (tmp_path / "trace.json").write_text("")
    with pytest.raises(FormatError, match="it is empty"):
        detect.read(tmp_path)
    (tmp_path / "trace.json").write_text("words of no trace")
    with pytest.raises(FormatError, match="Chrome trace"):
        detect.read(tmp_path)
