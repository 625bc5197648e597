"""What keeps things that no variable leads to: functions that C++ has (a hook of a Paddle tensor, of a torch node), and
rings of references that wait for Python's collector. Runs on the parked thread.

Found backwards, among all objects that the collector follows: 0.5-0.6 s of 290,000 (torch with its compiler), 0.2 s of
120,000 (Paddle). Named is the first object on the way back that the user
wrote: a function, a generator, an object of a class of the user's. Nothing is said of what ends elsewhere: objects of
adbg's and of libraries hold tensors too.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine import live_objects
from adbg.engine.backends.base import Backend
from adbg.engine.inspect.memory.owners import figures
from adbg.engine.inspect.memory.reach import Reach, class_dict, defined_in, file_of, is_users, mro
from adbg.engine.inspect.memory.scopes import Scope, code_of, is_users_file, made_as, made_at
from adbg.engine.protocol.messages import Owner

_LEVELS = 5  # objects between a thing and the one that is named
_MOST = 2_000  # objects that are followed back on one level
_SKIPPED = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)
NOTE = "no variable leads to it: C++ has it, as a hook, or a library"
RING = "it keeps itself: a ring of references, until Python's collector runs"


@dataclass(slots=True, eq=False)
class _Held:
    """An object on a way back, and the things that it leads to."""

    holder: Any
    below: Any  # the object before it on the way
    things: dict[int, Any] = field(default_factory=dict)


def unreached(reach: Reach, wanted: Callable[[type], bool]) -> list[Any]:
    """Things of the types ``wanted`` that the walk has not met, wherever Python's objects refer to them."""
    met = {id(each) for each in reach.objects}
    kinds: dict[type, bool] = {}
    found: dict[int, Any] = {}
    objects = live_objects.of_types(lambda kind: not any(kind is skipped for skipped in _SKIPPED))
    for each in itertools.chain(objects, live_objects.tuples_in(objects)):
        for value in (each, *gc.get_referents(each)) if id(each) not in met else (each,):
            kind = kinds.get(type(value))
            if kind is None:
                kind = kinds[type(value)] = wanted(type(value))
            if kind and id(value) not in reach.tensors and id(value) not in reach.nodes:
                found[id(value)] = value
    objects.clear()
    return list(found.values())


def holders_of(things: Sequence[Any], backend: Backend | None, reach: Reach) -> list[Owner]:
    """The first objects of the user's on the ways back from ``things``; the same function and variable once."""
    named: dict[tuple[str, str, int], tuple[_Held, Scope, str]] = {}
    seen = {id(each) for each in (things, reach.objects, reach.tensors, reach.nodes, reach.edges)}
    # Every function refers to the variables of its module: through them everything would lead to everything.
    seen.update(id(vars(each)) for each in list(sys.modules.values()) if type(each) is types.ModuleType)
    seen.update(id(root.names) for root in reach.roots)
    level = [_Held(each, None, {id(each): each}) for each in things]
    objects = live_objects.of_types(lambda kind: True)
    tuples = list(live_objects.tuples_in(objects))
    seen.update((id(objects), id(tuples)))
    for _ in range(_LEVELS):
        level = _back(level[:_MOST], objects, tuples, seen)
        going = []
        for held in level:
            seen.add(id(held.holder))
            scope = _scope(held.holder)
            if scope is None:
                going.append(held)
                continue
            name = _name(held)
            key = (name, scope.line.file, scope.line.line)
            first = named.setdefault(key, (held, scope, name))[0]
            first.things.update(held.things)
        level = going
        if not level:
            break
    objects.clear()
    return [_owner(*each, backend) for each in named.values()]


def _back(level: list[_Held], objects: Sequence[Any], tuples: Sequence[tuple[Any, ...]], seen: set[int]) -> list[_Held]:
    """All that refers to what is on ``level``, frames of running functions aside."""
    if not level:
        return []
    by_id = {id(each.holder): each for each in level}
    targets = [each.holder for each in level]
    above = []
    within = (each for each in tuples if any(id(value) in by_id for value in each))
    for referrer in itertools.chain(live_objects.referring_to(targets, objects), within):
        if referrer is targets or type(referrer) is types.FrameType or id(referrer) in seen:
            continue
        if type(referrer) is _Held or defined_in(type(referrer)).partition(".")[0] == "adbg":
            continue
        held = _Held(referrer, None)
        for value in gc.get_referents(referrer):
            below = by_id.get(id(value))
            if below is not None:
                held.below = held.below or below
                held.things.update(below.things)
        if held.things:
            above.append(held)
    return above


def _scope(holder: Any) -> Scope | None:
    code = code_of(holder)
    if code is not None:
        return made_at(code) if is_users_file(code.co_filename) else None
    kind = _class_of(holder)
    if kind is None:
        return None
    return made_as(kind, file_of(sys.modules[defined_in(kind)]))


def _class_of(holder: Any) -> type | None:
    """The class of the user's that an object is of; of a context, its custom function."""
    kinds = [class_dict(kind).get("_forward_cls", kind) for kind in mro(type(holder))]
    for kind in kinds:
        module = sys.modules.get(defined_in(kind)) if type in mro(type(kind)) else None
        if module is not None and is_users(module):
            return kind if isinstance(kind, type) else None
    return None


def _name(held: _Held) -> str:
    holder = held.holder
    if type(holder) is not types.FunctionType:
        kind = _class_of(holder)
        if kind is None:
            return f"{code_of(holder).co_name}()"  # type: ignore[union-attr]
        return f"a context of {kind.__name__}" if kind not in mro(type(holder)) else f"an object of {kind.__name__}"
    code = holder.__code__
    for cell, name in zip(holder.__closure__ or (), code.co_freevars):
        if any(value is thing for value in gc.get_referents(cell) for thing in held.things.values()):
            return f"{name} of {code.co_name}()"
    return f"{code.co_name}()"


def _owner(held: _Held, scope: Scope, name: str, backend: Backend | None) -> Owner:
    graphs, nbytes = figures(backend, held.things.values()) if backend is not None else (0, 0)
    return Owner(
        path=name,
        kind="other",
        count=len(held.things),
        graphs=graphs,
        bytes=nbytes,
        note=RING if id(held.holder) in held.things else NOTE,
        made=scope.line,
        made_text=scope.text,
    )


def with_graph(backend: Backend, things: Iterable[Any], mine: set[int]) -> list[Any]:
    """Tensors and nodes of graphs that share no root with the nodes ``mine``."""
    found = []
    for thing in things:
        address = backend.node_address(thing)
        if address is not None:
            if address not in mine:
                found.append(thing)
        elif backend.is_tensor(thing) and backend.has_graph(thing) and not _begins_in(backend, thing, mine):
            found.append(thing)
    return found


def _begins_in(backend: Backend, tensor: Any, mine: set[int]) -> bool:
    graph = backend.graph_of([tensor])
    try:
        return graph is not None and any(graph.address(key) in mine for key in graph.roots())
    finally:
        release = getattr(graph, "release", None)
        if release is not None:
            release()
