"""Variables that keep tensors alive, each told once for all the items of a list. Nothing is kept of the program."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.bindings import Found, bound_at, filled_at, given_again_at
from adbg.engine.inspect.memory.paths import SEQUENCES, common, path_of, pattern_below, pattern_of
from adbg.engine.inspect.memory.reach import Reach, Root, class_dict, defined_in, file_of, is_users, mro
from adbg.engine.inspect.memory.scopes import Scope, scope_of
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Owner

MOST_NAMED = 4_000  # paths that are written out in one answer
_ALIKE = 32  # of the items of one list: the others are known by these
_ABOVE = 4  # objects above a tensor among which that list is looked for: {"state": (h, c)} in one


def tensor_types(backends: Sequence[Backend]) -> Callable[[type], bool]:
    """Whether a type is that of a framework's tensors, without asking a value of the program's."""
    names = tuple(backend.name for backend in backends)

    def is_tensor(kind: type) -> bool:
        bases = type.__dict__["__mro__"].__get__(kind)
        return any(base.__name__ == "Tensor" and defined_in(base).partition(".")[0] in names for base in bases)

    return is_tensor


def is_node_type(kind: type) -> bool:
    """Whether a type is that of a framework's nodes. torch has a type for each kind, without a base in common."""
    return kind.__name__ == "GradNodeBase" or any("next_functions" in class_dict(base) for base in mro(kind))


def reach_of(backends: Sequence[Backend], innermost: types.FrameType | None) -> Reach:
    """The walk that knows tensors and nodes."""
    return Reach(tensor_types(backends), innermost, is_node_type)


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
    items: dict[tuple[int, str], Group] = {}  # by the place of a list, and the pattern below it
    named = 0
    for value in values:
        for place in reach.edges.get(id(value), ()):
            at = _item_of(reach, place, value)
            known = items.get(at) if at is not None else None
            if known is not None and known.places >= _ALIKE:
                known.places += 1
                known.members[id(value)] = value
                continue
            if named >= MOST_NAMED:
                continue
            named += 1
            way = [*reach.way(place), value]
            root = reach.root_of(place)
            path = path_of(root, way)
            scope = f"{root.kind} {root.name} {root.thread}"
            group = found.setdefault((scope, pattern_of(path)), Group(path, root, way))
            group.path = common(group.path, path)
            group.places += 1
            group.members[id(value)] = value
            if at is not None:
                items.setdefault(at, group)
    return {" ".join(key): group for key, group in found.items()}


def _item_of(reach: Reach, place: int, value: Any) -> tuple[int, str] | None:
    """(place of the outermost list near above ``value``, the pattern of the way down from there)."""
    way, top = [value], 0
    above, outermost = place, -1
    while above >= 0 and len(way) <= _ABOVE:
        holder = reach.objects[above]
        way.append(holder)
        if type(holder) in SEQUENCES:
            outermost, top = above, len(way)
        above = reach.parents[above]
    return (outermost, pattern_below(way[:top][::-1])) if outermost >= 0 else None


def owner_of_group(group: Group, backend: Backend | None) -> Owner:
    """With the lines of the source that made it."""
    path, root = group.path, group.root
    plain = path.removeprefix(f"{root.name}.") if root.kind == "global" and root.name else path
    scope = scope_of(path, group.way)
    mine, others = files_of(root, group.way)
    graphs = nbytes = 0
    if backend is not None:
        graphs, nbytes = figures(backend, group.members.values())
    filled: Found | None = None
    for files in (mine, others):
        filled = filled or _filled(plain, files, root, scope, graphs > 0)
    filled = filled or given_again_at(plain, mine)
    function = root.name if root.kind == "local" else ""
    bound = bound_at(plain, [*mine, *others], function) or root.line
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
        others=list(filled.others) if filled is not None else [],
        made=scope.line if scope is not None else None,
        made_text=scope.text if scope is not None else "",
    )


def _filled(path: str, files: Sequence[str], root: Root, scope: Scope | None, graphs: bool) -> Found | None:
    """By the path from the last function that stands still on it on, else by all of it."""
    if scope is not None and scope.rest:
        found = filled_at(scope.rest, [scope.line.file], scope.line.function, graphs=graphs)
        if found is not None:
            return found
    made = scope.line.line if scope is not None and scope.line is not None else 0
    return filled_at(path, files, root.name if root.kind == "local" else "", made, graphs)


def owners_of(reach: Reach, values: Iterable[Any], backend: Backend | None, most: int = 20) -> list[Owner]:
    """The largest groups first."""
    groups = sorted(groups_of(reach, values).values(), key=lambda group: -len(group.members))
    return [owner_of_group(group, backend) for group in groups[:most]]


def figures(backend: Backend, values: Iterable[Any]) -> tuple[int, int]:
    """(how many keep a graph, bytes of memory)."""
    graphs = 0
    memories: dict[int, int] = {}
    for value in values:
        try:
            if not backend.is_tensor(value):
                graphs += backend.node_address(value) is not None
                continue
            graphs += bool(backend.has_graph(value))
            memories.update(backend.storages(value))
        except own(Exception):  # a tensor subclass of the program's that refuses
            continue
    return graphs, sum(memories.values())


def files_of(root: Root, way: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The user's files that may fill what lies on the way, and those of libraries: of the root and of the classes,
    the innermost last. Python's own are neither: ``queue.py`` is no answer to who fills a queue."""
    mine, others = [root.file], []
    for value in way:
        module = sys.modules.get(defined_in(type(value)))
        if type(module) is types.ModuleType and (file := file_of(module)):
            if is_users(module):
                mine.append(file)
            elif defined_in(type(value)).partition(".")[0] not in sys.stdlib_module_names:
                others.append(file)
    return [each for each in dict.fromkeys(mine) if each], list(dict.fromkeys(others))
