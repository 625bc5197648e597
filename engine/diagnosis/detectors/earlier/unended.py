"""Graphs that variables keep from forward to forward where no backward comes any more: an evaluation outside of
``no_grad``."""

from __future__ import annotations

import ast
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, detector
from adbg.engine.diagnosis.source import inside, scope_at, tree_of
from adbg.engine.inspect.memory.growth import Held, Look, Size, grows, is_bounded, owners_first
from adbg.engine.inspect.memory.owners import Group, figures, groups_of, owner_of_group, reach_of
from adbg.engine.protocol.messages import Finding, Owner
from adbg.engine.python.user_code import user_frame
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_FIRST = 16  # forwards after a backward at which variables are looked at first
_LOOKS = 3
_SECONDS = 1.0  # of a run that is spent on looks
_FEW = 4  # tensors of a variable whose graphs are counted
_MOST_NODES = 10_000  # of one such graph, as ``memory/growth.py`` has it
_STILL = 1_000  # and where it has half as many: whether it is still there
_PACE = 0.25  # tensors, or nodes, that a variable gains with each forward
_MANY = 128  # forwards after which a local variable with one tensor, or what is cut somewhere, is told as a warning
_CUTS = frozenset(("detach", "detach_", "clear", "pop", "popleft", "popitem", "item"))


@dataclass(slots=True)
class _Growing:
    """A variable whose graphs grew at three looks in a row. ``fed``: ``line`` makes its value of what it had, or puts
    something into it; any other has only what is there. ``plain``: a local variable that is no container. ``cut``: see
    ``_is_cut``."""

    path: str
    line: SourceLine
    fed: bool
    nodes: bool
    counts: list[tuple[int, int]]  # forwards, and nodes or tensors
    plain: bool
    cut: bool


