"""Backwards that reach into the graph of an earlier one: a second time through it, or further back each time."""

from __future__ import annotations

import ast
import collections
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import BackwardCall, OptimizerEvent
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.carried import cached, carried, kept_on
from adbg.engine.diagnosis.detectors.graphs.together import Place, calls_now, first_of, is_behind
from adbg.engine.diagnosis.source import assigned_on, inside, scope_at
from adbg.engine.diagnosis.values import is_library
from adbg.engine.frames import forget_stack
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_FREED = ("second time", "TensorWrappers of", "backward through the graph a second")
_MOST = 8  # calls that are remembered
_LARGEST = 5_000  # nodes of a call whose addresses are remembered, where nodes have no numbers


@dataclass(slots=True)
class _Call:
    """An outermost backward that began. ``mark``: nodes made from then on have higher numbers."""

    number: int
    location: SourceLine | None
    mark: int | None
    nodes: frozenset[int]
    root: int
    count: int
    stepped: bool = False  # an optimizer stepped since
    calls: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class _Link:
    """Node ``newer`` of this graph takes what ``older`` of an earlier one made."""

    newer: int
    older: int


class _Joining(Detector):
    """What both detectors know: the calls so far, and which nodes of a graph are older than one of them."""

    needs = Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self.earlier: collections.deque[_Call] = collections.deque(maxlen=_MOST)
        self.begun = 0

    def applied(self) -> bool:
        return self.begun > 1

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "stepped" and self.earlier:
            self.earlier[-1].stepped = True

    def remember(self, call: BackwardCall) -> _Call:
        roots = call.roots()
        numbered = bool(roots) and call.describe(roots[0]).seq is not None
        count = call.count()
        nodes: frozenset[int] = frozenset()
        if not numbered and count <= _LARGEST:
            nodes = frozenset([call.address(key) for key in call.order()])
        mark = self.facts.backend.made_so_far() if numbered else None
        root = call.address(roots[0]) if roots else 0
        found = _Call(call.number, call.location, mark, nodes, root, count)
        self.earlier.append(found)
        self.begun += 1
        return found

    @staticmethod
    def is_older(call: BackwardCall, key: int, than: _Call) -> bool:
        """Whether node ``key`` was there when ``than`` began."""
        if call.is_accumulate(key):
            return False
        number = call.describe(key).seq
        if number is not None and than.mark is not None:
            return number < than.mark
        return call.address(key) in than.nodes

    def links(self, call: BackwardCall, than: _Call, through: int | None) -> list[_Link]:
        """Where this graph goes over into an older one, first to run first; only where that leads to ``through``."""
        older = {key for key in call.order() if self.is_older(call, key, than)}
        older |= self._behind(call, than, older)
        leads = _above(call, through) if through is not None else older
        found = []
        for key in call.order():
            if key not in older and not call.is_accumulate(key):
                found += [
                    _Link(key, e.to) for e in call.edges(key) if e.to in older and (e.to in leads or e.to == through)
                ]
        return found

    @staticmethod
    def _behind(call: BackwardCall, than: _Call, older: set[int]) -> set[int]:
        """The nodes made of older ones behind ``than`` in its own iteration, as the source has it: a moving average
        that is brought up to date after the step. They join no graphs, what takes them in the next iteration does."""
        if not older or call.count() > _LARGEST:
            return set()
        behind = {key for key in call.order() if is_behind(_lines(call, key), than.calls)}
        return set() if behind & set(call.roots()) else {key for key in behind - older if not call.is_accumulate(key)}

    def joined_at(self, call: BackwardCall, link: _Link) -> tuple[SourceLine | None, str]:
        """The line that made what joins the graphs, in the function that carries it from one iteration to the next, and
        the variable that it gave it."""
        made, used = _lines(call, link.older), _lines(call, link.newer)
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
        running = _running_functions()
        plain: tuple[SourceLine, str] | None = None
        for line in reversed(shared):
            names = assigned_on(line.file, line.line)
            found = kept_on(line, names)
            if found is not None:
                return found
            if names and (line.file, line.function) in running:
                if line not in used or carried(line, names):
                    return line, names[-1]
                plain = plain or (line, names[-1])
        # The line ran in both iterations, and nothing of what it gave went into the next one: what it called kept it.
        for line in made[len(shared) :]:
            found = kept_on(line, assigned_on(line.file, line.line))
            if found is not None:
                return found
        return plain or (shared[-1], "")


def _above(call: BackwardCall, key: int) -> set[int]:
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


