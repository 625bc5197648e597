"""docs/backends.md: how to write a backend, and which tests run on which framework, and why one does not.

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
sys.path.insert(0, str(ROOT / "tests"))
from support.frameworks import LACKS  # noqa: E402

CONTRACT = ROOT / "tests" / "engine" / "backends" / "contract"
PAGE = ROOT / "docs" / "backends.md"
HEAD = """<!-- made by: python tests/support/backend_page.py -->
# Backends

A backend reports what a framework's backward does, and answers questions about it. It never decides to stop. What it is
in full is `engine/backends/base/` (the classes to implement) and `tests/engine/backends/contract/` (what they must do).

## How to write one

1. A folder `engine/backends/<framework>/`. It alone imports the framework, and only after the script did. The
   framework's name also goes into
   - `engine/backends/__init__.py`: `REGISTRY`, the class to make when the framework comes in;
   - `engine/bootstrap/sitecustomize.py`: `FRAMEWORKS`, the imports that are watched (a test compares the two);
   - `engine/names.py`: `FRAMEWORKS`, the names that a user may expect; there too how its nodes are named, if otherwise;
   - `pyproject.toml`: `packages`, an extra, a marker of pytest, and the import contracts that name torch and paddle
     (the backends are independent of each other, nothing else reaches into them, the framework is imported there only).
2. *The entry.* Find the one function that every backward goes through, and stand in for it. Unarmed it counts and calls
   on: an attribute test and a `try`. Nested calls, several threads, exceptions, `retain_graph`: see `torch/entry.py`.
3. *The graph* (`base/graph.py`, `common/graph.py`): a walk that gives every node a small number as its key; names,
   edges with their slots, the order in which the engine will run them. Let go of the nodes when the call ends.
4. *The hooks* (`base/hooks.py`, `common/hooking.py`): `common` decides which nodes a plan takes and which parts of sums
   are kept; the backend puts a hook before and behind a node. What comes back from the sink is handed to the framework
   only where that is safe.
5. *Tensors* (`common/tensors.py`): meta, norm, statistics, windows, `adopt`. No operator that the script could notice.
6. A capability that the framework does not give is off, and an `Unsupported` says why. Private names of the framework
   are looked up in one module, by finding them, never by version (`common/private_use.py`); `adbg doctor` lists them.
7. The suite: a `World` in `tests/support/worlds.py` (a dozen operators, and its entry in `WORLDS`); its `case` among
   the params of the fixture `world` in `tests/engine/backends/contract/conftest.py`; its name in `FRAMEWORKS` of
   `tests/support/frameworks.py`. What the backend cannot pass goes to `LACKS` beside it, with the reason: a capability
   that is off, or an ability that a test asks for with `@pytest.mark.needs`. No test asks for a framework's name. From
   there the reasons get into the tables below; `python tests/support/backend_page.py` makes this page.

## The contract

A number is how many cases of a test run on a framework. They run on a backend of plain Python too.
"""
PROMISES = """
## Promises

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
    words = ["--collect-only", "-q", "-p", "no:cacheprovider", str(CONTRACT), str(ROOT / "tests" / "promises")]
    with contextlib.redirect_stdout(said):
        status = pytest.main(words, plugins=[plugin])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect the promises:\n{said.getvalue()}")
    return plugin.items


def page(items: list[pytest.Item]) -> str:
    """The page as Markdown."""
    contract = [item for item in items if item.path.parent.name == "contract"]
    promises = [item for item in items if item.path.parent.name != "contract"]
    return f"{HEAD}{tables(contract)}{PROMISES}{tables(promises)}".rstrip() + "\n"


def tables(items: list[pytest.Item]) -> str:
    """A table for each file."""
    tests: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        tests.setdefault((item.path.stem, name), []).append(item)
    lines: list[str] = []
    heading = ""
    for (file, name), cases in tests.items():
        if file != heading:
            heading = file
            title = file.removeprefix("test_").replace("_", " ")
            lines += ["", f"### {title}", "", "| test | torch | paddle |", "|---|---|---|"]
        lines.append(f"| `{name}` | {cell(cases, 'torch')} | {cell(cases, 'paddle')} |")
    return "\n".join(lines) + "\n"


def cell(cases: list[pytest.Item], framework: str) -> str:
    """How many of a test's cases run on ``framework``, or why none does."""
    of_it = sum(1 for case in cases if case.get_closest_marker(framework))
    for need in cases[0].iter_markers("needs"):
        if (framework, need.args[0]) in LACKS:
            return f"no: {LACKS[framework, need.args[0]]}"
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
