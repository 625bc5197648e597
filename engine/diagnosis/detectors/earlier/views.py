"""What the source says of views of stored data: which variables are some, and where something is written into them,
also in the functions and modules that they are handed to."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.diagnosis.detectors.earlier.names import is_carried, is_random, is_updated
from adbg.engine.diagnosis.source import (
    assigned_before,
    called_name,
    function_called,
    function_named,
    inside,
    nodes_of,
    parameters_of,
    returns_of,
    tree_of,
)
from adbg.engine.diagnosis.values import attribute, codes_of, method_code
from adbg.engine.own_files import is_library
from adbg.engine.types import SourceLine

_GIVES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__"})
#: What they give has the memory of what they are called on, or take, as long as nothing is converted.
_SAME = frozenset({
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "permute", "transpose", "ravel", "swapaxes", "detach",
    "numpy", "to", "float", "from_numpy", "as_tensor", "asarray", "contiguous", "expand_dims", "to_tensor",
})  # fmt: skip
#: They write, and what was there before has no part in it; or no element is written.
_ANEW = frozenset({
    "copy_", "fill_", "zero_", "requires_grad_", "detach_", "set_", "normal_", "uniform_", "bernoulli_", "pin_memory_",
    "random_", "exponential_", "resize_",
})  # fmt: skip
#: What is written so stays as it is from the second time on.
_SETTLED = frozenset({
    "clamp_", "clamp_min_", "clamp_max_", "clip_", "relu_", "abs_", "round_", "sign_", "floor_", "ceil_", "trunc_",
    "nan_to_num_", "threshold_",
})  # fmt: skip
_DEPTH = 4  # calls that are followed, one in another

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that writes into an element of attribute ``kept``, by the name of a variable. ``taken``: where that
    was given it. ``inner``: of what is called with the variable, its name in there, and ``by`` the names on the way."""

    kept: str
    name: str
    line: SourceLine
    taken: SourceLine
    inner: str = ""
    by: str = ""
    passed: bool = False  # what is written into is given back, or handed on
    sure: bool = True  # it is a data set that gives its elements, or what is only to look at them
    mixes: bool = False  # by numbers that are drawn for it: a process may well go on so


def writes_of(owner: Any) -> Iterator[Write]:
    """Of the methods of an object that give its elements, or what they call."""
    for kind in type(owner).__mro__:
        for name, method in list(vars(kind).items()):
            code = method.__code__ if isinstance(method, types.FunctionType) else None
            if code is None or name == "__init__" or is_library(code.co_filename):
                continue
            file = os.path.abspath(code.co_filename)
            function = function_named(file, code.co_firstlineno)
            for write in _Body(owner, file, function).writes() if function is not None else ():
                lent = function is not None and _is_lent(function, write, kind.__name__)
                if lent or (name in _GIVES and write.passed):
                    yield write
                elif function is not None and write.passed and _is_noise(function, write, kind.__name__):
                    yield replace(write, sure=False)


def loops_of(code: types.CodeType, roots: set[str], objects: Mapping[str, Any]) -> Iterator[Write]:
    """Of a function that runs, or a module: of elements of these variables, also in what ``objects`` do that it calls,
    by the names of variables."""
    file = os.path.abspath(code.co_filename)
    function = tree_of(file) if code.co_name == "<module>" else function_named(file, code.co_firstlineno)
    if function is None:
        return
    for write in dict.fromkeys(_Body(None, file, function, roots, objects).writes()):
        if _is_lent(function, write, ""):
            yield write
        elif write.passed and _is_noise(function, write, ""):
            yield replace(write, sure=False)


def _is_lent(function: ast.AST, write: Write, kind: str) -> bool:
    """It is handed to what makes something of it, and no name says that it is there to be changed."""
    names = f"{kind} {getattr(function, 'name', '')} {write.kept} {write.name} {write.inner} {write.by}"
    return bool(write.by) and not is_carried(names) and not is_updated(names)


def _is_noise(function: ast.AST, write: Write, kind: str) -> bool:
    names = f"{kind} {getattr(function, 'name', '')} {write.kept} {write.name}"
    return not is_carried(names) and is_random(_statement(function, write.line.line))


def _statement(function: ast.AST, line: int) -> str:
    return "".join(ast.unparse(each) for each in ast.walk(function) if isinstance(each, (ast.AugAssign, ast.Call))
                   and each.lineno == line)  # fmt: skip


