"""Starts the user's program through the keeper, and talks to the keeper. Runs in the front end.

The program runs as plain ``python SCRIPT ARGS``; adbg gets in through ``PYTHONPATH`` (``engine/bootstrap``) and
``ADBG_SESSION``. The keeper (``keeper/``) owns the program's terminals and outlives this process.
Callbacks run on one daemon thread, "adbg-output"; every method here may be called from any thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import marshal
import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.launch.command_line import is_interpreter
from adbg.engine.launch.input_wait import Wait, input_wait
from adbg.engine.launch.keeper import frames
from adbg.engine.launch.keeper.terminal import take_unread
from adbg.engine.protocol.rendezvous import MAIN_VARIABLE, SESSION_VARIABLE, SessionConfig, write_config
from adbg.engine.types import ExitStatus

ENGINE = Path(__file__).resolve().parents[1]
BOOTSTRAP = ENGINE / "bootstrap"
KEEPER = ENGINE / "launch" / "keeper"
OLDEST_PYTHON = (3, 10)
START_TIMEOUT = 30.0  # seconds for the keeper to start the program; 0.03 on an idle machine


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What to start.

    Args:
        command: argv, from ``command_line.python_command`` or as the user gave it after ``--``.
        config: of the session; ``session.json`` is written beside ``config.socket`` unless it is there, with
            ``engine_path`` and ``package_path`` filled in when empty.
        cwd: working directory, "" for this process's own.
        mode: "pty": one pty is stdin, stdout and stderr (TUI, REPL). "split": stdin is this process's own fd 0, stdout
            and stderr are two ptys (batch).
        rows, cols: window size in character cells.
        env: whole environment of the program, None for this process's own.
    """

    command: Sequence[str]
    config: SessionConfig
    cwd: str = ""
    mode: Literal["pty", "split"] = "pty"
    rows: int = 24
    cols: int = 80
    env: Mapping[str, str] | None = None


Output = Callable[[str, bytes], None]


