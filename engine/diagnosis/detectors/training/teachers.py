"""Models that only give targets, and do so in training mode."""

from __future__ import annotations

from dataclasses import dataclass

from adbg.engine.diagnosis.detector import ModuleCall, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, mode_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.ledger import Seen
from adbg.engine.diagnosis.source import assigned_names, tree_of
from adbg.engine.diagnosis.variables import Variable, made_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_FORWARDS = 6
_STEPS = 6
_WEIGHTS = 2  # whose norms are taken, 20 us each
_LOOKS = 16  # forwards at which they are


@dataclass(slots=True)
class _Teacher:
    line: SourceLine | None
    made: SourceLine | None
    forwards: int = 0
    norms: tuple[float, ...] = ()
    other: bool = False  # it ran with gradients, or in evaluation mode, or something writes to its weights


@detector("wrong-mode")
class Teachers(LoopDetector):
    """A model that is never trained, and runs under ``no_grad`` beside one that is (the teacher of a distillation, a
    frozen encoder), is in training mode: its Dropout drops, its BatchNorm takes the statistics of the batch, and writes
    its own.

    Evidence: how often it ran so, that no optimizer holds its weights and that they stay as they are.
    Mistaken for: a mean teacher or a target network, whose weights are written (not told), several passes of one batch
    for an uncertainty (not told where it runs more than twice as often as steps are made).
    Cost: two norms at each of its first sixteen forwards.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._teachers: dict[int, _Teacher] = {}

    def forward(self, call: ModuleCall) -> None:
        seen = self.ledger.modules.get(id(call.module))
        if seen is None or not seen.regular:
            return
        known = self._teachers.get(id(call.module))
        if known is None:  # a variable of this function's, of an object's, or a global one
            made = made_at(call.module, call.line) or _made_globally(seen.variable)
            known = self._teachers[id(call.module)] = _Teacher(call.line, made)
        if known.other:
            return
        held = bool(seen.parameters & self.facts.places.keys())
        known.other = known.other or held or call.grad_mode or not call.training
        if known.other:
            return
        known.forwards += 1
        if known.forwards <= _LOOKS:
            weights = [value for value, _ in zip(call.module.parameters(), range(_WEIGHTS))]
            norms = tuple(self.facts.backend.norm(each) for each in weights)
            known.other = bool(known.norms) and norms != known.norms
            known.norms = norms

    def end(self) -> None:
        steps = max((optimizer.steps for optimizer in self.ledger.optimizers.values()), default=0)
        for key, known in self._teachers.items():
            seen = self.ledger.modules.get(key)
            if seen is None or known.other or known.forwards < _FORWARDS or steps < _STEPS or not known.norms:
                continue
            if known.forwards <= 2 * steps:
                self._tell(seen, known, steps)

    def _tell(self, seen: Seen, known: _Teacher, steps: int) -> None:
        called = f"{seen.variable.short} ({seen.kind})" if seen.variable.short else seen.kind
        self.facts.tell(
            Finding(
                0, "wrong-mode", "warning", 0.7,
                f"{called} is never trained and runs in training mode: its {seen.regular} acts as in training, so that "
                "what it gives differs from call to call; eval() is missing",
                cause=self.facts.cause(known.made or known.line),
                evidence=[
                    f"{known.forwards} forwards without gradients and with training=True in {place(known.line)}, "
                    f"beside {steps} steps of another model",
                    "no optimizer holds its weights, and nothing wrote to them",
                ],
                next=mode_commands(self, seen),
            )
        )  # fmt: skip


def _made_globally(variable: Variable) -> SourceLine | None:
    """The first statement of the file that gives a global variable its value."""
    if not variable.everywhere or variable.line is None:
        return None
    tree = tree_of(variable.line.file)
    made = (each.lineno for each in (tree.body if tree is not None else ()) if variable.name in assigned_names(each))
    line = next(made, None)
    return SourceLine(variable.line.file, line, "<module>") if line is not None else None
