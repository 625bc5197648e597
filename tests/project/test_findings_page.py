"""docs/findings.md says what the detectors say of themselves, and each says all of it."""

from __future__ import annotations

import sys

import pytest
from support.program import ROOT, run

from adbg.tui.debugger.findings.kinds import DetectorText, detectors


def test_page_is_up_to_date() -> None:
    done = run([sys.executable, ROOT / "tests" / "support" / "findings_page.py", "--check"], cwd=ROOT)
    assert done.status == 0, str(done)


@pytest.mark.parametrize("each", detectors(), ids=lambda each: each.kinds[0])
def test_each_says_what_it_finds_and_what_it_is_mistaken_for(each: DetectorText) -> None:
    said, labelled = each.parts()
    assert said.endswith("."), "a sentence"
    assert {"Evidence", "Mistaken for", "Cost"} <= labelled.keys(), "say it in the docstring of the class"


def test_a_docstring_in_its_parts() -> None:
    text = "Finds it.\n\n    In two lines. Evidence: norms.\n    Mistaken for: a GAN: it is none. Cost: none."
    said, labelled = DetectorText(("kind",), "family", text).parts()
    assert said == "Finds it. In two lines."
    assert labelled == {"Evidence": "norms.", "Mistaken for": "a GAN: it is none.", "Cost": "none."}
