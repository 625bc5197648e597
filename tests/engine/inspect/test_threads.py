"""Every thread of a program that runs, as its agent tells: frames, the last call, the node, locals. Python's own
traceback is the witness; no code of the program's may run, and nothing may be kept alive."""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.patience import patience
from support.program import wait_until

from adbg.engine.errors import CommandError, UnknownName
from adbg.engine.frames import locals_elsewhere
from adbg.engine.inspect import threads as inspect_threads
from adbg.engine.inspect.still_text import still_text
from adbg.engine.inspect.threads import INNER, OUTER, Threads
from adbg.engine.protocol.messages import ThreadFacts, ThreadNames
from adbg.engine.session.session import Session


class Outlet:
    def event(self, body: Any, droppable: bool = False) -> None: ...


@contextlib.contextmanager
def waiting(body: Callable[[queue.Queue[Any]], Any], name: str) -> Iterator[threading.Thread]:
    """``body`` on a thread of that name, until it waits in the queue that it gets."""
    gate: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=body, args=(gate,), name=name, daemon=True)
    thread.start()
    try:
        wait_until(lambda: "wait" in _functions(thread), "it waits")
        yield thread
    finally:
        gate.put(None)
        thread.join(patience(20))


def _functions(thread: threading.Thread) -> list[str]:
    frame = sys._current_frames().get(thread.ident or 0)
    return [entry.name for entry in traceback.extract_stack(frame)] if frame is not None else []


def frame_of(thread: threading.Thread, function: Callable[..., Any]) -> tuple[types.FrameType, types.FrameType]:
    """The frame in which the thread runs ``function``, and its innermost one."""
    innermost = frame = sys._current_frames()[thread.ident or 0]
    while frame.f_code is not function.__code__:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame, innermost


@pytest.fixture
def threads() -> Threads:
    return Threads(Session(Outlet()))


def facts_of(threads: Threads, name: str) -> ThreadFacts:
    (found,) = [each for each in threads.all().threads if each.name == name]
    return found


def names_in(threads: Threads, name: str, function: str, expression: str = "") -> dict[str, str]:
    facts = facts_of(threads, name)
    (frame,) = [each for each in facts.frames if each.function == function]
    body = threads.names(ThreadNames(facts.id, frame.from_end, function, frame.file, expression))
    return {each.name: each.value for each in body.variables}


def gets(gate: queue.Queue[Any]) -> None:
    answer = 41
    answer += 1
    gate.get()


def test_frames_are_those_of_the_traceback(threads: Threads) -> None:
    with waiting(gets, "gets") as thread:
        facts = facts_of(threads, "gets")
        stack = traceback.extract_stack(sys._current_frames()[thread.ident or 0])
        assert [(f.function, f.line) for f in facts.frames] == [(e.name, e.lineno) for e in reversed(stack)]
        assert [f.from_end for f in facts.frames] == list(range(len(stack), 0, -1))
        assert (facts.native_id, facts.daemon, facts.state) == (thread.native_id, True, "running")
        owners = {f.function: f.owner for f in facts.frames}
        assert owners["gets"] == "user" and owners["get"] == owners["_bootstrap"] == "library"
        assert facts.frames[facts.call].function == "get" and facts.call_name.endswith("get")
        assert facts.call_name.startswith("queue.")


def test_a_thread_that_stays_is_told_apart(threads: Threads) -> None:
    with waiting(gets, "gets"):
        assert facts_of(threads, "gets").unmoved is None
        time.sleep(0.2)
        again = facts_of(threads, "gets").unmoved
        assert again is not None and 0.2 <= again < patience(20)
    moving = facts_of(threads, "MainThread")
    assert moving.unmoved is None


def test_own_threads_are_left_out_and_named(threads: Threads) -> None:
    with waiting(gets, "adbg-reader") as thread:
        body = threads.all()
        assert not any(each.name.startswith("adbg-") for each in body.threads)
        assert thread.native_id in body.own
        assert body.threads[0].name == "MainThread"


def test_a_deep_recursion_is_cut(threads: Threads) -> None:
    def deep(gate: queue.Queue[Any], left: int = 400) -> None:
        if left:
            deep(gate, left - 1)
        else:
            gate.get()

    with waiting(deep, "deep"):
        facts = facts_of(threads, "deep")
        assert len(facts.frames) == INNER + OUTER and facts.cut > 200
        assert facts.frames[-1].from_end == 1


class Rude:
    """Ends the test when any of its code runs."""

    def __init__(self) -> None:
        self.items = [1, {"a": (2.5,)}]

    def _ends(self, *_: Any) -> Any:
        raise SystemExit("code of the program's ran")

    __repr__ = __str__ = __eq__ = __len__ = __iter__ = __bool__ = __getattr__ = __dir__ = _ends
    shape = property(_ends)


def rude(gate: queue.Queue[Any]) -> None:
    thing, more = Rude(), {"key": [1, 2, 3, 4, 5, 6, 7]}
    gate.get()
    del thing, more


