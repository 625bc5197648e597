"""Variables that keep tensors alive, each told once for all the items of a list. Nothing is kept of the program."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.bindings import bound_at, filled_at
from adbg.engine.inspect.memory.paths import path_of, pattern_of
from adbg.engine.inspect.memory.reach import Reach, Root, defined_in, file_of
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Owner

MOST_NAMED = 4_000  # paths that are written out in one answer


def tensor_types(backends: Sequence[Backend]) -> Callable[[type], bool]:
    """Whether a type is that of a framework's tensors, without asking a value of the program's."""
    names = tuple(backend.name for backend in backends)

    def is_tensor(kind: type) -> bool:
        bases = type.__dict__["__mro__"].__get__(kind)
        return any(base.__name__ == "Tensor" and defined_in(base).partition(".")[0] in names for base in bases)

    return is_tensor


@dataclass(slots=True)
class Group:
    """All that lies under one pattern of paths."""

    path: str
    root: Root
    way: list[Any]
    places: int = 0
    members: dict[int, Any] = field(default_factory=dict)


def groups_of(reach: Reach, values: Iterable[Any]) -> dict[str, Group]:
    """By pattern, the variables that lead to ``values``; those of the same list together."""
    found: dict[tuple[str, str], Group] = {}
    named = 0
    for value in values:
        for place in reach.edges.get(id(value), ()):
            if named >= MOST_NAMED:
                break
            named += 1
            way = [*reach.way(place), value]
            root = reach.root_of(place)
            path = path_of(root, way)
            scope = f"{root.kind} {root.name} {root.thread}"
            group = found.setdefault((scope, pattern_of(path)), Group(path, root, way))
            group.places += 1
            group.members[id(value)] = value
    return {" ".join(key): group for key, group in found.items()}


def owner_of_group(group: Group, backend: Backend | None) -> Owner:
    """With the lines of the source that made it."""
    one = len(group.members) == 1 and group.places == 1
    path = group.path if one else pattern_of(group.path)
    root = group.root
    plain = path.removeprefix(f"{root.name}.") if root.kind == "global" and root.name else path
    files = list(dict.fromkeys([file for file in (root.file, *_class_files(group.way)) if file]))
    function = root.name if root.kind == "local" else ""
    filled = filled_at(plain, files, function)
    bound = bound_at(plain, files, function)
    if bound is None and root.line is not None:
        bound = root.line
    graphs = nbytes = 0
    if backend is not None:
        graphs, nbytes = _figures(backend, group.members.values())
    return Owner(
        path=path,
        kind="attribute" if "." in plain else root.kind,
        where=bound,
        filled=filled.line if filled is not None else None,
        filled_text=filled.text if filled is not None else "",
        thread=root.thread,
        count=len(group.members),
        graphs=graphs,
        bytes=nbytes,
        note=f"in {root.name}()" if root.kind == "local" else "",
    )


def owners_of(reach: Reach, values: Iterable[Any], backend: Backend | None, most: int = 20) -> list[Owner]:
    """The largest groups first."""
    groups = sorted(groups_of(reach, values).values(), key=lambda group: -len(group.members))
    return [owner_of_group(group, backend) for group in groups[:most]]


def _figures(backend: Backend, values: Iterable[Any]) -> tuple[int, int]:
    graphs = 0
    memories: dict[int, int] = {}
    for value in values:
        try:
            if not backend.is_tensor(value):
                continue
            graphs += bool(backend.has_graph(value))
            memories.update(backend.storages(value))
        except own(Exception):  # a tensor subclass of the program's that refuses
            continue
    return graphs, sum(memories.values())


def _class_files(way: Sequence[Any]) -> list[str]:
    """The files of the classes of objects on the way, the innermost last."""
    files = []
    for value in way:
        module = sys.modules.get(defined_in(type(value)))
        if type(module) is types.ModuleType and (file := file_of(module)):
            files.append(file)
    return files
