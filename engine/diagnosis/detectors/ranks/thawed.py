"""Parameters that a wrapper of several ranks does not know: they were frozen as it was made, or were not there."""

from __future__ import annotations

import ast
import weakref
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.ranks.facts import world_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine


@detector("drifted-parameters")
class Thawed(Detector):
    """Parameters take gradients, and a wrapper that averages these between ranks (DistributedDataParallel,
    DataParallel) was made while they were frozen: it takes the parameters once, as it is made, so that each rank trains
    those by its own batches alone. Made anew after the line that thaws them, it knows them. Or they were put into the
    module after the wrapper (a new head; not seen on Paddle, whose wrapper keeps no list).

    Evidence: how many parameters the wrapper itself says that it averages, and how many of its module get a gradient.
    Mistaken for: parameters that the program has the wrapper ignore, and whose gradients it averages itself (not told
    where the wrapper names them).
    Cost: nothing in a job of one process; else a look at the parameters in sampled iterations.
    """

    needs = Need.STEPS | Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._wrapper: weakref.ref[Any] | None = None
        self._trained: frozenset[int] = frozenset()  # ids, as the wrapper ran first
        self._told = False

    def applied(self) -> bool:
        return self._wrapper is not None

    def module_begin(self, call: ModuleCall) -> None:
        kind = self.facts.backend.reducer_kind
        if self._wrapper is not None or kind is None or not issubclass(type(call.module), kind):
            return
        self._wrapper = weakref.ref(call.module)
        self._trained = frozenset(id(each) for each in self._parameters(call.module))

    def optimizer(self, event: OptimizerEvent) -> None:
        wrapper = self._wrapper() if self._wrapper is not None else None
        if event.what != "step" or wrapper is None or self._told or not self.facts.sampled:
            return
        if world_of(self.facts.backend) < 2:
            return
        backend = self.facts.backend
        known, held = backend.reduced_by(wrapper), {id(each) for each in event.tensors}
        if known is None:
            return
        met = {id(each) for each in backend.met_by(wrapper)}
        own = [each for each in self._parameters(wrapper) if id(each) in held and backend.gradient_of(each) is not None]
        strange = [each for each in own if id(each) not in met] if met else []
        if strange:
            self._told = True
            self._tell_strange(wrapper, strange, event)
            return
        if len(own) > known:
            self._told = True
            late = [each for each in own if id(each) not in self._trained]
            self._tell(wrapper, known, own, late, event)

    def _parameters(self, wrapper: Any) -> list[Any]:
        """Those of its module that take gradients, each once."""
        every = {id(each): each for each in wrapper.parameters() if self.facts.backend.meta(each).requires_grad}
        return list(every.values())

    def _tell_strange(self, wrapper: Any, strange: list[Any], event: OptimizerEvent) -> None:
        facts, kind = self.facts, type(wrapper).__name__
        wrapped = _made_at(event.line, kind) if event.line is not None else None
        made = next(filter(None, map(facts.born, strange)), None)
        message = (
            f"{kind} does not average the gradients of {facts.some([facts.title_of(each) for each in strange])}: these "
            f"were put into the module, at {place(made)}, after the line that wrapped it, {place(wrapped)}; each rank "
            "trains its own, from its own first values; wrap the model after that"
        )
        evidence = [
            f"{len(strange)} parameters with a gradient at the step of {place(event.line)} in iteration "
            f"{facts.iteration} are none of those that {kind} met as it was made",
        ]
        facts.tell(
            Finding(
                0, "drifted-parameters", "error", 0.95, message, iteration=facts.iteration, forward=event.line,
                cause=facts.cause(wrapped or made or event.line), evidence=evidence, next=["info ranks"],
            )
        )  # fmt: skip

    def _tell(self, wrapper: Any, known: int, own: list[Any], late: list[Any], event: OptimizerEvent) -> None:
        facts, kind = self.facts, type(wrapper).__name__
        names = [facts.title_of(each) or "a parameter" for each in late or own]
        made = _made_at(event.line, kind) if event.line is not None else None
        where = f" at {place(made)}" if made is not None else ""
        which = facts.some(names) if late else f"{len(own) - known} of {facts.some(names)}"
        message = (
            f"{kind} does not average the gradients of {which}: these were frozen as it was made{where}, and take "
            "gradients now; each rank trains them by its own batches alone; wrap the model anew after the line that "
            "thaws them, or thaw them before it is wrapped"
        )
        evidence = [
            f"{kind} averages {known} parameter{'s' * (known != 1)} by its own account; {len(own)} of its module's "
            f"have a gradient at the step of {place(event.line)} in iteration {facts.iteration}",
        ]
        if late:
            evidence.append(f"{facts.some(names)} took none as it ran first")
        facts.tell(
            Finding(
                0, "drifted-parameters", "error", 0.94, message, iteration=facts.iteration, forward=event.line,
                cause=facts.cause(made or event.line), evidence=evidence, next=["info ranks"],
            )
        )  # fmt: skip


def _made_at(near: SourceLine, kind: str) -> SourceLine | None:
    """The only line of a file that makes such a wrapper, by its name or by that which the file imports it under."""
    names, lines = {kind}, set()
    for node in nodes_of(near.file):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname for each in node.names if each.name == kind and each.asname}
    for node in nodes_of(near.file):
        if isinstance(node, ast.Call) and called_name(node) in names:
            lines.add(node.lineno)
    if len(lines) != 1:
        return None
    line = lines.pop()
    return SourceLine(near.file, line, getattr(scope_at(near.file, line), "name", "<module>"))
