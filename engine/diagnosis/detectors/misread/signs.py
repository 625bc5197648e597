"""Labels of 0 and 1 for a loss whose labels are -1 and 1."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding

_LOSSES = {"cosine_embedding_loss": 2, "margin_ranking_loss": 2, "hinge_embedding_loss": 1, "soft_margin_loss": 1}
_NAMES = ("target", "label", "labels", "other")
_MOST = 1 << 16
_SIGNS = frozenset({"sign", "sgn"})  # what they make 0 of is a tie, which is to be pushed nowhere
_KEEPS = frozenset({"to", "cast", "float", "view", "reshape", "squeeze", "unsqueeze", "getitem", "astype"})


@detector("loss-input")
class LabelsWithoutSign(Detector):
    """``cosine_embedding_loss``, ``margin_ranking_loss``, ``hinge_embedding_loss`` and ``soft_margin_loss`` take labels
    of -1 and 1. Given 0 and 1, a pair with the label 0 adds nothing, or a constant: what is to be apart is never pushed
    apart.

    Evidence: which labels there are, and how many of each.
    Mistaken for: labels that are all 1 (every pair is alike), and those that ``sign`` made, of which 0 is a tie: not
    told.
    Cost: in sampled iterations a look at the labels of these losses.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._any = False
        self._signs: Marks[None] = Marks()
        self._told: set[Any] = set()

    def applied(self) -> bool:
        return self._any

    def composite(self, call: OperatorCall) -> None:
        self.operator(call)

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if name in _SIGNS or (name in _KEEPS and call.operands and self._signs.of(call.operands[0]) is not None):
            for each in call.results:
                self._signs.put(each, None, name, None)
            return
        at = _LOSSES.get(plain(call.name))
        if at is None or call.error is not None:
            return
        self._any = True
        line = line_of(call.lines)
        named = next((call.keywords[name] for name in _NAMES if name in call.keywords), None)
        labels = call.arguments[at] if len(call.arguments) > at else named
        read = numbers(self.facts.backend, labels) if hasattr(labels, "dtype") and line not in self._told else None
        if labels is not None and self._signs.of(labels) is not None:
            return
        if read is None or not 2 <= len(read.flat) <= _MOST or set(read.flat) != {0, 1}:
            return
        self._told.add(line)
        zeros = sum(1 for each in read.flat if not each)
        self.facts.tell(
            Finding(
                0, "loss-input", "error", 0.92,
                f"{call.name} at {place(line)} takes labels of -1 and 1, and is given 0 and 1: the {zeros:,} with 0 "
                "are pushed nowhere; give it 2 * labels - 1",
                None, None, self.facts.iteration + 1, line, self.facts.cause(line),
                [f"of {len(read.flat):,} labels {zeros:,} are 0 and {len(read.flat) - zeros:,} are 1, none is -1"],
                [f"b {place(line)}", "info node"],
            )
        )  # fmt: skip
