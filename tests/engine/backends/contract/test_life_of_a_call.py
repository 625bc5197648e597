"""What is reported of a backward call, in which order, and what is left when it is over."""

from __future__ import annotations

import gc
import threading
import traceback
import weakref
from typing import Any

import pytest
from support.watch import Watch
from support.worlds import World

from adbg.engine.backends.base import BackwardCall, HookPlan


class Journal(Watch):
    """A watch that also keeps the order of all reports."""

    def __init__(self, plan: HookPlan = HookPlan(every=True)) -> None:  # noqa: B008  frozen
        super().__init__(plan)
        self.reports: list[tuple[Any, ...]] = []

    def backward_begin(self, call: BackwardCall) -> None:
        self.reports.append(("begin", call.number))
        super().backward_begin(call)

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: Any) -> Any:
        self.reports.append(("node", call.number, key))
        return super().node_begin(call, key, grad_outputs)

    def node_end(self, call: BackwardCall, key: int, grad_inputs: Any, grad_outputs: Any) -> Any:
        self.reports.append(("done", call.number, key))
        return super().node_end(call, key, grad_inputs, grad_outputs)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        self.reports.append(("end", call.number))
        super().backward_end(call, error)


def chain(world: World, leaf: Any) -> Any:
    """leaf -> tanh -> scale -> sum: four nodes with the accumulate node."""
    return world.total(world.scale(world.tanh(leaf), 3.0))


def test_reports_come_in_order_and_on_the_calling_thread(world: World, watching: Any) -> None:
    watch = Journal()
    threads: set[int] = set()
    watch.before = lambda call, key, outs: threads.add(threading.get_ident())
    with watching(watch):
        world.backward(chain(world, world.leaf([0.1, 0.2])))
    (seen,) = watch.calls
    assert [what for what, *_ in watch.reports] == ["begin", *("node", "done") * 4, "end"]
    nodes = [rest[1] for what, *rest in watch.reports if what == "node"]
    assert nodes == [rest[1] for what, *rest in watch.reports if what == "done"]
    assert len(set(nodes)) == 4 == seen.hooked
    assert (seen.depth, seen.parent, seen.enclosing, seen.entry) == (0, None, None, "backward")
    assert seen.roots == (world.names["sum"],)
    assert seen.thread == threading.get_ident() and threads == {seen.thread}


@pytest.mark.needs("locations")
def test_the_location_is_the_users_line(world: World, watching: Any) -> None:
    watch = Journal()
    root = chain(world, world.leaf([0.1]))
    with watching(watch):
        world.backward(root)
    assert watch.last.location.file.endswith("support/worlds.py") and watch.last.location.function == "backward"


def test_calls_are_numbered_in_order_of_beginning_and_iterations_are_outermost_ones(
    world: World, watching: Any
) -> None:
    watch = Journal()
    inner = world.leaf([1.0, 2.0])
    outer = world.leaf([1.0, 2.0])
    with watching(watch):
        world.backward(chain(world, inner))
        world.backward(world.total(world.custom(outer, 2.0, lambda: world.backward(chain(world, inner)))))
        assert (world.backend.backward_count, world.backend.iteration) == (3, 2)
    assert [(seen.number, seen.depth, seen.parent) for seen in watch.calls] == [(1, 0, None), (2, 0, None), (3, 1, 2)]
    assert watch.calls[2].enclosing == f"{world.names['custom']}#1"
    first = watch.reports.index(("begin", 2))
    kinds = [(what, number) for what, number, *_ in watch.reports[first:]]
    start, stop = kinds.index(("begin", 3)), kinds.index(("end", 3))
    assert {number for _, number in kinds[start : stop + 1]} == {3}
    assert kinds[start - 1] == ("node", 2) and kinds[stop + 1] == ("done", 2)
    assert world.gradient(outer) == [2.0, 2.0]


def test_gradients_of_some_leaves_alone_are_a_call_too(world: World, watching: Any) -> None:
    watch = Journal()
    leaf = world.leaf([1.0, 2.0])
    with watching(watch):
        world.gradients(chain(world, leaf), leaf)
    assert watch.last.entry == "grad"
    assert {f"{world.names[op]}#1" for op in ("sum", "scale")} <= set(watch.last.begun)


