"""Attaching to every kind of process, a few times: `make stress-attach` in small. What it looks for is seen, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import case
from support.program import run, wait_until

from stress import attach, catalog, table
from stress.attach import Row, measure
from stress.attaching import Attached
from stress.catalog import Kind
from stress.census import census, left_behind

ATTACHES = 2
OTHERS = catalog.other_pythons()


def cases() -> list[object]:
    return [case(kind.framework or "torch", kind, id=kind.name.replace(" ", "-")) for kind in catalog.KINDS]


def check(row: Row) -> None:
    assert not row.failures and not row.damage, row
    assert len(row.hello) == row.asked, row


@pytest.mark.timeout(600)  # 44 s where the GIL is held a second at a time, on an idle machine; CI has more beside it
@pytest.mark.parametrize("kind", cases())
def test_kind(kind: Kind) -> None:
    again = kind.name in catalog.VERSIONED or kind.framework  # a second attach goes the same way in all others
    check(measure(kind, catalog.python_of(kind.framework), ATTACHES if again else 1))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tight Python loop", "time.sleep"])
@pytest.mark.parametrize("python", OTHERS, ids=[catalog.version(python) for python in OTHERS])
def test_other_pythons(python: str, name: str) -> None:
    check(measure(catalog.kind(name), python, ATTACHES))


# ------------------------------------------------------------------ what is looked for is found

LITTER = """
import mmap, os, signal, sys, threading, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("READY", flush=True)
signal.sigwait([signal.SIGUSR1])
if sys.argv[1] == "thread": threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
if sys.argv[1] == "descriptor": file = open("/dev/null")
if sys.argv[1] == "page": page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
print("DONE", flush=True)
time.sleep(60)
"""


@pytest.mark.torch
@pytest.mark.parametrize(("what", "word"), [("thread", "threads"), ("descriptor", "null"), ("page", "executable")])
def test_litter_is_seen(what: str, word: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LITTER, what], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "READY\n"
            before = census(process.pid)
            assert left_behind(before, census(process.pid)) == []
            process.send_signal(10)
            assert process.stdout.readline() == "DONE\n"
            found = wait_until(lambda: left_behind(before, census(process.pid)), "something left behind")
            assert len(found) == 1 and word in found[0]
        finally:
            process.kill()


@pytest.mark.torch
def test_another_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The witness is run with one step too many."""
    honest = attach.witness
    monkeypatch.setattr(attach, "witness", lambda kind, python, steps: honest(kind, python, steps + 1))
    row = measure(catalog.kind("time.sleep"), sys.executable, 1)
    assert len(row.damage) == 1 and "another result" in row.damage[0], row


@pytest.mark.torch
def test_a_target_that_dies_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def kill(pid: int, steady: bool) -> Attached:
        os.kill(pid, 9)
        return Attached(hello=0.1, way="killed")

    monkeypatch.setattr(attach, "attach_and_detach", kill)
    row = measure(catalog.kind("time.sleep"), sys.executable, 1)
    assert row.damage and row.damage[0].startswith("no STEP from the target: status -9"), row


def test_table() -> None:
    good = Row("a loop", "3.11.7", 3, hello=[0.3, 0.2, 0.1], first=[0.3], gone=[0.01] * 3, processes=1)
    good.ways["ptrace-pending"] += 3
    bad = Row("a lock", "3.11.7", 3, hello=[1.4, 1.5], gone=[0.02] * 2, failures=["why"], damage=["what"])
    text = table.whole([good, bad], (1.0, 2.0))
    assert "| a loop | 3.11.7 | 3 of 3 | 300 ms | 200 ms | 300 ms | 10 ms | ptrace-pending 3 | 0 |" in text
    assert "| a lock | 3.11.7 | **2 of 3** | – | **1450 ms** | 1500 ms | 20 ms |  | **1** |" in text
    assert "not in: why" in table.line(bad) and "damage: what" in table.line(bad)
    page = f"head\n{table.BEGIN}\nold\n{table.END}\ntail\n"
    assert table.insert(page, "new") == f"head\n{table.BEGIN}\nnew\n{table.END}\ntail\n"
    with pytest.raises(ValueError):
        table.insert("nothing", "new")


@pytest.mark.torch
def test_command(tmp_path: Path) -> None:
    words = ["-m", "tests.stress.attach", "--attaches", "1", "--only-here", "--target", "time.sleep"]
    outcome = run([sys.executable, *words, "--json", str(tmp_path / "all")], cwd=catalog.ROOT)
    assert outcome.status == 0, str(outcome)
    assert sum(json.loads((tmp_path / "all").read_text())[0]["ways"].values()) == 1
    assert "| time.sleep |" in outcome.stdout and "1 of 1" in outcome.stdout
