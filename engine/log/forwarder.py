"""Forwards the lines that are not log records from a growing file of fd 2. A process of its own, or one thread.

While a framework's VLOG goes into a file (``redirect``), other text that C code or a child process writes to fd 2
lands in the same file; this reads the file behind them and writes that text to the real stderr. ``redirect`` runs
this file by its path with ``python -I -S``: a process that is not a child of the program (it forks once and its parent
ends), so that it costs the program no time under the GIL and nothing is lost when the program dies of a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable

POLL = 0.02  # seconds between two looks at a quiet file
IDLE = 0.1  # seconds after which a half line is handed on
SLOW = 0.5  # the same once the log is off and only the program's children still write
CHUNK = 1 << 18
PIECE = 16 << 20  # bytes that are given back at a time

_SOURCE = rb"[ \t]* {4}[^\n]*\n"  # the line of code below a frame of a forward stack
_FRAME = rb'  File "[^\n]*", line \d+, in [^\n]*\n(?:' + _SOURCE + rb")?"
_HEAD = (
    rb"\t*(?:[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ [\w.\-]+:\d+\](?:[^\n]*?" + _FRAME + rb"|[^\n]*\n)"
    rb"|WARNING: Logging before InitGoogle[^\n]*\n)"
)
# Lines that stand behind a head in the 34 logs of Paddle 3.3.1 the grammar was checked on. What is not among them is
# handed on: a line too many on stderr is noise, a line too few is lost. Both are in the log.
_CONTINUATION = (
    rb"(?:\t*" + _FRAME + rb"|[ \t]*(?:={5,}[^\n]*|[\])}][\])}, \t{]*|,[ \t]*|\{[ \t]*|\{ *(?:Input|UnDef|NULL)[^\n]*"
    rb"|\( \w+ ,[^\n]*|\[[ \t]*"
    rb"|# in Layer [^\n]*|# operator \d+|# Paddle keeps no stack[^\n]*"  # adbg's own, behind a forward stack
    rb"|Forward Debug Info \{[^\n]*|API_Name: [^\n]*|(?:Input|Output): ?\[[^\n]*|(?:grads\[|\w+, \[\{)[^\n]*"
    rb'|"[\w<>:]+",?|"(?:input|output|attribute)":\[|backend: [^\n]*'
    rb"|(?:Name|Initialized|Tensor_Ptr|Tensor_Impl_Ptr|TensorInfo|ADInfo|Type|Dtype|Place|Shape|DistAttr|SlotID|SlotSize"
    rb"|StopGradients?|Grad|GradNode|BackwardOutMeta|BackwardInMeta):[^\n]*|Edges\[[^\n]*)?[ \t]*\n)"
)
_RECORD = re.compile(rb"^" + _HEAD + rb"(?:" + _CONTINUATION + rb")*", re.MULTILINE)
_LEADING = re.compile(rb"(?:" + _SOURCE + rb")?(?:" + _CONTINUATION + rb")*")
_STAMP = b"0000 00:00:00.000000 "  # what follows the severity, digits as 0
_NOTICE = b"WARNING: Logging before InitGoogle"


def _may_become_a_record(line: bytes) -> bool:
    """Whether a line that has no end yet begins as a record does ("Enter a name: " does not)."""
    text = line.lstrip(b"\t")
    if _NOTICE.startswith(text[: len(_NOTICE)]):
        return True
    return text[:1] in (b"I", b"W", b"E", b"F") and _STAMP.startswith(re.sub(rb"\d", b"0", text[1 : 1 + len(_STAMP)]))


class Splitter:
    """Takes the bytes of the file as they come, gives those that belong to no record. Not thread-safe."""

    def __init__(self) -> None:
        self._rest = b""  # a line that has no end yet
        self._inside = False  # the last line belonged to a record: continuation lines may follow

    def feed(self, data: bytes) -> bytes:
        """Foreign text among the lines that are complete now."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if not end:
            return b""
        start = 0
        if self._inside and (match := _LEADING.match(data, 0, end)):
            start = match.end()  # a line of code only where the last part ended between a frame and its line
        if start == end:
            return b""
        foreign = []
        for match in _RECORD.finditer(data, start, end):
            if match.start() > start:
                foreign.append(data[start : match.start()])
            start = match.end()
        self._inside = start == end
        if start < end:
            foreign.append(data[start:end])
        return b"".join(foreign)

    def flush(self) -> bytes:
        """A half line, when it cannot become a record (a prompt, a progress bar)."""
        if not self._rest or _may_become_a_record(self._rest):
            return b""
        rest, self._rest = self._rest, b""
        self._inside = False
        return rest

    def end(self) -> bytes:
        """The end of the stream: whatever is left and no record."""
        return self.feed(b"\n")[:-1] if self._rest else b""


