"""What a file of another format counts: calls of a time line, samples of a sampled profile."""

from __future__ import annotations

import json
import pstats
from pathlib import Path
from typing import Any

from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import SECONDS, Frame, Profile, Sample


def event(name: str, begin: float, took: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": begin, "dur": took, "pid": 1, "tid": 1}


def test_each_event_of_a_time_line_is_a_call(tmp_path: Path) -> None:
    """Witness: the events themselves, and the standard library's reader of what is written."""
    events = [event("step", 100 * turn, 90) for turn in range(7)]
    events += [event("mm", 100 * turn + 10 * part, 9) for turn in range(7) for part in range(1, 4)]
    events += [event("again", 100 * turn + 40, 40) for turn in range(7)]
    events += [event("again", 100 * turn + 50, 20) for turn in range(7)]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    detect.write(detect.read(tmp_path / "t.json"), tmp_path / "t.pstats")
    stats = pstats.Stats(str(tmp_path / "t.pstats")).stats  # type: ignore[attr-defined]
    found = {name: (all_, own, {by: row[0] for (_, _, by), row in callers.items()})
             for (_, _, name), (own, all_, _, _, callers) in stats.items()}  # fmt: skip
    assert found == {
        "step": (7, 7, {}),
        "mm": (21, 21, {"step": 21}),
        "again": (14, 7, {"step": 7}),
    }


def test_samples_are_written_as_so_many(tmp_path: Path) -> None:
    """99 samples of 10 ms each were 990,000."""
    samples = (Sample((0,), 0.6), Sample((0, 1), 0.39))
    profile = Profile((Frame("main"), Frame("work")), samples, SECONDS, period=0.01)
    detect.write(profile, tmp_path / "s.collapsed")
    assert (tmp_path / "s.collapsed").read_text() == "main 60\nmain;work 39\n"
    assert detect.read(tmp_path / "s.collapsed").total == 99
