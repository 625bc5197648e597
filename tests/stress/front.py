"""A front end in a process of its own, to be killed: attaches, says how far it is, and stays there.

    python -m stress.front PID UNTIL [SPEC]       (tests/ on the path)

UNTIL is ``entering`` or ``queued`` (on the way in), ``hello``, ``armed`` (the breakpoint SPEC is set) or ``stop`` (the
program stands there). Prints that word when it is so, then whatever else happens. A line on stdin detaches and ends it.
"""

from __future__ import annotations

import sys
import threading

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as p

from .attaching import Session


def say(word: str) -> None:
    print(word, flush=True)


def main() -> int:
    pid, until, *spec = sys.argv[1:]
    with Session() as session:
        say(f"folder {session.listener.directory}")
        if until in ("entering", "queued"):
            session.progress = _Told()  # type: ignore[assignment]
        try:
            client = session.begin(int(pid))
        except AdbgError as error:
            say(f"failed {error.message}")
            return 1
        say("hello")
        if spec:
            client.request(p.SetFunctionBreakpoints([p.BreakpointRequest(spec[0], id=1)]))
            say("armed")
        if until == "stop":
            threading.Thread(target=_tell_stops, args=(session,), daemon=True).start()
        sys.stdin.readline()
        client.request(p.Disconnect())
        say("detached")
        session.lost.wait(10)
    return 0


def _tell_stops(session: Session) -> None:
    while True:
        if isinstance(session.events.get(), p.Stopped):
            say("stop")


class _Told(list):  # type: ignore[type-arg]
    """Says each step of entering."""

    def append(self, step: object) -> None:
        super().append(step)
        say(str(getattr(step, "kind", step)))


if __name__ == "__main__":
    sys.exit(main())
