"""A process of the loader's that a signal killed: where it was."""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import types
from typing import Any

from adbg.engine.backends.base import LoaderEvent, Need
from adbg.engine.descriptors import Own, lifted
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs, is_written
from adbg.engine.protocol.messages import Cause, Finding
from adbg.engine.record.faults import crashed_frames, inner, repeated, signal_named
from adbg.engine.record.signal_stack import SignalStack
from adbg.engine.types import SourceLine

_KILLED = re.compile(
    r"DataLoader \w+ \(pids?(?:\(s\))? *(?P<pid>\d+)[^)]*\).*?killed by signal: (?P<signal>[A-Za-z0-9 -]+)"
)
_GONE = re.compile(r"DataLoader \w+ \(pids?\(?s?\)?:? *(?P<pid>\d+)[^)]*\) exit(?:ed)? unexpectedly")
_QUEUE = "Blocking queue is killed because the data reader raises an exception"  # Paddle's, where it waits in C++
_SLOT = 1 << 16  # bytes of a worker's stacks, at a place by its pid; what nobody writes to takes no memory
_SLOTS = 1 << 12
_HEAD = 16  # bytes before them: the pid
_CHAIN = 8  # exceptions, each raised for the next one
_ALONE = "with num_workers=0 it happens in the program itself, where adbg can stop before it"
_OFTEN = {
    "SIGBUS": "the shared memory of the machine may be full: /dev/shm, in a container --shm-size",
    "SIGKILL": "often it is the kernel, as memory runs out (`dmesg` has a line then)",
}
_NO_STACK = (
    "the worker left no stack: it was spawned, or the program uses faulthandler itself, or its end was no crash "
    "(SIGKILL, SIGTERM, an exit)"
)


