"""The keeper: owns the program's terminals and outlives the front end (L4, a process of its own, single-threaded).

``launch.py`` runs this file by its path with ``python -I -S``; it imports nothing of adbg and only modules that load
in a few ms. It is the parent of the program. When the front end dies, the program neither gets SIGHUP nor EIO: its
output is drained to the log.

Frames, both ways, over one unix stream socket: 1 byte kind, 4 bytes length (big endian), payload.

=========== ======= ==========================================================
front end → START   marshal of the dict that ``Keeper.start`` reads
            STDIN   bytes to type (mode "pty")
            RESIZE  rows, cols (2 x u16)
            SIGNAL  number (u8), whole process group (bool)
→ front end STARTED pid (u32)
            FAILED  errno (i32), then text: the program could not be started
            STDOUT  bytes (in mode "pty" both streams)
            STDERR  bytes
            NOTE    text for a person: the output is not recorded any more, ...
            EXIT    code (i32), signal (u8): one of them is -1 or 0; then what was typed and nobody read
=========== ======= ==========================================================
"""

from __future__ import annotations

import fcntl
import marshal
import os
import select
import signal
import struct
import sys
import termios
import time

START, STDIN, RESIZE, SIGNAL = b"S", b"i", b"w", b"s"
STARTED, FAILED, STDOUT, STDERR, NOTE, EXIT = b"p", b"f", b"o", b"e", b"n", b"x"
HEADER = struct.Struct(">cI")
MAX_FRAME = 1 << 16  # bytes of STDIN, STDOUT, STDERR
# Bytes waiting for a slow front end before the program has to wait for it, as it would for a slow terminal.
BACKLOG = 1 << 20
GRACE = 0.5  # seconds that output is still awaited after the program's end when its descendants hold the terminal open
END_OF_FILE = b"\x04" * 64  # each is one end of file to one read
GROUP_SIGNALS = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCONT, signal.SIGKILL, signal.SIGWINCH}
)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# Backspace erases a character, not a byte. termios has no name for it.
_IUTF8 = 0o40000 if sys.platform == "linux" else 0


def frame(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return HEADER.pack(kind, len(payload)) + payload


def take_unread(terminal: int) -> bytes:
    """Take out of a terminal what was typed and waits there unread: whole lines, then the one not ended yet. Nothing
    where single keys are read (a crashed full-screen program: they mean nothing to anybody else)."""
    data = b""
    try:
        modes = termios.tcgetattr(terminal)
        if not modes[3] & termios.ICANON or not modes[3] & termios.ECHO:  # without echo: a password
            return b""
        single = termios.tcgetattr(terminal)
        single[3] &= ~termios.ICANON
        single[6][termios.VMIN], single[6][termios.VTIME] = 0, 0  # a read gives what there is
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, single)
            while piece := os.read(terminal, 4096):
                data += piece
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
    except (termios.error, OSError):
        pass  # the program ended, or nothing waits
    return data.replace(b"\0", b"")  # an end of file that was typed


class Terminal:
    """One pty. ``slave`` stays open here while the program lives, so that closing all of its own descriptors is not
    taken for its end.
    """

    def __init__(self, kind: bytes, rows: int, cols: int) -> None:
        self.kind = kind
        self.drained = False  # everything the program wrote was read, as far as known
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        modes = termios.tcgetattr(self.slave)
        modes[0] |= _IUTF8
        modes[1] &= ~termios.OPOST  # "\n" stays "\n": the bytes are the program's own
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self.resize(rows, cols)

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def read(self) -> bytes | None:
        """What there is now, b"" for nothing, None at the end (no slave is open any more)."""
        pieces: list[bytes] = []
        size = 0
        while size < MAX_FRAME - 4096:  # the kernel hands out 4 KiB at a time
            try:
                piece = os.read(self.master, 4096)
            except BlockingIOError:
                self.drained = self.slave < 0
                break
            except OSError:
                piece = b""  # EIO
            if not piece:
                return b"".join(pieces) if pieces else None
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def release(self, controlling: bool) -> bytes:
        """The program is gone: only its descendants hold the terminal now. As a shell does, this process takes the
        foreground back: the kernel sends SIGHUP to the foreground group when the terminal's session leader, this
        process, ends. Returns what was typed and not read (only the foreground may read it).
        """
        unread = b""
        if self.slave >= 0:
            if controlling:
                os.tcsetpgrp(self.slave, os.getpgrp())
                unread = take_unread(self.slave)
            os.close(self.slave)
            self.slave = -1
            self.drained = False
        return unread

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


class Recorder:
    """Appends the output to ``output-r0.log`` and writes ``exit.json``. After a failure it records no more."""

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self.problem = ""  # text for a person, taken by the keeper
        self._fd = -1
        if run_dir:
            try:
                os.makedirs(run_dir, exist_ok=True)
                path = os.path.join(run_dir, "output-r0.log")
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if os.path.exists(os.path.join(run_dir, "exit.json")):  # of a run before this one, in the same folder
                    os.unlink(os.path.join(run_dir, "exit.json"))
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = f"the program's output is not recorded in {self.run_dir}: {error.strerror}"
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while self._fd >= 0 and view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._give_up(error)

    def exit(self, code: int, signum: int, asked: bool) -> None:
        """{"code": int or null, "signal": int or null, "asked": whether a person had that signal sent, "ended": UTC,
        ISO 8601}, replaced in one go."""
        if not self.run_dir:
            return
        ended = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = '{"code": %s, "signal": %s, "asked": %s, "ended": "%s"}\n' % (  # noqa: UP031  json would cost 4 ms of start-up
            "null" if signum else code,
            signum or "null",
            "true" if asked else "false",
            ended,
        )
        path = os.path.join(self.run_dir, "exit.json")
        try:
            with open(path + ".new", "w") as file:
                file.write(text)
            os.replace(path + ".new", path)
        except OSError as error:
            if self._fd >= 0:  # else the reason was given already
                self.problem = f"the exit status is not recorded in {self.run_dir}: {error.strerror}"


