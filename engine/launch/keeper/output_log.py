"""What the keeper writes into the run directory: the program's output and its exit status."""

from __future__ import annotations

import os
import time


class OutputLog:
    """Appends the output to ``output-r0.log`` and writes ``exit.json``. After a failure it records no more."""

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir
        self.problem = ""  # for the user; the keeper sends it as a NOTE
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
        """{"code": int or null, "signal": int or null, "asked": whether the front end had sent it, "ended": UTC,
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