class _Body:
    """The statements of one function in their order, with the variables that are views of an attribute."""

    def __init__(
        self, owner: Any, file: str, function: _Scope, roots: Collection[str] = (),
        objects: Mapping[str, Any] = types.MappingProxyType({}), depth: int = 0,
    ) -> None:  # fmt: skip
        self._owner = owner
        self._file = file
        self._function = function
        self._roots = roots  # variables that are taken for attributes
        self._objects = objects  # by the names that they have here
        self._depth = depth
        self._name = str(getattr(function, "name", "<module>"))
        self._views: dict[str, tuple[str, int]] = {}  # by variable: the attribute, and the line

    def writes(self) -> Iterator[Write]:
        nodes = self._nodes()
        given = {
            text for each in nodes if isinstance(each, (ast.Return, ast.Yield)) and each.value is not None
            for text in _named(each.value)
        }  # fmt: skip
        if self._roots:  # a loop hands them to the model
            given |= {
                text for each in nodes if isinstance(each, ast.Call) for part in each.args for text in _named(part)
            }
        found = list(self._found(nodes))
        passed = self._passed_on(nodes, given)
        for write in found:
            here = write.name in passed or (write.name.startswith("self.") and write.name in given)
            if here or write.by:
                yield replace(write, passed=here)

    def _nodes(self) -> list[ast.AST]:
        """In the order in which they run, as a rule: what a statement calls, then what it assigns."""
        nodes = [each for each in inside(self._function) if hasattr(each, "lineno")]
        return sorted(nodes, key=lambda each: (each.lineno, not isinstance(each, ast.Call), each.col_offset))  # type: ignore[attr-defined]

    def _found(self, nodes: list[ast.AST]) -> Iterator[Write]:
        for node in nodes:
            yield from self._by(node)
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, node.lineno)
            elif isinstance(node, ast.For):
                self._loop(node.target, node.iter, node.lineno)

    def _passed_on(self, nodes: list[ast.AST], given: set[str]) -> set[str]:
        """The variables that are returned, or from which one of these is made."""
        passed = set(given)
        for node in sorted((each for each in nodes if isinstance(each, ast.Assign)), key=lambda each: -each.lineno):
            if not passed.isdisjoint(each for target in node.targets for each in _named(target)):
                passed |= set(_named(node.value))
        return passed

    def _bind(self, target: ast.expr, value: ast.expr, line: int) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            same = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            for at, each in enumerate(target.elts):
                self._bind(each, value.elts[at] if same and isinstance(value, ast.Tuple) else value, line)
        elif isinstance(target, ast.Name):
            kept = self._kept(value)
            self._views.pop(target.id, None)
            if kept:
                self._views[target.id] = kept, line

    def _loop(self, target: ast.expr, over: ast.expr, line: int) -> None:
        """What a loop goes through, element by element."""
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if isinstance(over, ast.Call) and called_name(over) == "enumerate" and len(parts) == 2 and over.args:
            self._loop(parts[1], over.args[0], line)
        elif isinstance(over, ast.Call) and called_name(over) == "zip" and len(parts) == len(over.args):
            for each, inner in zip(parts, over.args):
                self._loop(each, inner, line)
        elif isinstance(over, ast.Call) and self._roots:
            for each, kept in zip(parts or [target], self._yielded(over)):
                if isinstance(each, ast.Name) and kept:
                    self._views[each.id] = kept, line
        elif isinstance(over, (ast.Name, ast.Attribute)):
            self._bind(target, ast.Subscript(over, ast.Constant(0)), line)

    def _yielded(self, call: ast.Call) -> list[str]:
        """Of a generator of the program's that cuts a table that it is given into batches: the table of each of the
        values that it yields."""
        for _, file, function in self._functions(call) if self._depth < _DEPTH else ():
            given = {
                name: each.id for name, each in zip(parameters_of(function), call.args)
                if isinstance(each, ast.Name) and each.id in self._roots
            }  # fmt: skip
            inner = _Body(None, file, function, given, self._objects, self._depth + 1)
            list(inner._found(inner._nodes()))
            yields = [each.value for each in inside(function) if isinstance(each, ast.Yield) and each.value is not None]
            if len(yields) == 1:
                values = yields[0].elts if isinstance(yields[0], ast.Tuple) else yields
                return [given.get(inner._kept(each), "") for each in values]
        return []

    def _kept(self, value: ast.expr) -> str:
        """The attribute of ``self`` of which an expression is an element, or a view of one; "" for none."""
        part = False
        while True:
            if isinstance(value, ast.Subscript):
                part, value = True, value.value
            elif isinstance(value, ast.Call) and called_name(value) in _SAME:
                owner = value.func.value if isinstance(value.func, ast.Attribute) else None
                library = owner is None or (isinstance(owner, ast.Name) and owner.id not in self._views)
                if library and not value.args:
                    return ""
                value = value.args[0] if library or owner is None else owner
            elif isinstance(value, ast.Attribute) and ast.unparse(value.value) != "self":
                value = value.value
            else:
                break
        if isinstance(value, ast.Name):
            if value.id in self._views:
                return self._views[value.id][0]
            return value.id if part and value.id in self._roots else ""
        if isinstance(value, ast.Call):
            return self._cut_by(value)
        return value.attr if part and isinstance(value, ast.Attribute) else ""

    def _cut_by(self, call: ast.Call) -> str:
        """The attribute of which a method of the object's own returns a part: ``self.crop(row, column)``."""
        for owner, file, function in self._functions(call) if self._owner is not None and self._depth < _DEPTH else ():
            inner = _Body(owner, file, function, (), self._objects, self._depth + 1)
            list(inner._found(inner._nodes()))
            kept = {inner._kept(each.value) for each in returns_of(function) if each.value is not None}
            stores = any(_stores(each, f"self.{name}") for each in inside(function) for name in kept)  # a buffer
            if owner is self._owner and len(kept) == 1 and not stores:
                return kept.pop()
        return ""

    def _by(self, node: ast.AST) -> Iterator[Write]:
        """What a statement, or what it calls, writes into."""
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):  # a number that is added counts something
            counts = isinstance(node.value, ast.Constant) and not isinstance(node.op, ast.Div)
            target = node.target if not counts else None
        elif isinstance(node, ast.Assign):
            target = node.targets[0] if len(node.targets) == 1 and self._masks(node) else None
        elif isinstance(node, ast.Call):
            called = called_name(node)
            if called.endswith("_") and not called.endswith("__") and called not in _ANEW:
                target = node.func.value if isinstance(node.func, ast.Attribute) else None
            else:
                target = next((each.value for each in node.keywords if each.arg == "out"), None)
                yield from self._handed(node) if target is None else ()
        while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):  # x.mul_(a).add_(b)
            target = target.func.value
        kept = self._kept(target) if target is not None else ""
        if kept and target is not None:
            name, line = _base(target), SourceLine(self._file, getattr(node, "lineno", 0), self._name)
            taken = self._views[name][1] if name in self._views else line.line
            yield Write(kept, name, line, SourceLine(self._file, taken, self._name))

    def _masks(self, node: ast.Assign) -> bool:
        """A part of a view that may be another one each time is set to a number (``x[f : f + n] = 0.0``), and nothing
        else is stored in it: that would be a buffer."""
        target = node.targets[0]
        name = _base(target)
        parts = target.slice if isinstance(target, ast.Subscript) else ast.Constant(None)
        bounds = [
            each
            for part in (parts.elts if isinstance(parts, ast.Tuple) else [parts])
            if isinstance(part, ast.Slice)
            for each in (part.lower, part.upper)
        ]
        if name not in self._views or not _is_number(node.value) or all(map(_is_number, filter(None, bounds))):
            return False
        return not any(_stores(each, name) for each in inside(self._function))

    def _handed(self, call: ast.Call) -> Iterator[Write]:
        """A view is handed to a function of the program's, or to an object, that writes into its argument."""
        kept = [self._kept(each) for each in call.args] if self._depth < _DEPTH else []
        for owner, file, function in self._functions(call) if any(kept) else ():
            parameters = [name for name in parameters_of(function) if name not in ("self", "cls")]
            objects = dict(self._objects)
            for name, each in zip(parameters, call.args):
                objects[name] = self._object(each)
            for at, name in enumerate(parameters[: len(kept)]):
                if not kept[at]:
                    continue
                inner = _Body(owner, file, function, (), objects, self._depth + 1)
                inner._views[name] = kept[at], call.lineno
                kind = f"{type(owner).__name__}." if owner is not None else ""
                others = {*parameters} - {name}
                for write in inner._found(inner._nodes()):
                    adds, mixes = self._gives(call), write.mixes
                    if not write.inner:
                        noise = {each for each, given in zip(parameters, call.args) if self._is_random(given)}
                        mixes = not inner._adds(write, others)
                        adds &= not mixes or inner._adds(write, others - noise)
                    by = f"{write.by} {kind}{inner._name}" if adds and (write.by or not write.inner) else ""
                    yield Write(
                        kept[at], _base(call.args[at]), write.line, SourceLine(self._file, call.lineno, self._name),
                        write.inner or write.name, by, sure=write.sure, mixes=mixes,
                    )  # fmt: skip

    def _is_random(self, given: ast.expr) -> bool:
        """Drawn anew for the call: ``noise`` after ``noise = torch.randn_like(x)``."""
        if not isinstance(given, ast.Name):
            return is_random(ast.unparse(given))
        made = assigned_before(self._file, given.lineno, given.id)
        return made is not None and isinstance(made[1], ast.Assign) and is_random(ast.unparse(made[1].value))

    def _gives(self, call: ast.Call) -> bool:
        """What the call gives is made use of."""
        return not any(isinstance(each, ast.Expr) and each.value is call for each in inside(self._function))

    def _adds(self, write: Write, others: set[str]) -> bool:
        """A statement that changes it each time: neither by another argument, nor by what is made of it itself, as a
        normalisation of each sample does, which changes nothing the second time."""
        line = write.line.line
        nodes = [each for each in inside(self._function) if getattr(each, "lineno", 0) == line]
        calls = [called_name(each) for each in nodes if isinstance(each, ast.Call)]
        made = {
            each.id for node in inside(self._function) if isinstance(node, ast.Assign) and node.lineno < line
            and write.name in _named(node.value) for target in node.targets for each in ast.walk(target)
            if isinstance(each, ast.Name) and each.id != write.name
        }  # fmt: skip
        shapes = {id(each) for node in nodes for each in _of_shape(node)}
        read = [each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
                and id(each) not in shapes]  # fmt: skip
        part = any(isinstance(each, ast.Assign) for each in nodes)  # the view whose part is set is read as well
        itself = read.count(write.name) - (part or any(name.endswith("_") for name in calls))
        if not _SETTLED.isdisjoint(calls) or itself > 0:
            return False
        return (others | made).isdisjoint(read) or self._undone(write, nodes)

    def _undone(self, write: Write, nodes: list[ast.AST]) -> bool:
        """What a normalisation has taken off is kept, and another method puts it back: of what is normalised already
        that is nothing."""
        used = {each.attr for each in nodes if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"}
        kept = {
            target.attr for node in inside(self._function)
            if isinstance(node, ast.Assign) and node.lineno < write.line.line and write.name in _named(node.value)
            for target in node.targets if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        }  # fmt: skip
        others = [each for method in _others_of(self._file, self._function) for each in ast.walk(method)]
        back = (part for each in others if _is_in_place(each) for part in ast.walk(each))  # into the data itself
        there = {id(part) for part in back}
        return not kept.isdisjoint(used) and any(
            isinstance(each, ast.Attribute) and each.attr in kept & used and isinstance(each.ctx, ast.Load)
            and id(each) not in there for each in others
        )  # fmt: skip

    def _object(self, value: ast.expr) -> Any:
        """What a name, or an attribute of one, is, as far as it is known."""
        if isinstance(value, ast.Name):
            return self._owner if value.id == "self" else self._objects.get(value.id)
        if isinstance(value, ast.Attribute):
            held = self._object(value.value)
            found = attribute(held, value.attr) if held is not None else None
            return found if type(found) is not object else None
        return None

    def _functions(self, call: ast.Call) -> Iterator[tuple[Any, str, _Scope]]:
        """(whose method it is, the file, the function) of what a call runs."""
        called = call.func
        held = self._object(called.value) if isinstance(called, ast.Attribute) else None
        method = method_code(held, called_name(call)) if held is not None else None
        codes = [(held, method)] if method is not None else list(codes_of(self._object(called)))
        for owner, code in codes:
            file = os.path.abspath(code.co_filename)
            function = function_named(file, code.co_firstlineno)
            if function is not None:
                yield owner, file, function
        known = function_called(self._file, call) if not codes else None
        if known is not None:
            yield self._owner, self._file, known


def _is_in_place(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Call) and (name := called_name(node)).endswith("_") and not name.endswith("__")
    )


