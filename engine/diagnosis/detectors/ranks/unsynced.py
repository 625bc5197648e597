"""Gradients that are added after those that were averaged between ranks: ``no_sync`` around the last micro-batch."""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.diagnosis.values import attribute
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_STEPS = 2  # that used such gradients


@dataclass(slots=True)
class _Wrapper:
    """``held``: ids of its parameters. ``runs``: whether it averages in the backward of its last forward, which has not
    run yet. ``averaged``: the same of each backward since its gradients were cleared, or stepped by. ``line``: of the
    last backward that did not. ``found``: steps."""

    ref: weakref.ref[Any]
    kind: str
    held: frozenset[int]
    runs: bool | None = None
    averaged: list[bool] = field(default_factory=list)
    line: SourceLine | None = None
    found: int = 0


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
        self._wrappers: dict[int, _Wrapper] = {}

    def applied(self) -> bool:
        return bool(self._wrappers)

    def module_begin(self, call: ModuleCall) -> None:
        backend = self.facts.backend
        if call.grad_mode and backend.reducer_kind is not None and issubclass(type(call.module), backend.reducer_kind):
            known = self._wrappers.get(id(call.module))
            if known is None or known.ref() is not call.module:
                kind, held = type(call.module).__name__, frozenset(map(id, call.module.parameters()))
                known = self._wrappers[id(call.module)] = _Wrapper(weakref.ref(call.module), kind, held)
            known.runs = bool(attribute(call.module, backend.reduces_by))

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None or len(running.chain) > 1:
            return
        for each in self._wrappers.values():
            if each.runs is not None:
                each.averaged.append(each.runs)
                if not each.runs:
                    each.line = running.call.location
                each.runs = None

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what not in ("step", "zeroed"):
            return
        for each in self._wrappers.values():
            if each.averaged and not each.held.isdisjoint(map(id, event.tensors)):
                averaged, each.averaged = each.averaged, []
                if event.what == "step" and any(averaged) and not averaged[-1]:
                    each.found += 1
                    if each.found == _STEPS:
                        self._tell(each, averaged, event)

    def _tell(self, wrapper: _Wrapper, averaged: list[bool], event: OptimizerEvent) -> None:
        facts, its_line = self.facts, wrapper.line
        last = max(at for at, each in enumerate(averaged) if each) + 1
        chosen = _no_sync_near(its_line)
        where = f", which {place(chosen)} chooses" if chosen is not None else ""
        message = (
            f"the step at {place(event.line)} uses gradients that {wrapper.kind} did not average: of {len(averaged)} "
            f"backwards before it number {last} averaged what was there by then, and the later ones ran in no_sync()"
            f"{where}; the last one before the step has to average"
        )
        evidence = [
            f"the backwards before the step of iteration {facts.iteration}, in their order: "
            + ", ".join("averaged" if each else "no_sync" for each in averaged),
        ]
        if its_line is not None:
            evidence.append(f"the last one in no_sync: {place(its_line)}: {facts.text_of(its_line)}")
        facts.tell(
            Finding(
                0, "drifted-parameters", "error", 0.95, message, iteration=facts.iteration, forward=event.line,
                cause=facts.cause(chosen or its_line), evidence=evidence, next=["info ranks"],
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
