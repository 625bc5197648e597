"""A bare front end, run by its path: ``driver.py SESSION_JSON MODE COMMAND...`` launches, copies the output, ends as
the program did.

With DRIVER_READY it writes the program's pid there once it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from adbg.engine.launch.launch import LaunchRequest, launch
from adbg.engine.protocol.rendezvous import read_config


def main() -> int:
    session, mode, *command = sys.argv[1:]

    def on_output(stream: str, data: bytes) -> None:
        fd = 1 if stream == "stdout" else 2
        while data:
            data = data[os.write(fd, data) :]

    request = LaunchRequest(command, read_config(Path(session)), mode="split" if mode == "split" else "pty")
    launched = launch(request, on_output, lambda status: None, lambda text: print(text, file=sys.stderr))
    if ready := os.environ.get("DRIVER_READY"):
        Path(ready + ".new").write_text(str(launched.pid))
        Path(ready + ".new").rename(ready)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda signum, frame: launched.signal(signum))
    status = None
    while status is None:
        status = launched.wait(0.2)  # short: a signal handler runs between two waits
    return status.status


if __name__ == "__main__":
    sys.exit(main())
