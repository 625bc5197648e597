"""``make demo-paddle`` without a terminal, and what the header of its example has a reader try."""

from __future__ import annotations

import re

import pytest
from support.frameworks import only_here
from support.program import ROOT, adbg, commands

pytestmark = only_here("paddle", "its example is written for Paddle")
EXAMPLE = ROOT / "examples" / "paddle_nested_pylayers.py"


def line_of(text: str) -> int:
    (found,) = [n for n, line in enumerate(EXAMPLE.read_text().splitlines(), 1) if text in line]
    return found


@pytest.mark.quick
def test_demo() -> None:
    words = "run --batch -x examples/paddle_nested_pylayers.adbg examples/paddle_nested_pylayers.py"
    assert words in (ROOT / "Makefile").read_text()
    outcome = adbg(*words.split(), cwd=ROOT)
    assert outcome.status == 0, str(outcome)
    line = line_of("return a / (1.0 + ClippedExp.apply(-a)) * b")
    for wanted in (
        "before GradNodePyLayer_Checkpoint#1",
        "inside GradNodePyLayer_Checkpoint#1 > GradNodePyLayer_SwiGLU#1",
        f"paddle_nested_pylayers.py:{line} in formula",
        "nested 2 deep",
        "iteration 3",
    ):
        assert wanted in outcome.stdout + outcome.stderr, str(outcome)
    assert f"paddle_nested_pylayers.py:{line} in formula" in (ROOT / "README.md").read_text(), "the README's stop"


def test_header() -> None:
    """Everything that it tells to try works, in that order; its log is Paddle's own."""
    header = EXAMPLE.read_text().split('"""')[1]
    tried = [re.split(r"\s{4,}", line.strip())[0] for line in header.splitlines() if line.startswith("    ")]
    assert len(tried) >= 6
    outcome = adbg(
        "run", "--batch", "--json", "-b", "GradNodePyLayer_*", *commands("continue", *tried, "delete", "vlog"), EXAMPLE
    )
    assert outcome.status == 0, str(outcome)
    assert not outcome.of("error"), str(outcome)
    assert max(stop["depth"] for stop in outcome.of("stopped")) >= 1, str(outcome)
