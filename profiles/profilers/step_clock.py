"""What one thread of a training step does, phase by phase. Each moment counts for one phase alone: the innermost one,
and all of a backward call is backward."""

from __future__ import annotations

BACKWARD, STOPPED = "backward", "stopped"
PHASES = ("forward", "optimizer", "data")


class StepClock:
    """Touched by its thread alone. Times are of ``perf_counter_ns``."""

    __slots__ = ("ended", "names", "outside", "since", "spent", "waits", "where")

    def __init__(self) -> None:
        self.names: list[str] = []  # the phases that it is in, outermost first
        self.since = 0
        self.spent: dict[str, int] = {}
        self.waits: dict[tuple[str, int], list[int]] = {}  # by the line that waits for data: [ns, how often]
        self.where: tuple[str, int] | None = None
        self.outside = 0  # the last time between two outermost backward calls
        self.ended: int | None = None  # when its last outermost backward call ended

    def begin(self, name: str, now: int) -> None:
        names = self.names
        if BACKWARD in names:
            if name != BACKWARD:
                return
            self.end(BACKWARD, now)  # its end was not told
        if names:
            self._count(names[-1], now)
        names.append(name)
        self.since = now

    def end(self, name: str, now: int) -> None:
        """One that was begun before anything was measured is none."""
        names = self.names
        if name not in names or (BACKWARD in names and name != BACKWARD):
            return
        while names:
            top = names.pop()
            self._count(top, now)
            self.since = now
            if top == name:
                break

    def _count(self, name: str, now: int) -> None:
        took = now - self.since
        self.spent[name] = self.spent.get(name, 0) + took
        if name == "data" and self.where is not None:
            wait = self.waits.setdefault(self.where, [0, 0])
            wait[0] += took
            wait[1] += self.names[-1:] != ["data"]  # it is over

    def take(self) -> tuple[int | None, dict[str, int], dict[tuple[str, int], list[int]]]:
        """In an outermost backward call: the time since the one before it, without stops (None: there was none), what
        was spent in it, and where data was waited for."""
        spent, waits = self.spent, self.waits
        self.spent, self.waits = {}, {}
        if self.ended is None or self.names[-1:] != [BACKWARD]:
            return None, spent, waits
        self.outside = self.since - self.ended - spent.get(STOPPED, 0)
        return self.outside, spent, waits
