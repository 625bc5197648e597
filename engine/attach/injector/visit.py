"""Holding one thread of the target for some milliseconds, in which it does what adbg needs.

The thread is let run in no state but one from which it goes home by itself: what it runs returns into the end of a
signal handler (``rt_sigreturn``), and the frame that this reads, below the thread's own stack, has everything that it
was doing, as if a signal had come. So it does not matter when this process is killed. While it is not, the thread is
caught at that last system call, and made exactly what it was: a time-out goes on where it was, which the kernel does
not do after a handler.

All signals but those that cannot be are blocked meanwhile; the frame gives the thread's own mask back, and then they
come as they would have.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from adbg.engine.attach.injector.machine import Machine, State
from adbg.engine.attach.injector.page import DATA, MARK, SIZE, Page
from adbg.engine.attach.injector.ptrace import ALL_SIGNALS, PRSTATUS, Gone, Memory, Thread, TookTooLong
from adbg.engine.proc import Mapping, Proc

STOP_TIME = 2.0  # seconds until a thread must stand; a disk that does not answer can hold one for longer
CALL_TIME = 10.0  # seconds that a function may take; 2 ms is usual, more when the machine is busy
_FLAGS_PRIVATE, _FLAGS_FIXED = 0x22, 0x32  # MAP_PRIVATE | MAP_ANONYMOUS, and MAP_FIXED
_READ, _WRITE, _RUN = 1, 2, 4
_FAULTS = {4, 5, 7, 8, 11}  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV


class VisitFailed(Exception):
    """What was asked of the thread did not work; it is home again."""


class Abandoned(VisitFailed):
    """A function that it was made to call did not return in time. It is home again, but what it waited for may still
    look at the page's stack: that must stay."""


class Unfit(VisitFailed):
    """This thread cannot be used at this moment; nothing was done with it. Another one, or a later time, may do."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What visits to one process share. ``step`` is called with the name of each step before the next one."""

    process: Proc
    memory: Memory
    machine: Machine
    call_and_return: int  # addresses in the target
    go_home: int
    step: Callable[[str], None]
    late: list[Thread] = field(default_factory=list)  # to be let go of as soon as they stand

    def let_late_go(self) -> None:
        """A thread that did not stop in time would stop later, with nobody to send it on."""
        for thread in list(self.late):
            try:
                stop = thread.wait(0)
                own = stop.interrupted or stop.group or stop.at_call or stop.event
                thread.detach(0 if own else stop.signal)  # a signal on its way to it goes on
            except TookTooLong:
                continue
            except (Gone, OSError):
                pass
            self.late.remove(thread)


class _At(Enum):
    """Where a visited thread stands."""

    ITS_OWN = 1  # where it was stopped, or home
    RESULT = 2  # at the end of a system call that it was made to make; what it returns into goes home
    HOMEWARD = 3  # at the begin of the call that goes home


class Visit:
    """A stopped thread. ``leave`` sends it home."""

    def __init__(self, ground: Ground, thread: Thread, state: State) -> None:
        self.state = state
        self._ground = ground
        self._machine = ground.machine
        self._thread = thread
        self._at = _At.ITS_OWN
        self._frame = 0

    # ------------------------------------------------------------------ what it can be made to do

    def call(self, number: int, *arguments: int) -> int:
        """A system call; its result, negative for an error."""
        ground = self._ground
        self._prepare()
        registers = self._machine.enter(
            self.state, ground.call_and_return, self._frame, arguments, ground.go_home, call=number
        )
        self._aim(registers)
        self._run_to(number)
        return self._machine.result(self._thread.registers(PRSTATUS))

    def function(self, page: Page, address: int, *arguments: int) -> int:
        """A function of the target's, on the page's stack. Raises VisitFailed when it does not return in CALL_TIME."""
        self._prepare()
        home = page.start + self._machine.HOME
        page.set_frame(self._machine.home_stack(self._frame))
        stack = self._machine.function_stack(page.stack)
        page.put(stack, home)
        self._aim(self._machine.enter(self.state, address, stack, arguments, home))
        self._run_to(-1)
        return page.result

    def map_page(self) -> Page:
        """New memory; what can be run of it cannot be written, and is marked at once: another injector may have to take
        it away."""
        number = self._machine.MMAP
        start = self.call(number, 0, SIZE, _READ | _RUN, _FLAGS_PRIVATE, -1, 0)
        if -4096 < start < 0:
            raise VisitFailed(f"it may not map {SIZE >> 10} KB of memory that can be run (errno {-start})")
        self._ground.memory.write(start, MARK)
        self._ground.step("mapped")
        rest = self.call(number, start + DATA, SIZE - DATA, _READ | _WRITE, _FLAGS_FIXED, -1, 0)
        if rest != start + DATA:
            self.unmap(start)
            raise VisitFailed(f"it may not map {SIZE >> 10} KB of memory (errno {-rest})")
        return Page(self._ground.memory, start)

    def unmap(self, start: int) -> None:
        self.call(self._machine.MUNMAP, start, SIZE)

    # ------------------------------------------------------------------ home

    def leave(self) -> None:
        """Send it home and let go of it."""
        if self._at is _At.RESULT:
            self._run_to(-1)
        if self._at is _At.HOMEWARD:
            self._ground.step("leaving")
            self._machine.finish(self._thread, self.state)
            self._ground.step("home")
        self._thread.detach()

    def _give_up(self) -> None:
        """It stands in the middle of what it was to do: put everything back from here."""
        for kind, content in self.state.sets:
            self._thread.set_registers(kind, content)
        self._thread.set_mask(self.state.mask)
        self._thread.set_registers(PRSTATUS, self.state.registers)
        self._at = _At.ITS_OWN

    # ------------------------------------------------------------------

    def _prepare(self) -> None:
        """Write the frame, once: it serves all that follows."""
        if self._frame:
            return
        before = self._ground.memory.read(self.state.pc - 8, 8) if self.state.call >= 0 else b""
        at, frame = self._machine.frame(self.state, before)
        pointer = self._machine.thread_pointer(self.state, self._thread)
        maps = self._ground.process.maps()
        if not _has_room(maps, self.state.stack, at, pointer, self._thread.tid == self._ground.process.pid):
            raise Unfit("it does not run on a stack of its own with room for the frame")
        # The return address of what is run first, where the processor takes it from the stack.
        self._ground.memory.write(at, self._machine.linked(frame, self._ground.go_home))
        self._frame = at
        self._ground.step("framed")

    def _aim(self, registers: bytes) -> None:
        """Have it run from ``registers``."""
        if self._at is _At.HOMEWARD:
            self._machine.skip(self._thread, registers)
            self._wait_call()  # the end of the one that was not made
        else:
            self._thread.set_registers(PRSTATUS, registers)
            self._thread.set_mask(ALL_SIGNALS)
        self._ground.step("aimed")

    def _run_to(self, number: int) -> None:
        """To the end of system call ``number``, or to the begin of the one that goes home."""
        while True:
            self._wait_call()
            made = self._machine.number(self._thread.registers(PRSTATUS), self._thread)
            if made == self._machine.SIGRETURN:
                self._at = _At.HOMEWARD
                if number >= 0:
                    raise VisitFailed("the process did not make a system call that it was to make")
                return
            self._wait_call()
            if made == number:
                self._at = _At.RESULT
                self._ground.step("called")
                return

    def _wait_call(self) -> None:
        """To the begin or the end of the next system call."""
        end = time.monotonic() + CALL_TIME
        deliver = 0
        try:
            while True:
                self._thread.resume(deliver)
                stop = self._thread.wait(max(0.001, end - time.monotonic()))
                if stop.at_call:
                    return
                deliver = 0 if stop.event else stop.signal
                if deliver in _FAULTS:
                    self._give_up()
                    raise VisitFailed(f"what it was to do failed with signal {deliver}")
                # Else SIGSTOP, which cannot be blocked: it takes effect when the thread is let go.
        except TookTooLong:
            self._stop_again()
            raise Abandoned(f"what it was to do took more than {CALL_TIME:.0f} s") from None

    def _stop_again(self) -> None:
        self._thread.interrupt()
        end = time.monotonic() + STOP_TIME
        try:
            while not self._thread.wait(max(0.001, end - time.monotonic())).interrupted:
                self._thread.go_on()
        except TookTooLong:  # inside the kernel, and home after that: it must only be let go
            self._at = _At.ITS_OWN
            self._ground.late.append(self._thread)
            return
        self._give_up()


