"""Custom functions whose backward writes into the gradient that it is given, or into what forward saved for it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import FunctionCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name
from adbg.engine.diagnosis.detectors.functions.writes import BACKWARD, FORWARD, nodes, writes_to
from adbg.engine.diagnosis.detectors.graphs.silent import EVERYWHERE, overlap, span_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import SourceLine

_LARGEST = 4 << 20  # elements of an argument whose bytes are summed
_CONTEXTS = 256  # whose backward is to come
_PLACES = 16  # arguments of a function
_NODES = 5_000  # of a graph, whose saved tensors are looked at once
# Where a framework hides what its nodes saved: those that save what they give.
_SAVE_RESULT = ("Exp", "Tanh", "Sigmoid", "Softmax", "Sqrt", "Rsqrt", "Relu", "Elu", "Reciprocal")


@dataclass(frozen=True, slots=True)
class _Writes:
    """A line of backward that writes into an argument of forward. ``saved``: the how manieth it is of what forward
    saves."""

    place: int
    saved: int
    name: str
    line: SourceLine


@detector("function-input-overwritten")
class OverwrittenGradient(Detector):
    """The backward of a custom function writes into the gradient that it is given. An addition hands one and the same
    tensor to everything that was added, so what lies on the other way (a skip connection) gets the changed values.
    Or it writes past autograd (``out=x.data``) into an argument that forward saved, as a buffer for its gradient, and
    the node that made that argument (``exp``, which saves its result), or another one that saved it, is yet to run.

    Evidence: the version of the gradient before and after backward; the node that gave that memory to more than one. Of
    an argument: its bytes after forward and after backward, and the node that saved the same memory.
    Mistaken for: a gradient that nothing else is given, where the result is right: a note. An argument that no other
    node saved is not told of.
    Cost: a look at the versions per backward of a custom function; in sampled iterations at the memory of what a node
    gives, where it is more than one gradient, and a sum over the bytes of an argument that its source writes to.
    """

    needs = Need.FUNCTIONS
    gradients = True

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._shared: dict[int, str] = {}  # where a gradient lies that one node gave to several: that node
        self._seen: set[type] = set()
        self._told: dict[tuple[type, int], int | None] = {}  # the finding, while it is a note
        self._recycled = Recycled(facts)

    def applied(self) -> bool:
        return bool(self._seen)

    def backward_begin(self, running: Running) -> None:
        self._shared.clear()

    def node_end(self, visit: Visit) -> None:
        self._recycled.node_end(visit)
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
        if self.facts.sampled and call.error is None:
            self._recycled.function(call)
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


class Recycled:
    """Arguments that backward writes its gradients into, past autograd, while others need their values."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._functions: dict[type, tuple[_Writes, ...]] = {}
        self._kept: dict[int, dict[int, int]] = {}  # by id of the context, by place: digest of what forward was given
        # By the node that ends next: where it lies, in which memory and which part of it.
        self._changed: list[tuple[type, _Writes, frozenset[int], tuple[int, int]]] = []
        self._hidden = not facts.backend.capabilities.saved_tensors
        self._ended: tuple[Any, int] | None = None  # the node that did: on Paddle before its function is told of

    def function(self, call: FunctionCall) -> None:
        writes = self._functions.get(call.function)
        if writes is None:
            writes = self._functions[call.function] = _written_by(call.function)
        if not writes or call.context is None:
            return
        if call.phase == "forward":
            if len(self._kept) < _CONTEXTS:
                given = {each.place: call.arguments[each.place] for each in writes if each.place < len(call.arguments)}
                found = {place: self._digest(value) for place, value in given.items() if self._has_graph(value)}
                self._kept[id(call.context)] = {place: each for place, each in found.items() if each is not None}
            return
        self._changed = []
        before = self._kept.pop(id(call.context), {})
        for each in writes if before else ():
            value = _saved(call.context, each.saved)
            if each.place in before and self._digest(value) not in (None, before[each.place]):
                where = frozenset(at for at, _ in self._facts.backend.storages(value))
                self._changed.append((call.function, each, where, span_of(value)))
        ended, self._ended = self._ended, None
        if ended is not None:
            self._judge(*ended)

    def node_end(self, visit: Visit) -> None:
        custom = visit.running.call.is_custom(visit.key)
        if self._hidden:
            self._ended = (visit.running.call, visit.key) if custom else None
        elif custom:
            self._judge(visit.running.call, visit.key)

    def _judge(self, call: Any, key: int) -> None:
        changed, self._changed = self._changed, []
        for function, write, where, span in changed:
            other = self._needed_by(call, key, where, span)
            if other is not None:
                self._tell(call, key, function, write, other)

    def _needed_by(self, call: Any, key: int, where: frozenset[int], span: tuple[int, int]) -> int | None:
        """A node that is yet to run and saved what lies there: not the other half of a tensor that was cut in two."""
        if self._hidden:
            made = [edge.to for edge in call.edges(key) if edge.to is not None]
            return next((each for each in made if call.name(each).startswith(_SAVE_RESULT)), None)
        order, storages = call.order() if call.count() <= _NODES else (), self._facts.backend.storages
        for each in order[order.index(key) + 1 :] if key in order else ():
            saved = (one.value for one in call.saved(each) if self._facts.backend.is_tensor(one.value))
            if any(at in where and _meet(span, span_of(value)) for value in saved for at, _ in storages(value)):
                return int(each)
        return None

    def _tell(self, call: Any, key: int, function: type, write: _Writes, other: int) -> None:
        facts, name = self._facts, function.__name__
        node, forward = facts.node(call, key)
        needs = call.describe(other)
        facts.tell(
            Finding(
                0, "function-input-overwritten", "error", 0.92,
                f"{name}.backward writes into {write.name}, which its forward was given: {needs.unique_name}, which "
                "runs after it, saved the same memory, and computes its gradient of the changed values",
                node=node, backward=call.number, forward=forward, cause=facts.cause(write.line),
                evidence=[
                    f"the bytes of {write.name} are other ones after {name}.backward than after its forward",
                    f"{needs.unique_name} was made at {needs.forward.file}:{needs.forward.line}"
                    if needs.forward is not None else f"{needs.unique_name} saved it",
                    f"write the gradient into a tensor of its own: {name} alone does not own {write.name}",
                ],
                next=[f"b *{name}* after", f"b {needs.unique_name}"],
            )
        )  # fmt: skip

    def _has_graph(self, value: Any) -> bool:
        return self._facts.backend.is_tensor(value) and self._facts.backend.has_graph(value)

    def _digest(self, value: Any) -> int | None:
        backend = self._facts.backend
        if not backend.is_tensor(value) or backend.meta(value).numel > _LARGEST:
            return None
        return self._facts.digest(value)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Of views with gaps it is not known: the columns of a tensor that was cut in two lie between each other."""
    return EVERYWHERE not in (one, other) and overlap(one, other)


def _saved(context: Any, place: int) -> Any:
    with suppress(Exception):  # freed, or hooks on saved tensors refuse
        saved = context.saved_tensors if hasattr(context, "saved_tensors") else context.saved_tensor()
        return saved[place] if place < len(saved) else None
    return None


def _written_by(function: type) -> tuple[_Writes, ...]:
    """By the names under which backward takes what forward saved, as far as both say them."""
    given = [
        [each.id for each in node.args if isinstance(each, ast.Name)]
        for _, node in nodes(function, FORWARD)
        if isinstance(node, ast.Call) and called_name(node) == "save_for_backward"
    ]  # fmt: skip
    taken = [
        [each.id for each in node.targets[0].elts if isinstance(each, ast.Name)]
        if isinstance(node.targets[0], (ast.Tuple, ast.List)) else [ast.unparse(node.targets[0])]
        for _, node in nodes(function, BACKWARD)
        if isinstance(node, ast.Assign) and "saved_tensor" in ast.unparse(node.value)
    ]  # fmt: skip
    if len(given) != 1 or len(taken) != 1 or len(given[0]) != len(taken[0]):
        return ()
    places = {argument_name(function, place): place for place in range(_PLACES)}
    found = []
    for saved, (kept, name) in enumerate(zip(given[0], taken[0])):
        line = writes_to(function, name, BACKWARD) if kept in places else None
        if line is not None:
            found.append(_Writes(places[kept], saved, name, line))
    return tuple(found)