class Launched:
    """A running program. Made by ``launch``."""

    def __init__(self, pid: int, connection: socket.socket, inbox: bytearray, process: subprocess.Popen[bytes]) -> None:
        self.pid = pid  # of the program itself, which also is its process group
        self._connection = connection
        self._inbox = inbox  # received, and not yet a whole frame
        self._process = process
        self._sending = threading.Lock()
        self._draining: dict[bytes, threading.Event] = {}
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self._exit: ExitStatus | None = None
        self._unread = b""  # typed at its terminal and not read by its end

    def write_stdin(self, data: bytes) -> None:
        """Type ``data`` at the program's terminal (mode "pty" only; b"\\x04" at the start of a line is end of file)."""
        for start in range(0, len(data), frames.MAX_FRAME):
            self._send(frames.STDIN, data[start : start + frames.MAX_FRAME])

    def take_unread(self) -> str:
        """Take away what was typed and not read by the program, which does not read now: it stands, or has ended (mode
        "pty" only). "" where it reads single keys."""
        if self._exit is not None:
            left, self._unread = self._unread, b""
            return left.decode("utf-8", "replace")
        try:
            path = os.readlink(f"/proc/{self.pid}/fd/0")
            if not path.startswith("/dev/pts/"):
                return ""
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            return ""
        try:
            return take_unread(fd).decode("utf-8", "replace")
        finally:
            os.close(fd)

    def input_wait(self) -> Wait:
        """ "line" while the program waits for what is typed, "secret" where that is not shown, "" else or not known."""
        return input_wait(self.pid) if self._exit is None else ""

    def resize(self, rows: int, cols: int) -> None:
        """Set the window size; the program gets SIGWINCH."""
        self._send(frames.RESIZE, struct.pack(">HH", max(rows, 1), max(cols, 1)))

    def signal(self, signum: int, group: bool | None = None) -> None:
        """Send a signal to the program, or to its whole process group. By default SIGINT, SIGQUIT, SIGTSTP, SIGCONT
        and SIGKILL go to the group (as the terminal's keys do), everything else to the program alone (as ``kill PID``
        does). Nothing happens once it ended.
        """
        whole = int(signum) in frames.GROUP_SIGNALS if group is None else group
        self._send(frames.SIGNAL, struct.pack(">B?", int(signum), whole))

    def drain(self, seconds: float = 0.2) -> None:
        """Until ``on_output`` was called with what the program, or a thread of it that stands, has written by now; for
        ``seconds`` at most. Not on the thread that calls ``on_output``."""
        if self._exit is not None:
            return
        number = struct.pack(">Q", next(self._numbers))
        done = self._draining[number] = threading.Event()
        try:
            self._send(frames.DRAIN, number)
            if self._exit is None:
                done.wait(seconds)
        finally:
            self._draining.pop(number, None)

    @property
    def exit(self) -> ExitStatus | None:
        """How it ended, None while it runs."""
        return self._exit

    def wait(self, timeout: float | None = None) -> ExitStatus | None:
        """Until the program ended and all its output was handed on, then how; None when ``timeout`` seconds passed."""
        self._ended.wait(timeout)
        return self._exit

    def _send(self, kind: bytes, payload: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):  # keeper gone: the exit says so
            self._connection.sendall(frames.frame(kind, payload))

    # ------------------------------------------------------------------ on the thread "adbg-output"

    def _listen(self, on_output: Output, on_exit: Callable[[ExitStatus], None], on_note: Callable[[str], None]) -> None:
        streams = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}
        while (received := _receive(self._connection, self._inbox)) is not None:
            kind, payload = received
            if kind in streams:
                _guarded(on_output, streams[kind], payload)
            elif kind == frames.DRAINED:
                if (done := self._draining.get(payload)) is not None:
                    done.set()
            elif kind == frames.NOTE:
                _guarded(on_note, os.fsdecode(payload))
            elif kind == frames.EXIT:
                code, signum = struct.unpack_from(">iB", payload)
                self._unread = payload[struct.calcsize(">iB") :]
                self._end(ExitStatus(signal=signum) if signum else ExitStatus(code), on_exit)
        self._connection.close()
        self._process.wait()
        self._end(ExitStatus(), on_exit)

    def _end(self, status: ExitStatus, on_exit: Callable[[ExitStatus], None]) -> None:
        if self._exit is None:
            self._exit = status
            for waiting in list(self._draining.values()):
                waiting.set()
            _guarded(on_exit, status)
            self._ended.set()


def launch(
    request: LaunchRequest,
    on_output: Output,
    on_exit: Callable[[ExitStatus], None],
    on_note: Callable[[str], None] = lambda text: None,
) -> Launched:
    """Start the program; returns once it runs (its interpreter is starting).

    Args:
        request: what to start.
        on_output: called with (stream "stdout" or "stderr", bytes), in the order of writing; for background processes
            that the program left running also after ``on_exit``.
        on_exit: called once, after the program's own output.
        on_note: one line for the user about the launch ("the program's output is not recorded ...").

    Raises:
        CommandError: the command cannot be started: not found, not executable, no such folder.
        AdbgError: the keeper failed.
    """
    session_file = prepare_session(request.config)
    ours, theirs = socket.socketpair()
    try:
        # close_fds=False: descriptors that the user's shell handed down (3<file) reach the program, as without adbg.
        # Python's own are not inheritable.
        os.set_inheritable(theirs.fileno(), True)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), str(Path(package_folder()).parent), str(theirs.fileno())],
            stdin=None if request.mode == "split" else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            start_new_session=True,
        )
    except OSError as error:
        ours.close()
        raise AdbgError(f"cannot start {sys.executable}: {error.strerror}") from None
    finally:
        theirs.close()
    inbox = bytearray()
    try:
        pid = _start(ours, inbox, request, session_file)
    except BaseException:
        ours.close()
        process.wait(START_TIMEOUT)
        raise
    launched = Launched(pid, ours, inbox, process)
    threading.Thread(
        target=launched._listen, args=(on_output, on_exit, on_note), name="adbg-output", daemon=True
    ).start()
    return launched


