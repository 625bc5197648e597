"""Data that each visit changes where it is stored: an augmentation or a normalisation that works in place on a view of
what a data set keeps, so that what it does adds up from epoch to epoch."""

from __future__ import annotations

import ast
import os
import re
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.numbers.holders import owners
from adbg.engine.diagnosis.detectors.training.bits import hash_of
from adbg.engine.diagnosis.source import called_name, function_called, function_named, inside, parameters_of, tree_of
from adbg.engine.diagnosis.values import is_library, is_users
from adbg.engine.frames import forget_stack, local, locals_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_LOOKED = (1, 2, 3, 8, 16, 32)  # iterations at which data sets are looked for
_ROWS = 16  # elements of one that are compared
_MOST = 2_000  # times
_TWICE = 2  # times that one element changed
_BYTES = 1 << 20  # of an element
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
_CARRIED = re.compile(r"langevin|sgld|particle|walk|chain|brown|simul|replay|buffer|negative|state|agent|env", re.I)
_RANDOM = re.compile(r"rand|noise|normal|bernoulli|jitter|uniform|dropout|augment", re.I)


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that writes into an element of attribute ``kept``, by the name of a variable. ``taken``: where that
    was given it."""

    kept: str
    name: str
    line: SourceLine
    taken: SourceLine
    sure: bool = True  # it is a data set that gives its elements


@dataclass(slots=True)
class _Watched:
    stored: Callable[[], Any]  # what it is an element of
    called: str
    write: Write
    identity: int  # of what is stored there
    hashes: dict[int, int | None] = field(default_factory=dict)
    changes: dict[int, int] = field(default_factory=dict)


@detector("silent-overwrite")
class Accumulated(Detector):
    """A data set's ``__getitem__``, or a transformation that it calls, works in place on a view of what is stored
    (``img = self.images[i]``, ``img += noise``): each visit changes the data itself, and the changes add up from epoch
    to epoch. No graph is concerned, and no gradient is wrong. So does a loop over a list of batches, or over slices.

    Evidence: the statement that writes, where the variable is given the view, and an element of the attribute (of the
    list, of the table) that has changed at least twice while the program trained.
    Mistaken for: a copy (indexing with a list, ``clone()``, ``copy()``, another type), what is normalised once (not
    told: no element changes twice), counters and caches that a data set keeps beside its data, buffers that are written
    anew (``copy_``, ``fill_``). Of a method with another name, and of a loop, only what adds something random and is
    handed on (a warning), and not where a name speaks of a simulation, which may carry its state on like that.
    Cost: none where no source has such a statement; else checksums of 16 elements behind each forward, 2,000 times.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._watched: list[_Watched] = []
        self._met: set[int] = set()  # ids of owners
        self._looks = 0
        self._told = False

    def applied(self) -> bool:
        return bool(self._met)

    def backward_begin(self, running: Running) -> None:
        if self._told or len(running.chain) > 1:
            return
        if self.facts.iteration in _LOOKED:
            self._find()
        if self._watched and self._looks < _MOST:
            self._looks += 1
            self._look()

    def _find(self) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        try:
            for owner in owners():
                if id(owner) not in self._met and not hasattr(owner, "_parameters"):
                    self._met.add(id(owner))
                    for write in writes_of(owner):
                        with suppress(TypeError):  # what has no weak references
                            self._watch(_attribute_of(weakref.ref(owner), write.kept), type(owner).__name__, write)
            while frame is not None:
                if id(frame.f_code) not in self._met and is_users(frame):
                    self._met.add(id(frame.f_code))
                    roots = {name for name, value in locals_of(frame).items() if self._is_data(value)}
                    for write in loops_of(frame.f_code, roots) if roots else ():
                        self._watch(_local_of(frame.f_code, write.kept), "", write)
                frame = frame.f_back
        finally:
            del frame
            forget_stack()

    def _watch(self, stored: Callable[[], Any], kind: str, write: Write) -> None:
        called = f"{kind}.{write.kept}" if kind else write.kept
        self._watched.append(_Watched(stored, called, write, id(stored())))

    def _is_data(self, value: Any) -> bool:
        """A table, or several tensors; no parameter, and nothing of a graph."""
        if type(value) in (list, tuple):
            return any(self._is_data(each) for each in value[:1])
        backend = self.facts.backend
        return _is_array(value) or (backend.is_tensor(value) and not backend.meta(value).requires_grad)

    def _look(self) -> None:
        for each in tuple(self._watched):
            stored = each.stored()
            if stored is None or id(stored) != each.identity:
                self._watched.remove(each)
                continue
            for at in _spread(stored, self.facts.backend.is_tensor):
                with suppress(Exception):
                    now = self._hash(stored[at])
                    if now is not None and each.hashes.get(at, now) != now:
                        each.changes[at] = each.changes.get(at, 0) + 1
                    each.hashes[at] = now
            if any(count >= _TWICE for count in each.changes.values()):
                self._told = True
                self._tell(each)
                return

    def _hash(self, value: Any) -> int | None:
        if _is_array(value):
            return zlib.crc32(value.tobytes()) if value.nbytes <= _BYTES and not value.dtype.hasobject else None
        if type(value) in (list, tuple, dict):
            every = [self._hash(each) for each in list(value.values() if type(value) is dict else value)[:_ROWS]]
            return hash(tuple(every)) if any(each is not None for each in every) else None
        return hash_of(self.facts, value) if self.facts.backend.is_tensor(value) else None

    def _tell(self, each: _Watched) -> None:
        facts, write = self.facts, each.write
        stored = each.called
        at, count = max(each.changes.items(), key=lambda item: item[1])
        message = (
            f"{place(write.line)} writes into {stored} itself: {write.name} is a view of it, and each visit of an "
            "element adds to what the visits before have done; work on a copy (clone(), copy(), or an operator that is "
            "not in place)"
        )
        evidence = [
            f"{stored}[{at}] has changed {count} times by iteration {facts.iteration}, and others of {_ROWS} that were "
            f"looked at: {len(each.changes)} in all",
            f"{write.name} is taken at {place(write.taken)}: {facts.text_of(write.taken)}",
        ]
        severity, sure = ("error", 0.9) if write.sure else ("warning", 0.7)
        facts.tell(
            Finding(
                0, "silent-overwrite", severity, sure, message, iteration=facts.iteration, forward=write.taken,
                cause=facts.cause(write.line), evidence=evidence, next=[f"b {place(write.line)}"],
            )
        )  # fmt: skip


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _spread(stored: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Indices of some elements, from the first to the last."""
    if type(stored) is dict:
        return list(stored)[:_ROWS]
    if type(stored) not in (list, tuple) and not _is_array(stored) and not is_tensor(stored):
        return []
    with suppress(Exception):
        return list(range(0, len(stored), max(1, len(stored) // _ROWS)))[:_ROWS]
    return []


# ---- what the source says


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
                if name in _GIVES:
                    yield write
                elif function is not None and _is_noise(function, write, kind.__name__):
                    yield replace(write, sure=False)


def loops_of(code: types.CodeType, roots: set[str]) -> Iterator[Write]:
    """Of a function that runs, or a module: of elements of these variables."""
    file = os.path.abspath(code.co_filename)
    function = tree_of(file) if code.co_name == "<module>" else function_named(file, code.co_firstlineno)
    for write in _Body(None, file, function, roots).writes() if function is not None else ():
        if function is not None and _is_noise(function, write, ""):
            yield replace(write, sure=False)


def _is_noise(function: ast.AST, write: Write, kind: str) -> bool:
    names = f"{kind} {getattr(function, 'name', '')} {write.kept} {write.name}"
    return not _CARRIED.search(names) and _RANDOM.search(_statement(function, write.line.line)) is not None


def _attribute_of(owner: Any, name: str) -> Callable[[], Any]:
    return lambda: vars(held).get(name) if (held := owner()) is not None else None


def _local_of(code: types.CodeType, name: str) -> Callable[[], Any]:
    """Of the function while it runs, on the thread that asks."""

    def find() -> Any:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        return local(frame, name) if frame is not None else None

    return find


def _statement(function: ast.AST, line: int) -> str:
    return "".join(ast.unparse(each) for each in ast.walk(function) if isinstance(each, (ast.AugAssign, ast.Call))
                   and each.lineno == line)  # fmt: skip


class _Body:
    """The statements of one function in their order, with the variables that are views of an attribute."""

    def __init__(self, owner: Any, file: str, function: _Scope, roots: Collection[str] = ()) -> None:
        self._owner = owner
        self._file = file
        self._function = function
        self._roots = roots  # variables that are taken for attributes
        self._name = str(getattr(function, "name", "<module>"))
        self._views: dict[str, tuple[str, int]] = {}  # by variable: the attribute, and the line

    def writes(self) -> Iterator[Write]:
        nodes = [each for each in inside(self._function) if hasattr(each, "lineno")]
        given = {
            text for each in nodes if isinstance(each, (ast.Return, ast.Yield)) and each.value is not None
            for text in _named(each.value)
        }  # fmt: skip
        if self._roots:  # a loop hands them to the model
            given |= {
                text for each in nodes if isinstance(each, ast.Call) for part in each.args for text in _named(part)
            }
        found = []
        for node in sorted(nodes, key=lambda each: (each.lineno, not isinstance(each, ast.Call), each.col_offset)):  # type: ignore[attr-defined]
            found += list(self._by(node))
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, node.lineno)
            elif isinstance(node, ast.For):
                self._loop(node.target, node.iter, node.lineno)
        passed = self._passed_on(nodes, given)
        for name, kept, line, taken in found:
            if name in passed or (name.startswith("self.") and name in given):
                yield Write(kept, name, line, SourceLine(self._file, taken, self._name))

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
        elif isinstance(over, (ast.Name, ast.Attribute)):
            self._bind(target, ast.Subscript(over, ast.Constant(0)), line)

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
            if part and value.id in self._roots:
                return value.id
            return self._views[value.id][0] if value.id in self._views else ""
        return value.attr if part and isinstance(value, ast.Attribute) else ""

    def _by(self, node: ast.AST) -> Iterator[tuple[str, str, SourceLine, int]]:
        """(name, attribute, line that writes, line that takes) of what a statement writes into."""
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):  # a number that is added counts something
            target = node.target if not isinstance(node.value, ast.Constant) else None
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
            base = target
            while isinstance(base, ast.Subscript):
                base = base.value
            name, line = ast.unparse(base), SourceLine(self._file, getattr(node, "lineno", 0), self._name)
            yield name, kept, line, self._views[name][1] if name in self._views else line.line

    def _handed(self, call: ast.Call) -> Iterator[tuple[str, str, SourceLine, int]]:
        """A view is handed to a function of the program's that writes into its argument."""
        for at, each in enumerate(call.args):
            kept = self._kept(each)
            for file, function in self._functions(call.func, call) if kept else ():
                parameters = [name for name in parameters_of(function) if name not in ("self", "cls")]
                inner = _Body(None, file, function)
                if at < len(parameters):
                    inner._views[parameters[at]] = kept, call.lineno
                for node in sorted(inside(function), key=lambda part: getattr(part, "lineno", 0)):
                    for _, _, line, _ in inner._by(node):
                        yield ast.unparse(each), kept, line, call.lineno
                    if isinstance(node, ast.Assign):
                        for target in node.targets:
                            inner._bind(target, node.value, node.lineno)

    def _functions(self, called: ast.expr, call: ast.Call) -> Iterator[tuple[str, _Scope]]:
        known = function_called(self._file, call)
        if known is not None:
            yield self._file, known
        elif isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self" and self._owner is not None:
            for code in _codes(getattr(self._owner, "__dict__", {}).get(called.attr)):
                file = os.path.abspath(code.co_filename)
                function = function_named(file, code.co_firstlineno)
                if function is not None:
                    yield file, function


def _codes(value: Any, depth: int = 2) -> Iterator[types.CodeType]:
    """Of a transformation: a function, an object with ``__call__``, or several of them in one (``Compose``)."""
    if isinstance(value, types.FunctionType):
        yield value.__code__
        return
    method = vars(type(value)).get("__call__")
    if isinstance(method, types.FunctionType) and not is_library(method.__code__.co_filename):
        yield method.__code__
    parts = getattr(value, "__dict__", {}).get("transforms") if depth else None
    for each in parts if isinstance(parts, (list, tuple)) else value if isinstance(value, (list, tuple)) else ():
        if depth:
            yield from _codes(each, depth - 1)


def _named(value: ast.AST) -> list[str]:
    """Variables and attributes in an expression."""
    every = [ast.unparse(each) for each in ast.walk(value) if isinstance(each, (ast.Name, ast.Attribute))]
    return [each for each in every if each not in ("self", "torch", "np", "numpy", "paddle")]
