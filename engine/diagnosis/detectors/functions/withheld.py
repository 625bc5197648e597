"""Parameters whose gradient a custom function gives as None, where no check of its derivative can tell."""

from __future__ import annotations

import weakref
from typing import Any

from adbg.engine.backends.base import FunctionCall
from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name, result_line
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.types import SourceLine

_MOST = 200  # pairs of a function and a parameter
_STEPS = 3  # that a parameter went without a gradient


class _Given:
    """A parameter that a function was given as it is."""

    def __init__(self, name: str, value: Any, line: SourceLine | None) -> None:
        self.name = name
        self.ref = weakref.ref(value)
        self.line = line
        self.without = 0  # steps of an optimizer that holds it


@detector("missing-gradient")
class Withheld(Detector):
    """An optimizer holds a parameter whose gradient is None in every step, and the backward of the custom function that
    takes it returns None for it: also where the forward rounds, so that its numeric derivative says nothing.

    Evidence: ``.grad`` as the optimizer stepped, what backward returned.
    Mistaken for: nothing known; a parameter with a gradient from elsewhere is not told, nor one of no optimizer.
    Cost: per call of a custom function a look at its arguments, per step one at the gradients of what these were.
    """

    needs = Need.FUNCTIONS | Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._given: dict[tuple[type, int, int], _Given] = {}  # by function, place and id of the parameter
        self._fine: set[tuple[type, int, int]] = set()  # those that got a gradient
        self._none: dict[type, set[int]] = {}  # places at which each backward so far returned None

    def applied(self) -> bool:
        return bool(self._given)

    def function(self, call: FunctionCall) -> None:
        if call.error is not None:
            return
        if call.phase == "forward":
            self._took(call)
        elif isinstance(call.results, (tuple, list)):
            places = {place for place, each in enumerate(call.results) if each is None}
            self._none[call.function] = self._none.get(call.function, places) & places

    def _took(self, call: FunctionCall) -> None:
        backend = self.facts.backend
        for place, value in enumerate(call.arguments):
            key = (call.function, place, id(value))
            if key in self._given or key in self._fine or not backend.is_tensor(value):
                continue
            name = self.facts.name_of(value) if backend.meta(value).requires_grad else ""
            if name and len(self._given) + len(self._fine) < _MOST:
                self._given[key] = _Given(name, value, call.line)

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or not self._given:
            return
        held = set(map(id, event.tensors))
        for key, given in tuple(self._given.items()):
            value = given.ref()
            if value is None or self.facts.backend.gradient_of(value) is not None:
                del self._given[key]
                self._fine.add(key)
            elif id(value) in held:
                given.without += 1

    def end(self) -> None:
        told = [each for each in self.facts.findings.values() if each.kind == "missing-gradient"]
        known = {each.cause.line for each in told if each.cause and each.severity != "note"}
        for function, places in self._none.items():
            for place in sorted(places):
                members = [
                    given for (which, at, _), given in self._given.items()
                    if which is function and at == place and given.without >= _STEPS
                ]  # fmt: skip
                cause = result_line(function, place)
                if members and (cause is None or cause.line not in known):
                    self._tell(function, place, cause, members)

    def _tell(self, function: type, place: int, cause: SourceLine | None, members: list[_Given]) -> None:
        facts = self.facts
        names = facts.some([given.name for given in members])
        verb = "gets" if len(members) == 1 else "get"
        argument = argument_name(function, place)
        name = function.__name__
        facts.tell(
            Finding(
                0, "missing-gradient", "error", 0.9,
                f"{names} {verb} no gradient: {name}.backward returns None as the gradient of {argument}",
                node=FoundAt(name=f"{name}Backward" if facts.backend.name == "torch" else None), iteration=1,
                forward=members[0].line, cause=facts.cause(cause),
                evidence=[
                    f".grad of {names} was None in each of {members[0].without} steps of the optimizer that holds it",
                    f"{name}.backward returned None at place {place + 1}, for {argument}, in every call",
                ],
                next=[f"b *{name}* after", "info node"],
            )
        )  # fmt: skip