def _lines(call: BackwardCall, key: int) -> list[SourceLine]:
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


def _place(line: SourceLine | None) -> str:
    return f"{line.file.rsplit('/', 1)[-1]}:{line.line}" if line is not None else "an unknown line"


@detector("second-backward")
class SecondBackward(_Joining):
    """A backward runs into a graph that an earlier backward has freed: which tensor of the earlier iteration joins
    the two graphs (a hidden state that was not detached, a loss that is summed over iterations, a tensor computed
    once before the loop), or that the same loss is run back twice.

    Evidence: the numbers of the nodes on both sides of the link, the lines that made them, the backward that freed
    them.
    Mistaken for: a graph kept on purpose with retain_graph=True raises nothing and is not told.
    Cost: a few values per backward.
    """

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            self.remember(running.call).calls = calls_now()

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is None or len(running.chain) > 1:
            return
        call = running.call
        text = call.error_text(error)
        if not any(words in text for words in _FREED):
            return
        earlier = [each for each in self.earlier if each.number < call.number]
        failed = [key for key, _ in call.failed_nodes(error)]
        if earlier:
            self._judge(call, earlier, failed[0] if failed else None, text)

    def _judge(self, call: BackwardCall, earlier: Sequence[_Call], failed: int | None, text: str) -> None:
        facts, last = self.facts, earlier[-1]
        links = self.links(call, last, failed)
        if not links and failed is not None:
            links = self.links(call, last, None)[:1]
        at = facts.node(call, links[0].older if links else failed if failed is not None else call.roots()[0])
        cause, message, evidence = self._linked(call, earlier, links[0]) if links else self._whole(call, earlier)
        evidence.append(text.strip().split("\n", 1)[0][:300])
        facts.tell(
            Finding(
                0, "second-backward", "error", 0.95 if links else 0.92, message, node=at[0], backward=call.number,
                forward=at[1], cause=facts.cause(cause), evidence=evidence,
                next=["b error", f"b {cause.file}:{cause.line}"] if cause is not None else ["b error"],
            )
        )  # fmt: skip

    def _linked(
        self, call: BackwardCall, earlier: Sequence[_Call], link: _Link
    ) -> tuple[SourceLine | None, str, list[str]]:
        older, newer = call.describe(link.older), call.describe(link.newer)
        by = next((each for each in earlier if self.is_older(call, link.older, each)), earlier[-1])
        line, name = self.joined_at(call, link)
        what = f"'{name}'" if name else f"the result of {older.unique_name}"
        when = f"before backward {by.number}"
        if not self.is_older(call, link.older, by):
            when = f"behind backward {by.number}, of what that had freed"
        evidence = [
            f"{newer.unique_name} ({_place(newer.forward)}), made since, takes what {older.unique_name} "
            f"({_place(older.forward)}) made {when}",
            f"backward {by.number} ({_place(by.location)}) ran that part of the graph and freed what it had saved",
        ]
        first = self._together(call, earlier, by, link.older)
        if first is not None:
            return first, (
                f"several losses of one iteration are run back one after another at {_place(call.location)}, and the "
                "first of these calls frees the graph that they share: add the losses up and run backward once, or "
                "retain_graph=True in all calls but the last"
            ), evidence  # fmt: skip
        if line is not None and (text := self.facts.text_of(line)).startswith("@"):
            evidence.append(f"`{text}` keeps what '{name}' returned, with its graph")
        if by.location == call.location:
            return line, (
                f"{what}, made at {_place(line)}, still belongs to the graph of an earlier iteration, which the "
                f"backward "
                f"at {_place(call.location)} has freed: detach it there, or compute it anew in each iteration"
            ), evidence  # fmt: skip
        use = self._first_use(line, name, by.location) if by.stepped and line is not None else None
        if use is not None:
            return use, (
                f"{what} is run back through at {_place(by.location)} already, which frees its graph before the "
                f"backward "
                f"at {_place(call.location)} needs it: use {name}.detach() at {_place(use)}"
            ), evidence  # fmt: skip
        return by.location, (
            f"the backwards at {_place(by.location)} and {_place(call.location)} share the graph of {what}, and "
            f"the first "
            "one frees it: add the losses up, or retain_graph=True in the first"
        ), evidence  # fmt: skip

    def _together(self, call: BackwardCall, earlier: Sequence[_Call], by: _Call, older: int) -> SourceLine | None:
        """The first of two calls at the same line of one iteration."""
        now = next((each for each in self.earlier if each.number == call.number), None)
        stepped = any(each.stepped for each in earlier if each.number >= by.number)
        if now is None or stepped or by.location != call.location:
            return None
        made = _lines(call, older)
        return first_of(by.calls, now.calls, made)

    @staticmethod
    def _first_use(line: SourceLine, name: str, before: SourceLine | None) -> SourceLine | None:
        """The first line after ``line`` that takes the variable, of those before the first backward."""
        scope = scope_at(line.file, line.line)
        if not name or scope is None or before is None:
            return None
        uses = sorted(
            node.lineno
            for node in inside(scope)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == name and line.line < node.lineno < before.line
        )  # fmt: skip
        return SourceLine(line.file, uses[0], line.function) if uses else None

    def _whole(self, call: BackwardCall, earlier: Sequence[_Call]) -> tuple[SourceLine | None, str, list[str]]:
        root = call.roots()[0]
        by = next((each for each in earlier if self.is_older(call, root, each)), earlier[-1])
        by = next((each for each in earlier if each.root == call.address(root)), by)
        info = call.describe(root)
        same = by.root == call.address(root)
        evidence = [f"no node of this graph was made since backward {by.number} at {_place(by.location)} began"]
        if not same:
            first = self._together(call, earlier, by, root) or by.location
            which = f"the backwards at {_place(first)} and {_place(call.location)}"
            if by.location == call.location:
                which = f"the losses that are run back one after another at {_place(first)}"
            return first, (
                f"{which} share a part of the graph, and the first call frees it: add the losses up, or "
                "retain_graph=True in all calls but the last"
            ), evidence  # fmt: skip
        if by.location == call.location:
            stack = call.forward_stack(root)[0]
            here = call.location
            mine = [
                each for each in stack if here is not None and each.function == here.function and each.file == here.file
            ]
            line = mine[0] if mine else stack[0] if stack else here
            return line, (
                f"the loss made at {_place(line)} ({info.unique_name}) is run back again at {_place(here)}, but it was "
                "computed only once: compute it anew before each backward"
            ), evidence  # fmt: skip
        return call.location, (
            f"the loss of {info.unique_name} is run back a second time at {_place(call.location)}; the backward at "
            f"{_place(by.location)} has freed its graph already"
        ), evidence  # fmt: skip


