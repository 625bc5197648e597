"""Every test gets folders of its own for recorded runs, state and sockets; a failed one keeps its runs in test-logs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import FRAMEWORKS, installed, skipped_without
from support.patience import patience
from support.unending import LIMIT, ended_at_last, stacks_of_last_time

ROOT = Path(__file__).resolve().parents[1]
LARGEST_LOG = 8 << 20  # bytes of a run directory's file that are worth keeping
# A module that has one of these, or a function of theirs, starts programs: its tests are not quick.
STARTERS = {"subprocess", "multiprocessing", "pty", "support.program", "support.terminal", "support.dialled"}

LAST_TIME = pytest.StashKey["str | None"]()


@pytest.fixture(autouse=True)
def adbg_home(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Where adbg writes during this test: ``runs/``, ``state/``, ``config/``; sockets are in a short path beside."""
    home = tmp_path_factory.mktemp("adbg")
    for variable, name in {
        "ADBG_RUNS": "runs",
        "XDG_STATE_HOME": "state",
        "XDG_CONFIG_HOME": "config",
        "XDG_CACHE_HOME": "cache",
    }.items():
        monkeypatch.setenv(variable, str(home / name))
    sockets = tempfile.mkdtemp(prefix="adbg-t")  # a socket's path may have 108 bytes, which tmp_path can exceed
    monkeypatch.setenv("XDG_RUNTIME_DIR", sockets)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # debuggees are tiny; more threads only make the runs slower
    for variable in ("ADBG_SESSION", "ADBG_MAIN", "PYTHONBREAKPOINT", "NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(variable, raising=False)
    before = loaded_frameworks()
    yield home
    if request.node.get_closest_marker("quick"):
        assert loaded_frameworks() == before, "a quick test imports a framework: name its file after it"
    shutil.rmtree(sockets, ignore_errors=True)


def loaded_frameworks() -> set[str]:
    """Those that this process has imported."""
    return {name for name in FRAMEWORKS if name in sys.modules}


def is_quick(item: pytest.Item) -> bool:
    """Whether ``make quick`` runs this test: it needs no framework, and its module starts no programs."""
    if any(item.get_closest_marker(framework) for framework in FRAMEWORKS):
        return False
    module = getattr(item, "module", None)
    return not any(
        getattr(value, "__module__", None) in STARTERS or getattr(value, "__name__", None) in STARTERS
        for value in vars(module).values()
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of one framework, by their names, import it at their top: they are not read where it is missing, nor for
    ``make quick``."""
    name = collection_path.name
    if collection_path.parent.name in ("promises", "project"):
        return None  # they import none, and docs/backends.md is made of all promises
    named = [f for f in FRAMEWORKS if name.startswith("test_") and f in name.split(".")[0].split("_")]
    quick = config.option.markexpr.startswith("quick")
    return True if any(quick or not installed(framework) for framework in named) else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        words = item.path.stem.split("_")
        for framework in FRAMEWORKS:
            if framework in words:
                item.add_marker(framework)
        if is_quick(item):
            item.add_marker("quick")
        if missing := skipped_without(item):
            item.add_marker(pytest.mark.skip(reason=f"{missing} is not installed here"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the marker
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    if item.config.getoption("timeout") is None:  # not on the command line
        own = item.get_closest_marker("timeout")
        seconds = float(own.args[0] if own else item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
    item.stash[LAST_TIME] = stacks_of_last_time(item.nodeid)
    with ended_at_last(item.nodeid):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    stacks = item.stash[LAST_TIME]
    if stacks is not None:
        pytest.fail(f"its worker ended in it, after {LIMIT} s if there are stacks here:\n{stacks}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    report = yield
    home = getattr(item, "funcargs", {}).get("adbg_home")
    if report.failed and report.when == "call" and home is not None and (home / "runs").is_dir():
        target = ROOT / "test-logs" / re.sub(r"[^\w.-]+", "_", item.nodeid)[-150:]
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(home / "runs", target, ignore=_too_large, dirs_exist_ok=True)
        report.sections.append(("recorded runs", f"kept in {target.relative_to(ROOT)}"))
    return report


def _too_large(folder: str, names: list[str]) -> list[str]:
    paths = {name: os.path.join(folder, name) for name in names}
    return [name for name, path in paths.items() if os.path.isfile(path) and os.path.getsize(path) > LARGEST_LOG]