def test_an_exception_ends_the_call_and_names_its_node(world: World, watching: Any) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    watch = Journal()
    kinds: list[str] = []
    texts: list[str] = []
    leaf = world.leaf([1.0, 2.0])
    original = watch.backward_end

    def looked_at(call: BackwardCall, error: BaseException | None) -> None:
        if error is not None:
            kinds.append(type(call.original_error(error)).__name__)
            texts.append(call.error_text(error))
        original(call, error)

    watch.backward_end = looked_at  # type: ignore[method-assign]
    with watching(watch):
        with pytest.raises(Exception, match="no such luck"):
            world.backward(world.total(world.custom(leaf, 2.0, fail)))
        assert watch.reports[-1] == ("end", 1)
        assert watch.last.failed[0][0] == f"{world.names['custom']}#1"
        world.backward(chain(world, leaf))
    assert kinds == ["ValueError"] and "ValueError: no such luck" in texts[0]
    assert watch.last.error is None and watch.last.begun == watch.last.ended == watch.last.order


def test_unarmed_nothing_is_reported_but_calls_are_counted(world: World, watching: Any) -> None:
    watch = Journal()
    leaf = world.leaf([1.0, 2.0])
    with watching(watch, armed=False):
        world.backward(chain(world, leaf))
        world.backend.arm(True)
        world.backward(chain(world, leaf))
        world.backend.arm(False)
        world.backward(chain(world, leaf))
        assert (world.backend.backward_count, world.backend.iteration) == (3, 3)
    assert [seen.number for seen in watch.calls] == [2]


def test_unarmed_an_exception_is_reported_all_the_same(world: World, watching: Any) -> None:
    def fail() -> None:
        raise ValueError("no such luck")

    watch = Journal()
    leaf = world.leaf([1.0, 2.0])
    with watching(watch, armed=False), pytest.raises(Exception, match="no such luck"):
        world.backward(world.total(world.custom(leaf, 2.0, fail)))
    assert watch.reports == [("end", 1)]
    assert watch.last.failed[0][0] == f"{world.names['custom']}#1"


@pytest.mark.parametrize("where", ["backward_begin", "node_begin", "node_end", "backward_end"])
def test_a_kill_arrives_as_what_it_was(world: World, watching: Any, where: str) -> None:
    watch = Journal()
    leaf = world.leaf([1.0, 2.0])
    original = getattr(watch, where)

    def kill(*args: Any) -> Any:
        setattr(watch, where, original)
        raise SystemExit(3)

    setattr(watch, where, kill)
    with watching(watch):
        with pytest.raises(SystemExit):
            world.backward(chain(world, leaf))
        watch.reports.clear()
        world.backward(chain(world, leaf))
    assert [what for what, *_ in watch.reports] == ["begin", *("node", "done") * 4, "end"]


def test_uninstall_leaves_no_trace(world: World, watching: Any) -> None:
    before = world.footprint()
    watch = Journal()
    leaf = world.leaf([1.0, 2.0])
    root = chain(world, leaf)
    with watching(watch, stacks=True):
        world.backward(root, retain=True)
    assert all(mine is theirs for mine, theirs in zip(world.footprint(), before, strict=True))
    world.backward(root)
    assert len(watch.calls) == 1


def test_nothing_is_kept_alive(world: World, watching: Any) -> None:
    """Neither the call nor a gradient that went through a hook."""
    seen: list[weakref.ref[Any]] = []
    watch = Journal(HookPlan(every=True, contributions=True))
    watch.begin = lambda call: seen.append(weakref.ref(call))
    watch.before = lambda call, key, outs: seen.extend(weakref.ref(value) for value in outs)
    leaf = world.leaf([1.0, 2.0])
    with watching(watch):
        branch = world.tanh(leaf)
        root = world.total(world.add(world.scale(branch, 2.0), world.scale(branch, 3.0)))
        world.backward(root)
        del root, branch
        gc.collect()
        alive = [ref() for ref in seen if ref() is not None]
        own = {id(value) for value in alive if isinstance(value, BackwardCall)}
        assert not own
        assert len(alive) <= 1, "the leaf may keep the gradient that it was given"
    assert len(seen) >= 7


