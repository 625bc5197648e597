"""Records that a container of the program's keeps, as a replay memory does: who hands it the item of them that has a
graph. The method that puts a record in takes what it is given; whoever gives it is to detach it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    inside,
    nodes_of,
    parameters_of,
    scope_at,
)
from adbg.engine.diagnosis.values import made_by_node
from adbg.engine.inspect.memory.bindings import is_cut
from adbg.engine.inspect.memory.owners import Group, files_of
from adbg.engine.inspect.memory.paths import path_of, pattern_of
from adbg.engine.inspect.memory.reach import Reach
from adbg.engine.types import SourceLine

_FEW = 8  # tensors of a variable that are looked at
_DEEP = 4  # functions that hand a record on
_PIECE = re.compile(r"\[(?:'[^']*'|[^\]']*)\]|\.\w+")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Handed(NamedTuple):
    line: SourceLine
    text: str  # of what is handed on


class _Given(NamedTuple):
    """What a function is given: ``item`` of its parameter ``name`` ("" for the parameter itself)."""

    name: str
    item: str


class Record:
    """Which item of the records in a variable has a graph. ``path``: that of the variable, with this item. ``item``:
    "[4]", "['q']", ".q"; "" where the variable has no records, or several of their items have a graph. ``written``:
    where a tensor that the variable is was written into last, with a graph (``bank[slots] = features``)."""

    def __init__(self, reach: Reach, group: Group, backend: Backend) -> None:
        self.path, self.item = group.path, ""
        self.written = _written(group, backend)
        self._files = files_of(group.root, group.way)[0]
        self._made: SourceLine | None = None  # by which line, the last of them
        pieces = _PIECE.findall(group.path)
        if len(pieces) < 2 or not group.path.endswith(pieces[-1]):
            return
        with_graph = (each for each in reversed(group.members.values()) if _has_graph(backend, each))
        found = {item for value in islice(with_graph, _FEW) for item in _items(reach, group, value)}
        if len(found) == 1:
            last = next((each for each in reversed(group.members.values()) if _has_graph(backend, each)), None)
            self._made = made_by_node(backend, last)[0] if last is not None else None
            self.item = found.pop()
            self.path = group.path.removesuffix(pieces[-1]) + self.item

    def handed_at(self, filled: SourceLine) -> Handed | None:
        """The only line that hands the function at ``filled``, which puts a record in, that item with its graph. None
        where that function makes the item itself, or is given nothing but it: there it can be detached as well."""
        scope = scope_at(filled.file, filled.line)
        if not self.item or not isinstance(scope, _Function):
            return None
        given = _given(scope, filled, self.item)
        found: Handed | None = None
        file = filled.file
        for _ in range(_DEEP):
            calls = list(self._calls_of(scope, file, given)) if given is not None else []
            if len(calls) != 1:
                break
            file, call, argument = calls[0]
            scope = scope_at(file, call.lineno)
            line = SourceLine(os.path.abspath(file), call.lineno, getattr(scope, "name", "<module>"))
            found = Handed(line, ast.unparse(argument))
            if not isinstance(scope, _Function) or not isinstance(argument, ast.Name):
                break
            given = _Given(argument.id, "") if _is_only_given(scope, argument.id, file, call.lineno) else None
        return found

    def keyed_at(self, filled: SourceLine) -> Handed | None:
        """The only line of the program that gives a record the key whose value has the graph, where the function at
        ``filled`` is given the record: ``{"loss": loss.item(), "cycle": cycle_error(x)}``. Only where what is put there
        is what made the tensor."""
        scope = scope_at(filled.file, filled.line)
        if not self.item.startswith("['") or not isinstance(scope, _Function):
            return None
        files = dict.fromkeys([filled.file, *self._files])
        every = [(file, each) for file in files for each in _values_of(file, self.item[2:-2])]
        found = [(file, each) for file, each in every if self._made and _makes(file, each, self._made)]
        if len(found) != 1 or scope_at(found[0][0], found[0][1].lineno) is scope:
            return None
        file, value = found[0]
        name = getattr(scope_at(file, value.lineno), "name", "<module>")
        return Handed(SourceLine(os.path.abspath(file), value.lineno, name), ast.unparse(value))

    def _calls_of(self, scope: ast.AST, file: str, given: _Given) -> Iterator[tuple[str, ast.Call, ast.expr]]:
        """(file, call, what it gives there), of calls that do not detach it."""
        for each in dict.fromkeys([file, *self._files]):
            for node in nodes_of(each):
                if not isinstance(node, ast.Call) or called_name(node) != getattr(scope, "name", ""):
                    continue
                argument = _argument(node, scope, given, each)
                if argument is not None and not is_cut(argument) and not isinstance(argument, ast.Constant):
                    yield each, node, argument


def _values_of(file: str, key: str) -> Iterator[ast.expr]:
    """That the program puts under a key, not detached."""
    for node in nodes_of(file):
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values))
        elif isinstance(node, ast.Assign):
            pairs = [(each.slice, node.value) for each in node.targets if isinstance(each, ast.Subscript)]
        elif isinstance(node, ast.Call) and called_name(node) == "dict":
            pairs = [(ast.Constant(each.arg), each.value) for each in node.keywords if each.arg]
        for name, value in pairs:
            named = isinstance(name, ast.Constant) and name.value == key
            if named and not isinstance(value, ast.Constant) and not is_cut(value):
                yield value


def _makes(file: str, value: ast.expr, made: SourceLine, depth: int = _DEEP) -> bool:
    """Whether an expression made what the operator on a line gave: it stands there, in the function that it calls, or
    in a statement that gave the variable its value."""
    if os.path.abspath(file) == made.file and value.lineno <= made.line <= (value.end_lineno or value.lineno):
        return True
    calls = [called_name(each) for each in ast.walk(value) if isinstance(each, ast.Call)]
    if made.function in calls or (calls and made.function in ("forward", "__call__")):
        return True
    if not isinstance(value, ast.Name) or not depth:
        return False
    statement = assigned_before(file, value.lineno, value.id)
    inner = getattr(statement[1], "value", None) if statement is not None else None
    return isinstance(inner, ast.expr) and _makes(file, inner, made, depth - 1)


def _written(group: Group, backend: Backend) -> SourceLine | None:
    if len(group.members) != 1:
        return None
    line, _ = made_by_node(backend, next(iter(group.members.values())))
    name = re.split(r"\W+", group.path)[-1]
    for node in nodes_of(line.file) if line is not None and name else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        if line is None or not getattr(node, "lineno", 0) <= line.line <= (getattr(node, "end_lineno", 0) or 0):
            continue
        if any(isinstance(each, ast.Subscript) and ast.unparse(each.value).split(".")[-1] == name for each in targets):
            return line
    return None


def _has_graph(backend: Backend, value: Any) -> bool:
    return backend.is_tensor(value) and backend.has_graph(value)


def _items(reach: Reach, group: Group, value: Any) -> Iterator[str]:
    """The last steps of the ways to a tensor that are of the group's pattern."""
    for place in reach.edges.get(id(value), ()):
        root = reach.root_of(place)
        if (root.kind, root.name, root.thread) == (group.root.kind, group.root.name, group.root.thread):
            path = path_of(root, [*reach.way(place), value])
            if pattern_of(path) == pattern_of(group.path):
                yield _PIECE.findall(path)[-1]


