"""What the program's signal handlers and threads raise reaches the program, wherever adbg's code was interrupted.

``ADBG_TIMES`` makes it long: that many interruptions for each case instead of 60.
"""

from __future__ import annotations

import os

import pytest
from support.frameworks import on_frameworks
from support.program import Outcome, batch, commands, plain

TIMES = os.environ.get("ADBG_TIMES", "60")
MODES = {
    "unarmed": ["--no-stacks", "--no-record"],
    "never matching": ["--no-stacks", "--no-record", "-b", "NoSuchNode"],
    "nan watch": ["--no-stacks", "-b", "nonfinite"],
    "stacks": ["--stacks", "-b", "NoSuchNode"],
    "condition": ["--stacks", *commands("trace * if norm(grad_outputs[0]) < 0", "continue")],
    "vlog": ["--stacks", "-b", "nonfinite", *commands("vlog 4", "continue")],
}
KINDS = {"own": "nan watch", "builtin": "nan watch", "interrupt": "condition", "thread": "condition"}
LIMIT = 90.0 + float(TIMES)


def check(outcome: Outcome, framework: str) -> None:
    said = [line for line in outcome.stdout.splitlines() if line.startswith(("lost", "recording"))]
    assert said == [f"lost 0 others [] interrupted {TIMES}", "recording True equal True"], str(outcome)
    assert "passed over" not in outcome.stderr + outcome.stdout, str(outcome)
    assert "Exception ignored" not in outcome.stderr, str(outcome)


@pytest.mark.parametrize("mode", MODES)
@on_frameworks()
def test_every_time_out_arrives(framework: str, mode: str) -> None:
    check(batch("alarms", *MODES[mode], arguments=[framework, "own", TIMES], json_lines=False, limit=LIMIT), framework)


@pytest.mark.parametrize("kind", KINDS)
@on_frameworks()
def test_however_it_is_raised(framework: str, kind: str) -> None:
    mode = MODES[KINDS[kind]]
    check(batch("alarms", *mode, arguments=[framework, kind, TIMES], json_lines=False, limit=LIMIT), framework)


@on_frameworks()
def test_the_program_by_itself_loses_none(framework: str) -> None:
    """The witness: Python alone."""
    check(plain("alarms", framework, "own", TIMES), framework)
