"""Paths to an object: evaluated as Python in the same names, each gives that object."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from adbg.engine.inspect.memory.owners import owners_of
from adbg.engine.inspect.memory.paths import path_of, pattern_of
from adbg.engine.inspect.memory.reach import Reach


class Thing:
    """What is looked for."""


class Slotted:
    __slots__ = ("held", "other")


class Plain:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Nasty:
    """Whoever asks it anything is told off."""

    def __init__(self, held: object) -> None:
        object.__setattr__(self, "held", held)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    @property
    def __class__(self) -> Any:
        raise AssertionError("asked for its class")


def _closure(thing: Thing) -> Any:
    return lambda: thing


def _generator(thing: Thing) -> Iterator[Thing]:
    while True:
        yield thing


def _slotted(thing: Thing) -> Slotted:
    value = Slotted()
    value.held = thing
    return value


def _started(thing: Thing) -> Iterator[Thing]:
    value = _generator(thing)
    next(value)
    return value


def _caught(thing: Thing) -> BaseException:
    def fails(inner: Thing) -> None:
        raise ValueError("planned")

    try:
        fails(thing)
    except ValueError as error:
        return error


def _of_thread(held: Any) -> Any:
    value = threading.local()
    value.here = held
    return value


def _own_class(thing: Thing, module: str) -> type:
    return type("Cache", (), {"store": [thing], "__module__": module})


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """A module of the user's, empty."""
    made = types.ModuleType("of_the_user")
    made.__file__ = "/home/someone/of_the_user.py"
    sys.modules["of_the_user"] = made
    yield made
    del sys.modules["of_the_user"]


def paths(thing: object) -> list[str]:
    reach = Reach(lambda kind: False, None).walk([thing])
    try:
        return [path_of(reach.root_of(at), [*reach.way(at), thing]) for at in reach.edges.get(id(thing), ())]
    finally:
        reach.release()


MAKERS: dict[str, Any] = {
    "of_the_user.x": lambda thing: thing,
    "of_the_user.x[3]": lambda thing: [0, 1, 2, thing],
    "of_the_user.x['a'][1]": lambda thing: {"a": (0, thing)},
    "of_the_user.x[5].held": lambda thing: {5: Plain(held=thing)},
    "of_the_user.x.held": _slotted,
    "of_the_user.x.a['loss'][0]": lambda thing: Plain(a=collections.defaultdict(list, loss=[thing])),
    "of_the_user.x[1]": lambda thing: collections.deque([0, thing]),
    "of_the_user.x.__closure__[0].cell_contents": _closure,
    "of_the_user.x.__defaults__[0]": lambda thing: types.FunctionType((lambda a: a).__code__, {}, "f", (thing,)),
    "of_the_user.x.gi_frame.f_locals['thing']": _started,
    "of_the_user.x.store[0]": lambda thing: _own_class(thing, "of_the_user"),
    "of_the_user.x.here['loss'][0]": lambda thing: _of_thread({"loss": [thing]}),
    "of_the_user.x.__self__.held": lambda thing: Plain(held=thing).__init__,
}


@pytest.mark.parametrize("expected", MAKERS)
def test_the_path_is_an_expression_for_it(expected: str, module: types.ModuleType) -> None:
    thing = Thing()
    module.x = MAKERS[expected](thing)  # type: ignore[attr-defined]
    found = paths(thing)
    assert expected in found
    assert eval(expected, {"of_the_user": module}) is thing
    gone = weakref.ref(thing)
    del thing
    assert gone() is not None, "the variable keeps it"
    del module.x  # type: ignore[attr-defined]
    if ".store" in expected:
        gc.collect()  # a class is a ring of references
    assert gone() is None, "nothing else did, and the search let go of it"


def test_an_exception_keeps_the_locals_of_its_frames(module: types.ModuleType) -> None:
    thing = Thing()
    module.error = _caught(thing)  # type: ignore[attr-defined]
    found = [path for path in paths(thing) if path.startswith("of_the_user.error.__traceback__")]
    assert found and all(eval(path, {"of_the_user": module}) is thing for path in found)


def test_a_function_that_stands_still_keeps_nothing_that_adbg_has_read(module: types.ModuleType) -> None:
    def stands() -> Iterator[None]:
        held = [Thing()]
        gone.append(weakref.ref(held[0]))
        while True:
            yield
            held = [None]  # type: ignore[list-item]

    gone: list[weakref.ref[Thing]] = []
    module.x = stands()  # type: ignore[attr-defined]
    next(module.x)  # type: ignore[attr-defined]
    for _ in range(3):
        thing = gone[0]()
        assert [path for path in paths(thing) if path.startswith("of")] == [
            "of_the_user.x.gi_frame.f_locals['held'][0]"
        ]
    del thing
    next(module.x)  # type: ignore[attr-defined]
    assert gone[0]() is None, "the generator has replaced it"


def test_results_that_a_function_remembers(module: types.ModuleType) -> None:
    thing = Thing()
    for most in (None, 8):
        module.x = functools.lru_cache(most)(lambda number: thing)  # type: ignore[attr-defined]
        module.x(3)  # type: ignore[attr-defined]
        found = [path for path in paths(thing) if "cache" in path]
        assert found and all(path.startswith("of_the_user.x → cache[") for path in found)


def test_no_code_of_the_program_runs(module: types.ModuleType) -> None:
    thing = Thing()
    module.x = [Nasty(thing)]  # type: ignore[attr-defined]
    assert len(paths(thing)) == 1


def test_other_holders_are_said_as_what_they_are(module: types.ModuleType) -> None:
    thing = Thing()
    module.bag = {thing}  # type: ignore[attr-defined]
    module.part = functools.partial(print, thing)  # type: ignore[attr-defined]
    found = paths(thing)
    assert "of_the_user.bag{…}" in found and any(path.startswith("of_the_user.part") for path in found)


def test_locals_of_a_running_function_are_found_and_let_go_of() -> None:
    def runs() -> list[str]:
        thing = Thing()
        nest = {"deep": [thing]}
        reach = Reach(lambda kind: False, sys._getframe()).walk([thing])
        found = [path_of(reach.root_of(at), [*reach.way(at), thing]) for at in reach.edges[id(thing)]]
        reach.release()
        gone = weakref.ref(thing)
        del thing, reach
        assert gone() is not None
        nest.clear()
        assert gone() is None
        return found

    assert {"thing", "nest['deep'][0]"} <= set(runs())


def test_items_of_one_list_are_told_once(module: types.ModuleType) -> None:
    things = [Thing() for _ in range(5)]
    module.kept = [{"loss": thing} for thing in things]  # type: ignore[attr-defined]
    reach = Reach(lambda kind: kind is Thing, None).walk()
    (owner,) = [each for each in owners_of(reach, things, None) if each.path.startswith("of_the_user")]
    reach.release()
    assert (owner.path, owner.count, owner.kind) == ("of_the_user.kept[*]['loss']", 5, "global")
    many = [Thing() for _ in range(20_000)]
    module.kept = [(thing, {"h": [other]}) for thing, other in zip(many[::2], many[1::2])]  # type: ignore[attr-defined]
    reach = Reach(lambda kind: kind is Thing, None).walk()
    owners = {each.path: each.count for each in owners_of(reach, many, None) if each.path.startswith("of_the_user")}
    reach.release()
    assert owners == {"of_the_user.kept[*][0]": 10_000, "of_the_user.kept[*][1]['h'][0]": 10_000}, owners
    assert pattern_of("a['step 12'][3].b['loss']") == "a[*][*].b['loss']"
