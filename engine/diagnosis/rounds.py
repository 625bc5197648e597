"""Iterations as the user of a training loop counts them.

A loop may run several backwards in each iteration: one per network of a GAN, one per loss. Each of them stands in a
place of its own, so that a new iteration begins where a place is come to that the one at hand has seen already.
"""

from __future__ import annotations

from collections.abc import Hashable

from adbg.engine.diagnosis.variables import frame_at
from adbg.engine.session.running_call import Running


class Rounds:
    """``count``: iterations begun so far."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: set[Hashable] = set()

    def opens(self, running: Running) -> bool:
        """Whether this outermost backward begins an iteration."""
        return not self._seen or _place(running) in self._seen

    def begins(self, running: Running) -> None:
        if self.opens(running):
            self.count += 1
            self._seen.clear()
        self._seen.add(_place(running))


def _place(running: Running) -> Hashable:
    """Where backward is called, and who called that function: ``update(loss, optimizer)`` may serve several."""
    line = running.call.location
    frame = frame_at(line)
    caller = frame.f_back if frame is not None else None
    return line, (caller.f_code.co_filename, caller.f_lineno) if caller is not None else None
