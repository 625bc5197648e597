"""The state of the machine around a measurement, from /proc and /sys; and what of it should be warned of."""

from __future__ import annotations

import glob
import os
import time
from dataclasses import dataclass, field
from typing import Any

BUSY = 0.25  # of a core, used by other processes
SLOW = 0.8  # of the highest frequency
_TICKS = os.sysconf("SC_CLK_TCK")


_CPUS = "/sys/devices/system/cpu"


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def _numbers(pattern: str) -> list[int]:
    return [int(text) for text in map(_read, sorted(glob.glob(pattern))) if text.isdigit()]


def _all_cpu() -> float:
    """CPU seconds that all processes of the machine have used."""
    words = _read("/proc/stat").partition("\n")[0].split()[1:]
    ticks = [int(word) for word in words[:8]] or [0]
    return (sum(ticks) - sum(ticks[3:5])) / _TICKS  # less idle and waiting for disks


def _own_cpu() -> float:
    """Of this process and those that it started, such as a loader's workers; one that ended counts once it is waited
    for."""
    times = os.times()
    used = times.user + times.system + times.children_user + times.children_system
    pending = _children(os.getpid())
    while pending:
        pid = pending.pop()
        words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(words) > 14:
            used += sum(map(int, words[11:15])) / _TICKS
            pending += _children(pid)
    return used


def _children(pid: int) -> list[int]:
    tasks = glob.glob(f"/proc/{pid}/task/*/children")
    return [int(word) for text in map(_read, tasks) for word in text.split()]


@dataclass
class Machine:
    """One look: taken when a region begins, and compared when it ends."""

    at: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=_all_cpu)
    own: float = field(default_factory=_own_cpu)
    throttled: list[int] = field(default_factory=lambda: _numbers(f"{_CPUS}/cpu*/thermal_throttle/core_throttle_count"))

    def facts(self) -> dict[str, Any]:
        """Since that look, as it goes into meta.json."""
        seconds = max(time.monotonic() - self.at, 1e-9)
        others = (_all_cpu() - self.used - (_own_cpu() - self.own)) / seconds
        frequencies = _numbers(f"{_CPUS}/cpu*/cpufreq/scaling_cur_freq")
        highest = _numbers(f"{_CPUS}/cpu*/cpufreq/cpuinfo_max_freq")
        throttled = _numbers(f"{_CPUS}/cpu*/thermal_throttle/core_throttle_count")
        return {
            "cores": os.cpu_count(),
            "affinity": sorted(os.sched_getaffinity(0)),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "load": list(os.getloadavg()),
            # /proc/stat counts in ticks of 10 ms: below half a second it tells nothing
            "others_cpu": round(max(others, 0.0), 3) if seconds >= 0.5 else None,
            "mhz": [value // 1000 for value in frequencies],
            "mhz_highest": [value // 1000 for value in highest],
            "governor": _read(f"{_CPUS}/cpu0/cpufreq/scaling_governor"),
            "throttled": sum(throttled) - sum(self.throttled),
        }


def warnings(facts: dict[str, Any]) -> list[str]:
    """What in these facts makes numbers doubtful, in words."""
    return [*_busy(facts), *slow_cores(facts)]


def _busy(facts: dict[str, Any]) -> list[str]:
    said = []
    others, cores = facts.get("others_cpu"), facts.get("cores") or 1
    if others is None:
        if facts["load"][0] > cores:
            said.append(f"the machine is busy: {facts['load'][0]:.1f} processes on {cores} cores in the last minute")
    elif others > BUSY * cores:
        said.append(f"the machine is busy: other processes used {others:.1f} of {cores} cores meanwhile")
    return said


def slow_cores(facts: dict[str, Any]) -> list[str]:
    said = []
    slow = [now / top for now, top in zip(facts["mhz"], facts["mhz_highest"]) if top]
    if slow and max(slow) < SLOW:
        said.append(f"the cores ran at {100 * max(slow):.0f} % of their highest frequency ({facts['governor']})")
    if facts["throttled"] > 0:
        said.append(f"cores were throttled for heat {facts['throttled']} times meanwhile")
    return said