def prepare_session(config: SessionConfig) -> Path:
    """``session.json`` beside the socket, with the paths filled in; returns its path."""
    path = Path(config.socket).with_name("session.json")
    if not path.exists():
        complete = dataclasses.replace(
            config,
            engine_path=config.engine_path or str(ENGINE),
            package_path=config.package_path or package_folder(),
        )
        write_config(path, complete)
    return path


def package_folder() -> str:
    """The folder of ``adbg/__init__.py``; in a source tree it is not the parent of the engine's."""
    import adbg

    return str(Path(adbg.__file__ or "").resolve().parent)


def install_command() -> str:
    """The command that installs what adbg depends on, beside this adbg."""
    root = ENGINE.parent if ENGINE.parent != Path(package_folder()) else None  # of a checkout
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(str(root)) if root else 'adbg'}"


def program_environment(base: Mapping[str, str], session_file: Path, main: bool) -> dict[str, str]:
    """``base`` with the three variables by which adbg gets in. ``PYTHONPATH`` keeps what it had, behind the bootstrap
    folder.
    """
    env = dict(base)
    kept = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part != str(BOOTSTRAP)]
    rest = os.pathsep.join(kept)
    env["PYTHONPATH"] = str(BOOTSTRAP) + (os.pathsep + rest if rest else "")
    env[SESSION_VARIABLE] = str(session_file)
    env.pop(MAIN_VARIABLE, None)
    if main:
        env[MAIN_VARIABLE] = "1"
    return env


def _start(connection: socket.socket, inbox: bytearray, request: LaunchRequest, session_file: Path) -> int:
    base = os.environ if request.env is None else request.env
    env = program_environment(base, session_file, main=is_interpreter(request.command[0]))
    wanted = {
        "command": list(request.command),
        "cwd": os.path.abspath(request.cwd) if request.cwd else os.getcwd(),
        "env": {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
        "mode": request.mode,
        "rows": max(request.rows, 1),
        "cols": max(request.cols, 1),
        "limit": request.config.record_limit // 2,
        "run_dir": os.path.abspath(request.config.run_dir) if request.config.run_dir else "",
    }
    connection.settimeout(START_TIMEOUT)
    try:
        connection.sendall(frames.frame(frames.START, marshal.dumps(wanted)))
        answer = _receive(connection, inbox)
    except OSError as error:
        raise AdbgError(f"the program was not started: its keeper process does not answer ({error})") from None
    connection.settimeout(None)
    if answer is None:
        raise AdbgError(
            "the program was not started: its keeper process ended at once", "may Python processes run here?"
        )
    kind, payload = answer
    if kind == frames.STARTED:
        return int(struct.unpack(">I", payload)[0])
    raise _start_error(request, os.fsdecode(payload[4:]))


def _start_error(request: LaunchRequest, text: str) -> CommandError:
    what, _, name = text.partition(": ")
    if request.cwd and name == os.path.abspath(request.cwd):
        return CommandError(f"cannot run in {request.cwd}: {what}")
    hint = "give its path, or check PATH" if what.startswith("No such file") else ""
    return CommandError(f"cannot start {request.command[0]}: {what}", hint)


def _receive(connection: socket.socket, inbox: bytearray) -> tuple[bytes, bytes] | None:
    """The next frame; ``inbox`` keeps what came behind it. None at the end of the connection."""
    while (received := frames.take_frame(inbox)) is None:
        try:
            piece = connection.recv(1 << 16)
        except (ConnectionError, ValueError):
            return None
        if not piece:
            return None
        inbox += piece
    return received


def _guarded(callback: Callable[..., None], *arguments: Any) -> None:
    """An error in the front end must not stop the reading: the program would wait for ever."""
    try:
        callback(*arguments)
    except Exception as error:  # see above
        print(f"adbg: {type(error).__name__} in {callback!r}: {error}", file=sys.__stderr__)
