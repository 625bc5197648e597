"""Pinning the program's threads to cores, and their priority, for the time of a measurement; restored afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterable

from adbg.engine.outside import suppress
from adbg.profiles.base import ProfileError


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _children(pid: str = "self") -> list[int]:
    """Processes that this one has begun, and theirs."""
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in file.read().split():
                    found += [int(child), *_children(child)]
    return found


def _threads_of(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def parse_cores(text: str) -> frozenset[int]:
    """ "0", "0,2", "4-7". Raises ProfileError."""
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or (last and int(last) < int(first)):
            raise ProfileError(f"{text!r} are no cores", "for example: --pin 2, --pin 0,1, --pin 4-7")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


class Placing:
    """What every thread had before, by thread. Threads that begin meanwhile get what most others had."""

    def __init__(self) -> None:
        self._cores: dict[int, frozenset[int]] = {}
        self._nice: dict[int, int] = {}
        self._wanted: tuple[frozenset[int] | None, int | None] = None, None
        self._before: frozenset[int] = frozenset()  # child processes: they have nothing of this

    def asked(self, cores: str, nice: int | None) -> None:
        """``cores`` as ``parse_cores`` takes them, "" for no change. Raises ProfileError."""
        if cores or nice is not None:
            self.wanted(parse_cores(cores) if cores else None, nice)

    def wanted(self, cores: frozenset[int] | None, nice: int | None) -> None:
        """What ``apply`` does when the region begins. Raises ProfileError where it cannot be had."""
        nice = None if nice is None else min(max(nice, -20), 19)  # as the kernel takes it
        self._wanted = cores, nice
        if nice is not None and nice > os.getpriority(os.PRIO_PROCESS, 0):
            nice = None  # can be had; trying it might be for good
        given, self._wanted = self._wanted, (cores, nice)
        try:
            self.apply()
        finally:
            self.restore()
            self._wanted = given

    def apply(self) -> None:
        cores, nice = self._wanted
        if cores is not None or nice is not None:
            self._before = frozenset(_children())
        if cores is not None:
            self.pin(cores)
        if nice is not None:
            self.prioritise(nice)

    def pin(self, cores: Iterable[int]) -> None:
        """Raises ProfileError: there are no such cores for this process."""
        wanted = frozenset(cores)
        allowed = frozenset(os.sched_getaffinity(0))
        if not wanted <= allowed:
            refused, listed = (", ".join(map(str, sorted(cores))) for cores in (wanted - allowed, allowed))
            raise ProfileError(f"this process may not run on core {refused}", f"it may on {listed}")
        for thread in _threads():
            try:
                self._cores.setdefault(thread, frozenset(os.sched_getaffinity(thread)))
                os.sched_setaffinity(thread, wanted)
            except ProcessLookupError:
                self._cores.pop(thread, None)

    def prioritise(self, nice: int) -> None:
        """Raises ProfileError: raising it needs a right that this process lacks."""
        for thread in _threads():
            try:
                self._nice.setdefault(thread, os.getpriority(os.PRIO_PROCESS, thread))
                os.setpriority(os.PRIO_PROCESS, thread, nice)
            except ProcessLookupError:
                self._nice.pop(thread, None)
            except PermissionError:
                self.restore()
                raise ProfileError(
                    f"this process may not have priority {nice}",
                    "a negative nice value needs root or CAP_SYS_NICE; leave --nice out",
                ) from None

    def restore(self) -> str:
        """As it was, but for what the program itself has changed meanwhile; also of processes that it has begun
        meanwhile. Returns what could not be put back: a lower nice value needs a right. May be asked again."""
        cores, nice = self._cores, self._nice
        if not cores and not nice:
            return ""
        given, priority = self._wanted
        stays = ""
        begun = [thread for child in _children() if child not in self._before for thread in _threads_of(child)]
        for thread in (*_threads(), *begun):
            try:
                if cores and frozenset(os.sched_getaffinity(thread)) == given:
                    os.sched_setaffinity(thread, cores.get(thread) or next(iter(cores.values())))
                if nice and os.getpriority(os.PRIO_PROCESS, thread) == priority:
                    os.setpriority(os.PRIO_PROCESS, thread, nice.get(thread, next(iter(nice.values()))))
            except ProcessLookupError:
                continue
            except PermissionError:
                stays = f"the program keeps priority {priority}: going back needs root or CAP_SYS_NICE"
        self._cores, self._nice = {}, {}
        return stays