def test_locals_without_any_code_of_the_program(threads: Threads) -> None:
    with waiting(rude, "rude"):
        found = names_in(threads, "rude", "rude")
        assert found["more"] == "{'key': [1, 2, 3, 4, 5, 6, ... 7 in all]}"
        assert found["thing"].endswith("test_threads.Rude object>")
        assert names_in(threads, "rude", "rude", "thing.items[1]['a'][0]") == {"thing.items[1]['a'][0]": "2.5"}
        assert names_in(threads, "rude", "rude", "more['key'][6]") == {"more['key'][6]": "7"}
        for refused in ("thing.shape", "thing.nothing", "len(more)", "thing == 1", "more['key'][gate]", "thing()"):
            with pytest.raises(CommandError, match="the program's own code would run"):
                names_in(threads, "rude", "rude", refused)
        with pytest.raises(UnknownName, match="'nobody'"):
            names_in(threads, "rude", "rude", "nobody")
        with pytest.raises(CommandError, match="is no expression"):
            names_in(threads, "rude", "rude", "more[")


def test_a_frame_that_returned_is_refused(threads: Threads) -> None:
    with waiting(gets, "gets"):
        facts = facts_of(threads, "gets")
    (frame,) = [each for each in facts.frames if each.function == "gets"]
    with pytest.raises(CommandError, match="gets does not run on that thread any more"):
        threads.names(ThreadNames(facts.id, frame.from_end, "gets", frame.file))


def test_what_was_read_is_not_kept_alive(threads: Threads) -> None:
    """A local that the function drops later is freed then, though adbg has looked at it."""
    seen: list[weakref.ref[Any]] = []
    dropped = threading.Event()

    class Large:
        pass

    def drops(gate: queue.Queue[Any]) -> None:
        large = Large()
        seen.append(weakref.ref(large))
        gate.get()
        del large
        dropped.set()
        gate.get()

    gate: queue.Queue[Any] = queue.Queue()
    thread = threading.Thread(target=drops, args=(gate,), name="drops", daemon=True)
    thread.start()
    wait_until(lambda: "wait" in _functions(thread), "it waits")
    assert "Large" in names_in(threads, "drops", "drops")["large"]
    gate.put(None)
    assert dropped.wait(patience(20))
    gc.collect()
    assert seen[0]() is None
    gate.put(None)
    thread.join(patience(20))


def test_locals_that_the_program_holds_itself_stay_whole() -> None:
    kept: list[dict[str, Any]] = []

    def holds(gate: queue.Queue[Any]) -> None:
        mine = 5
        kept.append(locals())
        gate.get()
        kept[0]["after"] = mine

    with waiting(holds, "holds") as thread:
        assert locals_elsewhere(*frame_of(thread, holds))["mine"] == 5
        assert kept[0]["mine"] == 5, "a dict of the program's was emptied"


def test_a_profiler_gets_its_values_back() -> None:
    """While a tracer runs for a frame, Python writes the values of its dict back at the end: one that adbg has emptied
    would take the function's locals away."""
    gate: queue.Queue[Any] = queue.Queue()
    results: list[int] = []
    inside = threading.Event()

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is work.__code__:
            inside.set()
            gate.get()

    def work(value: int) -> int:
        return value + 1

    def body() -> None:
        sys.setprofile(profile)
        try:
            results.append(work(6))
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=body, name="profiled", daemon=True)
    thread.start()
    assert inside.wait(patience(20))
    wait_until(lambda: "wait" in _functions(thread), "it waits")
    assert locals_elsewhere(*frame_of(thread, work)) == {"value": 6}
    gate.put(None)
    thread.join(patience(20))
    assert results == [7]


def test_the_node_of_the_innermost_custom_function(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Outlet())
    code = gets.__code__
    backend = SimpleNamespace(node_at=lambda frame, innermost: ("Mine", None) if frame.f_code is code else None)
    session.backends.append(backend)  # type: ignore[arg-type]
    with waiting(gets, "gets"):
        node = facts_of(Threads(session), "gets").node
        assert node is not None and (node.name, node.seconds) == ("Mine", None)
        assert facts_of(Threads(session), "MainThread").node is None


def test_a_wrapper_is_not_what_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = SimpleNamespace(f_code=SimpleNamespace(co_name="wrapper"), f_globals={})
    inner = SimpleNamespace(f_code=SimpleNamespace(co_name="all_reduce", co_qualname="all_reduce"), f_globals={})
    owned = ((inner, "framework"), (frame, "framework"), (frame, "user"))
    stack = [SimpleNamespace(frame=each, owner=owner) for each, owner in owned]
    assert inspect_threads._last_call(stack) == (0, "all_reduce")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (2.5, "2.5"), (None, "None"), ("a\nb", "'a\\nb'"), (b"x", "b'x'"), ((1,), "(1,)"), ([], "[]"),
        (set(), "set()"), (frozenset((1,)), "frozenset({1})"), ({"a": [1, (2,)]}, "{'a': [1, (2,)]}"),
        ([[[[[1]]]]], "[[[[...]]]]"), (1 << 5000, "<int of 5001 bits>"), (int, "<class int>"), (sys, "<module sys>"),
        (still_text, "<function still_text>"), ("x" * 900, f"'{'x' * 200}'... (900)"),
    ],
)  # fmt: skip
def test_texts(value: Any, text: str) -> None:
    assert still_text(value) == text