@detector("graph-kept")
class GraphKeptOn(Detector):
    """A variable keeps the graph of every forward, and no backward comes any more: a hidden state that is fed back, or
    a list of outputs, in an evaluation that runs outside of ``no_grad``.

    Evidence: how many nodes of earlier forwards, or tensors with a graph, the variable held at three looks or more, the
    number of forwards between these, that no backward has begun since, the line that gives it its value.
    Mistaken for: a last forward whose loss is still there, outputs of longer and longer inputs (no node of an earlier
    forward), what is reset or emptied at times (less at a later look), a loss that is unrolled over many forwards
    before its backward (fewer than twice what came between two backwards before; where an exception or Ctrl-C ends the
    program, a note). Below 128 forwards a local variable with a single tensor, or one that the source cuts somewhere,
    is a note.
    Cost: a few values per forward of an outermost module; 1-100 ms after 16, 24, 32, 48, 72, ... forwards with a graph
    without a backward, twice the usual number at least, and 1 s in all.
    """

    needs = Need.MODULES

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._usual = 0  # forwards of one module with a graph between two backwards, the most so far
        self._spent = 0.0
        self._kind = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._calls: dict[int, int] = {}  # by id of an outermost module: its forwards since the last backward
        self._next = self._first = max(_FIRST, 2 * self._usual + 1)
        self._looks: list[Look] = []
        self._held = Held()
        self._mark: int | None = None
        self._found: dict[str, _Growing] = {}
        self._fell: set[str] = set()  # variables that held less again
        self._deep: set[str] = set()  # whose graphs are not counted through any more

    def applied(self) -> bool:
        return bool(self._usual or self._calls)

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            self._usual = max(self._usual, max(self._calls.values(), default=0))
            self._begin_anew()

    def module_end(self, call: ModuleCall) -> None:
        if not (call.outermost and call.grad_mode) or threading.current_thread() is not threading.main_thread():
            return
        backend = self.facts.backend
        if not any(backend.has_graph(each) for each in _tensors(backend, call.results, 3)):
            return
        count = self._calls[id(call.module)] = self._calls.get(id(call.module), 0) + 1
        if self._mark is None:
            self._mark = backend.keeping.forward_mark()
        if count >= self._next and self._spent < _SECONDS:
            self._next += max(self._first // 2, self._next // 2 if len(self._looks) >= _LOOKS - 1 else 0)
            self._kind = type(call.module).__name__
            self._look(count)

    def _look(self, count: int, last: bool = False) -> None:
        """``last``: as the program ends, when functions have returned."""
        backend, began = self.facts.backend, time.perf_counter()
        reach = reach_of([backend], user_frame(sys._getframe())).walk()
        groups: dict[str, Group] = {}
        try:
            if reach.cut:  # too many objects
                self._spent = _SECONDS
                return
            tensors = [each for each in reach.tensors.values() if backend.is_tensor(each) and backend.has_graph(each)]
            groups = self._held.renamed(groups_of(reach, tensors))
            sizes = self._held.compared(groups, {name: self._size(name, group) for name, group in groups.items()})
            if last:
                sizes.update((name, size) for name, size in self._looks[-1].sizes.items() if name.startswith("local "))
            before = self._looks[-1] if self._looks else None
            self._looks = [*self._looks[1 - _LOOKS :], Look(count, sizes)]
            self._mark = backend.keeping.forward_mark()
            if before is not None:
                self._forget(before, sizes)
            if not last:
                self._find(groups)
        finally:
            groups.clear()
            reach.release()
            self._spent += time.perf_counter() - began

    def _size(self, name: str, group: Group) -> Size:
        backend = self.facts.backend
        graphs, nbytes = figures(backend, group.members.values())
        older = 0
        if len(group.members) <= _FEW and self._mark is not None:
            deep = name in self._deep
            mark = (deep and backend.keeping.forward_mark()) or self._mark
            most = _STILL if deep else _MOST_NODES
            older = max(backend.keeping.nodes_before(each, mark, most) for each in group.members.values())
            if older >= _MOST_NODES // 2:
                self._deep.add(name)
        return Size(len(group.members), graphs, nbytes, older)

    def _forget(self, before: Look, sizes: Any) -> None:
        """Of what grew: what is gone, or less."""
        for name, size in before.sizes.items():
            now = sizes.get(name)
            few = min(size.older, _STILL // 2) if name in self._deep else size.older  # a leaf's node has no number
            if now is None or now.graphs < size.graphs or now.older < few:
                self._found.pop(name, None)
                self._fell.add(name)

    def _find(self, groups: dict[str, Group]) -> None:
        looks = self._looks
        if len(looks) < _LOOKS:
            return
        found = {name: group for name, group in groups.items() if name not in self._fell and not is_bounded(group.way)}
        how = {name: by for name in found if name not in self._deep and (by := self._grew(name))}
        chosen = owners_first({name: found[name] for name in [*how, *self._found] if name in found})
        for name in chosen:
            if name in self._found:
                kept = self._found[name]
                size = looks[-1].sizes[name]
                if not kept.nodes:
                    kept.counts.append((looks[-1].iteration, size.graphs))
                elif name not in self._deep:
                    kept.counts.append((looks[-1].iteration, size.older))
            elif (made := self._growing(found[name], how[name] == "nodes")) is not None:
                made.counts = [(look.iteration, self._counted(look.sizes[name], made.nodes)) for look in looks]
                self._found[name] = made

    @staticmethod
    def _counted(size: Size, nodes: bool) -> int:
        return size.older if nodes else size.graphs

    def _grew(self, name: str) -> str:
        """By what, as ``growth.grows`` has it, and with nearly every forward."""
        by = grows(self._looks, name)
        if not by:
            return ""
        first, last = self._looks[0], self._looks[-1]
        counts = [self._counted(each.sizes[name], by == "nodes") for each in (first, last)]
        return by if counts[1] - counts[0] >= _PACE * (last.iteration - first.iteration) else ""

    def _growing(self, group: Group, nodes: bool) -> _Growing | None:
        owner = owner_of_group(group, self.facts.backend)
        fed = owner.filled
        if fed is None and owner.where is not None and owner.path.isidentifier():
            fed = _fed_back(owner.path, owner.where)
        line = fed or owner.where
        if line is None:
            return None
        plain = group.root.kind == "local" and owner.path.isidentifier()
        return _Growing(owner.path, line, fed is not None, nodes, [], plain, _is_cut(owner, line))

    def end(self) -> None:
        if not self._found or self.facts.at_backward:
            return
        count = max(self._calls.values())
        if any(not name.startswith("local ") for name in self._found):
            self._look(count, last=True)
        fed = any(kept.nodes and kept.fed for kept in self._found.values())
        for kept in self._found.values():
            if kept.fed or not (kept.nodes and fed):
                self._tell(kept, count)

    def _tell(self, kept: _Growing, count: int) -> None:
        facts = self.facts
        held = ", ".join(f"{number} (after {forwards} forwards)" for forwards, number in kept.counts)
        what = "the graphs of all earlier forwards" if kept.nodes else f"{kept.counts[-1][1]} tensors with their graphs"
        since = f"since that of iteration {facts.iteration}" if facts.iteration else "in this program"
        evidence = [
            f"{'nodes of earlier forwards' if kept.nodes else 'tensors with a graph'} that {kept.path} holds: {held}",
            f"no backward has begun {since}; {self._kind} ran {count} times with its graph recorded",
        ]
        few = (kept.plain or kept.cut) and count < _MANY
        if facts.cut_short:
            evidence.append("the program did not come to its end: a backward that goes through these may have been due")
        weak = few or facts.cut_short
        facts.tell(
            Finding(
                0, "graph-kept", "note" if weak else "warning", 0.4 if weak else 0.86,
                f"{kept.path} keeps {what}, and no backward comes for them: memory grows with each forward; "
                "run it under no_grad(), or keep a detached tensor",
                cause=facts.cause(kept.line), evidence=evidence, next=["why alive", "info memory"],
            )
        )  # fmt: skip


def _tensors(backend: Any, value: Any, depth: int) -> Iterator[Any]:
    """The first few in what a forward returned."""
    if backend.is_tensor(value):
        yield value
    elif depth and isinstance(value, (list, tuple, dict)):
        for each in list(value.values() if isinstance(value, dict) else value)[:_FEW]:
            yield from _tensors(backend, each, depth - 1)


def _fed_back(name: str, line: SourceLine) -> SourceLine | None:
    """The line that gives a variable its value in a loop that took it before: ``h = new`` after ``new = cell(h)``."""
    scope = scope_at(line.file, line.line)
    for loop in inside(scope) if scope is not None else ():
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        named = [each for each in ast.walk(loop) if isinstance(each, ast.Name) and each.id == name]
        stores = [each.lineno for each in named if isinstance(each.ctx, ast.Store)]
        loads = [each.lineno for each in named if isinstance(each.ctx, ast.Load)]
        if stores and loads and min(loads) <= min(stores):
            return SourceLine(line.file, stores[-1], line.function)
    return None


def _is_cut(owner: Owner, line: SourceLine) -> bool:
    """Whether the source takes its graph from a variable somewhere, or things out of it: of an attribute anywhere in
    the file, of any other variable in its function."""
    names = re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", owner.path))
    name, attribute = (names[-1], "." in owner.path) if names else ("", False)
    scope = tree_of(line.file) if attribute else scope_at(line.file, line.line)

    def is_it(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == name if attribute else (
            isinstance(node, ast.Name) and node.id == name
        )  # fmt: skip

    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CUTS:
            if is_it(node.func.value):
                return True
        elif isinstance(node, ast.Delete):
            if any(is_it(each.value) for each in node.targets if isinstance(each, ast.Subscript)):
                return True
        elif isinstance(node, ast.Assign) and any(map(is_it, node.targets)):
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(value, ast.Subscript) or (isinstance(value, ast.Attribute) and value.attr in _CUTS):
                return True
    return False
