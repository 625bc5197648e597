"""Writes tests/data/app/session.json: what a real program answers at its first stops, for the app's tests.

    python tests/tui/capture_session.py

Paths inside the repository are written as "ROOT/...". ``replay_agent`` in tests/support reads it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.tui.debugger.debugger import Debugger, State
from adbg.tui.debugger.program import Script, StartedProgram

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests" / "data" / "app" / "session.json"
STEPS = 15


def main() -> None:
    """Run examples/nan_at_sqrt.py to its first backward and step through it."""
    script = ROOT / "examples" / "nan_at_sqrt.py"
    program = StartedProgram(Script([sys.executable, str(script)], script.name, record=False))
    debugger = Debugger(program, entry=True)
    debugger.start()
    assert debugger.model.wait_ready(60)
    debugger.begin(True)
    stops = []
    graph = None
    for _ in range(STEPS):
        assert debugger.model.wait_state(State.STOPPED, timeout=60)
        stop = debugger.stop
        assert stop is not None
        graph = wire.to_json(debugger.view.graph_page(1, 2000))
        graph["rows"] = [
            {k: v for k, v in row.items() if k == "shape" or (v is not None and v is not False and v not in ("", []))}
            for row in graph["rows"]
        ]
        entry = {"stop": wire.to_json(stop), "frames": [wire.to_json(frame) for frame in debugger.view.frames()]}
        if stop.index:
            entry["node"] = wire.to_json(debugger.view.node(stop.index))
            entry["value"] = wire.to_json(
                debugger.view.tensor("grad_outputs[0]", bins=64, window=True, rows=12, cols=16)
            )
        stops.append(entry)
        debugger.resume(protocol.StepIn())
    nodes = {}
    assert debugger.model.wait_state(State.STOPPED, timeout=60)
    for row in debugger.view.graph_page(1, 24).rows[STEPS:]:
        nodes[row.index] = wire.to_json(debugger.view.node(row.index))
    debugger.kill()
    debugger.close()
    text = json.dumps({"graph": graph, "stops": stops, "nodes": nodes}, separators=(",", ":"))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text.replace(str(ROOT), "ROOT") + "\n")


if __name__ == "__main__":
    main()