@detector("graph-grows")
class GraphGrows(_Joining):
    """Every backward runs further back than the one before: the history of earlier iterations is part of the graph,
    for something that is carried from one iteration to the next is never detached.

    Evidence: nodes per backward over the iterations, and the tensor that joins this graph to an earlier one.
    Mistaken for: a curriculum of longer sequences, which has no node of an earlier iteration.
    Cost: the count of nodes per backward.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._counts: dict[SourceLine | None, list[tuple[int, int]]] = {}
        self._told: set[SourceLine | None] = set()

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) > 1:
            return
        call = running.call
        before = self.earlier[-1] if self.earlier else None
        now = self.remember(call)
        counts = self._counts.setdefault(call.location, [])
        counts.append((self.facts.iteration, now.count))
        del counts[:-4]
        rises = all(second[1] > first[1] for first, second in itertools.pairwise(counts))
        if before is None or not rises or len(counts) < 4 or call.location in self._told:
            return
        if counts[-1][1] >= 1.5 * counts[0][1] or counts[-1][1] - counts[0][1] >= 30:
            self._judge(call, before, counts)

    def _judge(self, call: BackwardCall, before: _Call, counts: Sequence[tuple[int, int]]) -> None:
        links = self.links(call, before, None)
        if not links:
            return
        self._told.add(call.location)
        facts = self.facts
        line, name = self.joined_at(call, links[0])
        older, newer = call.describe(links[0].older), call.describe(links[0].newer)
        found, forward = facts.node(call, links[0].older)
        what = f"'{name}'" if name else f"the result of {older.unique_name}"
        facts.tell(
            Finding(
                0, "graph-grows", "warning", 0.88,
                f"{what}, made at {_place(line)}, carries the graph of all earlier iterations into this one: "
                f"each backward "
                "takes longer than the one before; detach it there",
                node=found, backward=call.number, forward=forward, cause=facts.cause(line),
                evidence=[
                    "nodes per backward: " + ", ".join(f"{count} (iteration {when})" for when, count in counts),
                    f"{newer.unique_name} ({_place(newer.forward)}) takes what {older.unique_name} "
                    f"({_place(older.forward)}) made before the backward before",
                ],
                next=["info graph", "why alive"],
            )
        )  # fmt: skip
