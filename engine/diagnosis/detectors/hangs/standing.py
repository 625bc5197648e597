"""A program that stands still: no thread of it goes on, for each waits for another one."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace

from adbg.engine import own_threads
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.hangs import polling
from adbg.engine.diagnosis.detectors.hangs.inherited import inherited_lock
from adbg.engine.diagnosis.detectors.hangs.processes import Process, processes, rest
from adbg.engine.diagnosis.detectors.hangs.waits import OVER, Wait, program_waits
from adbg.engine.diagnosis.detectors.ranks.facts import world_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Finding, RankFacts
from adbg.engine.types import SourceLine

_PERIOD = 2.0  # seconds between two looks
_STANDS = 12.0  # seconds, from which on a program is said to stand
_LOOKS = 24.0  # the same where a thread goes on by itself, to look again or to sleep again
_TURNS = 4  # as often a thread has been woken by then that is said to go round
_BUSY = 0.03  # share of that time in which it computes: more, and it goes on


@detector("hang")
class Standing(Detector):
    """The program stands still. All its threads wait for one another (a queue into which nobody puts any more, a lock
    that is held by who waits for it, the end of a thread that does not end), or it waits for its worker processes, and
    these do nothing either, also for a lock that was taken as they were forked. The line to change is where the thread
    waits that the others wait for.

    Evidence: where each thread stands, and that neither it nor a process below it has computed anything meanwhile.
    Mistaken for: a program that waits for what comes from outside (a network, a file, a timer, input): told is what
    waits for a thread or a process of its own; of processes, which may wait for something outside themselves, and where
    a thread looks again and again (a loop that asks nothing but flags, locks and queues, a wait with a time limit that
    is begun anew) or sleeps in between and wakes nobody by its source, a warning, and later. Not told: a loop that asks
    a clock, a file, or an object of a class of the program's; where a function of the program handles signals, which
    may set a flag. Taken back when the program goes on. Of a job the front end compares what its ranks call, as
    ``why hang`` does; also what they called last, where one was killed for it (gloo ends a rank whose call meets
    another one's).
    Cost: a look at the frames of each thread every two seconds, 0.1 ms, from a thread of adbg's.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._over = threading.Event()
        self._since = 0.0
        self._place: tuple[object, ...] | None = None
        self._spent = 0.0
        self._woken: dict[int, int] = {}  # by thread, how often it had been by then
        self._below: dict[int, Process] | None = None
        self._told = 0
        self._shared = 0.0
        self._here = -1  # the iteration of the last look
        self._why = ""  # it could not look
        own_threads.begin(_look_again, "adbg-standing", (weakref.ref(self), self._over), end=self._over.set)

    def end(self) -> None:
        if self._told and not self.facts.cut_short:  # it came to its end by itself
            self.facts.take_back(self._told)

    def left(self) -> None:
        self._over.set()

    def why_not(self) -> str:
        return self._why

    # ---- on a thread of adbg's

    def failed(self, error: Exception) -> None:
        self._why = f"it failed: {type(error).__name__}: {error}"

    def look(self) -> None:
        here = self.facts.iteration
        waits = program_waits(loops=here == self._here)  # a program that goes on need not be read
        self._here = here
        main = threading.main_thread().ident
        wait = waits.get(main) if waits is not None and main is not None else None
        if waits is None or wait is None or not (self._waits(wait) or (wait.line is not None and self._of_job())):
            self._moves()
            return
        polls = frozenset(each.number for each in waits.values() if each.polls)
        place = (wait.place, here, polls)
        now, spent = time.monotonic(), time.process_time() - sum(map(polling.spent, polls))
        if place != self._place or spent - self._spent > _BUSY * max(now - self._since, _PERIOD):
            self._moves()
            self._place, self._since, self._spent, self._below = place, now, spent, None
            self._woken = {each.number: polling.woken(each.number) for each in waits.values()}
            return
        if self._below is None:  # not at the first look: a step may wait for a moment, and a machine has many processes
            self._below = processes()
        if now - self._since >= _STANDS:
            if self._of_job():
                self._share(now)
            elif not self._told:
                self._judge(wait, waits, now - self._since)

    def _turns(self, wait: Wait) -> bool:
        """It was woken again and again, and went back to sleep."""
        return _by_itself(wait) and polling.woken(wait.number) - self._woken.get(wait.number, 1 << 62) >= _TURNS

    @staticmethod
    def _waits(wait: Wait) -> bool:
        return wait.kind in ("thread", "process")

    def _of_job(self) -> bool:
        """It is one rank of several: what the others do is to be known, too."""
        return world_of(self.facts.backend) > 1

    def _share(self, now: float) -> None:
        if now - self._shared >= _STANDS:
            self._shared = now
            self.facts.share(RankFacts("stands", world_of(self.facts.backend), self.facts.iteration, {}, {}))

    def _moves(self) -> None:
        self._place = None
        if self._told:
            self.facts.take_back(self._told)
            self._told = 0

    def _judge(self, main: Wait, waits: dict[int, Wait], seconds: float) -> None:
        others = [each for each in waits.values() if each is not main]
        below = processes()
        if below is None or self._below is None:
            self._why = "the program stood, and the system does not tell of the processes below it (/proc)"
            return
        if not rest(self._below, below, _BUSY * seconds):
            self._since, self._below = time.monotonic(), below  # from here on they may
            return
        if self._may_go_on(main, others, seconds):
            return
        signals = polling.handles_signals()
        if signals and (main.polls or main.timed):
            return  # a service that waits to be told to go on
        alone = all(each.kind == "thread" and not each.timed and not each.polls for each in waits.values())
        certain = alone and not below and not signals
        waited = _waited_for(main, waits)
        crossed = main.wants in waited.has and waited.wants in main.has  # each has what the other waits for
        line = main.line if crossed else waited.line or main.line
        if certain and line is main.line is not None and _takes_more(main, others):
            line = replace(main.line, line=main.counted)
        message, lock = _message(main, waited, others, below), None
        mains = [each.waits[0] for each in below.values() if each.waits]
        if main.kind == "process" and mains and all(each.startswith("futex") for each in mains):
            lock = inherited_lock({known for each in waits.values() for known in each.has})
        if lock is not None:
            line, message = lock[1], f"{message}: {_inherited(*lock)}"
        self._told = self.facts.tell(
            Finding(
                0, "hang", "error" if certain else "warning", 0.95 if certain else 0.8,
                message, cause=self.facts.cause(line),
                evidence=list(_evidence(main, others, below, seconds)), next=["threads"],
            )
        )  # fmt: skip

    def _may_go_on(self, main: Wait, others: list[Wait], seconds: float) -> bool:
        """One of them is in a call of which nothing is known, may wake another one as its time comes, or has not been
        seen going round for long enough."""
        limited = main.timed and not main.joins
        if limited and not (main.again and self._turns(main)):
            return True
        for each in others:
            known = each.kind in ("thread", "process")
            if each.timer or (not known and not _by_itself(each)):
                return True
            own = each.line is not None and _by_itself(each) and not each.joins
            if own and not ((each.beats or each.again) and self._turns(each)):
                return True
        by_itself = limited or main.polls or any(each.polls or _by_itself(each) for each in others)
        return bool(by_itself) and seconds < _LOOKS


def _inherited(name: str, line: SourceLine) -> str:
    return (
        f"{name} has been taken since {place(line)}, and a process that is forked meanwhile has it taken for ever, for "
        "nobody there releases it; release it before workers are started, or make it in the worker"
    )


def _takes_more(main: Wait, others: list[Wait]) -> bool:
    """It takes from a queue as often as a loop says, and those that filled it are done."""
    return main.counted > 0 and main.put > 0 and not main.timed and not others


def _by_itself(wait: Wait) -> bool:
    return wait.sleeps or wait.timed


def _look_again(found: weakref.ref[Standing], over: threading.Event) -> None:
    while not over.wait(_PERIOD):
        detector = found()
        if detector is None:
            return
        try:
            detector.look()
        except own(Exception) as error:
            detector.failed(error)
            return
        del detector


def _waited_for(main: Wait, waits: dict[int, Wait]) -> Wait:
    """The thread that the others wait for, as far as can be told; the main one where it is alone."""
    waited = _next_of(main, waits)
    if not waited.call.endswith("Future.result"):
        return waited
    waiting = (each for each in waits.values() if each.kind == "thread")
    return next((each for each in waiting if each.line is not None and polling.gives_results(each.line)), waited)


def _next_of(main: Wait, waits: dict[int, Wait]) -> Wait:
    if main.joins in waits:
        return waits[main.joins]
    if main.held:
        return next((each for each in waits.values() if each is not main and main.wants in each.has), main)
    users = [each for each in waits.values() if each is not main and each.line is not None and each.kind == "thread"]
    return min(users, key=lambda each: each.wants not in each.has, default=main)


def _where(wait: Wait) -> str:
    if wait.polls:
        return f"the loop at {place(wait.line)}"
    if wait.sleeps:
        return f"a sleep at {place(wait.line)}"
    return f"{wait.call or 'a built-in function'} at {place(wait.line)}"


def _again(wait: Wait) -> str:
    """Of a thread that waits for a lock that it has; "" for any other."""
    since = wait.has.get(wait.wants) if wait.wants else None
    if since is None:
        return ""
    why = "a Lock is not taken twice by one thread"
    return f"at {place(wait.line)} for a lock that it has itself since {place(since)}: {why}"


def _message(main: Wait, waited: Wait, others: list[Wait], below: dict[int, Process]) -> str:
    if main.wants and waited is not main and main.wants in waited.has:
        since, theirs = main.has.get(waited.wants), _again(waited)
        if since is not None:
            theirs = (
                f"at {place(waited.line)} for one that the main thread has since {place(since)}: take both in one order"
            )
        return (
            f"the program hangs: the main thread waits at {place(main.line)} for a lock that {waited.thread} has since "
            f"{place(waited.has[main.wants])}, and {waited.thread} waits {theirs or 'in ' + _where(waited)}"
        )
    if waited is not main and _again(waited):
        return f"the program hangs: the main thread waits in {_where(main)}, and {waited.thread} waits {_again(waited)}"
    if _again(main):
        return f"the program hangs: it waits {_again(main)}"
    if waited is not main and main.line is None:
        does = "has come to its end" if main.call == OVER else "waits in a library"
        return f"the program hangs: its main thread {does}, and {waited.thread} waits in {_where(waited)}"
    if waited is not main:
        return (
            f"the program hangs: the main thread waits in {_where(main)}, and {waited.thread} in {_where(waited)}: "
            "neither goes on before the other does"
        )
    full = [pid for pid, each in below.items() if each.writes]
    if full and main.kind == "process" and main.call.endswith(".join"):
        who = f"process {full[0]} below it waits" if len(full) == 1 else f"{len(full)} processes below it wait"
        return (
            f"the program hangs: it waits in {_where(main)} for the end of what still writes: {who} for somebody to "
            "read the pipe that it fills; take what it put into its queue before it is joined"
        )
    if below:
        alone = "the process below it does nothing"
        rest = alone if len(below) == 1 else f"the {len(below)} processes below it do nothing"
        return f"the program hangs: it waits in {_where(main)}, and {rest}"
    if main.held:
        return f"the program hangs: it waits for a lock at {place(main.line)}, and no thread that could release it runs"
    rest = "no other thread of the program lives" if not others else "none of its other threads goes on"
    if any(each.sleeps for each in others):
        rest = "none of its other threads does anything for which it could wait"
    if main.polls or main.timed or any(_by_itself(each) for each in others):
        return f"the program hangs, as far as can be seen: it waits in {_where(main)}, and {rest}"
    if main.line is not None and _takes_more(main, others):
        loop = replace(main.line, line=main.counted)
        rest += f": the loop at {place(loop)} takes a number of items that is fixed before, and {main.put} were put"
        return f"the program hangs: it waits in {_where(main)}, and {rest}"
    return f"the program hangs: it waits in {_where(main)}, and {rest}: nothing can wake it"


def _evidence(main: Wait, others: list[Wait], below: dict[int, Process], seconds: float) -> Iterator[str]:
    by_itself = any(each.polls or _by_itself(each) for each in (main, *others))
    but = ", but for what goes round in loops that change nothing" if by_itself else ""
    yield f"for {seconds:.0f} s nothing was computed, in this process or below it{but}"
    for wait in (main, *others[:6]):
        if wait.line is not None:
            again = ", again and again" if wait.sleeps or (wait.timed and not wait.joins) else ""
            yield f"{wait.thread} waits in {_where(wait)}{again}: {Facts.text_of(wait.line)}"
    for pid, each in sorted(below.items())[:6]:
        writes = ", and a thread of it writes into a pipe that is full (pipe_write)" if each.writes else ""
        yield f"process {pid}, below this one, waits in {each.waits[0]}{writes}"
