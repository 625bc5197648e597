"""A way from a variable to an object, as Python would write it: ``losses[3]``, ``trainer.history['loss'][0]``.

Nothing of the program's runs: attributes are looked up where Python keeps them.
"""

from __future__ import annotations

import collections
import itertools
import re
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.frames import locals_of
from adbg.engine.inspect.attributes import instance_dict
from adbg.engine.inspect.memory.reach import Root, class_dict, mro
from adbg.engine.outside import own

SEQUENCES = (list, tuple, collections.deque)
_LONGEST = 40  # characters of a dict's key
_PARTS = re.compile(r"\._(?:modules|parameters|buffers|sub_layers)\['(\w+)'\]")
_NUMBER = re.compile(r"\[-?\d+\]|\['[^']*\d[^']*'\]|\[\*\]")
# Where the C types of Python keep what they refer to; each is a plain member, no code runs.
_MEMBERS: dict[type, tuple[str, ...]] = {
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__", "__dict__"),
    types.MethodType: ("__self__", "__func__"),
    types.CellType: ("cell_contents",),
    types.TracebackType: ("tb_frame", "tb_next"),
}
# What stands still in the middle of a function, and where its frame is: it refers to the locals itself.
_FRAMES: dict[type, str] = {
    types.FrameType: "",
    types.GeneratorType: "gi_frame",
    types.CoroutineType: "cr_frame",
    types.AsyncGeneratorType: "ag_frame",
}
_CACHE = "_lru_cache_wrapper"  # of functools: its dict of results, whose items are plain or links of a list
_LINK = "_lru_list_elem"
_OF_ERRORS = ("__traceback__", "__cause__", "__context__", "args")


def path_of(root: Root, way: Sequence[Any]) -> str:
    """From the variable of ``root`` to the last object of ``way``."""
    name = next((name for name, value in root.names.items() if value is way[0]), "?")
    path = f"{root.name}.{name}" if root.kind == "global" and root.name else name
    return _PARTS.sub(_part, path + _steps(way, _step))


def pattern_below(way: Sequence[Any]) -> str:
    """What ``pattern_of`` leaves of the path from the first object of ``way`` to the last. The place in a list is not
    looked for, which takes 30 ns for each item in front of it: 0.2 s for all of 4,000."""
    return pattern_of(_steps(way, lambda holder, value: "[*]" if type(holder) in SEQUENCES else _step(holder, value)))


def _steps(way: Sequence[Any], step: Callable[[Any, Any], str]) -> str:
    path = ""
    skipped: Any = None  # a dict that stands for the attributes of the object before it
    for holder, value in itertools.pairwise(way):
        if skipped is holder:
            skipped = None
            if type(value) is dict and any(type(key) is weakref.ref for key in list(holder)):
                skipped = value  # of a threading.local: by thread, the attributes that it sees
                continue
            path += _key_of(holder, value, attribute=True)
            continue
        if type(value) is dict and (_are_attributes(holder, value) or _is_of_threads(holder, value)):
            skipped = value
            continue
        path += step(holder, value)
    return path


def _part(match: re.Match[str]) -> str:
    name = match[1]
    return f".{name}" if name.isidentifier() else f"[{name}]"


def common(path: str, other: str) -> str:
    """What both are: numbers that differ are any."""
    ours, theirs = _NUMBER.findall(path), _NUMBER.findall(other)
    if path == other or len(ours) != len(theirs):
        return path
    same = iter([mine if mine == its else "[*]" for mine, its in zip(ours, theirs)])
    return _NUMBER.sub(lambda match: next(same), path)


def pattern_of(path: str) -> str:
    """The same path for all items of a list, and for keys that are numbered."""
    return _NUMBER.sub("[*]", path)


def _are_attributes(holder: Any, held: dict[Any, Any]) -> bool:
    kinds = mro(type(holder))
    if type in kinds:
        return True  # its own dict is the only one that a class refers to
    if dict in kinds and type(holder) is dict:
        return False
    return instance_dict(holder) is held


def _is_of_threads(holder: Any, held: dict[Any, Any]) -> bool:
    """Of a threading.local: its only dict that is not empty has the threads in it."""
    return threading.local in mro(type(holder)) and bool(held)


def _step(holder: Any, value: Any) -> str:
    kinds = mro(type(holder))
    if type(holder).__name__ == _CACHE:
        other = " → cache" if type(value) is dict else " → cache[*]"
        return _key_of(instance_dict(holder), value, attribute=True) or other
    if type(holder).__name__ == _LINK:
        return ""
    if dict in kinds:
        found = _key_of(holder, value, attribute=False)
        if found:
            return found
    for kind in SEQUENCES:
        if kind in kinds:
            place = next((place for place, item in enumerate(kind.__iter__(holder)) if item is value), None)
            if place is not None:
                return f"[{place}]"
    if set in kinds or frozenset in kinds:
        return "{…}"
    return _attribute(holder, kinds, value) or f" → {type(holder).__name__} → {type(value).__name__}"


def _key_of(held: dict[Any, Any], value: Any, attribute: bool) -> str:
    for key, item in list(dict.items(held)):
        if item is value:
            if attribute and type(key) is str:
                return f".{key}"
            if type(key) in (str, int, float, bool, bytes, type(None)):
                text = repr(key)
                return f"[{text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}]"
            return f"[<{type(key).__name__}>]"
        if key is value:
            return f" key <{type(key).__name__}>"
    return ""


def _attribute(holder: Any, kinds: Sequence[type], value: Any) -> str:
    names = _MEMBERS.get(type(holder), _OF_ERRORS if BaseException in kinds else ())
    for name in names:
        try:
            held = object.__getattribute__(holder, name)
        except own(Exception):
            continue
        if held is value:
            return f".{name}"
    found = _key_of(instance_dict(holder), value, attribute=True)
    if found:
        return found
    if type(value) is collections.OrderedDict and any("_backward_hooks" in class_dict(kind) for kind in kinds):
        return "._backward_hooks"  # where torch keeps what ``register_hook`` of a tensor was given
    for kind in kinds:
        for name, member in list(class_dict(kind).items()):
            if type(member) is types.MemberDescriptorType:  # a slot
                try:
                    if member.__get__(holder, kind) is value:
                        return f".{name}"
                except own(Exception):
                    continue
    return _local(holder, value) if type(holder) in _FRAMES else ""


def _local(holder: Any, value: Any) -> str:
    name = _FRAMES[type(holder)]
    frame = getattr(holder, name) if name else holder
    key = _key_of(locals_of(frame), value, attribute=False) if frame is not None else ""
    return f"{'.' * bool(name)}{name}.f_locals{key}" if key else ""