class Tail:
    """Reads ``source`` from byte ``start`` on and writes foreign text to ``target`` (both file descriptors).

    Args:
        keep: bytes of what was read that stay on the disk (0: the file is not part of a record); -1 for all.
    """

    def __init__(self, source: int, target: int, start: int, keep: int = -1) -> None:
        self._source, self._target = source, target
        self._offset = start
        self._splitter = Splitter()
        self._keep = keep
        self._gone = 0
        self._grown = time.monotonic()

    def step(self) -> int:
        """Hand on what there is, CHUNK bytes at most; returns how many were new."""
        data = os.pread(self._source, CHUNK, self._offset)
        if not data:
            if time.monotonic() - self._grown > IDLE:
                self._write(self._splitter.flush())
            return 0
        self._grown = time.monotonic()
        self._offset += len(data)
        self._write(self._splitter.feed(data))
        if self._keep >= 0 and self._offset - self._gone > self._keep + min(PIECE, self._keep):
            self._gone = self._offset - self._keep
            _punch(self._source, self._gone)
        return len(data)

    def finish(self) -> None:
        while self.step():
            pass
        self._write(self._splitter.end())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._target, view) :]
            except BlockingIOError:  # whoever started the program made it so: nothing may be lost for that
                waiting = select.poll()
                waiting.register(self._target, select.POLLOUT)
                waiting.poll()


def _punch(fd: int, end: int) -> None:
    """Make a hole up to ``end`` (whole pages): unlike truncation it loses nothing that is written meanwhile."""
    try:
        fallocate = ctypes.CDLL(None).fallocate
        fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(end & ~4095))  # KEEP_SIZE | PUNCH_HOLE
    except (OSError, AttributeError):
        pass


def follow(tail: Tail, over: Callable[[], bool], held: Callable[[], bool]) -> None:
    """Until ``over``; then, while another process still has the file as its fd 2 (``held``), at a slow pace."""
    while not over():
        if tail.step() < CHUNK:  # else it would run after a growing file a line at a time, and never sleep
            time.sleep(POLL)
    while tail.step():
        pass
    while held():
        if not tail.step():
            time.sleep(SLOW)
    tail.finish()


def holders(path: str) -> bool:
    """Whether a process of this user has ``path`` as its fd 2."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if os.readlink(f"/proc/{name}/fd/2") == path:
                    return True
            except OSError:
                continue
    return False


def _start_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _give_way(on: bool) -> None:
    """Run only while a core has nothing else to do. A log may grow by 70 MB/s, which keeps this busy; niceness alone
    still took a time slice of a thread that the program's other threads waited for."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE if on else os.SCHED_OTHER, os.sched_param(0))


def main(arguments: list[str]) -> None:
    """``forwarder.py SOURCE TARGET PIPE START KEEP PID``: descriptors, an offset, bytes to keep, the program."""
    source, target, pipe, start, keep, pid = (int(word) for word in arguments)
    if os.fork():
        os._exit(0)
    os.setpgid(0, 0)  # Ctrl-C means the program. No session of its own: Linux would give that its own share of time
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    os.nice(15)
    _give_way(True)
    started = _start_of(pid)
    path = os.readlink(f"/proc/self/fd/{source}")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if fd not in (source, target, pipe):
            os.dup2(null, fd)
    os.set_blocking(pipe, False)

    def over() -> bool:
        try:
            if os.read(pipe, 1) == b"":
                return True
        except BlockingIOError:
            pass
        return _start_of(pid) != started

    try:
        follow(Tail(source, target, start, keep), over, lambda: holders(path))
    except OSError:
        pass  # the terminal is closed
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
