"""What an optimizer holds and that takes no gradient."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector
from adbg.engine.diagnosis.detectors.training.source import freezing, place
from adbg.engine.diagnosis.ledger import Held, Optimizer
from adbg.engine.diagnosis.variables import made_at
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts


@detector("frozen-in-optimizer")
class Frozen(LoopDetector):
    """A tensor that an optimizer holds and that takes no gradient (requires_grad=False, stop_gradient=True): the line
    that froze it, or that made it without.

    Evidence: it took none at any step, and had none left of before: torch steps whatever has a .grad.
    Mistaken for: a network that is frozen between its backward and its step (not told on torch, which steps it), layers
    that are frozen on purpose, given to the optimizer with the rest: parameters of a module are told as a note. Plain
    tensors beside others that do take gradients may be meant to be fixed: a warning that says so.
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._made: dict[int, SourceLine] = {}  # id of a tensor that came frozen -> where its variable got it
        self._statistics: set[Held] = set()

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "made":
            for at in tuple(event.frozen)[:8]:
                line = made_at(event.tensors[at], event.line)
                if line is not None:
                    self._made[id(event.tensors[at])] = line
        elif event.what == "stepped" and event.frozen and optimizer is not None and optimizer.steps == 2:
            self._look(optimizer)  # its model may be gone at the end

    def _look(self, optimizer: Optimizer) -> None:
        found = self.facts.statistics()
        self._statistics |= {held for held in optimizer.held if id(held.ref()) in found}

    def end(self) -> None:
        for optimizer in self.ledger.optimizers.values():
            frozen = [held for held in optimizer.held if held.frozen and held.frozen == optimizer.steps]
            if frozen:
                self._look(optimizer)  # of a part that ran late
            frozen = [held for held in frozen if held not in self._statistics]
            if optimizer.steps >= 2 and frozen:
                self._tell(optimizer, frozen)

    def _tell(self, optimizer: Optimizer, frozen: list[Held]) -> None:
        plain = [held for held in frozen if not held.named]
        shown = plain or frozen
        names = self.facts.some([held.name for held in shown])
        flag = "stop_gradient=True" if self.facts.backend.name == "paddle" else "requires_grad=False"
        if plain:
            # Who made the others take gradients knows how: random features are fixed on purpose.
            some = any(not held.named and not held.frozen for held in optimizer.held)
            severity, confidence = ("warning", 0.6) if some else ("error", 0.9)
            text = f"{names} (no parameter of a module) have {flag}: {optimizer.kind} never changes them"
            text += ", which is right if they are meant to be fixed" if some else ""
        elif len(frozen) == len(optimizer.held):
            severity, confidence = "error", 0.9
            text = f"all that {optimizer.kind} holds has {flag}: it never changes anything"
        else:
            severity, confidence = "note", 0.3
            text = f"{optimizer.kind} holds {names} with {flag}: they stay as they are, which is right if frozen"
        born = next((self._made[id(held.ref())] for held in plain if id(held.ref()) in self._made), None)
        names_of = [optimizer.variable.name, *(held.name for held in shown)]
        cause = (freezing(self._files(optimizer), names_of) if not born else None) or born or optimizer.made
        evidence = [f"{held.name} {held.shape}: {flag} at all {held.frozen} steps" for held in shown[:4]]
        evidence.append(f"the optimizer was made in {place(optimizer.made)}")
        self.facts.tell(
            Finding(
                0, "frozen-in-optimizer", severity, confidence, text, cause=self.facts.cause(cause), evidence=evidence,
                next=["b backward-end"],
            )
        )  # fmt: skip

    def _files(self, optimizer: Optimizer) -> list[str]:
        """Those in which it may have been frozen: of the loop, and of the classes of the models."""
        lines = (optimizer.made, optimizer.step_line, self.ledger.backward_line)
        found = dict.fromkeys(line.file for line in lines if line is not None)
        for seen in self.ledger.modules.values():
            with suppress(Exception):
                file = os.path.abspath(vars(type(seen.ref()))["__init__"].__code__.co_filename)
                if f"{os.sep}site-packages{os.sep}" not in file:
                    found[file] = None
        return list(found)