def _given(scope: ast.FunctionDef | ast.AsyncFunctionDef, filled: SourceLine, item: str) -> _Given | None:
    """Which parameter of a function has the item of the record that it puts in at ``filled``."""
    stored = next(_stored(scope, filled.line), None)
    if isinstance(stored, ast.Name):
        if scope.args.vararg is not None and stored.id == scope.args.vararg.arg:
            return _Given(stored.id, item)
        made = assigned_before(filled.file, filled.line, stored.id)
        if made is None or made[0] >= filled.line:
            return _Given(stored.id, item) if stored.id in parameters_of(scope) else None
        stored = getattr(made[1], "value", None)
    names = [each.id for each in ast.walk(stored) if isinstance(each, ast.Name)] if stored is not None else []
    if len({*names} & {*parameters_of(scope)}) < 2:
        return None
    part = _part(stored, item)
    if isinstance(part, ast.Name) and part.id in parameters_of(scope):
        return _Given(part.id, "") if assigned_before(filled.file, filled.line, part.id) is None else None
    return None


def _stored(scope: ast.AST, line: int) -> Iterator[ast.expr]:
    """What a statement puts into a container: the last argument of ``append`` or ``heappush``, what an item is set."""
    for node in inside(scope):
        if getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                yield node.value
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.value.args:
                yield node.value.args[-1]


