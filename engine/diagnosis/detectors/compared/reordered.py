"""Data sets that bring one part of their samples into another order, and functions that leave returns turned round."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.compared.drawn_apart import files_of_program
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import assigned_names, called_name, inside, nodes_of
from adbg.engine.own_files import is_programs
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_ORDERS = frozenset({"argsort", "randperm", "permutation", "lexsort"})
_TURNS = ("reversed(", "[::-1]", ".flip(", ".reverse()", "insert(0", "appendleft", "flipud", ".flip_(")


@dataclass(frozen=True, slots=True)
class _Parts:
    """Of a data set: the attribute that was brought into the order of ``order``, and the one that was not."""

    order: str
    moved: tuple[str, int]
    left: tuple[str, int]


@detector("loss-input")
class Reordered(Detector):
    """A data set sorts or shuffles one of the lists that it keeps (``self.tracks = [tracks[i] for i in order]``) and
    keeps another one as it was, and ``__getitem__`` takes place i of both: each sample has the label of another one.

    Evidence: the order and the two assignments of the class, the line that takes both by one index, their lengths.
    Mistaken for: what is made of what was reordered, and lists that are taken by different indices: not told.
    Cost: the source of the class is read once.
    """

    needs = Need.LOADERS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._seen: set[str] = set()

    def applied(self) -> bool:
        return bool(self._seen)

    def loader(self, event: LoaderEvent) -> None:
        kind, dataset = type(event.dataset), event.dataset
        name = f"{kind.__module__}.{kind.__qualname__}"
        if event.what != "begins" or name in self._seen or len(self._seen) > 32:
            return
        file = str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
        if not is_programs(file):
            return
        self._seen.add(name)
        found = next(_parts_in(file, kind.__name__), None)
        if found is None:
            return
        held = vars(dataset)
        sizes = [len(held[each]) for each, _ in (found.moved, found.left) if hasattr(held.get(each), "__len__")]
        if len(sizes) == 2 and sizes[0] == sizes[1] > 1:
            self._tell(file, kind.__name__, found, sizes[0])

    def _tell(self, file: str, kind: str, found: _Parts, size: int) -> None:
        facts = self.facts
        line = SourceLine(file, found.left[1], "__init__")
        moved = SourceLine(file, found.moved[1], "__init__")
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.9,
                f"{kind}.{found.moved[0]} is brought into another order at {place(moved)}, and {kind}.{found.left[0]} "
                f"at {place(line)} is not: __getitem__ takes place i of both, which belong to two samples",
                None, None, facts.iteration + 1, line, facts.cause(line),
                [
                    f"{place(moved)}: {facts.text_of(moved)}",
                    f"{place(line)}: {facts.text_of(line)}",
                    f"{found.order} is the order of the first; both have {size} elements",
                ],
                [f"list {place(line)}"],
            )
        )  # fmt: skip


def _parts_in(file: str, kind: str) -> Iterator[_Parts]:
    for node in nodes_of(file):
        if not isinstance(node, ast.ClassDef) or node.name != kind:
            continue
        methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
        init, take = methods.get("__init__"), methods.get("__getitem__")
        if init is None or take is None or len(take.args.args) < 2:
            continue
        taken = _taken(take, take.args.args[1].arg)
        orders, moved, left = _assignments(init)
        for attribute, (line, order) in moved.items():
            for other, at in left.items():
                if attribute in taken and other in taken and order in orders:
                    yield _Parts(order, (attribute, line), (other, at))


def _taken(function: ast.FunctionDef, index: str) -> set[str]:
    """Attributes that are taken by that very index."""
    return {
        each.value.attr for each in inside(function)
        if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Attribute)
        and isinstance(each.slice, ast.Name) and each.slice.id == index and ast.unparse(each.value.value) == "self"
    }  # fmt: skip


def _assignments(init: ast.FunctionDef) -> tuple[set[str], dict[str, tuple[int, str]], dict[str, int]]:
    """The names of orders; attributes that were made by one (line, order); those that were not, nor of what was."""
    orders: set[str] = set()
    moved: dict[str, tuple[int, str]] = {}
    left: dict[str, int] = {}
    ordered: set[str] = set()  # names and attributes that are in such an order, or made of what is
    statements = sorted((each for each in inside(init) if isinstance(each, ast.Assign)), key=lambda each: each.lineno)
    for statement in statements:
        if len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        if called_name(value) in _ORDERS:
            orders.update(assigned_names(statement))
            continue
        used = {ast.unparse(each) for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))}
        name = ast.unparse(target)
        by = next(iter(used & orders), "")
        if by or used & ordered:
            ordered.add(name)
            left.pop(name.removeprefix("self."), None)
            if by and name.startswith("self."):
                moved.setdefault(name.removeprefix("self."), (statement.lineno, by))
        elif name.startswith("self.") and any(isinstance(each, ast.Name) for each in ast.walk(value)):
            left[name.removeprefix("self.")] = statement.lineno
    return orders, moved, {each: line for each, line in left.items() if each not in moved}


@detector("loss-input")
class TurnedReturns(Detector):
    """Discounted returns are gathered from the last reward to the first (``for r in reversed(rewards): g = r + gamma *
    g; returns.append(g)``) and stay so: the first of them belongs to the last step.

    Evidence: the loop, the line that appends, and that the function gives them back without turning them round.
    Mistaken for: a caller that turns them, or takes them from the end (not told where it does so around the call).
    Cost: at the end the program's files are read.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._files: list[str] = []
        self._found = False

    def applied(self) -> bool:
        return self._found

    def operator(self, call: OperatorCall) -> None:
        if not self._files:
            self._files = files_of_program() or [""]  # at the end the script is __main__ no more

    def end(self) -> None:
        for file in filter(None, self._files):
            for line, name in _turned(file):
                self._found = True
                self._tell(line, name)

    def _tell(self, line: SourceLine, name: str) -> None:
        self.facts.tell(
            Finding(
                0, "loss-input", "warning", 0.8,
                f"{line.function} gathers {name} from the last step to the first and gives it back so: the first of "
                f"them belongs to the last step; turn it round, or {name}.insert(0, ...)",
                None, None, None, line, self.facts.cause(line),
                [
                    f"{place(line)} appends in a loop over the rewards from behind: {self.facts.text_of(line)}",
                    f"nothing in {line.function} turns {name} round, nor do those that call it where they do",
                ],
                [f"list {place(line)}"],
            )
        )  # fmt: skip


