"""A moving average of a model's weights that leaves its running statistics as they were made."""

from __future__ import annotations

import weakref
from typing import Any

from adbg.engine.backends.base import ModuleCall, OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import numbers
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_AVERAGES = frozenset({"lerp", "mul", "add", "copy", "set_value", "sub", "subtract", "scale", "multiply"})
_SHARES = frozenset({"data", "detach"})
_MEAN, _VARIANCE = ("running_mean", "_mean"), ("running_var", "_variance")
_MOST = 4096  # weights that are remembered
_MODELS = 16
_ITERATIONS = 5


@detector("stale-parameters")
class StatisticsLeftBehind(Detector):
    """A copy of a model follows its weights (``slow.lerp_(fast, 0.01)`` over ``parameters()``), and nothing follows the
    running statistics of its normalisations, which are buffers: in evaluation it normalises by the 0 and 1 that they
    were made with.

    Evidence: the running mean and variance as the copy is evaluated, all 0 and all 1; the line that moves its weights.
    Mistaken for: a model that an optimizer trains, or whose normalisation has seen a batch: not told.
    Cost: in sampled iterations a look at what writes a weight; as a model is evaluated one at its normalisations.
    """

    needs = Need.MODULES
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._written: dict[int, tuple[weakref.ref[Any], SourceLine | None, int]] = {}
        self._shared: Marks[Any] = Marks()  # ``.data`` of a weight, which is another tensor of the same memory
        self._trained: dict[int, weakref.ref[Any]] = {}
        self._told = False

    def applied(self) -> bool:
        return bool(self._written)

    def operator(self, call: OperatorCall) -> None:
        name = plain(call.name)
        if call.error is not None or name not in _AVERAGES | _SHARES or self.facts.stepping:
            return
        if name in _SHARES and call.results and call.operands and _is_weight(call.operands[0]):
            self._shared.put(call.results[0], weakref.ref(call.operands[0]), name, None)
            return
        for each in writes(call):
            shared = self._shared.of(each)
            value = shared.what() if shared is not None else None if call.grad_mode else each
            if value is not None and _is_weight(value):
                known = self._written.get(id(value))
                times = known[2] + 1 if known is not None and known[0]() is value else 1
                if known is not None or len(self._written) < _MOST:
                    self._written[id(value)] = (weakref.ref(value), line_of(call.lines), times)

    def module_begin(self, call: ModuleCall) -> None:
        if call.outermost and call.grad_mode and len(self._trained) < _MODELS and id(call.module) not in self._trained:
            self._trained[id(call.module)] = weakref.ref(call.module)
        if self._told or not call.outermost or call.training or self.facts.iteration < _ITERATIONS:
            return
        parts = list(_parts(call.module))
        lines = [
            known[1] for part in parts for value in _parameters(part)
            if (known := self._written.get(id(value))) is not None and known[0]() is value and known[2] > 1
        ]  # fmt: skip
        if not lines:
            return
        found = []
        for part in parts:
            mean, variance = (_kept(part, names) for names in (_MEAN, _VARIANCE))
            if mean is None or variance is None:
                continue
            if getattr(part, "training", False) or not (self._is(mean, 0.0) and self._is(variance, 1.0)):
                return  # by the batch, or some have moved: only what never runs has not
            found.append(part)
        if found and any(map(self._has_moved, (ref() for ref in self._trained.values()))):
            self._told = True
            self._tell(call, found[0], lines[0])

    def _has_moved(self, module: Any) -> bool:
        """Statistics of the model that it follows: where that trains in evaluation mode, theirs are 0 and 1, too."""
        kept = (_kept(part, _MEAN) for part in (_parts(module) if module is not None else ()))
        return any(each is not None and not self._is(each, 0.0) for each in kept)

    def _is(self, value: Any, number: float) -> bool:
        read = numbers(self.facts.backend, value)
        return read is not None and len(read.flat) > 0 and set(read.flat) == {number}

    def _tell(self, call: ModuleCall, part: Any, line: SourceLine | None) -> None:
        facts, kind, name = self.facts, type(call.module).__name__, type(part).__name__
        facts.tell(
            Finding(
                0, "stale-parameters", "warning", 0.88,
                f"{place(line)} moves the weights of a {kind} that no optimizer trains, and nothing moves the running "
                f"statistics of its {name}: they are 0 and 1 as {place(call.line)} evaluates it",
                None, None, facts.iteration, call.line, facts.cause(line),
                [
                    f"the running mean of its {name} is 0 all over, the variance 1, after {facts.iteration} iterations",
                    "parameters() has no buffers: copy those as well (buffers(), or the whole state dict)",
                ],
                [f"b {place(call.line)}"],
            )
        )  # fmt: skip


def _is_weight(value: Any) -> bool:
    return "Parameter" in type(value).__name__ or "ParamBase" in type(value).__name__


def _parts(module: Any) -> list[Any]:
    found, todo = [], [module]
    while todo:
        part = todo.pop()
        found.append(part)
        for kept in ("_modules", "_sub_layers"):
            inner = getattr(part, "__dict__", {}).get(kept)
            todo += [each for each in inner.values() if each is not None] if isinstance(inner, dict) else []
    return found


def _parameters(part: Any) -> list[Any]:
    kept = getattr(part, "__dict__", {}).get("_parameters")
    return [each for each in kept.values() if each is not None] if isinstance(kept, dict) else []


def _kept(part: Any, names: tuple[str, ...]) -> Any:
    for kept in ("_buffers", "_parameters"):
        held: Any = getattr(part, "__dict__", {}).get(kept)
        for name in names if isinstance(held, dict) else ():
            if held.get(name) is not None:
                return held[name]
    return None
