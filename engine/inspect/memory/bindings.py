"""Which line of the source gives a variable its value, and which one puts something into it. Read from the files as
they are now; no line is better than a wrong one."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from adbg.engine.inspect.memory.given import CUTS, makes_itself
from adbg.engine.places import source_tree
from adbg.engine.types import SourceLine

_PUTS = frozenset(
    ("append", "extend", "insert", "appendleft", "add", "update", "setdefault", "put", "put_nowait", "__setitem__")
)
_HEAPS = frozenset(("heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right"))
_MAKES = frozenset((
    "tensor", "as_tensor", "from_numpy", "to_tensor", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like",
    "empty", "empty_like",
))  # fmt: skip
_NUMBERS = frozenset(("float", "int", "bool", "len"))  # by these names alone: ``x.float()`` keeps the graph
_PIECE = re.compile(r"\.(\w+)|\[((?:'(?:[^'\\]|\\.)*'|[^\]])*)\]")
Piece = tuple[str, str]  # (".", name) or ("[", key), key "*" for any


@dataclass(frozen=True, slots=True)
class Found:
    """``others``: numbers of further lines of the file that fit as well."""

    line: SourceLine
    text: str
    others: tuple[int, ...] = ()


def pieces_of(path: str) -> tuple[str, list[Piece]]:
    """ "a.b[3]['x']" -> ("a", [(".", "b"), ("[", "3"), ("[", "'x'")])."""
    name = re.match(r"\w*", path)
    first = name[0] if name else ""
    return first, [(".", part[1]) if part[1] else ("[", part[2]) for part in _PIECE.finditer(path, len(first))]


def filled_at(path: str, files: Sequence[str], function: str, made: int = 0, graphs: bool = False) -> Found | None:
    """The line that puts something where ``path`` ends: ``losses.append(loss)``, ``cache[key] = value``, or, of a
    variable that holds it itself, one that adds to it. ``function``: only there, "" for anywhere in ``files``.
    ``made``: where what was put in was made itself, a lambda: of several lines this one. ``graphs``: what it puts in
    has a graph: of several lines none that puts in new numbers (``prio.append(torch.tensor(1.0))``)."""
    name, pieces = pieces_of(path)
    for end in range(len(pieces), 0, -1):  # an item may have been put in with what it lies in
        found = _filled(name, pieces[:end], files, function, made, graphs)
        if found is not None:
            return found
    return _filled(name, [], files, function, made, graphs) if not pieces else None


def _filled(
    name: str, pieces: list[Piece], files: Sequence[str], function: str, made: int, graphs: bool
) -> Found | None:
    best: list[tuple[str, int, str]] = []  # file, line, function, of the same score
    plain: list[tuple[str, int, str]] = []  # of these, what cannot have put a graph in
    highest = 0
    for file in files:
        tree = source_tree(file)
        if tree is None:
            continue
        for node, scope in _scoped(tree):
            score = _score(node, name, pieces, files, _named(tree).get(scope, {}))
            if score and function and scope != function:
                score = score - 1 if _attributes(pieces) else 0
            if score and node.lineno == made:
                score += 1
            if score > highest:
                best, plain, highest = [], [], score
            if score and score == highest:
                best.append((file, node.lineno, scope))
                if graphs and _puts_numbers(node, tree):
                    plain.append(best[-1])
    if not best:
        return None
    best = [each for each in best if each not in plain] or best
    (file, number, scope), *more = best
    others = {line for where, line, _ in more if where == file} - {number}
    line = SourceLine(os.path.abspath(file), number, scope or "<module>")
    return Found(line, text_of(file, number), tuple(sorted(others)))


def class_at(file: str, name: str) -> int:
    """The line of ``class name``; 0 where there is none."""
    tree = source_tree(file)
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name) if tree else ()
    return next((node.lineno for node in found), 0)


def text_of(file: str, line: int) -> str:
    return " ".join(linecache.getline(file, line).split())[:120]


def bound_at(path: str, files: Sequence[str], function: str) -> SourceLine | None:
    """Where the variable (or the attribute that ``path`` names last) is first assigned."""
    name, pieces = pieces_of(path)
    attributes = [text for kind, text in pieces if kind == "."]
    for file in reversed(files) if attributes else files:
        tree = source_tree(file)
        for node, scope in _scoped(tree) if tree is not None else ():
            targets = _targets(node)
            if attributes:
                hit = any(isinstance(each, ast.Attribute) and each.attr == attributes[-1] for each in targets)
            else:
                hit = scope == function and any(isinstance(each, ast.Name) and each.id == name for each in targets)
            if hit:
                return SourceLine(os.path.abspath(file), node.lineno, scope or "<module>")
    return None


def given_again_at(path: str, files: Sequence[str]) -> Found | None:
    """Where the attribute that ``path`` ends with, or whose items it speaks of (a state of two tensors), is given
    another value: not as its object is made."""
    pieces = pieces_of(path)[1]
    while pieces and pieces[-1][0] == "[":
        pieces.pop()
    if not pieces:
        return None
    for file in reversed(files):
        tree = source_tree(file)
        lines = [
            (node.lineno, scope)
            for node, scope in (_scoped(tree) if tree is not None else ())
            if scope not in ("", "__init__") and isinstance(node, (ast.Assign, ast.AnnAssign))
            and node.value is not None and not isinstance(node.value, ast.Constant) and not is_cut(node.value)
            and any(isinstance(each, ast.Attribute) and each.attr == pieces[-1][1] for each in _targets(node))
        ]  # fmt: skip
        if lines:
            (number, scope), *more = lines
            line = SourceLine(os.path.abspath(file), number, scope)
            return Found(line, text_of(file, number), tuple(each for each, _ in more))
    return None


def _attributes(pieces: Sequence[Piece]) -> bool:
    return any(kind == "." for kind, _ in pieces)


@functools.lru_cache(32)
def _named(tree: ast.Module) -> dict[str, dict[str, list[ast.expr]]]:
    """By function, what its local variables stand for: items and attributes of others."""
    found: dict[str, dict[str, list[ast.expr]]] = {}
    for node, scope in _scoped(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        names = target.elts if both and isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if both and isinstance(node.value, ast.Tuple) else [node.value]
        for one, value in zip(names, values):
            if isinstance(one, ast.Name) and isinstance(value, (ast.Subscript, ast.Attribute)):
                found.setdefault(scope, {}).setdefault(one.id, []).append(value)
    return found


def _score(
    node: ast.stmt | ast.Call, name: str, pieces: list[Piece], files: Sequence[str], named: dict[str, list[ast.expr]]
) -> int:
    """0: this line does not put anything there; more the more of the path it names. ``named``: what local variables of
    its function stand for."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS and pieces:
            score = _match(node.func.value, name, pieces[:-1])
            # ``meter.update(x)`` is a method of the program's where an attribute of the meter holds it: what makes that
            # of its own says more than the line that calls it.
            own = pieces[-1][0] == "." and score > 1 and makes_itself(files, node.func.attr, pieces[-1][1])
            return 1 if own else score
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return _match(node.args[0], name, pieces[:-1]) if called in _HEAPS and node.args and pieces else 0
    for target in _targets(node):
        if isinstance(target, ast.Subscript) and pieces and pieces[-1][0] == "[":
            key = repr(target.slice.value) if isinstance(target.slice, ast.Constant) else "*"
            score = _match(target.value, name, pieces[:-1]) if _same(("[", key), pieces[-1]) else 0
            if not score and isinstance(target.value, ast.Name) and key == pieces[-1][1]:  # state = self.state[p]
                score = max((_match(each, name, pieces[:-1]) - 1 for each in named.get(target.value.id, ())), default=0)
            return max(score, 0)
        adds = isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign)
            and not is_cut(node.value)
            and any(ast.dump(part) == ast.dump(target).replace("Store()", "Load()") for part in ast.walk(node.value))
        )
        if adds:
            return _match(target, name, pieces)
    return 0


