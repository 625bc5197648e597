"""The committed snapshot of the protocol matches the code."""

from __future__ import annotations

import json
import runpy
from pathlib import Path


def test_schema_snapshot_is_current() -> None:
    snapshot = runpy.run_path(str(Path(__file__).with_name("snapshot.py")))
    committed = json.loads(snapshot["SCHEMA"].read_text())
    current = json.loads(json.dumps(snapshot["schema"]()))
    how = "run `python tests/engine/protocol/snapshot.py` and review the diff"
    assert current == committed, f"the protocol changed: {how}"