@detector("worker-killed")
class KilledWorker(Detector):
    """A process of a ``DataLoader`` was killed by a signal, which ends the program with an exception wherever its main
    thread happens to be: the line of the data set that the worker was at.

    Evidence: the signal, and the Python stack that the worker wrote as it crashed.
    Mistaken for: an exception inside of a worker, which carries its own stack (worker-error).
    Cost: a file in memory for each program whose loader has workers.
    """

    needs = Need.LOADERS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._stacks: Own | None = None  # a file without a name, which the workers have from the fork
        self._process = os.getpid()
        self._data: set[type] = set()  # of loaders that have workers

    def applied(self) -> bool:
        return bool(self._data)

    def loader(self, event: LoaderEvent) -> None:
        if event.what != "begins" or not event.workers:
            return
        self._data.add(type(event.dataset))
        if self._stacks is None or not self._stacks.ours:  # the program may have closed what it does not know
            self._stacks = None
            with suppress(OSError, AttributeError):
                self._stacks = Own(lifted(os.memfd_create("adbg-faults", os.MFD_CLOEXEC)))

    def left(self) -> None:
        if self._stacks is not None and os.getpid() == self._process:
            self._stacks.close()
            self._stacks = None

    def worker_begins(self) -> None:
        """In the worker, after the framework has put in its own handlers: they have their say behind this one. It opens
        the file anew: workers that crash together would write through one another by an offset that they share."""
        if self._stacks is None or not self._stacks.ours or faulthandler.is_enabled():
            return
        with suppress(OSError, ValueError, RuntimeError, AttributeError):
            fd = lifted(os.open(f"/proc/self/fd/{self._stacks.number}", os.O_RDWR | os.O_CLOEXEC))
            os.lseek(fd, os.getpid() % _SLOTS * _SLOT, os.SEEK_SET)
            os.write(fd, f"{os.getpid():<{_HEAD - 1}}\n".encode())
            faulthandler.enable(fd)
            SignalStack().widen()  # the handlers of Paddle's overrun the stack that faulthandler gives all of them
            os.register_at_fork(after_in_child=faulthandler.disable)  # a crash of its children is none of its own

    def uncaught(self, error: BaseException) -> None:
        said, killed, gone = _said(error)
        found = killed or gone
        pid = int(found["pid"]) if found is not None else self._lone() if _QUEUE in said else 0
        if not pid:
            return
        lines = self._written(pid)
        frames = crashed_frames(lines)
        itself = repeated(frames)
        place = itself or next(filter(_is_programs, frames), None)
        line = place or self._first_line()
        by = signal_named(killed["signal"]) if killed is not None else ""
        by = by or (signal_named(lines[0].removeprefix("Fatal Python error: ")) if lines else "")
        message = f"a worker of the loader (pid {pid}) {f'was killed by {by}' if by else 'ended'}"
        message += f" in {place.function}" if place is not None else ""
        message += ", which calls itself until the stack is full" if itself is not None else ""
        evidence = [said.strip()[:300]]
        evidence += [
            f"the worker was at {each.file}:{each.line} in {each.function}" for each in inner(frames, _is_programs)
        ]
        if not frames:
            evidence.append(_NO_STACK)
        advice = [_ALONE, *(text for name, text in _OFTEN.items() if name == by)]
        cause = None
        if line is not None:
            text = linecache.getline(line.file, line.line).strip()
            cause = Cause(os.path.abspath(line.file), line.line, line.function, text)
        certain = place is not None
        self.facts.tell(Finding(
            0, "worker-killed", "error" if certain else "warning", 0.85 if certain else 0.5, message,
            iteration=self.facts.iteration, cause=cause, evidence=[*evidence, *advice],
            next=["adbg run SCRIPT"], advice=advice,
        ))  # fmt: skip

    def _lone(self) -> int:
        """The worker that left a stack, where one alone did; 0 else: Paddle does not say which ended."""
        found, at = [], 0
        with suppress(OSError):
            while self._stacks is not None and self._stacks.ours:
                at = os.lseek(self._stacks.number, at, os.SEEK_DATA)  # raises behind the last
                head = os.pread(self._stacks.number, _HEAD, at // _SLOT * _SLOT).strip()
                if head.isdigit() and len(self._written(int(head))) > 1:
                    found.append(int(head))
                at = (at // _SLOT + 1) * _SLOT
        return found[0] if len(found) == 1 else 0

    def _written(self, pid: int) -> list[str]:
        """The stacks that this worker left; [] where it left none."""
        if self._stacks is None or not self._stacks.ours:
            return []
        with suppress(OSError):
            data = os.pread(self._stacks.number, _SLOT, pid % _SLOTS * _SLOT)
            if data[:_HEAD].strip() == str(pid).encode():
                return data[_HEAD:].rstrip(b"\0").decode("utf-8", "replace").splitlines()
        return []

    def _first_line(self) -> SourceLine | None:
        """Of the data set's ``__getitem__``, where no stack is left and there was but one data set."""
        for kind in next(iter(self._data)).__mro__ if len(self._data) == 1 else ():
            method = vars(kind).get("__getitem__")
            if isinstance(method, types.FunctionType) and is_programs(method.__code__.co_filename):
                code = method.__code__
                return SourceLine(os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name)
        return None


def is_of_worker(error: BaseException) -> bool:
    """Raised wherever the main thread was as a worker died."""
    return _said(error)[1] is not None


def _said(error: BaseException) -> tuple[str, re.Match[str] | None, re.Match[str] | None]:
    """What it says, or what it was raised for: torch raises "exited unexpectedly" where the signal of a worker's death
    met its loader as that waited. With what names the signal, or the end alone."""
    each: BaseException | None = error
    gone: tuple[str, re.Match[str]] | None = None
    for _ in range(_CHAIN):
        if each is None:
            break
        said = str(each).replace("\n", " ")
        killed, ended = _KILLED.search(said), _GONE.search(said)
        if killed is not None:
            return said, killed, None
        if ended is not None and gone is None:
            gone = said, ended
        each = each.__cause__ or each.__context__
    return (*gone[:1], None, gone[1]) if gone is not None else (str(error), None, None)


def _is_programs(frame: SourceLine) -> bool:
    return is_written(frame.file)
