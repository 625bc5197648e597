"""Gradients that are added after those that were averaged between ranks: ``no_sync`` around the last micro-batch."""

from __future__ import annotations

import ast
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.diagnosis.values import attribute
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_STEPS = 2  # that used such gradients


@detector("drifted-parameters")
class Unsynced(Detector):
    """Gradients of several micro-batches are added up, of which one backward is to average the sum between ranks, and
    the others run in ``no_sync``. A backward in ``no_sync`` between that one and the optimizer's step adds gradients of
    this rank alone: each rank steps by others.

    Evidence: of each backward before such a step, whether the wrapper averaged in it, as the wrapper's own flag says.
    Mistaken for: ranks that step by their own gradients on purpose and average their parameters from time to time (not
    told: no backward before such a step averages).
    Cost: a look at one attribute of the wrapper each time it runs, nothing in a job of one process.
    """

    needs = Need.STEPS | Need.MODULES

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._kind = ""
        self._runs: bool | None = None  # whether the wrapper averages in the backward of its last forward
        self._averaged: list[bool] = []  # in each backward since the last step
        self._line: SourceLine | None = None  # of the last one that did not
        self._found = 0

    def applied(self) -> bool:
        return bool(self._kind)

    def module_begin(self, call: ModuleCall) -> None:
        backend = self.facts.backend
        if call.grad_mode and backend.reducer_kind is not None and issubclass(type(call.module), backend.reducer_kind):
            self._kind = type(call.module).__name__
            self._runs = bool(attribute(call.module, backend.reduces_by))

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if self._runs is None or error is not None or len(running.chain) > 1:
            return
        self._averaged.append(self._runs)
        if not self._runs:
            self._line = running.call.location
        self._runs = None

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or not self._averaged:
            return
        averaged, self._averaged = self._averaged, []
        if averaged[-1] or not any(averaged):
            return
        self._found += 1
        if self._found == _STEPS:
            self._tell(averaged, event)

    def _tell(self, averaged: list[bool], event: OptimizerEvent) -> None:
        facts = self.facts
        last = max(at for at, each in enumerate(averaged) if each) + 1
        chosen = _no_sync_near(self._line)
        where = f", which {place(chosen)} chooses" if chosen is not None else ""
        message = (
            f"the step at {place(event.line)} uses gradients that {self._kind} did not average: of {len(averaged)} "
            f"backwards before it number {last} averaged what was there by then, and the later ones ran in no_sync()"
            f"{where}; the last one before the step has to average"
        )
        evidence = [
            f"the backwards before the step of iteration {facts.iteration}, in their order: "
            + ", ".join("averaged" if each else "no_sync" for each in averaged),
        ]
        if self._line is not None:
            evidence.append(f"the last one in no_sync: {place(self._line)}: {facts.text_of(self._line)}")
        facts.tell(
            Finding(
                0, "drifted-parameters", "error", 0.95, message, iteration=facts.iteration, forward=event.line,
                cause=facts.cause(chosen or self._line), evidence=evidence, next=["info ranks"],
            )
        )  # fmt: skip


def _no_sync_near(line: SourceLine | None) -> SourceLine | None:
    """The line that asks for ``no_sync``, where the file of the backward has only one."""
    calls = [] if line is None else [
        node for node in nodes_of(line.file) if isinstance(node, ast.Call) and called_name(node) == "no_sync"
    ]  # fmt: skip
    if line is None or len(calls) != 1:
        return None
    at = calls[0].lineno
    return SourceLine(line.file, at, getattr(scope_at(line.file, at), "name", "<module>"))
