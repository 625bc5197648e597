"""Since when forward stacks are taken: why a node that was made earlier has none, and no module path or number of the
forward's order either. Written on "adbg-reader", read on any thread."""

from __future__ import annotations


class StackHistory:
    """``late``: the program ran before adbg came."""

    def __init__(self) -> None:
        self.late = False
        self._were_off = False  # at some time since adbg came

    def switched(self, on: bool) -> None:
        """Also when they are as they were."""
        if not on:
            self._were_off = True

    @property
    def off(self) -> str:
        """Why a node has none while they are off."""
        if self.late:
            return "stacks are off, as after every attach: `stacks on` takes those of the next forward's nodes"
        return "stacks are off: `stacks on` takes those of new nodes, from the next forward on"

    @property
    def missing(self) -> str:
        """Why a node has none though they are on."""
        if self.late and not self._were_off:
            return "made before adbg attached"
        return "made before stacks were on"
