"""What is not finite and goes no further: losses that no backward runs on, and gradients that no step uses. A program
that looks at them first, or a scaler, leaves the iteration out and goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.diagnosis.detector import OperatorCall
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.numbers.ledger import Made
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

_IN_A_ROW = 8  # iterations that are left out: training does not go on


class Unstepped:
    """Keeps what a backward found until it is known what becomes of its gradients."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._awaited: Finding | None = None
        self._cleared = False
        self._spoilt = False  # gradients were not finite as that backward ended
        self._first: Finding | None = None  # of those that were left out
        self._row = 0
        self._count = 0

    def put(self, finding: Finding) -> None:
        if self._awaited is None:
            self._awaited, self._cleared = replace(finding, iteration=self._facts.iteration), False
            self._spoilt = False

    def backward_ended(self) -> None:
        if self._awaited is not None and not self._cleared:
            self._spoilt = self._spoilt or self.any_bad()

    def take(self) -> Finding | None:
        """Nothing more comes."""
        awaited, self._awaited = self._awaited, None
        return awaited

    def stepped(self, tensors: Sequence[Any]) -> Finding | None:
        """A step begins; the finding, where it uses them. Not the step of another optimizer, nor one after they were
        cleared, by hand, too."""
        if self._awaited is None:
            self._row = 0
            return None
        if self._spoilt and not self._is_bad(tensors):
            if not self.any_bad():
                self.take()  # they were mended
            return None
        self._row = 0
        return self.take()

    def cleared(self) -> None:
        """Some gradients were. Those of another optimizer do not matter."""
        if self._awaited is not None and self._spoilt:
            self._cleared = not self.any_bad()
        else:
            self._cleared = True

    def any_bad(self) -> bool:
        """Some parameter has a gradient that is not finite."""
        return self._is_bad(each for _, each in self._facts.backend.parameters())

    def _is_bad(self, tensors: Iterable[Any]) -> bool:
        gradient_of = self._facts.backend.gradient_of
        return any(any(values.bad(self._facts.backend, gradient_of(each))) for each in tensors)

    def begins(self) -> Finding | None:
        """The next backward does. The first finding where one iteration after the other was left out."""
        if self._awaited is not None and self._spoilt and not self._cleared:
            self.cleared()  # by hand
        if self._awaited is None or not self._cleared:
            return None
        self._first, self._awaited = self._first or self._awaited, None
        self._row += 1
        self._count += 1
        if self._row < _IN_A_ROW:
            return None
        self._count = 0
        return replace(
            self._first, evidence=[*self._first.evidence, f"{self._row} iterations in a row were left out for it"]
        )

    def end(self) -> None:
        if self._first is None or not self._count:
            return
        times = f"{self._count} iterations were" if self._count > 1 else "one iteration was"
        why = f"{times} left out for such gradients, no step used them, and training went on: a bug if not on purpose"
        self._facts.tell(
            replace(self._first, severity="note", confidence=0.4, evidence=[*self._first.evidence, why])
        )  # fmt: skip


class Losses:
    """Single numbers that are not finite, by the line that made them."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._open: dict[tuple[str, int], Made] = {}  # without a backward yet
        self.skipped: list[Made] = []  # a backward came after that was not theirs

    def made(self, call: OperatorCall, made: Made) -> None:
        if made.numel == 1 and made.kind != "constant" and call.lines and self._is_loss(call):
            self._open[call.lines[0].file, call.lines[0].line] = made

    def finite(self, call: OperatorCall) -> None:
        if self._open and call.lines:
            self._open.pop((call.lines[0].file, call.lines[0].line), None)

    def begins(self, finite: bool) -> None:
        """A backward does, of a root that is finite or not."""
        if finite:
            self.skipped += self._open.values()
        self._open.clear()

    def left(self) -> Iterator[Made]:
        """No backward came, and no finite loss of the same line."""
        yield from self._open.values()

    def _is_loss(self, call: OperatorCall) -> bool:
        """Made of a graph, and not of a gradient: one that is sent as float16 is looked at first."""
        backend = self._facts.backend
        if not any(backend.meta(each).requires_grad for each in (*call.results, *call.operands)):
            return False
        gradients = (backend.gradient_of(parameter) for _, parameter in backend.parameters())
        places = {at for each in gradients if each is not None for at, _ in backend.storages(each)}
        return not any(at in places for each in call.operands for at, _ in backend.storages(each))
