"""Tensors that a program stores one by one, all over the one array that it writes into again and again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.silent import is_foreign, sharing, span_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_JOINS = frozenset({"stack", "cat", "concat", "concatenate", "hstack", "vstack"})
_MAKES = frozenset({"from_numpy", "frombuffer", "as_tensor", "asarray"})
_FEW = 8  # tensors that one operator joins
_TAKEN = 4  # that are taken one by one
_CHANGED = 3  # of them, that were made or joined before, and had other values
_MOST = 10_000  # tensors that are remembered
_LARGE = 1 << 20  # bytes that are compared
_FIRST = 3  # iterations in which all operators are looked at, and those in front of them
_PREPARING = 20_000  # operators; a program that prepares its data with more is let go on at its own speed


@dataclass(slots=True)
class _Made:
    """A tensor over an array, or a view of one. ``digest``: of its bytes then; None where no other one was alive."""

    ref: Any
    at: int  # its address
    digest: int | None
    line: SourceLine | None


@detector("silent-overwrite")
class StoredViews(Detector):
    """Tensors that were made of one array at different times (``from_numpy(state)``) and stored, as in a replay memory
    or in the windows of a data set: they share its memory, so that each write into it changes all that is stored.

    Evidence: one operator joins eight or more tensors with all the same memory, which is an array's, or operators take
    four one by one; some of them had other values when they were made, or when they were joined before.
    Mistaken for: one tensor that is stacked many times, or several made of one array for one iteration, as for the
    actions in one state (not told: they had the same values), slots of a ring (not told: each has memory of its own),
    an array that is filled anew for each batch (not told: no tensor of the earlier ones is taken again).
    Cost: an address each of what is made over an array, and of what is stacked; where two of one address are alive, a
    checksum of up to 1 MB. All operators are looked at before the first backward (20,000 of them at most) and in three
    iterations, then those of sampled ones.
    """

    needs = Need.OPERATORS  # until ``_over``
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._known: dict[int, tuple[Any, int, int]] = {}  # by id: reference, digest of its bytes, iteration
        self._made: dict[int, _Made] = {}  # by id
        self._last: dict[int, Any] = {}  # by address: the tensor that was made there last
        self._stale: dict[int, dict[int, _Made]] = {}  # by address, by id: those that were taken with other values
        self._told = False
        self._seen = 0  # operators

    def applied(self) -> bool:
        return bool(self._seen)

    def iteration_end(self) -> None:
        if self.facts.iteration >= _FIRST:
            self._over()

    def _over(self) -> None:
        """What is made from now on is seen in sampled iterations alone: a look at each operator costs three times what
        a small one does."""
        if self.needs:
            self.needs = Need.NOTHING
            self.facts.other_needs = True

    def operator(self, call: OperatorCall) -> None:
        self._seen += 1
        if self._seen == _PREPARING:
            self._over()
        if self._told or call.error is not None:
            return
        name = plain(call.name)
        if name in _MAKES:
            self._make(call)
            return
        if name in _JOINS and len(call.operands) >= _FEW:
            self._join(call)
        elif self._made:
            self._take(call)

    # ---- made over an array

    def _make(self, call: OperatorCall) -> None:
        for value in call.results:
            with suppress(Exception):  # tensors without memory
                if not any(value is each for each in call.operands) and is_foreign(value):
                    at = value.data_ptr()
                    last = self._last.get(at)
                    before = last() if last is not None else None
                    alive = before is not None and before is not value
                    self._note(value, at, self._digest(value) if alive else None, line_of(call.lines))
                    self._last[at] = weakref.ref(value)

    def _note(self, value: Any, at: int, digest: int | None, line: SourceLine | None) -> None:
        if len(self._made) >= _MOST:
            self._made = {key: each for key, each in self._made.items() if each.ref() is not None}
            self._last = {each.at: self._last[each.at] for each in self._made.values() if each.at in self._last}
            if len(self._made) >= _MOST:
                return
        self._made[id(value)] = _Made(weakref.ref(value), at, digest, line)

    def _of(self, value: Any) -> _Made | None:
        made = self._made.get(id(value))
        return made if made is not None and made.ref() is value else None

    def _take(self, call: OperatorCall) -> None:
        """A view has what its tensor had. What computes takes them with the values that the array has now."""
        for operand in call.operands:
            made = self._of(operand)
            if made is None or made.digest is None:
                continue
            views = []
            with suppress(Exception):
                views = [each for each in call.results if each is not operand and each.data_ptr() == made.at]
            for each in views:
                if span_of(each) == span_of(operand):
                    self._note(each, made.at, made.digest, made.line)
            if not views and call.results and self._digest(operand) != made.digest:
                stale = self._stale.setdefault(made.at, {})
                stale[id(operand)] = made
                alive = [each for each in stale.values() if each.ref() is not None]
                if len(alive) >= _TAKEN and len({each.digest for each in alive}) >= _CHANGED:
                    self._told = True
                    self._tell_taken(call, alive)
                    return

    # ---- joined

    def _join(self, call: OperatorCall) -> None:
        operands = call.operands
        first, same = operands[0], False
        with suppress(Exception):
            at = first.data_ptr()
            same = all(each.data_ptr() == at for each in operands) and is_foreign(first)
        if not same:
            return
        span = span_of(first)
        every = {id(each): each for each in operands if span_of(each) == span}
        digest = self._digest(first) if _FEW <= len(every) == len({id(each) for each in operands}) else None
        if digest is None:
            return
        changed, made = [], []
        for key, each in every.items():
            known, at_first = self._known.get(key), self._of(each)
            if known is not None and known[0]() is each and known[1] != digest and known[2] != self.facts.iteration:
                changed.append(known[2])
            elif at_first is not None and at_first.digest not in (None, digest):
                made.append(at_first)
            if len(self._known) < _MOST:
                self._known[key] = weakref.ref(each), digest, self.facts.iteration
        if len(changed) >= _CHANGED or len({each.digest for each in made}) >= _CHANGED:
            self._told = True
            self._tell_joined(call, every, changed, made)

    def _digest(self, value: Any) -> int | None:
        with suppress(Exception):
            if value.numel() * value.element_size() <= _LARGE:
                return self.facts.digest(value)
        return None

    # ---- telling

    def _tell_joined(self, call: OperatorCall, every: dict[int, Any], changed: list[int], made: list[_Made]) -> None:
        line = line_of(call.lines)
        known = [each for value in every.values() if (each := self._of(value)) is not None and each.line is not None]
        evidence = [f"all {len(every)} are different tensors that begin at the same address, in memory of an array"]
        if changed:
            evidence.append(
                f"{len(changed)} of them were joined in iteration {max(changed)} or before, and had other values"
            )
        if made:
            evidence.append(_then(made, len(every)))
        self._tell(
            f"{len(every)} stored tensors that {plain(call.name)} joins at {place(line)}",
            known[0].line if known else sharing(line) or line, line, evidence,
        )  # fmt: skip

    def _tell_taken(self, call: OperatorCall, made: list[_Made]) -> None:
        line = line_of(call.lines)
        who = f"{len(made)} stored tensors, the last of which {plain(call.name)} takes at {place(line)},"
        same = f"all {len(made)} are different tensors at the same address, in memory of an array"
        self._tell(who, made[0].line or sharing(line) or line, line, [same, _then(made, len(made))])

    def _tell(self, who: str, cause: SourceLine | None, line: SourceLine | None, evidence: list[str]) -> None:
        message = (
            f"{who} share the memory of one array, which is written into again: all of them have its latest values; "
            "store a copy of the array instead (copy(), torch.tensor())"
        )
        self.facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.88, message, iteration=max(1, self.facts.iteration), forward=line,
                cause=self.facts.cause(cause), evidence=evidence, next=["b backward"],
            )
        )  # fmt: skip


def _then(made: list[_Made], every: int) -> str:
    values = len({each.digest for each in made})
    return f"when {place(made[0].line)} made them, {len(made)} of the {every} had {values} other values than now"
