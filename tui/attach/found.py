"""``adbg attach PID``: a program that adbg did not start, of one process or, as a job, of many ranks.

A job's ranks are looked for again every ``AGAIN`` seconds (thread "adbg-job"): a launcher restarts those that failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence

import psutil

from adbg.engine.attach.target import examine
from adbg.engine.errors import AdbgError, AttachError, CommandError
from adbg.engine.launch.hosts.openings import Openings
from adbg.engine.launch.launch import prepare_session
from adbg.engine.protocol.messages import Hello, ProcessInfo
from adbg.engine.protocol.rendezvous import SessionConfig, trusted_config
from adbg.engine.types import ExitStatus
from adbg.tui.attach.jobs import job_root, ranks_of
from adbg.tui.attach.processes import Table, command_of, frameworks_in, look, mapped_files
from adbg.tui.attach.way_in import Cancelled, One, WayIn
from adbg.tui.debugger.client import Client, Listener
from adbg.tui.debugger.job.look import lives
from adbg.tui.debugger.program import Entering, OnAgent, OnExit, OnNote, OnOutput
from adbg.tui.text.attach import arrival_text, job_end_text, launches, lost_text, program_name, script_of

AGAIN = 2.0  # seconds between two looks for ranks that came late
YOUNG = 30.0  # seconds of age within which an interpreter may not be ready to be entered
TRIES = 5  # for a young one
MOMENT = 0.5  # seconds that the way in may be known later than the agent's hello
ENDS = 2.0  # seconds from the end of a connection to that of its process


class FoundProgram:
    """See the module. It is its own ``Attachment``."""

    launched = False
    detached_start = False
    command: Sequence[str] = ()

    def __init__(
        self, pid: int, stacks: bool | None = None, job: bool = False, openings: Openings | None = None
    ) -> None:
        self.pid = pid
        self._openings = openings or Openings()
        self.stacks = stacks
        self.job = job
        self.run_dir = ""
        self.folder = ""
        self.token = ""
        self.failure: AdbgError | None = None
        self._root = pid  # of a job: the process below which its ranks are
        self._joined = False
        self._tries: dict[int, int] = {}
        self._listener: Listener | None = None
        self._way = WayIn(self._arrived, self._refused, self._note)
        self._watch: threading.Thread | None = None
        self._process: psutil.Process | None = None
        self._on_agent: OnAgent = lambda client, info: None
        self._on_exit: OnExit = lambda status: None
        self._on_note: OnNote = lambda text: None

    @property
    def attachment(self) -> FoundProgram:
        return self

    @property
    def joining(self) -> str:
        return self._openings.joining

    @property
    def pids(self) -> tuple[int, ...]:
        """Those that are entered, or are to be."""
        return self._way.pids or (self.pid,)

    @property
    def title(self) -> str:
        return f"the job of process {self.pid}" if self.job else f"process {self.pid}"

    # ------------------------------------------------------------------ start

    def check(self) -> None:
        """Say at once, before a screen opens, what can be known to fail.

        Raises:
            AdbgError: there is no such process, or it cannot be entered.
        """
        if self.job:
            self._ranks()
        elif not self._listens():
            examine(self.pid)

    def _listens(self) -> bool:
        try:
            trusted_config(self.pid)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True

    def _ranks(self) -> tuple[Table, list[int]]:
        """Raises AttachError when there is none."""
        table = look()
        if self.pid not in table:
            examine(self.pid)  # says what is wrong with it
        self._root = job_root(table, self.pid)
        pids = [seen.pid for seen in ranks_of(table, self.pid)]
        if not pids and self.pid in table:
            raise AttachError(
                f"no rank was found below process {self.pid} ({script_of(table[self.pid].command)[:60]}): no Python "
                "process there has a rank or a framework",
                "`adbg attach` lists the processes; a rank that is still starting is found a little later",
            )
        return table, pids

    def start(self, on_agent: OnAgent, on_output: OnOutput, on_exit: OnExit, on_note: OnNote) -> None:
        self._on_agent, self._on_exit, self._on_note = on_agent, on_exit, on_note
        self.check()
        with contextlib.suppress(psutil.Error):
            self._process = psutil.Process(self._root)
        config = SessionConfig("", "", stacks=bool(self.stacks))
        self._listener = listener = Listener(self._greet, config, self._way.refused, self._openings.folder)
        self.token, self.folder = listener.token, os.path.dirname(listener.config.socket)
        try:
            self._way.session_file = prepare_session(self._openings.opened(listener.config))
        except BaseException:  # no room on the disk, say: the folder must not stay
            listener.close()
            self._openings.close()
            raise
        if self.joining:
            on_note(f"processes of other hosts join by {self.joining}")
        if self.job:
            self._enter_ranks(self._ranks()[1])
            self._watch = threading.Thread(target=self._look_again, name="adbg-job", daemon=True)
            self._watch.start()
        else:
            self._way.begin(self.pid)

    def _greet(self, client: Client, hello: Hello) -> None:
        self._way.greeted(client, hello.process)

    def _arrived(self, client: Client, info: ProcessInfo) -> None:
        self._joined = True
        if info.run_dir and not self.run_dir:
            self.run_dir = info.run_dir
        self._on_agent(client, info)

    def _note(self, text: str) -> None:
        self._on_note(text)

    # ------------------------------------------------------------------ what cannot be entered

    def _refused(self, one: One) -> None:
        error = one.error or AttachError(f"process {one.pid} cannot be entered")
        if self._way.cancelled.is_set():
            return  # given up: said already
        if not self.job:
            self.failure = error
            return
        if self._comes_later(one):
            return
        self._on_note(f"process {one.pid} of the job is not debugged: {error}")
        if not self._joined and not self._way.entering:
            self.failure = AttachError(f"no rank of {self.title} can be entered; the last: {error.message}", error.hint)

    def _comes_later(self, one: One) -> bool:
        """A process that has only begun is tried again."""
        self._tries[one.pid] = self._tries.get(one.pid, 0) + 1
        with contextlib.suppress(psutil.Error):
            young = time.time() - psutil.Process(one.pid).create_time() < YOUNG
            if young and self._tries[one.pid] < TRIES:
                self._way.forget(one.pid)
                return True
        return not lives(one.pid)  # it ended: nothing to tell

    # ------------------------------------------------------------------ a job

    def _enter_ranks(self, pids: Sequence[int]) -> None:
        for pid in pids:
            if self._way.known(pid) is None:
                self._way.begin(pid)

    def _look_again(self) -> None:
        """Thread "adbg-job": ranks that come later, and the end of the launcher."""
        table: Table = {}
        while not self._way.cancelled.wait(AGAIN):
            table = look(known=table)
            self._enter_ranks([seen.pid for seen in ranks_of(table, self.pid)])
            if not lives(self._root) and not self._way.entering and not self._some_left():
                self._on_exit(ExitStatus(reason=job_end_text(self.pid)))
                return

    def _some_left(self) -> bool:
        return any(lives(pid) for pid in self._way.pids)

    # ------------------------------------------------------------------ Attachment

    @property
    def entering(self) -> tuple[Entering, ...]:
        return self._way.entering

    @property
    def gathering(self) -> bool:
        return self._way.gathering

    def stop_entering(self) -> None:
        if not self._joined and self.failure is None:
            self.failure = Cancelled(f"the attach was given up: {self.title} runs on as before")
        self._way.stop()

    def arrival(self, info: ProcessInfo) -> str:
        one = self._way.known(info.pid)
        if one is not None:
            one.entered.wait(MOMENT)  # its agent may be faster than the injector's last word
        here = info.host in ("", os.uname().nodename)
        command = info.argv or (command_of(info.pid) if here else [])
        names = [f"{framework.name} {framework.version}" for framework in info.frameworks]
        return arrival_text(
            info.pid,
            info.rank,
            program_name(command) if command else "",
            names or (frameworks_in(mapped_files(info.pid)) if here else []),
            info.python,
            one.way if one is not None else "",
            one.ms if one is not None else None,
            bool(self.stacks),
            self.job,
        )

    def end_of(self, pid: int) -> ExitStatus | None:
        """A process closes its connection a moment before it ends."""
        if self.job and lives(self._root):
            return None
        if self._way.known(pid) is None:  # of another host
            return ExitStatus(reason=f"the connection to process {pid} of another host ended")
        gone = threading.Event()
        for _ in range(int(ENDS / 0.05)):
            if not lives(pid):
                break
            gone.wait(0.05)
        return ExitStatus(reason=lost_text(pid, lives(pid)))

    # ------------------------------------------------------------------ Program

    def write_stdin(self, data: bytes) -> None:
        raise CommandError("an attached program keeps its own terminal", "type there")

    def take_unread(self) -> str:
        return ""

    def input_wait(self) -> str:
        return ""

    def drain(self) -> None:
        """Its output is not adbg's to hand on."""

    def resize(self, rows: int, cols: int) -> None:
        pass

    def signal(self, signum: int) -> None:
        """To the process; of a job to its launcher, which hands it on. SIGKILL, and what the ranks of a shell get, goes
        to every rank."""
        if not self.job:
            self._send(self._process, signum)
            return
        launcher = launches(command_of(self._root)) or self._root in self._way.pids
        if launcher:
            self._send(self._process, signum)  # first: it would start the ranks again
        if signum == signal.SIGKILL or not launcher:
            for pid in self._way.pids:
                with contextlib.suppress(psutil.Error):
                    self._send(psutil.Process(pid), signum)

    def _send(self, process: psutil.Process | None, signum: int) -> None:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process is not None:
                process.send_signal(signum)  # not to another one that has its number by now

    def close(self) -> None:
        self.stop_entering()
        self._way.stop(wait=True)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._openings.close()