@contextlib.contextmanager
def visiting(ground: Ground, tid: int, fit: Callable[[State], str]) -> Iterator[Visit]:
    """Hold thread ``tid``. ``fit`` says why it cannot be used, "" if it can.

    Raises:
        Unfit: it cannot be used now.
        VisitFailed: what was done with it failed; it is home again.
        Gone: it ended.
        OSError: it may not be traced.
    """
    thread = Thread(tid)
    ground.step("seized")
    state = _stopped(ground, thread, fit)
    visit = Visit(ground, thread, state)
    try:
        ground.step("stopped")
        yield visit
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended
            visit.leave()


def _stopped(ground: Ground, thread: Thread, fit: Callable[[State], str]) -> State:
    try:
        thread.interrupt()
        end = time.monotonic() + STOP_TIME
        while not (stop := thread.wait(max(0.0, end - time.monotonic()))).interrupted:
            if stop.group:
                raise Unfit("it was stopped by a signal")
            thread.go_on(stop.signal)
        if not (ground.process.folder / "task" / str(thread.tid)).exists():
            raise Unfit("its number is another process's by now")
        waiting = signals_wait(ground.process.status(thread.tid))
        state = ground.machine.state(thread, waiting)
        why = fit(state) or _inside_restartable(ground, thread, state)
        if why:
            raise Unfit(why)
        return state
    except TookTooLong:
        ground.late.append(thread)
        raise Unfit("it does not come out of the kernel") from None
    except Gone:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            thread.detach()
        raise


def signals_wait(status: dict[str, str]) -> bool:
    """Whether a signal that it does not block is to be delivered to a thread."""
    pending = int(status.get("SigPnd", "0"), 16) | int(status.get("ShdPnd", "0"), 16)
    return bool(pending & ~int(status.get("SigBlk", "0"), 16))


def _inside_restartable(ground: Ground, thread: Thread, state: State) -> str:
    """The kernel begins such a sequence (``rseq``) again when it is interrupted, which it could not when the thread is
    sent back into it."""
    area = thread.restartable_area()
    if not area or state.call >= 0:
        return ""
    current = int.from_bytes(ground.memory.read(area + 8, 8), "little")
    if not current:
        return ""
    start, length = (int.from_bytes(ground.memory.read(current + at, 8), "little") for at in (8, 16))
    return "it is inside a restartable sequence" if start <= state.pc < start + length else ""


def _has_room(maps: list[Mapping], stack: int, low: int, pointer: int, main: bool) -> bool:
    """Whether all from ``stack`` down to ``low``, with a page to spare, is the stack that the thread was made with, and
    not one for signal handlers or of a coroutine. ``pointer``: to its own data, which lie on that stack; of a main
    thread only where another thread forked it."""
    for part in maps:
        if part.start + 4096 <= low and stack < part.end:
            return part.start <= pointer < part.end or (main and part.path == "[stack]")
    return False