class Program:
    """The child process: started here, waited for here, so its pid is never signalled after it was reaped."""

    def __init__(self) -> None:
        self.pid = 0
        self.code = -1
        self.signal = 0
        self.ended_at = 0.0  # monotonic, 0.0 while it runs

    def start(self, command: list[str], cwd: str, env: dict[bytes, bytes], terminals: list[Terminal]) -> None:
        """Fork and exec. Raises OSError of the chdir or the exec."""
        report, reporting = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(command, cwd, env, terminals)
            except OSError as error:
                os.write(reporting, str(error.errno or 0).encode() + b" " + os.fsencode(error.filename or ""))
            finally:
                os._exit(127)
        os.close(reporting)
        failure = os.read(report, 4096)  # b"" once exec closed the other end
        os.close(report)
        if failure:
            os.waitpid(self.pid, 0)
            number, _, name = failure.partition(b" ")
            raise OSError(int(number), os.strerror(int(number)), os.fsdecode(name))

    @staticmethod
    def _become(command: list[str], cwd: str, env: dict[bytes, bytes], terminals: list[Terminal]) -> None:
        # A process group of its own but not a session of its own: when the program ends, the kernel hangs up on
        # nobody, so what it leaves running in the background lives on, as it would under a shell.
        os.setpgid(0, 0)
        if len(terminals) == 1:
            os.tcsetpgrp(terminals[0].slave, os.getpid())  # SIGTTOU is ignored here
            os.dup2(terminals[0].slave, 0)
        os.dup2(terminals[0].slave, 1)
        os.dup2(terminals[-1].slave, 2)
        for number in (*_IGNORED, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN if number in _ignored_before else signal.SIG_DFL)
        if cwd:
            os.chdir(cwd)
        os.execvpe(command[0], command, env)

    def reap(self) -> None:
        if not self.pid or self.ended_at:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.ended_at = time.monotonic()
            if os.WIFSIGNALED(status):
                self.signal = os.WTERMSIG(status)
            else:
                self.code = os.WEXITSTATUS(status)

    def kill(self, number: int, group: bool) -> None:
        if self.pid and not self.ended_at:
            try:
                (os.killpg if group else os.kill)(self.pid, number)
            except (ProcessLookupError, PermissionError, OSError):
                pass  # gone, or it changed its user: nothing to be done from here


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
        self.recorder = Recorder("")
        self.reported = False
        self.unread = b""  # typed, and not read when the program ended
        self.wakeup, waking = os.pipe()
        for fd in (self.wakeup, waking):
            os.set_blocking(fd, False)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda signum, stack: None)  # the byte in the pipe is what counts
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)

    # ------------------------------------------------------------------ start

    def start(self) -> bool:
        """Read START, start the program, say so. False when it could not be started (the front end knows why)."""
        while (request := self._take_frame()) is None:
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
        self.recorder = Recorder(wanted["run_dir"])
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
        """Until the program ended and nobody writes to its terminal any more; returns its status as a shell counts."""
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

    def _read(self, terminal: Terminal) -> None:
        data = terminal.read() if terminal.master >= 0 else b""
        if data is None:
            terminal.close()
        elif data:
            self.recorder.write(data)
            self._send(terminal.kind, data)

    # ------------------------------------------------------------------ the front end

    def _serve_front(self, events: int) -> None:
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and not self._receive():
            return
        while (request := self._take_frame()) is not None:
            kind, payload = request
            if kind == STDIN:
                self.typed += payload
            elif kind == RESIZE:
                self._resize(*struct.unpack(">HH", payload))
            elif kind == SIGNAL:
                number, group = struct.unpack(">B?", payload)
                self.asked.add(number)
                self.program.kill(number, group)

    def _resize(self, rows: int, cols: int) -> None:
        for terminal in self.terminals:
            if terminal.master >= 0:
                terminal.resize(rows, cols)
        if len(self.terminals) > 1:  # not its controlling terminal: the kernel tells nobody
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

    def _take_frame(self) -> tuple[bytes, bytes] | None:
        if len(self.inbox) < HEADER.size:
            return None
        kind, length = HEADER.unpack_from(self.inbox)
        end = HEADER.size + length
        if len(self.inbox) < end:
            return None
        payload = bytes(self.inbox[HEADER.size : end])
        del self.inbox[:end]
        return kind, payload

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
            self.typed += END_OF_FILE  # nobody will type any more: a program that asks must not wait for ever

    def _take_notes(self) -> None:
        if self.recorder.problem:
            self._send(NOTE, os.fsencode(self.recorder.problem))
            self.recorder.problem = ""

    # ------------------------------------------------------------------ the end

    def _report(self) -> None:
        self.reported = True
        self.recorder.exit(self.program.code, self.program.signal, self.program.signal in self.asked)
        self._take_notes()
        self._send(EXIT, struct.pack(">iB", self.program.code, self.program.signal) + self.unread[:MAX_FRAME])
        self._flush()


_ignored_before = frozenset(  # nohup, or a background job of a script: the program is to ignore them too
    number for number in (*_IGNORED, signal.SIGTERM, signal.SIGCHLD) if signal.getsignal(number) is signal.SIG_IGN
)


def main(arguments: list[str]) -> int:
    """``keeper.py FD``: FD is the keeper's end of the socket."""
    front = int(arguments[0])
    os.set_inheritable(front, False)
    os.set_blocking(front, True)
    keeper = Keeper(front)
    if not keeper.start():
        return 127
    os.set_blocking(front, False)
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
