"""Python's warning of a fork in a process with threads: none for adbg's alone, and the script's filters stay as they
are. Witness: the filters, and on Python 3.12 and newer what a script prints."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from adbg.engine.agent import child_process
from adbg.engine.agent.child_process import before_fork, without_filter

FORKS = """
import os, threading, time
def fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
fork()
print("alone")
threading.Thread(target=time.sleep, args=(1,)).start()
fork()
"""


@pytest.fixture
def filters(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list of this test's; Python 3.12, whatever this one is."""
    mine: list[object] = list(warnings.filters)
    monkeypatch.setattr(warnings, "filters", mine)
    monkeypatch.setattr(child_process.sys, "version_info", (3, 12, 0))
    return mine


def test_it_is_there_while_no_other_thread_is(filters: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = list(filters)
    monkeypatch.setattr(child_process, "_threads_beside_own", lambda: 1)
    before_fork()
    before_fork()
    assert filters[1:] == plain and filters[0][0] == "ignore"  # type: ignore[index]
    monkeypatch.setattr(child_process, "_threads_beside_own", lambda: 2)
    before_fork()
    assert filters == plain
    without_filter()
    assert filters == plain


def test_an_equal_one_of_the_program_s_stays(filters: list[object]) -> None:
    equal = (*child_process._NOT_OF_OURS,)
    filters.append(equal)
    assert equal is not child_process._NOT_OF_OURS
    without_filter()
    assert filters[-1] == equal


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no such warning before")
def test_a_script_is_warned_of_its_own_threads_alone(tmp_path: Path) -> None:
    """Of the two forks the second one is made beside a thread of its own."""
    (tmp_path / "forks.py").write_text(FORKS)
    words = [sys.executable, "-m", "adbg", "run", "--batch", "--quiet", "forks.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "alone" in done.stdout and (done.stdout + done.stderr).count("is multi-threaded") == 1, done
    assert "forks.py:4: DeprecationWarning" in done.stdout + done.stderr, done