def _part(value: ast.AST | None, item: str) -> ast.AST | None:
    """The expression of an item of what another one makes: a tuple, a dict, a call of a class."""
    key = item.strip("[].'")
    place = int(key) if key.isdigit() else None
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts[place] if place is not None and place < len(value.elts) else None
    if isinstance(value, ast.Dict):
        named = zip(value.keys, value.values)
        return next((each for name, each in named if isinstance(name, ast.Constant) and name.value == key), None)
    if isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg == key:
                return keyword.value
        if place is not None:
            return value.args[place] if place < len(value.args) else None
        return next((each for each in value.args if isinstance(each, ast.Name) and each.id == key), None)
    return None


def _argument(call: ast.Call, scope: ast.AST, given: _Given, file: str) -> ast.expr | None:
    """What a call gives a function there; None where its source does not say it."""
    taken: Sequence[str] = parameters_of(scope)
    taken = taken[1:] if taken[:1] in (["self"], ["cls"]) else taken
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    if given.name not in taken:  # the rest of the arguments
        place = len(taken) + int(given.item.strip("[]")) if given.item.strip("[]").isdigit() else len(call.args)
        return call.args[place] if place < len(call.args) else None
    named = next((each.value for each in call.keywords if each.arg == given.name), None)
    place = taken.index(given.name)
    argument = named if named is not None or place >= len(call.args) else call.args[place]
    if argument is None or not given.item:
        return argument
    part = _part(argument, given.item)
    if part is None and isinstance(argument, ast.Call):
        part = _field(argument, given.item, file)
    return part if isinstance(part, ast.expr) else None


def _field(made: ast.Call, item: str, file: str) -> ast.expr | None:
    """What a record is given for a field by its place: of a class of that file that is a dataclass or a NamedTuple, and
    nothing else that may shift the places."""
    for each in nodes_of(file):
        if isinstance(each, ast.ClassDef) and each.name == called_name(made):
            bases = [ast.unparse(base).rpartition(".")[2] for base in each.bases]
            plain = bases == ["NamedTuple"] or (
                not bases and any("dataclass" in ast.unparse(d) for d in each.decorator_list)
            )
            own = [one.name for one in each.body if isinstance(one, _Function)]
            parts = [one for one in each.body if isinstance(one, ast.AnnAssign)]
            odd = any(re.search(r"ClassVar|InitVar|KW_ONLY|init=False|kw_only", ast.unparse(one)) for one in parts)
            if not plain or odd or "__init__" in own or any(isinstance(one, ast.Starred) for one in made.args):
                return None
            fields = [one.target.id for one in parts if isinstance(one.target, ast.Name)]
            name = item.strip("[].'")
            place = fields.index(name) if name in fields else len(made.args)
            return made.args[place] if place < len(made.args) else None
    return None


def _is_only_given(scope: ast.AST, name: str, file: str, line: int) -> bool:
    return name in parameters_of(scope) and assigned_before(file, line, name) is None
