"""A schedule that waits for a number to rise that is to fall, or the other way round."""

from __future__ import annotations

import ast
import re
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_FALLS = re.compile(r"loss|err(or)?\b|\bmse|\bmae|perplex|\bppl|nll", re.IGNORECASE)
_RISES = re.compile(r"acc(uracy)?\b|\bf1|\bauc|\biou|psnr|bleu|reward|return|recall|precision", re.IGNORECASE)


@detector("schedule-order")
class PlateauTurned(Detector):
    """``ReduceLROnPlateau`` (``ReduceOnPlateau``) with ``mode="max"`` is given a loss, or with ``mode="min"``, which it
    has by itself, an accuracy: what gets better counts as a plateau, and the rate falls as training goes well.

    Evidence: the mode, the name of what the call hands over, the rates before and after.
    Mistaken for: a negative loss, and names that do not say which it is (not told).
    Cost: a look at the source of each line that steps such a schedule, once.
    """

    needs = Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._looked: set[SourceLine] = set()
        self._made: dict[int, SourceLine | None] = {}

    def applied(self) -> bool:
        return bool(self._looked)

    def optimizer(self, event: OptimizerEvent) -> None:
        scheduler = event.scheduler
        if event.what == "scheduler":
            self._made[id(scheduler)] = event.line
        elif event.what == "scheduled" and event.line is not None and event.line not in self._looked:
            mode = getattr(scheduler, "mode", None)
            if mode in ("min", "max") and "plateau" in type(scheduler).__name__.lower():
                self._looked.add(event.line)
                self._look(event.line, scheduler, mode)

    def _look(self, line: SourceLine, scheduler: Any, mode: str) -> None:
        given = _given(line)
        if given is None or given.startswith("-"):
            return
        falls, rises = bool(_FALLS.search(given)), bool(_RISES.search(given))
        if falls is rises or (mode == "min") is falls:
            return
        facts, kind = self.facts, type(scheduler).__name__
        made = self._made.get(id(scheduler))
        right = "min" if falls else "max"
        message = (
            f"{kind} waits for {given} to {'rise' if mode == 'max' else 'fall'} (mode={mode!r}), and it is to "
            f"{'fall' if falls else 'rise'}: what gets better counts as a plateau; mode={right!r} is meant"
        )
        evidence = [
            f"{place(line)}: {facts.text_of(line)}",
            f"made at {place(made)}: {facts.text_of(made) if made is not None else ''}",
        ]
        facts.tell(
            Finding(
                0, "schedule-order", "warning", 0.85, message, None, None, max(1, facts.iteration), line,
                facts.cause(made or line), evidence, [f"list {place(made or line)}"],
            )
        )  # fmt: skip


def _given(line: SourceLine) -> str | None:
    """The first argument of the ``step`` on that line."""
    for node in nodes_of(line.file):
        called = node.func if isinstance(node, ast.Call) and node.args else None
        if not isinstance(node, ast.Call) or not isinstance(called, ast.Attribute) or called.attr != "step":
            continue
        if node.lineno <= line.line <= (node.end_lineno or 0):
            return ast.unparse(node.args[0])
    return None
