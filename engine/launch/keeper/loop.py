"""The loop of the keeper, which is the parent of the program and has one thread.

When the front end dies, the program gets neither SIGHUP nor EIO: its output is still read, and written to the log.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import struct
import termios
import time

from adbg.engine.launch.keeper.frames import (
    DRAIN,
    DRAINED,
    EXIT,
    FAILED,
    MAX_FRAME,
    NOTE,
    RESIZE,
    SIGNAL,
    STARTED,
    STDERR,
    STDIN,
    STDOUT,
    frame,
    take_frame,
)
from adbg.engine.launch.keeper.output_log import OutputLog
from adbg.engine.launch.keeper.program import IGNORED, Program
from adbg.engine.launch.keeper.terminal import Terminal

# Bytes waiting for a slow front end before the program has to wait for it, as it would for a slow terminal.
BACKLOG = 1 << 20
DRAINS = 4  # reads of 60 KiB each at a stop: more does not lie in a terminal, and a thread that runs may go on writing
GRACE = 0.5  # seconds that output is still awaited after the program's end when its descendants hold the terminal open
END_OF_FILE = b"\x04" * 64  # each is one end of file to one read


class Keeper:
    """The loop between the front end's socket, the terminals and the program."""

    def __init__(self, front: int) -> None:
        self.front = front  # -1 once the front end is gone
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.typed = bytearray()  # stdin the terminal did not take yet
        self.asked: set[int] = set()  # signals that the front end had sent
        self.terminals: list[Terminal] = []
        self.program = Program()
        self.log = OutputLog("")
        self.reported = False
        self.unread = b""  # typed, and not read when the program ended
        self.wakeup, waking = os.pipe()
        for fd in (self.wakeup, waking):
            os.set_blocking(fd, False)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda signum, stack: None)  # the byte in the pipe is what counts
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)

    # ------------------------------------------------------------------ start

    def start(self) -> bool:
        """Read START, start the program, say so. False when it could not be started (the front end knows why)."""
        while (request := take_frame(self.inbox)) is None:
            if not self._receive():
                return False
        wanted = marshal.loads(request[1])
        rows, cols = wanted["rows"], wanted["cols"]
        kinds = (STDOUT,) if wanted["mode"] == "pty" else (STDOUT, STDERR)
        try:
            self.terminals = [Terminal(kind, rows, cols) for kind in kinds]
            if len(kinds) == 1:
                fcntl.ioctl(self.terminals[0].slave, termios.TIOCSCTTY, 0)
            self.program.start(wanted["command"], wanted["cwd"], wanted["env"], self.terminals)
        except OSError as error:
            text = f"{error.strerror}: {error.filename or ''}"
            self._send(FAILED, struct.pack(">i", error.errno or 0) + os.fsencode(text))
            self._flush_all()
            return False
        self._let_go()
        self._send(STARTED, struct.pack(">I", self.program.pid))
        self.log = OutputLog(wanted["run_dir"], wanted["limit"])
        return True

    def _let_go(self) -> None:
        """Hold nothing of the front end's: a pipe or a lock that it inherited must not stay open because of this
        process.
        """
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        os.chdir("/")
        for name in os.listdir("/dev/fd"):
            try:
                if int(name) > 2 and os.get_inheritable(int(name)):
                    os.close(int(name))
            except OSError:
                pass  # the listing's own descriptor

    # ------------------------------------------------------------------ the loop

    def run(self) -> int:
        """Until the program ended and its terminals are closed; returns its status as a shell counts."""
        while True:
            self._take_notes()
            if self.program.ended_at and not self.reported and self._all_read():
                self._report()
            if self.reported and not self._open():
                break
            self._wait()
        self._flush_all()
        return 128 + self.program.signal if self.program.signal else self.program.code

    def _open(self) -> bool:
        return any(terminal.master >= 0 for terminal in self.terminals)

    def _all_read(self) -> bool:
        """Nobody writes any more; or all that the program wrote is here and its descendants had their time."""
        if not self._open():
            return True
        return self._grace_left() <= 0 and all(t.drained for t in self.terminals if t.master >= 0)

    def _grace_left(self) -> float:
        return self.program.ended_at + GRACE - time.monotonic()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.wakeup, select.POLLIN)
        if self.front >= 0:
            poll.register(self.front, select.POLLIN | (select.POLLOUT if self.outbox else 0))
        for terminal in self.terminals:
            wanted = 0 if len(self.outbox) > BACKLOG else select.POLLIN
            if self.typed and terminal is self.terminals[0] and not self.program.ended_at:
                wanted |= select.POLLOUT
            if terminal.master >= 0 and wanted:
                poll.register(terminal.master, wanted)
        timeout = None
        if self.program.ended_at and not self.reported and self._grace_left() > 0:
            timeout = self._grace_left() * 1000 + 1
        for fd, events in poll.poll(timeout):
            if fd == self.wakeup:
                self._woken()
            elif fd == self.front:
                self._serve_front(events)
            else:
                self._serve_terminal(fd, events)
        if self.program.ended_at and not self.reported and self._grace_left() <= 0 and len(self.outbox) <= BACKLOG:
            for terminal in self.terminals:  # one that is held open, and quiet, has no event to tell so
                self._read(terminal)
        self._flush()

    def _woken(self) -> None:
        for number in os.read(self.wakeup, 4096):
            if number == signal.SIGTERM:  # somebody who kills the keeper means the program
                self.program.kill(signal.SIGTERM, group=False)
        self.program.reap()
        if self.program.ended_at:
            for terminal in self.terminals:
                self.unread += terminal.release(controlling=len(self.terminals) == 1)
            if len(self.terminals) == 1:
                self.unread += self.typed
                self.typed.clear()

    def _serve_terminal(self, fd: int, events: int) -> None:
        terminal = next(t for t in self.terminals if t.master == fd)
        if events & select.POLLOUT:
            try:
                del self.typed[: os.write(fd, self.typed[:4096])]
            except BlockingIOError:
                pass
            except OSError:
                self.typed.clear()
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._read(terminal)

    def _read(self, terminal: Terminal) -> bool:
        """Whether something was there."""
        data = terminal.read() if terminal.master >= 0 else b""
        if data is None:
            terminal.close()
        elif data:
            self.log.write(data)
            self._send(terminal.kind, data)
        return bool(data)

    # ------------------------------------------------------------------ the front end

    def _serve_front(self, events: int) -> None:
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._receive():
            return
        while (request := take_frame(self.inbox)) is not None:
            kind, payload = request
            if kind == STDIN:
                self.typed += payload
            elif kind == RESIZE:
                self._resize(*struct.unpack(">HH", payload))
            elif kind == DRAIN:
                for terminal in self.terminals:
                    for _ in range(DRAINS):
                        if not self._read(terminal):
                            break
                self._send(DRAINED, payload)
            elif kind == SIGNAL:
                number, group = struct.unpack(">B?", payload)
                self.asked.add(number)
                self.program.kill(number, group)

    def _resize(self, rows: int, cols: int) -> None:
        for terminal in self.terminals:
            if terminal.master >= 0:
                terminal.resize(rows, cols)
        if len(self.terminals) > 1:  # not its controlling terminal: the kernel sends no SIGWINCH
            self.program.kill(signal.SIGWINCH, group=True)

    def _receive(self) -> bool:
        """More bytes of the front end; False when it is gone."""
        try:
            data = os.read(self.front, 1 << 16)
        except OSError:
            data = b""
        if data:
            self.inbox += data
        else:
            self._front_gone()
        return bool(data)

    def _send(self, kind: bytes, payload: bytes) -> None:
        if self.front >= 0:
            self.outbox += frame(kind, payload)

    def _flush(self) -> None:
        try:
            while self.outbox and self.front >= 0:
                del self.outbox[: os.write(self.front, self.outbox[: 1 << 18])]
        except BlockingIOError:
            pass
        except OSError:
            self._front_gone()

    def _flush_all(self) -> None:
        if self.front >= 0:
            os.set_blocking(self.front, True)
            self._flush()

    def _front_gone(self) -> None:
        if self.front >= 0:
            os.close(self.front)
        self.front = -1
        self.outbox.clear()
        if len(self.terminals) == 1:
            self.typed += END_OF_FILE  # no more input: a program that reads must not wait for ever

    def _take_notes(self) -> None:
        if self.log.problem:
            self._send(NOTE, os.fsencode(self.log.problem))
            self.log.problem = ""

    # ------------------------------------------------------------------ the end

    def _report(self) -> None:
        self.reported = True
        self.log.exit(self.program.code, self.program.signal, self.program.signal in self.asked)
        self._take_notes()
        self._send(EXIT, struct.pack(">iB", self.program.code, self.program.signal) + self.unread[:MAX_FRAME])
        self._flush()


def main(front: int) -> int:
    """Keep one program for the front end at the other end of this socket; returns the keeper's exit status."""
    os.set_inheritable(front, False)
    os.set_blocking(front, True)
    keeper = Keeper(front)
    if not keeper.start():
        return 127
    os.set_blocking(front, False)
    return keeper.run()
