"""docs/backends.md says what the tests say, and nowhere without a reason."""

from __future__ import annotations

import sys

from support.program import ROOT, run


def test_page_is_up_to_date() -> None:
    done = run([sys.executable, ROOT / "tests" / "support" / "backend_page.py", "--check"], cwd=ROOT)
    assert done.status == 0, str(done)


def test_every_gap_has_a_reason() -> None:
    assert "no reason is given" not in (ROOT / "docs" / "backends.md").read_text()
