"""The tree of variables at a stop: references to containers, objects and scopes, and pages of their children.

Runs on the parked thread. References count from 1 and are valid until the program continues. A tensor is shown by its
meta and never expanded. Reading a value's children runs no user code but ``__repr__`` and ``__len__``/``__iter__`` of
containers: no property, no ``__getattr__``.
"""

from __future__ import annotations

import collections
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.value_text import is_tensor, type_name
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Variable
from adbg.engine.python.namespaces import SavedNames

PAGE = 1000  # children in one answer when the client names no count
_PRIMARY = re.compile(r"[\w.]+(?:\[[^][]*\]|\.\w+)*")  # needs no brackets before "[0]" or ".x"
_POSITION = re.compile(r"\[(\d{1,15})\]")
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, bytearray, type, types.ModuleType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.CodeType, types.FrameType, types.GeneratorType,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Child:
    """One entry below a reference. ``evaluate`` reads it in an expression ("x[0]"), "" where none does."""

    name: str
    value: Any
    evaluate: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a reference stands for. ``children(start, count)`` gives a page as ready variables or values to be shown."""

    children: Callable[[int, int], list[Variable] | list[Child]]
    total: Callable[[], int]
    frame_id: int = 0
    writable: str = "python"  # "gradients", "python", or why nothing below can be set


def expandable(value: Any) -> bool:
    """True for containers and objects with something inside. Never raises."""
    try:
        if isinstance(value, (*_PLAIN, SavedNames)):
            return False
        if isinstance(value, (Mapping, *_SEQUENCES)):
            return len(value) > 0
        return bool(_attributes(value))
    except own(Exception):
        return False


def _attributes(value: Any) -> dict[str, Any]:
    """Instance attributes, read past ``__getattr__`` and properties."""
    found: dict[str, Any] = {}
    with_dict = getattr(type(value), "__dictoffset__", 0)
    if with_dict:
        held = object.__getattribute__(value, "__dict__")
        if isinstance(held, dict):
            found.update(held)
    for cls in reversed(type(value).__mro__):
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value, type(value))
                except own(Exception):  # an empty slot
                    continue
    return found


def rank(name: str, value: Any = None) -> int:
    """Order of listing: data, then functions, classes and modules, then private names, then dunder names."""
    if name.startswith("__"):
        return 3
    if name.startswith("_"):
        return 2
    return 1 if isinstance(value, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)) else 0


class References:
    """All variable references of one stop."""

    def __init__(self, stop: StopContext) -> None:
        self._stop = stop
        self._holders: list[Holder] = []

    def add(self, holder: Holder) -> int:
        """A reference (from 1) to ``holder``."""
        self._holders.append(holder)
        return len(self._holders)

    def holder(self, reference: int) -> Holder:
        """Raises CommandError for a reference that this stop has not handed out."""
        if not 1 <= reference <= len(self._holders):
            raise CommandError(
                f"no variables reference {reference} at this stop",
                "references are valid until the program continues: ask for the scopes again",
            )
        return self._holders[reference - 1]

    def value(self, value: Any, expression: str, frame_id: int) -> int:
        """A reference to the inside of ``value``, 0 when there is nothing to expand."""
        if is_tensor(self._stop.point.backend, value) or not expandable(value):
            return 0
        base = expression if _PRIMARY.fullmatch(expression) or not expression else f"({expression})"
        return self.add(
            Holder(
                children=lambda start, count: children_of(value, base, start, count),
                total=lambda: count_of(value),
                frame_id=frame_id,
            )
        )

    def page(self, reference: int, start: int, count: int) -> list[Variable]:
        """``count`` (0: as many as one answer takes) children from ``start``, counted from 0."""
        holder = self.holder(reference)
        count = min(count, PAGE) if count > 0 else PAGE
        return [
            child if isinstance(child, Variable) else self.variable(child, holder.frame_id)
            for child in holder.children(max(0, start), count)
        ]

    def expression(self, reference: int, name: str) -> str:
        """The expression that reads the child ``name``.

        Raises:
            CommandError: there is no such child, or no expression reads it (an element of a set).
        """
        children = self.holder(reference).children
        position = _POSITION.fullmatch(name)
        page = children(int(position[1]), 1) if position else children(0, sys.maxsize)
        for child in page:
            if child.name == name:
                expression = child.evaluateName if isinstance(child, Variable) else child.evaluate
                if not expression:
                    raise CommandError(f"{name} cannot be set: no expression names it", "assign with `! STATEMENT`")
                return expression
        raise CommandError(f"no variable {name!r} under reference {reference}", "ask for the variables again")

    def variable(self, child: Child, frame_id: int) -> Variable:
        """How one child shows. Survives values that raise."""
        stop = self._stop
        tensor = is_tensor(stop.point.backend, child.value)
        reference = 0 if tensor else self.value(child.value, child.evaluate, frame_id)
        return Variable(
            name=child.name,
            value=stop.text(child.value),
            type=type_name(child.value),
            variablesReference=reference,
            evaluateName=child.evaluate,
            indexedVariables=count_of(child.value) if reference else 0,
            adbg=stop.backend.meta(child.value) if tensor else None,
        )


def count_of(value: Any) -> int:
    """How many children ``value`` has."""
    try:
        return len(value) if isinstance(value, (Mapping, *_SEQUENCES)) else len(_attributes(value))
    except own(Exception):
        return 0


def children_of(value: Any, base: str, start: int, count: int) -> list[Child]:
    """A page of the children of a container or object; ``base`` is the expression that reads it ("" when none does)."""
    if isinstance(value, Mapping):
        return [_item(key, item, base) for key, item in _page(_pairs(value), start, count)]
    if isinstance(value, (list, tuple, collections.deque)):
        page = value[start : start + count] if isinstance(value, (list, tuple)) else _page(iter(value), start, count)
        named = _field_names(value)
        return [
            Child(named.get(i, f"[{i}]"), item, f"{base}[{i}]" if base else "") for i, item in enumerate(page, start)
        ]
    if isinstance(value, _SEQUENCES):
        return [Child(f"{{{i}}}", item) for i, item in enumerate(_page(iter(value), start, count), start)]
    return names_page(_attributes(value), start, count, f"{base}." if base else "", bool(base))


def names_page(
    names: Mapping[str, Any], start: int, count: int, prefix: str = "", readable: bool = True
) -> list[Child]:
    """A page of names in the order of ``rank``. Only the page's values are looked at beyond their type."""
    ordered = sorted(names, key=lambda name: rank(str(name), names[name]))
    return [
        Child(str(name), names[name], f"{prefix}{name}" if readable and str(name).isidentifier() else "")
        for name in ordered[start : start + count]
    ]


def _field_names(value: Any) -> dict[int, str]:
    fields = getattr(type(value), "_fields", None)
    return dict(enumerate(fields)) if isinstance(value, tuple) and isinstance(fields, tuple) else {}


def _pairs(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return iter(dict.items(value)) if isinstance(value, dict) else iter(value.items())


def _page(items: Iterator[Any], start: int, count: int) -> Iterator[Any]:
    return itertools.islice(items, start, start + count)


def _item(key: Any, value: Any, base: str) -> Child:
    simple = type(key) in (str, int, bool, type(None)) and len(str(key)) <= 200
    text = repr(key) if simple else _key_text(key)
    return Child(text, value, f"{base}[{key!r}]" if base and simple else "")


def _key_text(key: Any) -> str:
    try:
        return " ".join(repr(key).split())[:80]
    except own(Exception) as error:
        return f"<{type_name(key)}: its repr raised {type(error).__name__}>"
