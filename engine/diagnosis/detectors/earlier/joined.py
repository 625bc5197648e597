"""Backwards that reach into the graph of an earlier one: which nodes join the two, and what reaches further back each
time."""

from __future__ import annotations

import collections
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.backends.base import BackwardCall, OptimizerEvent
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.earlier.carried import cached, carried, filled_on, kept_on
from adbg.engine.diagnosis.detectors.earlier.holding import holding
from adbg.engine.diagnosis.detectors.earlier.partly import Partly, partly
from adbg.engine.diagnosis.detectors.earlier.together import Place, is_behind
from adbg.engine.diagnosis.source import assigned_on
from adbg.engine.frames import forget_stack
from adbg.engine.own_files import is_library
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 8  # calls that are remembered
_LARGEST = 5_000  # nodes of a call whose addresses are remembered, where nodes have no numbers
_RISING = 4  # backwards in a row, each of more nodes than the one before


@dataclass(slots=True)
class Call:
    """An outermost backward that began. ``mark``: nodes made from then on have higher numbers; None where the nodes of
    this one have no numbers."""

    number: int
    location: SourceLine | None
    mark: int | None
    nodes: frozenset[int]
    root: int
    count: int
    stepped: bool = False  # an optimizer stepped since
    calls: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """Node ``newer`` of this graph takes what ``older`` of an earlier one made."""

    newer: int
    older: int


class Joining(Detector):
    """What both detectors know: the calls so far, and which nodes of a graph are older than one of them."""

    needs = Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self.earlier: collections.deque[Call] = collections.deque(maxlen=_MOST)
        self.begun = 0
        self.partly: Partly | None = None  # what ``joined_at`` found last, where that is why

    def applied(self) -> bool:
        return self.begun > 1

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "stepped" and self.earlier:
            self.earlier[-1].stepped = True

    def remember(self, call: BackwardCall) -> Call:
        roots = call.roots()
        keeping = self.facts.backend.keeping
        mark = keeping.forward_mark() if roots and keeping.number_of(call, roots[0]) is not None else None
        count = call.count()
        nodes: frozenset[int] = frozenset()
        if mark is None and count <= _LARGEST:
            nodes = frozenset([call.address(key) for key in call.order()])
        root = call.address(roots[0]) if roots else 0
        found = Call(call.number, call.location, mark, nodes, root, count)
        self.earlier.append(found)
        self.begun += 1
        return found

    def is_older(self, call: BackwardCall, key: int, than: Call) -> bool:
        """Whether node ``key`` was there when ``than`` began."""
        if call.is_accumulate(key):
            return False
        if than.mark is None:
            return call.address(key) in than.nodes
        number = self.facts.backend.keeping.number_of(call, key)
        return number is not None and number < than.mark

    def links(self, call: BackwardCall, than: Call, through: int | None, known: set[int] | None = None) -> list[Link]:
        """Where this graph goes over into an older one, first to run first; only where that leads to ``through``.
        ``known``: what ``older`` returned."""
        older = set(known) if known is not None else self.older(call, than)
        older |= self._behind(call, than, older)
        leads = above(call, through) if through is not None else older
        found = []
        for key in call.order():
            if key not in older and not call.is_accumulate(key):
                found += [
                    Link(key, e.to) for e in call.edges(key) if e.to in older and (e.to in leads or e.to == through)
                ]
        return found

    def older(self, call: BackwardCall, than: Call) -> set[int]:
        """The nodes of this graph that were there when ``than`` began. Where they are known by their addresses, others
        may lie where nodes lay that are gone: but what is below a node was made before it, and was in that graph, too.
        """
        found = {key for key in call.order() if self.is_older(call, key, than)}
        if than.mark is not None:
            return found
        whole: set[int] = set()
        for key in reversed(call.order()):
            if key in found and all(
                edge.to is None or edge.to in whole or call.is_accumulate(edge.to) for edge in call.edges(key)
            ):
                whole.add(key)
        return whole

    @staticmethod
    def _behind(call: BackwardCall, than: Call, older: set[int]) -> set[int]:
        """The nodes made of older ones after ``than`` in its own iteration, as the source has it: a moving average
        that is brought up to date after the step. They join no graphs, what takes them in the next iteration does."""
        if not older or call.count() > _LARGEST:
            return set()
        behind = {key for key in call.order() if is_behind(lines_of(call, key), than.calls)}
        return set() if behind & set(call.roots()) else {key for key in behind - older if not call.is_accumulate(key)}

    def joined_at(self, call: BackwardCall, link: Link) -> tuple[SourceLine | None, str]:
        """The line that made what joins the graphs, in the function that carries it from one iteration to the next, and
        the variable that it gave it."""
        made, used = lines_of(call, link.older), lines_of(call, link.newer)
        self.partly = None
        shared: list[SourceLine] = []
        for mine, theirs in zip(made, used):
            if (mine.file, mine.function) != (theirs.file, theirs.function):
                break
            shared.append(mine)
            if mine.line != theirs.line:
                break
        if not shared:
            return (made[0] if made else None), ""
        for line in made[len(shared) :]:  # what a decorator kept did not run again, whatever took it since
            kept = cached(line)
            if kept is not None:
                return kept
        built = _built(made[len(shared) :], at_once=shared[-1] == used[len(shared) - 1])
        if built is not None:
            return built
        for line in reversed(shared):
            names = assigned_on(line.file, line.line)
            self.partly = partly(self.facts.backend, call, link.older, line, names) if names else None
            if self.partly is not None:
                return self.partly.line, self.partly.target
        running = _running_functions()
        plain: tuple[SourceLine, str] | None = None
        for line in reversed(shared):
            names = assigned_on(line.file, line.line)
            told = holding(self.facts.backend, call, link.older, line, names)
            found = kept_on(line, told)
            if found is not None:
                return found
            if names and (line.file, line.function) in running:
                if line not in used or carried(line, names):
                    return line, told[-1]
                plain = plain or (line, told[-1])
        # The line ran in both iterations, and nothing of what it gave went into the next one: what it called kept it.
        for line in made[len(shared) :]:
            found = kept_on(line, assigned_on(line.file, line.line) or filled_on(line))
            if found is not None:
                return found
        inner = shared[-1]
        if plain is not None and plain[0] != inner and plain[0] in used:  # 'loss', which nothing takes again
            return inner, only[0] if len(only := assigned_on(inner.file, inner.line)) == 1 else ""
        return plain or (inner, "")