def _others_of(file: str, function: _Scope) -> list[ast.FunctionDef]:
    """The other methods of the class that has a method."""
    kinds = [each for each in nodes_of(file) if isinstance(each, ast.ClassDef) and function in each.body]
    return [each for kind in kinds for each in kind.body if isinstance(each, ast.FunctionDef) and each is not function]


def _base(value: ast.expr) -> str:
    while isinstance(value, ast.Subscript):
        value = value.value
    return ast.unparse(value)


def _of_shape(node: ast.AST) -> Iterator[ast.AST]:
    """What is asked for its shape or its type alone: ``x`` of ``x.shape`` and ``randn_like(x)``."""
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device", "ndim", "size"):
        yield node.value
    elif isinstance(node, ast.Call) and (called_name(node).endswith("_like") or called_name(node) == "len"):
        yield from node.args[:1]


def _stores(node: ast.AST, name: str) -> bool:
    """Whether a statement, or a call, stores values in a part of a variable, or in all of it."""
    if isinstance(node, ast.Assign):
        parts = any(isinstance(each, ast.Subscript) and _base(each) == name for each in node.targets)
        return parts and not _is_number(node.value)
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return owner is not None and called_name(node) in _ANEW and _base(owner) == name


def _is_number(value: ast.expr) -> bool:
    return isinstance(value.operand if isinstance(value, ast.UnaryOp) else value, ast.Constant)


def _named(value: ast.AST) -> list[str]:
    """Variables and attributes in an expression."""
    every = [ast.unparse(each) for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))]
    return [each for each in every if each not in ("self", "torch", "np", "numpy", "paddle")]
