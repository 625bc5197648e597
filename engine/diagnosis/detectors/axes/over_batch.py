"""Weights of an attention that a softmax normalised over the batch: each sample's depend on what else is in it.
Asked by ``wrong_axis``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.axes.weights import Summed, SummedWeights
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding

Sums = Callable[[Any, int], "tuple[float, float] | None"]


class OverBatch:
    """Scores of one number for each position (``[B, T, 1]``) go along axis 0, and the sum goes along the positions.
    Not told of assignments to several clusters, which are summed over the samples, and of positions in front."""

    def __init__(self, facts: Facts, sums: Sums) -> None:
        self._facts = facts
        self._sums = sums
        self._weights = SummedWeights(facts.backend.name == "torch", _is_over_batch, self._found)
        self._told: set[object] = set()

    def operator(self, call: OperatorCall) -> None:
        self._weights.look(call)

    def _found(self, used: Summed) -> None:
        softmax = used.weights.softmax
        sums = self._sums(used.value, used.axis) if softmax not in self._told else None
        if sums is None:  # told already, or they add up to 1
            return
        self._told.add(softmax)
        sizes, facts = used.weights.sizes, self._facts
        message = (
            f"softmax at {place(softmax)} works along axis 0 of {sizes}, the batch, and {place(used.line)} sums over "
            f"{used.along} positions of each sample: their weights do not add up to 1, and depend on the other samples"
        )
        evidence = [
            f"over the positions of one sample the weights add up to {values.plain(sums[0])} to "
            f"{values.plain(sums[1])}",
        ]
        if used.along in sizes[1:]:
            evidence.append(f"softmax along axis {sizes.index(used.along, 1)} gives weights that add up to 1")
        facts.tell(
            Finding(0, "wrong-axis", "warning", 0.8, message, None, None, facts.iteration + 1, used.line,
                    facts.cause(softmax), evidence, [f"b {place(softmax)}", "info node"])
        )  # fmt: skip


def _is_over_batch(sizes: list[int], over: int) -> bool:
    return over == 0 and sizes[0] > 1 and len(sizes) > 2 and sizes[-1] == 1 and sum(size > 1 for size in sizes[1:]) == 1
