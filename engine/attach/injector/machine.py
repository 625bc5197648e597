"""What differs between processors: registers, system calls, the frame of a signal handler, the code that is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from adbg.engine.attach.injector.ptrace import Thread


class Unsuitable(Exception):
    """A thread cannot be used now; the text says why."""


@dataclass(frozen=True, slots=True)
class State:
    """What a thread was doing when it was stopped.

    Args:
        registers: as ptrace gave them, to be put back where it has not run since.
        sets: the other register sets, floating point and vectors: (kind, content).
        mask: the signals that it blocks.
        pc: the next instruction, as seen. ``stack``: the stack pointer.
        call: the system call that it was taken out of and will make again, -1 for none.
        again: the system call that goes on with that one where it was (``restart_syscall`` keeps what is left of a
            time-out), else ``call``.
        arguments: of that call.
    """

    registers: bytes
    sets: tuple[tuple[int, bytes], ...]
    mask: int
    pc: int
    stack: int
    call: int = -1
    again: int = -1
    arguments: tuple[int, ...] = ()


class Machine(ABC):
    """One kind of processor, 64-bit."""

    MMAP: int
    MUNMAP: int
    SIGRETURN: int
    FUTEX: int
    WAITS: dict[int, str]  # system calls that wait, and change nothing until they return
    RED_ZONE: int  # bytes below the stack pointer that belong to the running function
    CALL_AND_RETURN: bytes  # these instructions in libc: a system call, then a return
    GO_HOME: bytes  # the instructions that end a signal handler
    CODE: bytes  # what runs in the target; its parts at these offsets
    HOME: int
    PENDING: int
    THREAD: int

    @abstractmethod
    def state(self, thread: Thread, signals_wait: bool) -> State:
        """Of a stopped thread. ``signals_wait``: one is to be delivered, so a call that gave up is not made again."""

    @abstractmethod
    def frame(self, state: State, before: bytes) -> tuple[int, bytes]:
        """(address, bytes) of the frame below the thread's stack that takes it home, as the kernel makes one for a
        signal handler. The thread goes home when GO_HOME runs with ``home_stack``. ``before``: the code before its next
        instruction."""

    @abstractmethod
    def linked(self, frame: bytes, go_home: int) -> bytes:
        """The frame with the address of GO_HOME where a function takes its return address from, if that is memory."""

    @abstractmethod
    def home_stack(self, frame: int) -> int:
        """The stack pointer that GO_HOME wants for the frame at an address."""

    @abstractmethod
    def enter(self, state: State, pc: int, stack: int, arguments: Sequence[int], back: int, call: int = -1) -> bytes:
        """Registers with which the thread runs from ``pc``; ``back`` is where that returns to: the caller has put it on
        the stack where the processor wants it there."""

    @abstractmethod
    def function_stack(self, top: int) -> int:
        """The stack pointer of a function that has just been called, where the stack was at ``top``."""

    @abstractmethod
    def number(self, registers: bytes, thread: Thread) -> int:
        """Of the system call that the thread is about to make."""

    @abstractmethod
    def result(self, registers: bytes) -> int:
        """Of the system call that it has made."""

    @abstractmethod
    def skip(self, thread: Thread, registers: bytes) -> None:
        """At the begin of the system call at the end of the page's HOME: go on from ``registers`` without making it."""

    @abstractmethod
    def thread_pointer(self, state: State, thread: Thread) -> int:
        """The address of the thread's own data; glibc has it at the top of the stack that it made."""

    @abstractmethod
    def finish(self, thread: Thread, state: State) -> None:
        """At the begin of GO_HOME's system call: have the thread be as it was, without that call where it can be told
        so exactly. Killed in the middle, the call does it."""
