"""A tensor that is overwritten in place under one name and then read under another, as if it still were what it was."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.aliases.stale_names import (
    Before,
    innermost,
    names_before,
    read_as,
    second_name,
)
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marked, Marks
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_BENDS = frozenset({
    "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "silu", "mish", "hardtanh", "hardswish", "hardsigmoid",
    "threshold", "dropout", "alpha_dropout", "feature_dropout", "sigmoid", "tanh", "softmax",
})  # fmt: skip
_LEAVES_POSITIVE = frozenset({"relu", "relu6", "leaky_relu", "threshold", "hardtanh"})  # as they are, mostly
_POSITIVE = frozenset(
    {"relu", "relu6", "sigmoid", "softmax", "square", "exp", "abs", "softplus", "hardsigmoid", "norm"}
)
_KEEPS = frozenset({
    "flatten", "reshape", "view", "dropout", "permute", "transpose", "contiguous", "mean", "sum", "interpolate", "pad",
    "squeeze", "unsqueeze", "clone", "detach", "max", "amax", "getitem",
})  # fmt: skip
_FRESH = frozenset({"zeros", "empty", "ones", "full", "zeros_like", "empty_like", "ones_like", "full_like", "new_zeros",
                    "new_empty", "new_ones", "new_full"})  # fmt: skip
# Of what they are given they take the shape alone, or nothing that is computed with.
_SHAPE_ALONE = frozenset({"view_as", "expand_as", "reshape_as", "type_as", "equal", "equal_all", "detach", "clone"})
_MOST = 200  # operators that overwrite, of one iteration


@dataclass(frozen=True, slots=True)
class _Written:
    bends: bool
    before: tuple[Before, ...]
    line: SourceLine
    second: tuple[str, SourceLine] | None  # another name of the function that wrote, used below, and where it was given


@detector("silent-overwrite")
class TwoNames(Detector):
    """``out = self.relu(x)`` with ``inplace=True`` and ``out + x`` after it: the sum takes the activated ``x``, and
    autograd says nothing of it, since the activation keeps its result alone. The same of a list of skip connections
    whose tensors the next layer overwrites, and of a function that changes what it was given and returns it
    (``noisy = corrupt(x)``), while the caller goes on to use both.

    A function that gives two names to one tensor (``labels = ids``), writes through one of them (``ids[mask] = MASK``)
    and returns both is told of when an operator that takes gradients reads either.

    Evidence: the line that overwrote it, what it is called there, the line that reads it under the name of before.
    Mistaken for: an activation that overwrites the name itself (``x = relu(x)``), a name that was given the tensor
    again since (``x = out``), a statement that does nothing but overwrite (``x.clamp_(0, 1)``, ``update(x)``), a
    function whose name ends with ``_``, ``out=``, a ReLU of what is positive already (a pooling of a ReLU), an
    activation under ``no_grad``, tensors that were made to be filled (``zeros``), a list whose tensors are activated
    one by one in a loop over it (all not told).
    Cost: in sampled iterations a look at the version of what operators return, and, of the first 200 that overwrite, at
    the variables of up to 12 functions of the program's: 70 us each in a module of 50 variables, 1 ms where an
    expression is met first. Before Python 3.11, which does not tell which expression runs, only what a function returns
    twice is told of.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._written: Marks[_Written] = Marks()
        self._kind: Marks[str] = Marks()  # "positive", "fresh"
        self._any = False
        self._left = _MOST
        self._told: set[SourceLine] = set()

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or self.facts.stepping:
            return
        name = plain(call.name)
        self._note_kind(name, call)
        if self._any and call.grad_mode and name not in _SHAPE_ALONE and not name.endswith("_like"):
            for operand in call.operands:
                known = self._written.of(operand)
                if known is not None and known.what.line not in self._told:
                    self._read(call, operand, known)
        if "out" in call.keywords:
            return
        named = writes(call)
        for operand, version in zip(call.operands, call.versions):
            if version is not None and any(operand is one for one in (*named, *call.results)):
                now = self.facts.backend.version_of(operand)
                if now is not None and now > version:
                    self._write(call, operand)
                return

    def iteration_end(self) -> None:
        self._left = _MOST

    # ---- the overwriting

    def _note_kind(self, name: str, call: OperatorCall) -> None:
        """What a result is that may be overwritten later."""
        result = call.results[0] if call.results else None
        if result is None or any(result is each for each in call.operands):
            return
        first = self._kind.of(call.operands[0]) if call.operands else None
        if name in _FRESH:
            self._kind.put(result, "fresh", name, None)
        elif name in _POSITIVE or (
            (name in _KEEPS or "pool" in name) and first is not None and first.what == "positive"
        ):
            self._kind.put(result, "positive", name, None)

    def _write(self, call: OperatorCall, operand: Any) -> None:
        line, name = line_of(call.lines), plain(call.name)
        self._left -= 1
        kind = known.what if (known := self._kind.of(operand)) is not None else ""
        if name in _POSITIVE:
            self._kind.put(operand, "positive", name, None)
        bends = name in _BENDS
        unchanged = bends and (not call.grad_mode or (kind == "positive" and name in _LEAVES_POSITIVE))
        if self._left < 0 or line is None or unchanged or kind == "fresh" or self._is_weight(operand):
            return
        bends = bends and not isinstance(innermost(), ast.Expr)  # a state that is advanced
        before = tuple(names_before(operand))
        if before:
            self._any = True
            earlier = self._written.of(operand)
            second = next((each for one in before[:1] if (each := second_name(one)) is not None), None)
            if earlier is not None and earlier.what.second is not None:  # it was written through that one before
                name, line, second = earlier.name, earlier.what.line, earlier.what.second
            self._written.put(operand, _Written(bends, before, line, second), name, line)

    def _is_weight(self, operand: Any) -> bool:
        """A step of the program's own overwrites it."""
        return self.facts.is_named(operand) or (operand.is_leaf and self.facts.backend.meta(operand).requires_grad)

    # ---- the reading

    def _read(self, call: OperatorCall, operand: Any, known: Marked[_Written]) -> None:
        if not any(self.facts.backend.meta(each).requires_grad for each in call.results):
            return
        found = read_as(operand, known.what.before, known.what.bends)
        if found is not None:
            self._tell(plain(call.name), known, *found)
            return
        if known.what.second is not None:
            self._tell("", known, *known.what.second)

    def _tell(self, reader: str, known: Marked[_Written], name: str, at: SourceLine) -> None:
        """``at``: where ``reader`` reads it; without a reader: where it was given that name."""
        facts, line = self.facts, known.what.line
        self._told.add(line)
        if reader:
            message = (
                f"{known.name} at {place(line)} overwrites a tensor in place that {place(at)} still reads as {name}: "
                f"{reader} there takes the overwritten numbers, and no error tells of it; use {known.name.rstrip('_')} "
                "without inplace, or keep a clone()"
            )
        else:
            message = (
                f"{name} is no copy: {place(at)} gives one tensor two names, and {place(line)} overwrites both: "
                f"what uses {name} after it takes the overwritten numbers; take a clone() there"
            )
        evidence = [
            f"{name} is that tensor itself, and no copy was taken; its version went up at {place(line)}: "
            f"{facts.text_of(line)}",
            f"it is {'read' if reader else 'named'} at {place(at)}: {facts.text_of(at)}",
        ]
        facts.tell(
            Finding(
                0, "silent-overwrite", "warning", 0.85 if known.what.bends else 0.7, message,
                iteration=facts.iteration + 1, forward=line, cause=facts.cause(line if reader else at),
                evidence=evidence, next=[f"b {place(at)}", "info node"],
            )
        )  # fmt: skip
