"""A process of the loader's that a signal killed: where it was."""

from __future__ import annotations

import faulthandler
import linecache
import os
import re
import types
from typing import Any

from adbg.engine.backends.base import LoaderEvent, Need
from adbg.engine.descriptors import lifted
from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.outside import suppress
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Cause, Finding
from adbg.engine.record.faults import crashed_frames, inner, repeated, signal_named
from adbg.engine.types import SourceLine

_KILLED = re.compile(
    r"DataLoader \w+ \(pids?(?:\(s\))? *(?P<pid>\d+)[^)]*\).*?killed by signal: (?P<signal>[A-Za-z -]+)"
)
_ROOM = 1 << 16  # bytes of stacks that are read
_GONE = re.compile(r"exit(?:ed)? unexpectedly|Blocking queue is killed")  # not said by which signal, or whether by any
_PID = re.compile(r"pids?(?:\(s\))?:? *(\d+)")
_CHAIN = 8  # exceptions, each raised for the next one
_ALONE = "with num_workers=0 it happens in the program itself, where adbg can stop before it"
_OFTEN = {
    "SIGBUS": "the shared memory of the machine may be full: /dev/shm, in a container --shm-size",
    "SIGKILL": "often it is the kernel, as memory runs out (`dmesg` has a line then)",
}


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
        self._stacks = -1  # a file without a name, which the workers have from the fork
        self._data: Any = None
        self._used = False

    def applied(self) -> bool:
        return self._used

    def loader(self, event: LoaderEvent) -> None:
        if event.what != "begins" or not event.workers:
            return
        self._used = True
        self._data = type(event.dataset)
        if self._stacks < 0:
            with suppress(OSError, AttributeError):
                self._stacks = lifted(os.memfd_create("adbg-faults", os.MFD_CLOEXEC))

    def worker_begins(self) -> None:
        """In the worker, after the framework has put in its own handlers: they have their say behind this one."""
        if self._stacks >= 0 and not faulthandler.is_enabled():
            with suppress(OSError, ValueError, RuntimeError):
                faulthandler.enable(self._stacks)

    def uncaught(self, error: BaseException) -> None:
        said, killed = _said(error)
        lines = self._written()
        if killed is None and not (lines and _GONE.search(said)):
            return
        signal = signal_named(killed["signal"] if killed is not None else lines[0].removeprefix("Fatal Python error: "))
        frames = crashed_frames(lines)
        itself, pid = repeated(frames), _PID.search(said)
        place = itself or next(filter(_is_programs, frames), None)
        line = place or self._first_line()
        message = f"a worker of the loader{f' (pid {pid[1]})' if pid is not None else ''} was killed by {signal}"
        message += f" in {place.function}" if place is not None else ""
        message += ", which calls itself until the stack is full" if itself is not None else ""
        evidence = [str(error).strip().splitlines()[0][:300]]
        evidence += [
            f"the worker was at {each.file}:{each.line} in {each.function}" for each in inner(frames, _is_programs)
        ]
        if not frames:
            evidence.append(
                "the worker left no stack: it has to be forked, and a signal that cannot be caught leaves none"
            )
        advice = [_ALONE, *(text for name, text in _OFTEN.items() if name == signal)]
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

    def _written(self) -> list[str]:
        if self._stacks < 0:
            return []
        with suppress(OSError):
            return os.pread(self._stacks, _ROOM, 0).decode("utf-8", "replace").splitlines()
        return []

    def _first_line(self) -> SourceLine | None:
        """Of the data set's ``__getitem__``, where no stack is left."""
        for kind in getattr(self._data, "__mro__", ()):
            method = vars(kind).get("__getitem__")
            if isinstance(method, types.FunctionType) and is_programs(method.__code__.co_filename):
                code = method.__code__
                return SourceLine(os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name)
        return None


def is_of_worker(error: BaseException) -> bool:
    """Raised wherever the main thread was as a worker died."""
    return _said(error)[1] is not None


def _said(error: BaseException) -> tuple[str, re.Match[str] | None]:
    """What it says, or what it was raised for: torch raises "exited unexpectedly" where the signal of a worker's death
    met its loader as that waited."""
    each: BaseException | None = error
    for _ in range(_CHAIN):
        if each is None:
            break
        said = str(each).replace("\n", " ")
        killed = _KILLED.search(said)
        if killed is not None:
            return said, killed
        each = each.__cause__ or each.__context__
    return str(error).replace("\n", " "), None


def _is_programs(frame: SourceLine) -> bool:
    return is_programs(frame.file)
