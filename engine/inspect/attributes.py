"""``adbg/attributes``: what a completion offers behind the dot of ``model.fc.we``. Runs on the parked thread.

No code of the program's runs for it: no property, no ``__getattr__``, ``__dir__`` or ``__getitem__``, not even
``__class__``. The chain is followed through instance dicts and items of lists, tuples and dicts; where that ends (a
property), nothing is offered.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.value_text import type_name
from adbg.engine.inspect.variables import rank
from adbg.engine.outside import own
from adbg.engine.places import parsed
from adbg.engine.protocol import messages as protocol
from adbg.engine.python.namespaces import SavedNames

MOST = 5_000  # names in one answer
# Where a torch Module and a Paddle Layer keep what their ``__getattr__`` finds, in the order in which it looks.
_PARTS = ("_parameters", "_buffers", "_modules", "_sub_layers")
_SAME = frozenset(("grad", "data", "T", "mT"))  # tensors of the same type as the tensor that has them
_MRO = type.__dict__["__mro__"]
_CLASS_DICT = type.__dict__["__dict__"]
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Unknown(Exception):
    """Only code of the program's could tell."""


def attributes(stop: StopContext, request: protocol.Attributes) -> protocol.AttributesBody:
    """Names behind the dot of ``request.expression``: a chain of names, attributes and items. None of anything else."""
    try:
        tree = parsed(request.expression.strip(), mode="eval").body
        value = follow(tree, lambda name: _named(stop, name, request.frameId), types_alone=True)
    except (Unknown, CommandError, SyntaxError, ValueError, MemoryError, RecursionError):
        return protocol.AttributesBody([])
    found = list(itertools.islice(_names(value), MOST))
    found.sort(key=lambda each: (rank(each.name), each.type == ""))
    return protocol.AttributesBody(found)


# ---------------------------------------------------------------------- following the chain


def _named(stop: StopContext, name: str, frame_id: int) -> Any:
    found = stop.namespace(frame_id, reads=True).globals_for([name])
    if name in found:
        return found[name]
    if name in vars(builtins):
        return vars(builtins)[name]
    raise Unknown


def follow(tree: ast.expr, named: Callable[[str], Any], types_alone: bool = False) -> Any:
    """The value that a chain of names, attributes and items stands for. ``types_alone``: any value of its type will do.

    Raises:
        Unknown: it is something else, or only code of the program's could tell.
    """
    if isinstance(tree, ast.Name):
        return named(tree.id)
    if isinstance(tree, ast.Attribute):
        return _attribute(follow(tree.value, named, types_alone), tree.attr, types_alone)
    if isinstance(tree, ast.Subscript):
        try:
            key = ast.literal_eval(tree.slice)
        except ValueError:
            raise Unknown from None
        if type(key) in (int, str):
            return _item(follow(tree.value, named, types_alone), key)
    raise Unknown


def _attribute(value: Any, name: str, types_alone: bool) -> Any:
    if type(value) is SavedNames:
        return _item(value, name)
    if types_alone and name in _SAME and _is_a(value, "Tensor"):
        return value
    for held in (*_dicts(value), *(_class_dicts(value) if _is_class(value) else ())):
        if name in held:
            return held[name]
    for held in _class_dicts(type(value)):
        if name in held:
            member = held[name]
            if type(member) is types.MemberDescriptorType:  # a slot
                try:
                    return member.__get__(value, type(value))
                except AttributeError:
                    raise Unknown from None
            if hasattr(type(member), "__get__"):  # a property, a method
                raise Unknown
            return member
    raise Unknown


def _item(value: Any, key: int | str) -> Any:
    try:
        if type(value) is SavedNames:
            return value[key]
        kinds = _mro(type(value))
        if isinstance(key, int):
            if list in kinds:
                return list.__getitem__(value, key)
            if tuple in kinds:
                return tuple.__getitem__(value, key)
            for held in _parts(value, ("_modules", "_sub_layers")):  # ModuleList, Sequential, LayerList
                return list(dict.values(held))[key]
        if dict in kinds:
            return dict.__getitem__(value, key)
    except (LookupError, TypeError):
        pass
    raise Unknown


# ---------------------------------------------------------------------- names


def _names(value: Any) -> Iterator[protocol.Attribute]:
    """What the object holds itself, with its type; then what its class has."""
    seen: set[str] = set()

    def fresh(held: Mapping[Any, Any], typed: bool) -> Iterator[protocol.Attribute]:
        for name in list(dict.keys(held) if isinstance(held, dict) else held):
            if type(name) is str and name.isidentifier() and name not in seen:
                seen.add(name)
                yield protocol.Attribute(name, type_name(held[name]) if typed else "")

    if type(value) is SavedNames:
        for name in value:
            if name.isidentifier():
                yield protocol.Attribute(name, "saved")
    for own_names in _dicts(value):
        yield from fresh(own_names, True)
    for held in (*(_class_dicts(value) if _is_class(value) else ()), *_class_dicts(type(value))):
        yield from fresh(held, False)


def _dicts(value: Any) -> list[dict[Any, Any]]:
    """The instance's own dict, and those in it where a Module or Layer keeps its parts."""
    held = instance_dict(value)
    return [*([held] if held else []), *_parts(value, _PARTS)]


def _parts(value: Any, names: Sequence[str]) -> list[dict[Any, Any]]:
    held = instance_dict(value)
    if not held or not _is_a(value, "Module", "Layer"):
        return []
    return [held[name] for name in names if dict in _mro(type(held.get(name)))]


def instance_dict(value: Any) -> dict[Any, Any]:
    """``__dict__`` as Python itself keeps it: a class may have given it another meaning."""
    if _is_class(value):
        return {}  # its members are those of its class dicts
    if types.ModuleType not in _mro(type(value)):
        named = next((held["__dict__"] for held in _class_dicts(type(value)) if "__dict__" in held), None)
        if type(named) not in _DESCRIPTORS:
            return {}
    try:
        held = object.__getattribute__(value, "__dict__")
    except own(Exception):
        return {}
    return held if type(held) is dict else {}


def _is_a(value: Any, *names: str) -> bool:
    """By the name of a class: ``isinstance`` asks the value, which may have a property ``__class__``."""
    return any(kind.__name__ in names for kind in _mro(type(value)))


def _is_class(value: Any) -> bool:
    return type in _mro(type(value))


def _mro(kind: type) -> tuple[type, ...]:
    return _MRO.__get__(kind)  # type: ignore[no-any-return]  # past a metaclass with an attribute of that name


def _class_dicts(kind: Any) -> list[Mapping[str, Any]]:
    return [_CLASS_DICT.__get__(each) for each in _mro(kind)]
