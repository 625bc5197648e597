"""Tensors and arrays (NumPy) that a custom function keeps as attributes of its context, or elsewhere (on its class, on
a module, in a global name): whether what backward reads is what forward kept.

Nothing guards them: ``save_for_backward`` notes a version, and backward raises where it moved. What is kept elsewhere
all calls share: a later one sets it anew.
"""

from __future__ import annotations

import ast
import math
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend, FunctionCall
from adbg.engine.diagnosis.detectors.functions.effects import plain_code
from adbg.engine.diagnosis.detectors.functions.places import Place, keys_read, places_of, value_at, weakly
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import function_named, inside, parameters_of
from adbg.engine.outside import suppress
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_LARGEST = 4 << 20  # elements of one tensor whose bytes are summed
_PARTS = 8  # of a dictionary or list that is kept
_MOST = 256  # attributes of the contexts whose backward is to come


@dataclass(slots=True)
class _Kept:
    function: type
    attribute: str
    line: SourceLine | None  # of the call
    node: int  # address
    ref: Any
    digest: int
    version: int | None  # and norm: of a tensor
    norm: float


def is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


@dataclass(slots=True)
class Changed:
    function: type
    attribute: str
    line: SourceLine | None
    key: int  # of the node in the graph that is run back
    array: bool
    evidence: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Elsewhere:
    place: Place
    holder: Callable[[], Any]
    function: type
    line: SourceLine | None
    node: int
    call: int  # the how manieth
    digest: tuple[int, ...]  # of each tensor there
    norm: float


@dataclass(slots=True)
class Seen:
    """What a backward found elsewhere. ``differs``: from call to call."""

    place: Place
    line: SourceLine | None
    digest: tuple[int, ...]
    differs: bool = False


@dataclass(slots=True)
class Replaced:
    """``calls``: of the function since the last backward. ``by``: whose call set it last."""

    place: Place
    function: type
    by: type
    line: SourceLine | None
    key: int
    calls: int
    norms: tuple[float, float]


