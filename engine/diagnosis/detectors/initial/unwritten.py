"""Weights that were never given values."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided"})
_LOOKS = frozenset({
    "requires_grad", "data", "detach", "Parameter", "to", "cuda", "cpu", "clone", "shape", "numel", "size", "dim",
    "contiguous", "view", "reshape", "unsqueeze", "squeeze", "expand", "t", "transpose",
})  # fmt: skip
_MOST = 20_000  # tensors that are remembered


@dataclass(slots=True)
class _Empty:
    line: SourceLine | None
    name: str
    size: int  # bytes


@detector("uninitialised")
class Unwritten(Detector):
    """A parameter that is made of ``torch.empty`` (``paddle.empty``) is computed with before anything was written to
    it: it has whatever lay in that memory, zeros in one run, NaN or huge numbers in another.

    Evidence: the line that made it, that no operator wrote into its memory before its first use, and its values there.
    Mistaken for: memory that is filled by other means than operators: weights that another rank sends (not told where
    there are several ranks), ``set_``, a pointer that is handed to C (NumPy's ``.numpy()`` counts as written).
    Cost: in sampled iterations a look at each operator, and where its memory lies of those that write.
    """

    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._empty: dict[int, _Empty] = {}  # by where the memory lies
        self._passed: dict[int, weakref.ref[Any]] = {}  # leaves that have values
        self._made = False
        self._used: list[tuple[weakref.ref[Any], _Empty, SourceLine | None]] = []  # until modules have names

    def applied(self) -> bool:
        return self._made

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None:
            return
        if plain(call.name) in _EMPTY:
            line = line_of(call.lines)
            # A library's layers fill what they make; and memory that was freed may be given to what no operator makes.
            own = line is not None and "empty" in self.facts.text_of(line)
            for each in call.results:
                for where, size in self.facts.backend.storages(each):
                    self._empty.pop(where, None)
                    if own and size and len(self._empty) < _MOST:
                        self._empty[where] = _Empty(line, call.name, size)
            return
        if not self._empty:
            return
        for each in writes(call):
            self._written(each)
        if plain(call.name) in ("numpy", "setitem") or "out" in call.keywords:
            for each in call.operands:
                self._written(each)
        if plain(call.name) not in _LOOKS and any(each.requires_grad and not each.is_leaf for each in call.results):
            for each in call.operands:
                if each.is_leaf and each.requires_grad and not self._has_passed(each):
                    self._look(each, call)
        if call.results and not call.operands:  # the memory may have gone to what was made now
            for each in call.results:
                self._written(each)

    def _has_passed(self, leaf: Any) -> bool:
        known = self._passed.get(id(leaf))
        if known is not None and known() is leaf:
            return True
        self._passed[id(leaf)] = weakref.ref(leaf)
        return False

    def _written(self, value: Any) -> None:
        if self.facts.backend.is_tensor(value):
            for where, _ in self.facts.backend.storages(value):
                self._empty.pop(where, None)

    def _look(self, leaf: Any, call: OperatorCall) -> None:
        known = ((self._empty.get(at), size) for at, size in self.facts.backend.storages(leaf))
        found = next((each for each, size in known if each is not None and each.size == size), None)
        if found is None or (self.facts.backend.world() or 1) > 1:
            return
        self._made = True
        self._written(leaf)
        self._used.append((weakref.ref(leaf), found, line_of(call.lines)))

    def backward_begin(self, running: Running) -> None:
        self._tell_all()

    def uncaught(self, error: BaseException) -> None:
        self._tell_all()

    def end(self) -> None:
        self._tell_all()

    def _tell_all(self) -> None:
        used, self._used = self._used, []
        for ref, found, line in used:
            leaf = ref()
            if leaf is not None:
                self._tell(leaf, found, line)

    def _tell(self, leaf: Any, found: _Empty, used: SourceLine | None) -> None:
        facts = self.facts
        shape = list(facts.shape(leaf))
        name = facts.title_of(leaf) or f"a tensor of {shape}"
        read = values.stats(facts.backend, leaf)
        message = (
            f"{name} is computed with at {place(used)} and nothing ever gave it values: {found.name} at "
            f"{place(found.line)} takes memory as it is; initialise it"
        )
        evidence = [
            f"{name} {shape} lies in the memory that {found.name} gave; no operator wrote into it before {place(used)}"
        ]
        if read is not None and read.min is not None and read.max is not None:
            evidence.append(f"what it happens to have in this run: {read.min:.4g} to {read.max:.4g}")
        facts.tell(
            Finding(
                0, "uninitialised", "error", 0.93, message, FoundAt(parameter=name), None, max(1, facts.iteration),
                used, facts.cause(found.line), evidence, ["info params"],
            )
        )  # fmt: skip
