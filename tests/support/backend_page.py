"""docs/backends.md: which test of a promise runs on which framework, and why one does not.

    python tests/support/backend_page.py            writes the page
    python tests/support/backend_page.py --check    fails when the page is stale

It is read off the markers of tests/support/frameworks.py with pytest's own collection: no test runs and no framework
has to be installed.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "backends.md"
HEAD = """<!-- made by: python tests/support/backend_page.py -->
# Promises, by framework

One body for every framework, `tests/promises/`. A number is how many cases of a test run there; where it is none, the
reason is given. Tests that need no framework run once, beside torch. `make test` runs torch's part in an environment
that has torch and not PaddlePaddle, and Paddle's part in one that has PaddlePaddle and not torch.
"""


class Collected:
    """A pytest plugin: keeps what was collected."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collect() -> list[pytest.Item]:
    """The tests of the promises; raises RuntimeError when pytest cannot read them."""
    plugin, said = Collected(), io.StringIO()
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "promises")]
    with contextlib.redirect_stdout(said):
        status = pytest.main(words, plugins=[plugin])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the promises:\n{said.getvalue()}")
    return plugin.items


def page(items: list[pytest.Item]) -> str:
    """The page as Markdown."""
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        tests.setdefault((item.path.stem, name), []).append(item)
    lines, heading = [HEAD], ""
    for (file, name), cases in tests.items():
        if file != heading:
            heading = file
            title = file.removeprefix("test_").replace("_", " ")
            lines += ["", f"## {title}", "", "| test | torch | paddle |", "|---|---|---|"]
        lines.append(f"| `{name}` | {cell(cases, 'torch')} | {cell(cases, 'paddle')} |")
    return "\n".join(lines).rstrip() + "\n"


def cell(cases: list[pytest.Item], framework: str) -> str:
    """How many of a test's cases run on ``framework``, or why none does."""
    of_it = sum(1 for case in cases if case.get_closest_marker(framework))
    of_any = any(case.get_closest_marker(name) for case in cases for name in ("torch", "paddle"))
    if of_it:
        return str(of_it)
    if not of_any:
        return "needs none" if framework == "paddle" else str(len(cases))
    only = cases[0].get_closest_marker("only")
    if only is not None:
        return f"no: {only.kwargs['why']}"
    other = "paddle" if framework == "torch" else "torch"
    return f"no: about {other} itself" if other in cases[0].path.stem.split("_") else "no: no reason is given"


def main() -> int:
    text = page(collect())
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print(f"{PAGE.relative_to(ROOT)} is stale: run python {Path(__file__).relative_to(ROOT)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