class Attributes:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._kept: list[_Kept] = []
        self._read: dict[tuple[type, str], bool] = {}
        self._places: dict[type, list[Place]] = {}
        self._elsewhere: dict[tuple[int, str], _Elsewhere] = {}  # by node and name
        self._last: dict[tuple[int, str], tuple[int, tuple[int, ...], type]] = {}  # which call set it last, to what
        self._calls: dict[type, int] = {}
        self._number = 0  # of calls of all functions
        self.elsewhere: dict[tuple[type, str], Seen] = {}  # in a backward
        self._keys: dict[tuple[type, str], list[Any] | None] = {}  # that backward takes of a dictionary

    def keep(self, call: FunctionCall, attributes: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Note what forward left on its context."""
        backend = self._facts.backend
        made = next((each for each in results if backend.is_tensor(each) and backend.has_graph(each)), None)
        node = backend.node_address(made.grad_fn) if made is not None else None
        for name, value in list(attributes.items()) if node else ():
            array = is_array(value)
            if len(self._kept) >= _MOST or not (array or backend.is_tensor(value)):
                continue
            if not self._is_read(call.function, name):
                continue
            digest = self._digest(value)
            if digest is None or _is_statistic(backend, call, value):
                continue
            with suppress(TypeError):
                version, norm = (None, 0.0) if array else (backend.version_of(value), backend.norm(value))
                ref = weakref.ref(value)
                self._kept.append(_Kept(call.function, name, call.line, node or 0, ref, digest, version, norm))

    def changed(self, running: Running) -> Iterator[Changed]:
        """Those that the backward which begins will read, and that are not what they were. Forgets all."""
        kept, self._kept = self._kept, []
        suspects = []
        for each in kept:
            value = each.ref()
            if value is not None and self._digest(value) != each.digest:
                suspects.append((each, value))
        call = running.call
        keys = {call.address(key): key for key in call.order() if call.is_custom(key)} if suspects else {}
        for each, value in suspects:
            key = keys.get(each.node)
            if key is None:
                continue
            array = is_array(value)
            evidence = self._changes_of(each, value) if not array else [
                f"the bytes of the array ctx.{each.attribute} (checksum {each.digest:08x} as forward ended) "
                "have changed as backward begins"
            ]  # fmt: skip
            yield Changed(each.function, each.attribute, each.line, key, array, evidence)

    # ---- elsewhere

    def keep_elsewhere(self, call: FunctionCall, results: Sequence[Any]) -> None:
        """Note what forward left on anything but its context. Calls without a graph set it, too."""
        known = self._places.get(call.function)
        if known is None:
            known = self._places[call.function] = list(places_of(call.function, call.arguments))
        if not known:
            return
        backend = self._facts.backend
        made = next((each for each in results if backend.is_tensor(each) and backend.has_graph(each)), None)
        node = (backend.node_address(made.grad_fn) or 0) if made is not None else 0
        self._calls[call.function] = self._calls.get(call.function, 0) + 1
        self._number = number = self._number + 1
        for place in known:
            holder = place.holder
            if place.argument >= 0:
                if place.argument >= len(call.arguments):
                    continue
                holder = weakly(call.arguments[place.argument])
            value = value_at(holder(), place.attribute)
            if len(self._elsewhere) >= _MOST:
                continue
            value = self._read_of(call.function, place, value)
            digest = self._digests(value)
            if not digest:
                continue
            at = id(holder()), place.attribute
            self._last[at] = number, digest, call.function
            if node:  # one that lay there is gone
                norm = self._norm(value)
                self._elsewhere[node, place.name] = _Elsewhere(
                    place, holder, call.function, call.line, node, number, digest, norm
                )

    def replaced(self, running: Running) -> Iterator[Replaced]:
        """Those that a later call set anew, with other values, before the backward which begins reads them. Forgets
        all."""
        kept, self._elsewhere = self._elsewhere, {}
        last, self._last = self._last, {}
        calls, self._calls = self._calls, {}
        if not kept:
            return
        graph = running.call
        keys = {graph.address(key): key for key in graph.order() if graph.is_custom(key)}
        for each in kept.values():
            holder, key = each.holder(), keys.get(each.node)
            if holder is None or key is None or each.function.__name__ not in graph.name(key):
                continue
            seen = self.elsewhere.setdefault((each.function, each.place.name), Seen(each.place, each.line, each.digest))
            seen.differs = seen.differs or seen.digest != each.digest
            number, digest, by = last.get((id(holder), each.place.attribute), (0, (), each.function))
            value = self._read_of(each.function, each.place, value_at(holder, each.place.attribute))
            # What is there now is what the last call left, and not what this one did.
            if number <= each.call or set(each.digest) <= set(digest):  # it has grown, by layers, or as a stack
                continue
            if value is None or self._digests(value) != digest:
                continue
            norms = each.norm, self._norm(value)
            yield Replaced(each.place, each.function, by, each.line, key, calls[each.function], norms)

    def _read_of(self, function: type, place: Place, value: Any) -> Any:
        """Of a dictionary, list or tuple what backward takes of it; None where it takes that by a key of its own."""
        if type(value) not in (dict, list, tuple):
            return value
        known = function, place.name
        if known not in self._keys:
            self._keys[known] = keys_read(function, place.name)
        keys = self._keys[known]
        if keys is None:
            return None
        if not keys:
            return value
        with suppress(LookupError, TypeError):
            return [value[key] for key in keys]
        return None

    def _held(self, value: Any) -> list[Any]:
        """The tensor or array that lies there; those of a dictionary, list or tuple of a few."""
        kind = type(value)
        parts = [*value.values()] if kind is dict else [*value] if kind in (list, tuple) else [value]
        if len(parts) > _PARTS:
            return []
        return [each for each in parts if is_array(each) or self._facts.backend.is_tensor(each)]

    def _digests(self, value: Any) -> tuple[int, ...]:
        held = self._held(value)
        few = sum(each.size if is_array(each) else self._facts.backend.meta(each).numel for each in held) <= _LARGEST
        return tuple([digest for each in held if few and (digest := self._digest(each)) is not None])

    def _norm(self, value: Any) -> float:
        """Of the first of them; 0 of an array."""
        held = self._held(value)
        return self._facts.backend.norm(held[0]) if held and not is_array(held[0]) else 0.0

    def _changes_of(self, kept: _Kept, value: Any) -> list[str]:
        backend = self._facts.backend
        evidence = [
            f"ctx.{kept.attribute} was at version {kept.version} as forward ended, and is at "
            f"{backend.version_of(value)} as backward begins",
        ]
        norm = backend.norm(value)
        if math.isfinite(norm) and norm != kept.norm:
            evidence.append(f"its norm was {kept.norm:.6g}, and is {norm:.6g}")
        return evidence

    def _digest(self, value: Any) -> int | None:
        with suppress(Exception):
            if is_array(value):
                few = 1 < value.size <= _LARGEST and value.dtype.char not in "OV"
                return zlib.adler32(value.tobytes()) if few else None
            if 1 < self._facts.backend.meta(value).numel <= _LARGEST:  # one number is a counter, or a rate
                return self._facts.digest(value)
        return None

    def _is_read(self, function: type, attribute: str) -> bool:
        known = self._read.get((function, attribute))
        if known is None:
            known = self._read[function, attribute] = _reads(function, attribute)
        return known


def _is_statistic(backend: Backend, call: FunctionCall, value: Any) -> bool:
    """Whether forward was given it to write into: each call does, in turn. Of an array nothing tells."""
    if is_array(value):
        return any(each is value for each in call.arguments)
    given = ((each, before) for each, before in zip(call.arguments, call.versions) if each is value)
    return any(before != backend.version_of(each) for each, before in given)


def _reads(function: type, attribute: str) -> bool:
    """Whether backward takes ``ctx.attribute`` and does not write into it, or hands its whole context to another."""
    code = plain_code(function, "backward")
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    context = next(iter(parameters_of(tree)), "") if tree is not None else ""
    if tree is None or not context:
        return False
    own = f"{context}.{attribute}"
    names, read = {own}, False
    nodes = sorted(inside(tree), key=lambda each: getattr(each, "lineno", 0))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and ast.unparse(node.value) == own:
            names.add(node.targets[0].id)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node) == own:
            read = True
        if isinstance(node, ast.Call) and any(isinstance(each, ast.Name) and each.id == context for each in node.args):
            read = True
    return read and not any(ast.unparse(each) in names for node in nodes for each in _written(node))


def _written(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.AugAssign):
        yield node.target
    elif isinstance(node, ast.Assign):
        yield from (each.value for each in node.targets if isinstance(each, ast.Subscript))
    elif isinstance(node, ast.Call):
        yield from (each.value for each in node.keywords if each.arg == "out")
        if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            yield node.func.value