def _turned(file: str) -> Iterator[tuple[SourceLine, str]]:
    for function in (each for each in nodes_of(file) if isinstance(each, ast.FunctionDef)):
        for loop in (each for each in inside(function) if isinstance(each, ast.For) and _is_backwards(each.iter)):
            found = _appended(loop)
            if found is None:
                continue
            name, line = found
            outside = [ast.unparse(each) for each in inside(function) if isinstance(each, ast.expr)
                       and not loop.lineno <= each.lineno <= (loop.end_lineno or 0)]  # fmt: skip
            called = f"{function.name}("
            callers = [text for each in nodes_of(file) if isinstance(each, (ast.Assign, ast.Return, ast.Expr))
                       and called in (text := ast.unparse(each))]  # fmt: skip
            text = "\n".join([*outside, *callers])
            made = [
                each for each in nodes_of(file) if isinstance(each, ast.Assign) and called in ast.unparse(each.value)
            ]
            given = {name for each in made for name in assigned_names(each)}
            if any(_is_turned(each, given) for each in nodes_of(file)):
                continue
            returned = any(isinstance(each, ast.Return) and each.value is not None and name in ast.unparse(each)
                           for each in inside(function))  # fmt: skip
            if returned and not any(each in text for each in _TURNS):
                yield SourceLine(file, line, function.name), name


def _is_turned(node: ast.AST, names: set[str]) -> bool:
    """Whether it turns one of these round: ``returns.reverse()``, ``returns[::-1]``, ``flip(returns, 0)``."""
    if not isinstance(node, (ast.Call, ast.Subscript)):
        return False
    text = ast.unparse(node)
    turned = any(each in text for each in _TURNS) or (called_name(node) in ("flip", "reversed", "flipud"))
    return turned and any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node))


def _is_backwards(iterated: ast.expr) -> bool:
    text = ast.unparse(iterated)
    return "reversed(" in text or "[::-1]" in text or (text.startswith("range(") and text.endswith(", -1, -1)"))


def _appended(loop: ast.For) -> tuple[str, int] | None:
    """(list, line) of ``out.append(g)``, g being ``r + gamma * g``."""
    sums = {
        name for each in ast.walk(loop) if isinstance(each, ast.Assign) and isinstance(each.value, ast.BinOp)
        and isinstance(each.value.op, ast.Add)
        for name in assigned_names(each)
        if any(isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult) and name in
               [part.id for part in ast.walk(inner) if isinstance(part, ast.Name)] for inner in ast.walk(each.value))
    }  # fmt: skip
    for each in ast.walk(loop):
        if called_name(each) == "append" and isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            given = each.args[0] if each.args else None
            if isinstance(given, ast.Name) and given.id in sums:
                return ast.unparse(each.func.value), each.lineno
    return None
