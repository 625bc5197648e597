"""What the detectors of the training loop share: one ledger, fed by the first of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent
from adbg.engine.diagnosis.ledger import Held, Ledger, Optimizer, Seen, accumulates
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts


#: Event -> what is overridden here in its place.
_INNER = {"backward_begin": "begins", "backward_end": "ends", "optimizer": "happens", "module_begin": "forward"}


class LoopDetector(Detector):
    """Override ``begins``, ``ends``, ``happens`` and ``forward``: the ledger knows of the event by then."""

    needs = Need.STEPS | Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.ledger = Ledger.of(facts)
        if self.ledger.feeder is None:
            self.ledger.feeder = self

    def applied(self) -> bool:
        return bool(self.ledger.optimizers)

    def listens(self, event: str) -> bool:
        inner = _INNER.get(event)
        if (
            inner is None
            or self.ledger.feeder is self
            or getattr(type(self), event) is not getattr(LoopDetector, event)
        ):
            return super().listens(event)
        return getattr(type(self), inner) is not getattr(LoopDetector, inner)

    def begins(self, running: Running) -> None:
        """An outermost backward that adds to ``.grad`` begins."""

    def ends(self, running: Running) -> None: ...

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None: ...

    def forward(self, call: ModuleCall) -> None:
        """An outermost module begins."""

    def backward_begin(self, running: Running) -> None:
        if accumulates(running):
            if self.ledger.feeder is self:
                self.ledger.backward_begin(running)
            self.begins(running)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if accumulates(running) and error is None:
            if self.ledger.feeder is self:
                self.ledger.backward_end(running)
            self.ends(running)

    def optimizer(self, event: OptimizerEvent) -> None:
        if self.ledger.feeder is self:
            self.ledger.optimizer(event)
        known = self.ledger.optimizers.get(id(event.optimizer)) if event.optimizer is not None else None
        self.happens(event, known)

    def module_begin(self, call: ModuleCall) -> None:
        if call.outermost:
            if self.ledger.feeder is self:
                self.ledger.module_begin(call)
            self.forward(call)


def rate_commands(detector: LoopDetector, optimizer: Optimizer | None) -> list[str]:
    """Commands at a stop that show the learning rate of an optimizer; None: the one that steps most."""
    ledger = detector.ledger
    chosen = optimizer or max(ledger.optimizers.values(), key=lambda each: each.steps, default=None)
    name = chosen.variable.visible_at(ledger.backward_line) if chosen is not None else ""
    asked = f"p {detector.facts.backend.rate_of.format(name)}"
    return ["b backward-end", asked] if name else ["b backward-end"]


def weight_commands(detector: LoopDetector, held: Held) -> list[str]:
    """A weight at the end of each backward: it should be another one each time."""
    seen = detector.ledger.owner(held.ref())
    name = seen.variable.visible_at(detector.ledger.backward_line) if seen is not None else ""
    return ["b backward-end", f'p norm(dict({name}.named_parameters())["{held.path}"])'] if name and held.path else [
        "b backward-end"
    ]  # fmt: skip


def mode_commands(detector: LoopDetector, seen: Seen, part: str = "") -> list[str]:
    """The mode of a module, or of the part of it at that path."""
    name = seen.variable.visible_at(detector.ledger.backward_line)
    parts = "named_sublayers" if detector.facts.backend.name == "paddle" else "named_modules"
    asked = f'dict({name}.{parts}())["{part}"]' if part else name
    return ["b backward-end", f"p {asked}.training"] if name else ["b backward-end"]


def gradient_commands(detector: LoopDetector) -> list[str]:
    """Where the first gradient that a step uses is complete."""
    held = (each for optimizer in detector.ledger.optimizers.values() for each in optimizer.held)
    path = next((each.path for each in held if each.path and each.total), "")
    return ["b backward-end", f"b param:{path} after"] if path else ["b backward-end"]


def norms(values: list[float | None] | list[float]) -> str:
    """ "0.5, none, 1.2": norms in a line of evidence."""
    return ", ".join("none" if value is None else f"{value:.4g}" for value in values)


def stands_above(backward: SourceLine | None, step: SourceLine | None) -> bool:
    """Whether the step stands above the backward in one function."""
    return (
        backward is not None and step is not None and (backward.file, backward.function) == (step.file, step.function)
        and step.line < backward.line
    )  # fmt: skip
