"""Custom functions whose backward writes into the gradient that it is given."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import FunctionCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name
from adbg.engine.diagnosis.detectors.functions.writes import BACKWARD, writes_to
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running, Visit


@detector("function-input-overwritten")
class OverwrittenGradient(Detector):
    """The backward of a custom function writes into the gradient that it is given. An addition hands one and the same
    tensor to everything that was added, so what lies on the other way (a skip connection) gets the changed values.

    Evidence: the version of the gradient before and after backward; the node that gave that memory to more than one.
    Mistaken for: a gradient that nothing else is given, where the result is right: a note.
    Cost: a look at the versions per backward of a custom function; in sampled iterations at the memory of what a node
    gives, where it is more than one gradient.
    """

    needs = Need.FUNCTIONS
    gradients = True

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._shared: dict[int, str] = {}  # where a gradient lies that one node gave to several: that node
        self._seen: set[type] = set()
        self._told: dict[tuple[type, int], int | None] = {}  # the finding, while it is a note

    def applied(self) -> bool:
        return bool(self._seen)

    def backward_begin(self, running: Running) -> None:
        self._shared.clear()

    def node_end(self, visit: Visit) -> None:
        given = [each for each in visit.ins or () if self.facts.backend.is_tensor(each)]  # Paddle hides some
        if len(given) < 2:
            return
        known: set[int] = set()
        for each in given:
            for place, _ in self.facts.backend.storages(each):
                if place in known:
                    name = visit.running.call.name(visit.key)
                    self._shared[place] = self.facts.node(visit.running.call, visit.key)[0].unique_name or name
                known.add(place)

    def function(self, call: FunctionCall) -> None:
        if call.phase != "backward" or call.error is not None:
            return
        self._seen.add(call.function)
        if not self.facts.sampled:
            return
        backend = self.facts.backend
        for place, (value, before) in enumerate(zip(call.arguments, call.versions)):
            if before is not None and backend.version_of(value) != before:
                shared = next((self._shared[at] for at, _ in backend.storages(value) if at in self._shared), "")
                self._tell(call, place, shared, f"{before} before {call.function.__name__}.backward, "
                           f"{backend.version_of(value)} after it")  # fmt: skip

    def _tell(self, call: FunctionCall, place: int, shared: str, versions: str) -> None:
        key, facts = (call.function, place), self.facts
        known = self._told.get(key)
        if key in self._told and (known is None or not shared):
            return
        if known is not None:
            facts.take_back(known)
        name, argument = call.function.__name__, argument_name(call.function, place, "backward")
        line = writes_to(call.function, argument, BACKWARD)
        message = f"{name}.backward writes into the gradient that it is given ({argument}): "
        evidence = [f"the version of {argument} is {versions}"]
        if shared:
            message += f"{shared} gave the same tensor to another node too, which gets the changed values"
            evidence.append(f"two of the gradients that {shared} gave lie in the same memory")
        else:
            message += "right as long as nothing else is given that tensor"
            evidence.append("no node was seen to give it to more than one: where one does, this is wrong")
        told = facts.tell(
            Finding(
                0, "function-input-overwritten", "error" if shared else "note", 0.92 if shared else 0.4, message,
                cause=facts.cause(line), evidence=[*evidence, f"clone it: {argument} = {argument}.clone()"],
                next=[f"b *{name}*"],
            )
        )  # fmt: skip
        self._told[key] = None if shared else told
