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

from adbg.engine.outside import own
from adbg.engine.places import parsed
from adbg.engine.types import SourceLine

_LARGEST = 1 << 20  # bytes of a file that is parsed: 1.1 MB took 0.9-1.4 s, and 0.3 s to be walked
_PUTS = frozenset(
    ("append", "extend", "insert", "appendleft", "add", "update", "setdefault", "put", "put_nowait", "__setitem__")
)
_HEAPS = frozenset(("heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right"))
_CUTS = frozenset(("detach", "detach_", "item", "numpy", "tolist"))
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


def filled_at(path: str, files: Sequence[str], function: str, made: int = 0) -> Found | None:
    """The line that puts something where ``path`` ends: ``losses.append(loss)``, ``cache[key] = value``, or, of a
    variable that holds it itself, one that adds to it. ``function``: only there, "" for anywhere in ``files``.
    ``made``: where what was put in was made itself, a lambda: of several lines this one."""
    name, pieces = pieces_of(path)
    for end in range(len(pieces), 0, -1):  # an item may have been put in with what it lies in
        found = _filled(name, pieces[:end], files, function, made)
        if found is not None:
            return found
    return _filled(name, [], files, function, made) if not pieces else None


def _filled(name: str, pieces: list[Piece], files: Sequence[str], function: str, made: int) -> Found | None:
    best: list[tuple[str, int, str]] = []  # file, line, function, of the same score
    highest = 0
    for file in files:
        tree = _tree(file, _changed(file))
        if tree is None:
            continue
        for node, scope in _scoped(tree):
            score = _score(node, name, pieces)
            if score and function and scope != function:
                score = score - 1 if _attributes(pieces) else 0
            if score and node.lineno == made:
                score += 1
            if score > highest:
                best, highest = [], score
            if score and score == highest:
                best.append((file, node.lineno, scope))
    if not best:
        return None
    (file, number, scope), *more = best
    others = {line for where, line, _ in more if where == file} - {number}
    line = SourceLine(os.path.abspath(file), number, scope or "<module>")
    return Found(line, text_of(file, number), tuple(sorted(others)))


def class_at(file: str, name: str) -> int:
    """The line of ``class name``; 0 where there is none."""
    tree = _tree(file, _changed(file))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name) if tree else ()
    return next((node.lineno for node in found), 0)


def text_of(file: str, line: int) -> str:
    return " ".join(linecache.getline(file, line).split())[:120]


def bound_at(path: str, files: Sequence[str], function: str) -> SourceLine | None:
    """Where the variable (or the attribute that ``path`` names last) is first assigned."""
    name, pieces = pieces_of(path)
    attributes = [text for kind, text in pieces if kind == "."]
    for file in reversed(files) if attributes else files:
        tree = _tree(file, _changed(file))
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
    """Where the attribute that ``path`` ends with is given another value: not as its object is made."""
    pieces = pieces_of(path)[1]
    if not pieces or pieces[-1][0] != ".":
        return None
    for file in reversed(files):
        tree = _tree(file, _changed(file))
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


def _score(node: ast.stmt | ast.Call, name: str, pieces: list[Piece]) -> int:
    """0: this line does not put anything there; more the more of the path it names."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS and pieces:
            return _match(node.func.value, name, pieces[:-1])
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return _match(node.args[0], name, pieces[:-1]) if called in _HEAPS and node.args and pieces else 0
    for target in _targets(node):
        if isinstance(target, ast.Subscript) and pieces and pieces[-1][0] == "[":
            return _match(target.value, name, pieces[:-1])
        adds = isinstance(node, ast.AugAssign) or (
            isinstance(node, ast.Assign)
            and not is_cut(node.value)
            and any(ast.dump(part) == ast.dump(target).replace("Store()", "Load()") for part in ast.walk(node.value))
        )
        if adds:
            return _match(target, name, pieces)
    return 0


def is_cut(value: ast.expr) -> bool:
    """Whether an expression gives on nothing but numbers: ``h.detach()``."""
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _CUTS


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


def _changed(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


@functools.lru_cache(maxsize=64)
def _tree(file: str, changed: float) -> ast.Module | None:
    """``changed``: so that an edited file is read again."""
    try:
        if not changed or os.path.getsize(file) > _LARGEST:
            return None
        with open(file, "rb") as source:
            tree: ast.Module = parsed(source.read())
            return tree
    except own(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
