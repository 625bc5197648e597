"""The program as a child process of the keeper: fork and exec, signals, exit status."""

from __future__ import annotations

import os
import signal
import time

from adbg.engine.launch.keeper.terminal import Terminal

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_IGNORED_BEFORE = frozenset(  # nohup, or a background job of a script: the program is to ignore them too
    number for number in (*IGNORED, signal.SIGTERM, signal.SIGCHLD) if signal.getsignal(number) is signal.SIG_IGN
)


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
        for number in (*IGNORED, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN if number in _IGNORED_BEFORE else signal.SIG_DFL)
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
