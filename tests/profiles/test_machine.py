"""Cores, priority and the state of the machine. Witnesses: /proc, and files of /sys that the test made up."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.patience import patience
from support.program import ROOT

from adbg.profiles import machine
from adbg.profiles.base import ProfileError
from adbg.profiles.placing import Placing

CORES = sorted(os.sched_getaffinity(0))


def allowed(thread: int) -> str:
    status = Path(f"/proc/self/task/{thread}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))


@pytest.mark.skipif(len(CORES) < 2, reason="there is one core")
def test_every_thread_is_put_back_and_what_the_program_chose_meanwhile_stays() -> None:
    here = threading.get_native_id()
    before, other = allowed(here), f"{CORES[1]}"
    chosen, chooses, go = threading.Event(), threading.Event(), threading.Event()
    ident: list[int] = []

    def thread() -> None:
        ident.append(threading.get_native_id())
        chooses.wait()
        os.sched_setaffinity(0, {CORES[1]})
        chosen.set()
        go.wait()

    started = threading.Thread(target=thread)
    started.start()
    placing = Placing()
    try:
        placing.wanted(frozenset({CORES[0]}), None)
        assert allowed(here) == before, "only tried"
        placing.apply()
        assert allowed(here) == allowed(ident[0]) == f"{CORES[0]}"
        chooses.set()
        chosen.wait()
        assert placing.restore() == ""
        assert (allowed(here), allowed(ident[0])) == (before, other)
    finally:
        placing.restore()
        chooses.set()
        go.set()
        started.join()
    with pytest.raises(ProfileError, match="may not run on core 4000"):
        Placing().wanted(frozenset({4000}), None)
    assert allowed(here) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_priority_that_cannot_be_put_back_is_said() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from adbg.profiles.placing import Placing
os.setpriority(os.PRIO_PROCESS, 0, 0)  # root may: whatever this test runs at
os.setresuid(65534, 65534, 65534)
placing, before = Placing(), os.getpriority(os.PRIO_PROCESS, 0)
placing.wanted(None, before + 1)
print(os.getpriority(os.PRIO_PROCESS, 0) - before)
placing.apply()
print(placing.restore())
try:
    Placing().wanted(None, -5)
except Exception as error:
    print(error)
"""
    command = [sys.executable, "-c", code]
    if resource.getrlimit(resource.RLIMIT_NICE)[0] != 0:
        pytest.skip("this user may raise priorities")
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(30), check=True)
    tried, stays, refused = done.stdout.splitlines()
    assert tried == "0" and "keeps priority" in stays and "CAP_SYS_NICE" in stays
    assert "may not have priority -5" in refused and "leave --nice out" in refused


def cpus(folder: Path, mhz: int, highest: int, throttled: int) -> None:
    for core in (0, 1):
        files = {
            "cpufreq/scaling_cur_freq": mhz * 1000,
            "cpufreq/cpuinfo_max_freq": highest * 1000,
            "cpufreq/scaling_governor": "powersave",
            "thermal_throttle/core_throttle_count": throttled,
        }
        for name, value in files.items():
            path = folder / f"cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")


def test_slow_and_throttled_cores_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPUS", str(tmp_path))
    cpus(tmp_path, 3500, 3600, 7)
    look = machine.Machine()
    facts = look.facts()
    assert (facts["mhz"], facts["mhz_highest"], facts["governor"], facts["throttled"]) == (
        [3500, 3500], [3600, 3600], "powersave", 0,
    )  # fmt: skip
    assert machine.slow_cores(facts) == []
    cpus(tmp_path, 1800, 3600, 9)
    facts = look.facts()
    assert facts["throttled"] == 4
    assert machine.slow_cores(facts) == [
        "the cores ran at 50 % of their highest frequency (powersave)",
        "cores were throttled for heat 4 times meanwhile",
    ]


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + patience(30)
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_busy_machine_is_another_process_and_not_a_worker_of_ones_own() -> None:
    """The same work, by a child and by a process that is nobody's child; /proc/loadavg is the witness of the rest."""
    burn = "import time\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass\n"
    orphan = f"import os, subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', {burn!r}]).pid, flush=True)"

    def others(run: Callable[[], None]) -> float:
        look = machine.Machine()
        since = time.monotonic()
        run()
        found = look.facts()
        assert found["load"][0] == pytest.approx(float(Path("/proc/loadavg").read_text().split()[0]), abs=0.5)
        return float(found["others_cpu"]) * (time.monotonic() - since)

    def own_child() -> None:
        child = subprocess.Popen([sys.executable, "-c", burn])
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert machine._own_cpu() > before + 0.7, "it counts, though nobody has waited for it"
        child.wait()

    def foreign() -> None:
        started = subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True, check=True)
        until(lambda: not Path(f"/proc/{int(started.stdout)}").exists())

    before = machine._own_cpu()
    others(own_child)
    assert others(foreign) > 0.6
    quiet = {"others_cpu": 0.1, "cores": 2, "load": [9.0], "mhz": [], "mhz_highest": [], "governor": "", "throttled": 0}
    assert machine.warnings(quiet) == []
    assert "other processes used 1.3 of 2 cores" in machine.warnings({**quiet, "others_cpu": 1.3})[0]
    assert "9.0 processes on 2 cores" in machine.warnings({**quiet, "others_cpu": None})[0]