def _built(made: Sequence[SourceLine], at_once: bool) -> tuple[SourceLine, str] | None:
    """Where the constructor of an object keeps what it made, of the innermost one: constructors return nothing.
    ``at_once``: the statement that builds the object also runs what takes it (``train(Model())``), and carries nothing:
    then it is the constructor that hands it on, however."""
    for line in reversed(made):
        if line.function.rpartition(".")[2] == "__init__":
            names = assigned_on(line.file, line.line)
            return kept_on(line, names) or ((line, names[-1] if names else "") if at_once else None)
    return None


def above(call: BackwardCall, key: int) -> set[int]:
    """The nodes that lead to ``key``, itself included."""
    consumers: dict[int, list[int]] = {}
    for each in call.order():
        for edge in call.edges(each):
            if edge.to is not None:
                consumers.setdefault(edge.to, []).append(each)
    found, todo = {key}, [key]
    while todo:
        for each in consumers.get(todo.pop(), ()):
            if each not in found:
                found.add(each)
                todo.append(each)
    return found


def lines_of(call: BackwardCall, key: int) -> list[SourceLine]:
    """The lines of the program that made a node, outermost first."""
    return [each for each in reversed(call.forward_stack(key)[0]) if not is_library(each.file)]


def _running_functions() -> set[tuple[str, str]]:
    found = set()
    frame: Any = sys._getframe(1)
    while frame is not None:
        found.add((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    forget_stack()
    return found


def place(line: SourceLine | None) -> str:
    return f"{line.file.rsplit('/', 1)[-1]}:{line.line}" if line is not None else "an unknown line"


@detector("graph-grows")
class GraphGrows(Joining):
    """Every backward runs further back than the one before: the history of earlier iterations is part of the graph,
    for something that is carried from one iteration to the next is never detached.

    Evidence: nodes per backward over the iterations, and the tensor that joins this graph to an earlier one.
    Gradients that vanish over so many iterations, and weights that steps in between have changed, are consequences.
    Mistaken for: a curriculum of longer sequences, which has no node of an earlier iteration.
    Cost: the count of nodes per backward.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._counts: dict[SourceLine | None, list[tuple[int, int]]] = {}
        self._told: set[SourceLine | None] = set()
        self._steps: set[tuple[str, int]] = set()  # where optimizers step
        self._id = 0  # of what was told first

    def optimizer(self, event: OptimizerEvent) -> None:
        super().optimizer(event)
        if event.what == "step" and event.line is not None and len(self._steps) < _MOST:
            self._steps.add((event.line.file, event.line.line))

    def end(self) -> None:
        """A graph of several iterations has nodes that need the weights as they were before the steps in between."""
        for each in list(self.facts.findings.values()) if self._id else ():
            line = each.cause
            if each.kind == "silent-overwrite" and line is not None and (line.file, line.line) in self._steps:
                self.facts.tell(replace(each, victim_of=self._id))

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) > 1:
            return
        call = running.call
        before = self.earlier[-1] if self.earlier else None
        now = self.remember(call)
        counts = self._counts.setdefault(call.location, [])
        if counts and now.count <= counts[-1][1]:
            counts.clear()
        counts.append((self.facts.iteration, now.count))
        del counts[1 : 1 - _RISING]  # the first one stays: a small layer adds few nodes each time
        if before is None or len(counts) < _RISING or call.location in self._told:
            return
        if counts[-1][1] >= 1.5 * counts[0][1] or counts[-1][1] - counts[0][1] >= 30:
            self._judge(call, before, counts)

    def _judge(self, call: BackwardCall, before: Call, counts: Sequence[tuple[int, int]]) -> None:
        there = self.older(call, before)
        if before.mark is None and 2 * len(there) < before.count:
            return  # known by addresses: a few nodes of an earlier graph may only lie where others lay
        links = self.links(call, before, None, there)
        if not links:
            return
        self._told.add(call.location)
        facts = self.facts
        line, name = self.joined_at(call, links[0])
        older, newer = call.describe(links[0].older), call.describe(links[0].newer)
        found, forward = facts.node(call, links[0].older)
        what = f"'{name}'" if name else f"the result of {older.unique_name}"
        id = facts.tell(
            Finding(
                0, "graph-grows", "warning", 0.88,
                f"{what}, made at {place(line)}, carries the graph of all earlier iterations into this one: "
                f"each backward "
                "takes longer than the one before; detach it there",
                node=found, backward=call.number, forward=forward, cause=facts.cause(line),
                evidence=[
                    "nodes per backward: " + ", ".join(f"{count} (iteration {when})" for when, count in counts),
                    f"{newer.unique_name} ({place(newer.forward)}) takes what {older.unique_name} "
                    f"({place(older.forward)}) made before the backward before",
                ],
                next=["info graph", "why alive"],
            )
        )  # fmt: skip
        self._id = self._id or id