def _puts_numbers(node: ast.stmt | ast.Call, tree: ast.Module) -> bool:
    """Whether all that a line puts somewhere is new numbers, as far as its function says."""
    if isinstance(node, ast.Call):
        return bool(node.args) and _is_new(node.args[-1], node, tree)
    if not isinstance(node, ast.Assign):
        return False
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    targets = _targets(node)
    if len(values) == len(targets):  # of an unpacking, those that are put into something
        values = [value for value, target in zip(values, targets) if isinstance(target, ast.Subscript)]
    return bool(values) and all(_is_new(each, node, tree) for each in values)


def _is_new(value: ast.expr, at: ast.stmt | ast.Call, tree: ast.Module) -> bool:
    if isinstance(value, ast.Name):
        given = [
            each.value
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            and function.lineno <= at.lineno <= (function.end_lineno or 0)
            for each in ast.walk(function)
            if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == value.id for t in each.targets)
        ]
        return bool(given) and all(not isinstance(each, ast.Name) and _is_new(each, at, tree) for each in given)
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return called in CUTS | _MAKES or (isinstance(value.func, ast.Name) and called in _NUMBERS)
    return isinstance(value, ast.Constant)


def is_cut(value: ast.expr) -> bool:
    """Whether an expression gives on nothing but numbers: ``h.detach()``."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in CUTS


def _match(receiver: ast.expr, name: str, pieces: list[Piece]) -> int:
    """How well an expression of the source names the end of a path: all of its pieces must be the path's last ones."""
    found: list[Piece] = []
    while True:
        if isinstance(receiver, ast.Attribute):
            found.append((".", receiver.attr))
        elif isinstance(receiver, ast.Subscript):
            key = receiver.slice
            found.append(("[", repr(key.value) if isinstance(key, ast.Constant) else "*"))
        else:
            break
        receiver = receiver.value
    found.reverse()
    if not isinstance(receiver, ast.Name) or len(found) > len(pieces):
        return 0
    tail = pieces[len(pieces) - len(found) :]
    if not all(_same(ours, theirs) for ours, theirs in zip(found, tail)):
        return 0
    whole = len(found) == len(pieces)
    if receiver.id == name and whole:
        return 10 + len(found)
    if not found or not any(kind == "." for kind, _ in found):
        return 0
    return 2 + len(found) + 2 * (receiver.id in ("self", "cls"))


def _same(ours: Piece, theirs: Piece) -> bool:
    return ours[0] == theirs[0] and (ours[1] == theirs[1] or (ours[0] == "[" and "*" in (ours[1], theirs[1])))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        found = []
        for target in node.targets:
            found += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        return found
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For)):
        return [node.target]
    if isinstance(node, ast.With):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _scoped(tree: ast.AST, scope: str = "") -> Iterator[tuple[ast.stmt | ast.Call, str]]:
    """Statements and calls in order, each with the name of the function around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.stmt, ast.Call)):
            yield node, scope
        inner = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
        yield from _scoped(node, inner)
