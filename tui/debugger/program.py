"""The program that is debugged: started by adbg, or found running (``tui/attach``). The debugger treats both alike.

``start`` returns once the program runs (or is found); agents then come through the callbacks, on the listener's
threads. Output and the end come on the launcher's output thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from signal import SIGKILL
from typing import TYPE_CHECKING, Literal, Protocol

from adbg.engine.errors import AdbgError
from adbg.engine.launch.hosts.openings import Openings
from adbg.engine.protocol.messages import Hello, ProcessInfo
from adbg.engine.protocol.rendezvous import KEEP, SessionConfig, new_token
from adbg.engine.record.budget import LIMIT
from adbg.engine.types import ExitStatus
from adbg.tui.debugger.client import Client, Listener

if TYPE_CHECKING:
    from adbg.engine.launch.launch import Launched

OnAgent = Callable[[Client, ProcessInfo], None]
OnOutput = Callable[[str, bytes], None]
OnExit = Callable[[ExitStatus], None]
OnNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entering:
    """A process that adbg is getting into. ``queued``: it has to run Python first; ``blocked``: what its main thread
    waits in, as far as known; ``since``: ``time.monotonic`` of the beginning."""

    pid: int
    since: float
    queued: bool = False
    blocked: str = ""


class Attachment(Protocol):
    """How adbg gets into a program that it did not start. Any thread."""

    @property
    def entering(self) -> Sequence[Entering]:
        """Those that are under way."""

    @property
    def gathering(self) -> bool:
        """Processes that were found are expected to join at any moment."""

    @property
    def failure(self) -> AdbgError | None:
        """Why there is no process to debug and none will come."""

    def stop_entering(self) -> None:
        """Get into no further process; those under way are given up and left as they were."""

    def arrival(self, info: ProcessInfo) -> str:
        """What to tell the user about a process that joined."""

    def end_of(self, pid: int) -> ExitStatus | None:
        """The last process that was connected is gone: how the program ended; None while others may come."""


class Program(Protocol):
    """What the debugger can do with the program as a whole."""

    launched: bool  # adbg started it: it may be restarted, and quitting ends it
    run_dir: str  # "" when nothing is recorded
    stacks: bool | None  # asked of each agent; None: as its configuration says

    @property
    def attachment(self) -> Attachment | None:
        """None when adbg started it."""

    @property
    def token(self) -> str:
        """What both sides identify themselves with."""

    @property
    def folder(self) -> str:
        """Of the record, or of the session when nothing is recorded; "" when not known."""

    @property
    def command(self) -> Sequence[str]:
        """argv of the program that adbg started; () of an attached one."""

    @property
    def joining(self) -> str:
        """How processes of other hosts get in, in one line; "" where they do not."""

    @property
    def detached_start(self) -> bool:
        """No agent is waited for: the program is a launcher, whose Python children come later."""

    def start(self, on_agent: OnAgent, on_output: OnOutput, on_exit: OnExit, on_note: OnNote) -> None: ...

    def write_stdin(self, data: bytes) -> None: ...

    def take_unread(self) -> str:
        """Remove and return what was typed at the terminal that adbg made for the program and what the program, stopped
        or ended, has not read."""

    def input_wait(self) -> str:
        """ "line" while the program waits for what is typed at that terminal, "secret" where that is not shown, "" else
        or not known."""

    def drain(self) -> None:
        """Until the output that a thread which stands now has written was handed on; for a moment at most."""

    def resize(self, rows: int, cols: int) -> None: ...

    def signal(self, signum: int) -> None: ...

    def close(self) -> None:
        """Stop listening. The program itself is not touched."""


@dataclass(frozen=True, slots=True)
class Script:
    """``adbg run``: what to start and how.

    Args:
        command: argv of the program.
        title: its name for the user ("train.py --epochs 2").
        name: part of the name of the run directory ("train.py").
        mode: "pty" (TUI, REPL) or "split" (batch), as ``engine.launch`` says.
        record: make a run directory; ``run_dir`` chooses it, "" makes a new one.
        python: the command is a Python interpreter running the script, so its own agent will come.
        session: folder of the session's socket and session.json, "" for a new one.
        listen: "HOST:PORT" to open for processes on other hosts, "" for no port.
    """

    command: Sequence[str]
    title: str
    name: str = ""
    mode: Literal["pty", "split"] = "pty"
    record: bool = True
    run_dir: str = ""
    record_limit: int = LIMIT
    keep_gradients: int = KEEP
    stacks: bool = True
    python: bool = True
    env: Mapping[str, str] | None = None
    size: tuple[int, int] = field(default=(24, 80))
    session: str = ""
    listen: str = ""


class StartedProgram:
    """A program that adbg starts; each ``start`` has a process, a socket and a run directory of its own."""

    launched = True
    attachment: Attachment | None = None
    stacks: bool | None = None

    def __init__(self, script: Script) -> None:
        self.script = script
        self.run_dir = ""
        self.size = script.size
        self.folder = ""
        self._listener: Listener | None = None
        self._openings = Openings(script.session, script.listen)
        self._program: Launched | None = None
        self._agents: list[tuple[Client, ProcessInfo]] = []  # that ever connected, of this start
        # The same at every start: on other hosts there are copies of session.json.
        self._token = new_token()

    def start(self, on_agent: OnAgent, on_output: OnOutput, on_exit: OnExit, on_note: OnNote) -> None:
        from adbg.engine.launch.launch import LaunchRequest, launch

        self._close_listener()
        warning = self._make_run_dir()

        agents = self._agents = []

        def greet(client: Client, hello: Hello) -> None:
            agents.append((client, hello.process))
            on_agent(client, hello.process)

        listener = Listener(greet, self._config(), folder=self._openings.folder)
        self._listener = listener
        self.folder = self.run_dir or os.path.dirname(listener.config.socket)

        try:
            config = self._openings.opened(listener.config)
        except BaseException:
            self.close()
            raise
        request = LaunchRequest(
            command=self.script.command,
            config=config,
            mode=self.script.mode,
            rows=self.size[0],
            cols=self.size[1],
            env=self.script.env,
        )
        try:
            self._program = launch(request, on_output, on_exit, on_note)
        except BaseException:
            self.close()
            raise
        if warning:
            on_note(warning)
        if self.joining:
            on_note(f"processes of other hosts join by {self.joining}")

    @property
    def joining(self) -> str:
        return self._openings.joining

    def _config(self) -> SessionConfig:
        script = self.script
        return SessionConfig(
            "",
            self._token,
            self.run_dir,
            script.stacks,
            record_limit=script.record_limit,
            keep_gradients=script.keep_gradients,
        )

    def _make_run_dir(self) -> str:
        """Returns a warning where nothing can be recorded: debugging continues without a record."""
        self.run_dir = ""
        if not self.script.record:
            return ""
        from adbg.engine.record.runs import new_run_dir, prepare_run_dir

        try:
            chosen = self.script.run_dir
            made = (
                prepare_run_dir(os.path.abspath(chosen))
                if chosen
                else new_run_dir([self.script.name or self.script.title])
            )
            self.run_dir = str(made)
        except AdbgError as error:
            return f"nothing is recorded: {error.message}; debugging continues without a record"
        return ""

    @property
    def detached_start(self) -> bool:
        return not self.script.python

    @property
    def command(self) -> Sequence[str]:
        return self.script.command

    @property
    def token(self) -> str:
        return self._listener.token if self._listener else ""

    def write_stdin(self, data: bytes) -> None:
        if self._program is not None and self.script.mode == "pty":
            self._program.write_stdin(data)

    def take_unread(self) -> str:
        return self._program.take_unread() if self._program is not None and self.script.mode == "pty" else ""

    def input_wait(self) -> str:
        return self._program.input_wait() if self._program is not None and self.script.mode == "pty" else ""

    def drain(self) -> None:
        if self._program is not None:
            self._program.drain()

    def resize(self, rows: int, cols: int) -> None:
        self.size = (rows, cols)
        if self._program is not None:
            self._program.resize(rows, cols)

    def signal(self, signum: int) -> None:
        here = [] if signum != SIGKILL else [info for client, info in self._agents if not client.lost]
        if self._program is not None:
            self._program.signal(signum)
        for info in here:
            if info.host in ("", os.uname().nodename):
                with contextlib.suppress(OSError):  # torchrun gives each rank a session of its own: they would run on
                    os.kill(info.pid, SIGKILL)

    def close(self) -> None:
        self._close_listener()
        self._openings.close()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
