"""Values of a graph that are changed between the operator that made them and one that takes them, through a tensor that
shares their memory (``h.data.mul_(mask)``, ``h.detach().zero_()``): no node knows of it, and the gradient is that of a
forward without the change. What a node saved is the business of ``silent``.

Asked by ``in_place`` as a sampled backward begins.
"""

from __future__ import annotations

import ast
import linecache
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.functions.surrogates import STEPS, WORDS
from adbg.engine.diagnosis.detectors.graphs.calls import place, plain
from adbg.engine.diagnosis.detectors.graphs.silent import overlap, span_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import called_name, nodes_of, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 64  # changes before one backward
_PRUNED = 2_000  # tensors from which on those that are gone are forgotten
#: They write into a tensor that has a graph, and leave the graph as it was.
_ASSIGN = frozenset({"set_data", "set_value"})
#: What they make has the values of what they take: it is made to be changed.
_SAME = frozenset({"clone", "assign", "contiguous"})
#: They may change nothing: limits that no value is beyond.
_LIMITS = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num", "clip_by_value"})
#: Noise, say: what is added takes no gradient, and what it is added to takes the whole.
_SUMS = frozenset({"add", "sub", "subtract"})
_HUGE = 1e3  # minus that in front of a softmax: what is masked so has no gradient in any case
_MEANT = re.compile(r"quanti[sz]|binari[sz]|ternari[sz]|on purpose|no gradient", re.I)
Addresses = frozenset[int]


@dataclass(slots=True)
class _Made:
    ref: Any
    name: str
    line: SourceLine | None


@dataclass(slots=True)
class _Change:
    name: str
    line: SourceLine | None
    where: Addresses
    made: _Made
    maker: int  # address of the node
    meant: str  # why it may be
    takers: list[tuple[int, SourceLine | None]] = field(default_factory=list)  # nodes of what was made of it later


class Untracked:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._made: dict[int, _Made] = {}  # by memory: the first tensor with a graph that lies there
        self._changes: list[_Change] = []
        self._told: set[tuple[str, int]] = set()

    # ---- told of operators

    def made(self, call: OperatorCall, line: SourceLine | None, value: Any, where: Addresses) -> None:
        known: _Made | None = None
        for at in where:
            before = self._made.get(at)
            if before is None or before.ref() is None:  # else a view of that one
                known = known or _Made(weakref.ref(value), call.name, line)
                self._made[at] = known
        if len(self._made) > _PRUNED:
            self._made = {at: each for at, each in self._made.items() if each.ref() is not None}
            if 2 * len(self._made) > _PRUNED:
                self._made.clear()

    def wrote(self, call: OperatorCall, line: SourceLine | None, value: Any, where: Addresses) -> None:
        """Behind a write. With gradients off it is on purpose, and a tensor that has a graph behind it is known to
        autograd."""
        if not call.grad_mode or call.in_backward or len(self._changes) >= _MOST:
            return
        backend = self.facts.backend
        if backend.has_graph(value):
            if call.name not in _ASSIGN:
                return
            known = next((each for each in self._made.values() if each.ref() is value), None)
        else:
            known = next((each for at in where if (each := self._made.get(at)) is not None), None)
        target = known.ref() if known is not None else None
        if known is None or target is None or not backend.has_graph(target):
            return
        if target is not value and not overlap(span_of(value), span_of(target)):
            return
        maker = backend.node_address(target.grad_fn)
        if maker is not None:
            meant = self._meant(call, line, known)
            self._changes.append(_Change(call.name, line, where, known, maker, meant))

    def took(self, results: Any, line: SourceLine | None, value: Any, where: Addresses) -> None:
        """An operator that makes nodes took it."""
        for change in self._changes:
            target = change.made.ref()
            mine = target is value or (where & change.where and target is not None)
            if mine and self.facts.backend.has_graph(value):
                address = self.facts.backend.node_address(results.grad_fn)
                if address is not None and address != change.maker:
                    change.takers.append((address, line))

    @property
    def waiting(self) -> bool:
        return bool(self._changes)

    # ---- telling

    def report(self, running: Running, told: set[tuple[str, int]]) -> None:
        """``told``: lines of writes that were told of as overwriting what is saved."""
        changes, self._changes = self._changes, []
        if not any(each.takers for each in changes):
            return
        call = running.call
        keys = {call.address(key): key for key in call.order()}
        for change in changes:
            at = (change.line.file, change.line.line) if change.line is not None else ("", 0)
            maker = keys.get(change.maker)
            taker = next(((keys[node], line) for node, line in change.takers if node in keys), None)
            if maker is None or taker is None or at in told or at in self._told:
                continue
            self._told.add(at)
            self._tell(running, change, maker, taker[1])

    def _tell(self, running: Running, change: _Change, maker: int, taken: SourceLine | None) -> None:
        facts = self.facts
        node, forward = facts.node(running.call, maker)
        forward = forward or change.made.line
        name = node.unique_name or change.made.name
        message = (
            f"{change.name} at {place(change.line)} changes what {name} made behind autograd's back: gradients flow "
            f"into {name} as if it had not (what was set to 0 gets one, too); use an ordinary operator instead, "
            "h = h * mask, or torch.no_grad() around it where that is meant"
        )
        if facts.backend.name != "torch":
            message = message.replace("torch.", f"{facts.backend.name}.")
        if change.meant:
            message += f"; {change.meant}"
        evidence = [
            f"{change.made.name} at {place(change.made.line)} made the tensor, of which {name} is the node",
            f"{change.name} at {place(change.line)} wrote into its memory, and made no node",
            f"an operator at {place(taken)} took the changed values, and backward {running.call.number} runs through "
            "both nodes",
        ]
        severity, sure = ("note", 0.4) if change.meant else ("warning", 0.7)
        facts.tell(
            Finding(0, "silent-overwrite", severity, sure, message, node, running.call.number, None, forward,
                    facts.cause(change.line), evidence, [f"b {node.unique_name}" if node.unique_name else "info graph"])
        )  # fmt: skip

    def _meant(self, call: OperatorCall, line: SourceLine | None, known: _Made) -> str:
        """Why the change may be meant to pass gradients as if it were not there, or changes none; "" for no reason."""
        name = plain(call.name)
        if name in STEPS or plain(known.name) in _SAME:
            return "a straight-through estimator does so on purpose"
        if name in _LIMITS:
            return "a limit that no value is beyond changes nothing"
        if name in _SUMS:
            return "the gradient of a sum is passed on as it is"
        given = [each for each in (*call.arguments, *call.keywords.values()) if isinstance(each, (int, float))]
        if any(abs(each) >= _HUGE for each in given):
            return "what a softmax makes 0 of has no gradient in any case"
        for each in (line, known.line):
            if each is not None and _says_so(each):
                return "what is rounded passes its gradient straight through on purpose"
        return ""


def _says_so(line: SourceLine) -> bool:
    """Whether the function that the line is in rounds something, or it or its class says that it is an estimator."""
    scope = scope_at(line.file, line.line)
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    if any(called_name(node).rstrip("_") in STEPS for node in ast.walk(scope)):
        return True
    lines = linecache.getlines(line.file)[max(0, scope.lineno - 3) : scope.end_lineno]
    text = "\n".join([*lines, *_classes_around(line)])
    return WORDS.search(text) is not None or _MEANT.search(text) is not None


def _classes_around(line: SourceLine) -> Iterator[str]:
    for node in nodes_of(line.file):
        if isinstance(node, ast.ClassDef) and node.lineno <= line.line <= (node.end_lineno or 0):
            yield f"{node.name}\n{ast.get_docstring(node) or ''}"