def test_the_program_gets_the_same_gradients(world: World, watching: Any) -> None:
    """With every node hooked, screened, and parts of sums kept, as without the backend."""
    found: list[list[float] | None] = []
    for plan in (None, HookPlan(every=True), HookPlan(screen=True), HookPlan(every=True, contributions=True)):
        leaf = world.leaf([0.3, -0.4, 0.5, 0.6])
        first, second = world.split(world.custom(world.tanh(leaf), 2.0))
        root = world.total(world.add(world.mul(first, second), world.scale(first, 0.5)))
        if plan is None:
            world.backward(root)
        else:
            with watching(Watch(plan)):
                world.backward(root)
        found.append(world.gradient(leaf))
    assert found[0] is not None and all(gradient == found[0] for gradient in found)


@pytest.mark.parametrize("create_graph", [False, True])
def test_create_graph_is_told(world: World, watching: Any, create_graph: bool) -> None:
    watch = Journal()
    told: list[bool] = []
    watch.begin = lambda call: told.append(call.create_graph)
    leaf = world.leaf([1.0, 2.0])
    with watching(watch):
        world.gradients(chain(world, leaf), leaf, create_graph=create_graph)
    assert told == [create_graph]


def test_install_twice_is_install_once(world: World, watching: Any) -> None:
    before = world.footprint()
    watch = Journal()
    with watching(watch):
        world.backend.install(watch)
        world.backward(chain(world, world.leaf([0.1])))
        assert (world.backend.backward_count, world.backend.iteration) == (1, 1)
    assert [what for what, *_ in watch.reports] == ["begin", *("node", "done") * 4, "end"]
    assert all(mine is theirs for mine, theirs in zip(world.footprint(), before, strict=True))


@pytest.mark.parametrize("armed", [True, False])
def test_a_traceback_is_that_of_the_program_alone(world: World, watching: Any, armed: bool) -> None:
    """Nested, so that it crosses two calls."""

    def fail() -> None:
        raise ValueError("no such luck")

    def frames() -> list[tuple[str, str]]:
        inner = world.total(world.custom(world.leaf([1.0]), 2.0, fail))
        outer = world.total(world.custom(world.leaf([1.0]), 2.0, lambda: world.backward(inner)))
        with pytest.raises(Exception, match="no such luck") as raised:
            world.backward(outer)
        codes = [frame.f_code for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
        return [(code.co_filename, code.co_name) for code in codes]

    plain = frames()
    with watching(Journal(), armed=armed):
        assert frames() == plain
    assert plain[0] == (__file__, "frames")


def test_a_call_is_let_go_of_without_the_garbage_collector(world: World, watching: Any) -> None:
    """At the end of the outermost call, the nested one too."""
    calls: list[weakref.ref[Any]] = []
    watch = Journal(HookPlan(every=True, contributions=True))
    watch.begin = lambda call: calls.append(weakref.ref(call))
    inner = chain(world, world.leaf([1.0]))
    root = world.total(world.custom(world.leaf([1.0]), 2.0, lambda: world.backward(inner)))
    with watching(watch):
        gc.disable()
        try:
            world.backward(root)
            assert [ref() for ref in calls] == [None, None]
        finally:
            gc.enable()


@pytest.mark.needs("frees_graphs")
def test_a_graph_is_let_go_of_without_the_garbage_collector(world: World, watching: Any) -> None:
    """The node of a custom function holds what its backward runs, and the backend holds no node."""

    class Kept:
        def __call__(self) -> None: ...

    def run() -> weakref.ref[Any]:
        kept = Kept()
        shared = world.tanh(world.leaf([1.0, 2.0]))
        world.backward(world.total(world.add(world.scale(shared, 2.0), world.custom(shared, 2.0, kept))))
        return weakref.ref(kept)

    gc.collect()
    gc.disable()
    try:
        assert run()() is None, "the framework holds it by itself"
        with watching(Journal(HookPlan(every=True, contributions=True)), stacks=True):
            assert run()() is None
        with watching(Journal(), armed=False):
            assert run()() is None
    finally:
        gc.enable()
