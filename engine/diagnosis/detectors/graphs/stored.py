"""Tensors that a program stores one by one, all over the one array that it writes into again and again."""

from __future__ import annotations

import weakref
import zlib
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.silent import is_foreign, sharing, span_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding

_JOINS = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})
_FEW = 8  # tensors that one operator joins
_CHANGED = 3  # of them, that were joined before, and had other values
_MOST = 10_000  # tensors that are remembered
_LARGE = 1 << 20  # bytes that are compared


@detector("silent-overwrite")
class StoredViews(Detector):
    """Tensors that were made of one array at different times (``from_numpy(state)``) and stored, as in a replay memory:
    they share its memory, so that each write into it changes all that is stored.

    Evidence: one operator joins eight or more tensors with all the same memory, which is an array's; some of them were
    joined in an earlier iteration, and had other values then.
    Mistaken for: one tensor that is stacked many times, or several made of one array for one iteration, as for the
    actions in one state (not told: they are not kept), slots of a ring (not told: each has memory of its own).
    Cost: an address each of what is stacked, in sampled iterations.
    """

    needs = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._known: dict[int, tuple[Any, int, int]] = {}  # by id: reference, digest of its bytes, iteration
        self._told = False
        self._seen = False

    def applied(self) -> bool:
        return self._seen

    def operator(self, call: OperatorCall) -> None:
        self._seen = True
        operands = call.operands
        if self._told or len(operands) < _FEW or plain(call.name) not in _JOINS or call.error is not None:
            return
        first, same = operands[0], False
        with suppress(Exception):  # tensors without memory
            at = first.data_ptr()
            same = all(each.data_ptr() == at for each in operands) and is_foreign(first)
        if not same:
            return
        span = span_of(first)
        every = {id(each): each for each in operands if span_of(each) == span}
        digest = self._digest(first) if _FEW <= len(every) == len({id(each) for each in operands}) else None
        if digest is None:
            return
        changed = []
        for key, each in every.items():
            known = self._known.get(key)
            if known is not None and known[0]() is each and known[1] != digest and known[2] != self.facts.iteration:
                changed.append(known[2])
            if len(self._known) < _MOST:
                self._known[key] = weakref.ref(each), digest, self.facts.iteration
        if len(changed) >= _CHANGED:
            self._told = True
            self._tell(call, len(every), changed)

    def _digest(self, value: Any) -> int | None:
        found = 0

        def put(piece: memoryview) -> None:
            nonlocal found
            found = zlib.adler32(piece, found)

        with suppress(Exception):
            if value.numel() * value.element_size() <= _LARGE:
                self.facts.backend.feed_bits(value, put)
                return found
        return None

    def _tell(self, call: OperatorCall, count: int, changed: list[int]) -> None:
        line = line_of(call.lines)
        made = sharing(line)
        name = plain(call.name)
        self.facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.88,
                f"{count} stored tensors that {name} joins at {place(line)} share the memory of one array, which is "
                "written into again: all of them have its latest values; store a copy of the array instead (copy(), "
                "torch.tensor())",
                iteration=self.facts.iteration, cause=self.facts.cause(made or line),
                evidence=[
                    f"all {count} are different tensors that begin at the same address, in memory of an array",
                    f"{len(changed)} of them were joined in iteration {max(changed)} or before, and had other values",
                ],
                next=["b backward-begin"],
            )
        )  # fmt: skip
