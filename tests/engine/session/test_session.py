"""Stops, steps, edits, events and all-stop, through a real agent and socket, on graphs of plain Python."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeDebuggee, FakeGraph, FakeTensor
from support.front_end import FrontEnd, Peer, Refused, where
from support.program import wait_until

from adbg.engine.diagnosis.detectors.hangs.processes import Process, rest
from adbg.engine.protocol.codec import from_json
from adbg.engine.session.stopped_mark import is_stopped
from adbg.engine.types import Evidence, NodeStop, Origin, Role

Script = Callable[[FakeBackend], Any]
Start = Callable[..., tuple[Peer, FakeDebuggee]]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(script, *breakpoints, entry=, filters=) -> (client, debuggee), the script running."""
    with FrontEnd() as front:

        def begin(script: Script, *specs: str, **facts: Any) -> tuple[Peer, FakeDebuggee]:
            debuggee = FakeDebuggee(front.config, script)
            peer = front.accept()
            peer.begin(*specs, **facts)
            return peer, debuggee

        yield begin


def nested_graph(backend: FakeBackend, depth: int = 1) -> FakeGraph:
    """Leaf, Mul, Outer (runs a backward of its own, to ``depth``), Mul. Factor 2 at each Mul."""
    inner = nested_graph(backend, depth - 1) if depth > 1 else FakeGraph.chain(3, 2.0)
    graph = FakeGraph()
    leaf = graph.leaf("w")
    low = graph.add("MulBackward0", leaf, factor=2.0)
    outer = graph.add("OuterBackward", low, fn=backend.nested(inner), custom=True)
    graph.add("MulBackward0", outer, factor=2.0)
    return graph


def test_a_breakpoint_stops_before_each_matching_node(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(5, 2.0)), "MulBackward0")
    assert where(peer.stopped()) == ("breakpoint", "MulBackward0#3", 1, 0)
    assert where(peer.go()) == ("breakpoint", "MulBackward0#2", 3, 0)
    assert where(peer.go()) == ("breakpoint", "MulBackward0#1", 5, 0)
    peer.request("continue")
    assert debuggee.join()["w"].tolist() == [8.0] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's names of threads are Linux's")
def test_who_waits_for_this_process_can_tell_that_it_is_stopped(start: Start) -> None:
    """Witness: the kernel's names of all threads, which are afterwards as they were."""
    before = sorted(file.read_text() for file in Path("/proc/self/task").glob("*/comm"))
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(5, 2.0)), "MulBackward0#3")
    peer.stopped()
    wait_until(lambda: is_stopped(os.getpid()), "it says so, once the front end was told", 10)
    assert rest({}, {}, 1.0) and not rest(*[{1: Process(0.0, ("futex",), True)}] * 2, 1.0)
    peer.request("continue")
    debuggee.join()
    wait_until(lambda: not is_stopped(os.getpid()), "it goes on", 10)
    now = sorted(file.read_text() for file in Path("/proc/self/task").glob("*/comm"))
    assert not {*now} - {*before}


def test_the_stop_is_told_in_full(start: Start) -> None:
    peer, _ = start(lambda b: [b.backward(FakeGraph.chain(3)) for _ in range(2)], "MulBackward0#1 backward 2")
    stop = peer.stopped()
    assert (stop["backward"], stop["iteration"], stop["index"], stop["total"], stop["phase"]) == (2, 2, 3, 4, "before")
    assert stop["node"]["module"] == "layers.1" and stop["node"]["forward"]["line"] == 1
    assert stop["location"] == {"file": "/fake/train.py", "line": 88, "function": "<module>"}
    assert stop["breakpoints"] == [1] and stop["enclosing"] == []
    dap = peer.bodies("stopped")[0]
    assert dap["reason"] == "breakpoint" and dap["allThreadsStopped"] and dap["hitBreakpointIds"] == [1]


def test_step_goes_into_nested_backward_over_leaves_and_over_the_end_into_the_next(start: Start) -> None:
    def script(backend: FakeBackend) -> Any:
        graph = nested_graph(backend)
        return [backend.backward(graph)["w"] for _ in range(2)]

    peer, debuggee = start(script, entry=True)
    assert where(peer.stopped()) == ("entry", "", 0, 0)
    seen = []
    for _ in range(9):
        stop = peer.go("stepIn")
        seen.append((stop["backward"], stop["node"]["unique_name"], stop["depth"], stop["enclosing"]))
    assert seen == [
        (1, "MulBackward0#2", 0, []),
        (1, "OuterBackward#1", 0, []),
        (2, "MulBackward0#2", 1, ["OuterBackward#1"]),
        (2, "AddBackward0#1", 1, ["OuterBackward#1"]),
        (2, "MulBackward0#1", 1, ["OuterBackward#1"]),
        (2, "AccumulateGrad#1", 1, ["OuterBackward#1"]),
        (1, "MulBackward0#1", 0, []),
        (1, "AccumulateGrad#1", 0, []),
        (3, "MulBackward0#2", 0, []),
    ]
    peer.request("continue")
    assert [w.tolist() for w in debuggee.join()] == [[16.0] * 4] * 2


def test_next_stays_on_its_level_and_hooks_no_nested_call(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(nested_graph(b)), "OuterBackward")
    peer.stopped()
    assert where(peer.go("next")) == ("step", "MulBackward0#1", 3, 0)
    ran = [node["index"] for body in peer.bodies("adbg/nodes") if body["backward"] == 2 for node in body["nodes"]]
    assert ran == []
    peer.request("continue")
    debuggee.join()


def test_next_in_a_nested_call_goes_on_in_the_outer_one_past_its_last_node(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(nested_graph(b)), "AccumulateGrad#1 backward 2")
    assert where(peer.stopped()) == ("breakpoint", "AccumulateGrad#1", 4, 1)
    assert where(peer.go("next")) == ("step", "MulBackward0#1", 3, 0)


def test_finish_leaves_a_nested_call_behind_the_node_that_ran_it(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(nested_graph(b, 3)), "AddBackward0#1")
    assert peer.stopped()["depth"] == 3
    for depth in (2, 1, 0):
        stop = peer.go("stepOut")
        assert (stop["phase"], where(stop)) == ("after", ("step", "OuterBackward#1", 2, depth))
    stop = peer.go("stepOut")
    assert (stop["phase"], where(stop)) == ("end", ("step", "", 5, 0))


def test_after_runs_the_node_at_hand(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(FakeGraph.chain(3, 3.0)), "MulBackward0#2")
    peer.stopped()
    stop = peer.go("adbg/after")
    assert (stop["phase"], where(stop)) == ("after", ("step", "MulBackward0#2", 1, 0))
    assert stop["elapsed_us"] > 0
    assert peer.value("grad_inputs[0].sum()") == 12.0


def test_until_runs_to_a_spec_once(start: Start) -> None:
    peer, debuggee = start(lambda b: [b.backward(FakeGraph.chain(9)) for _ in range(2)], entry=True)
    peer.stopped()
    assert where(peer.go("adbg/until", spec="AddBackward0#2"))[:2] == ("step", "AddBackward0#2")
    with pytest.raises(Refused):
        peer.request("adbg/until", spec="Mul if (")
    assert where(peer.go("adbg/until", spec="#9"))[2] == 9
    peer.request("continue")
    debuggee.join()


def test_edits_before_and_after_a_node_reach_the_result(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(3, 2.0)), "MulBackward0#2", "MulBackward0#1 after")
    peer.stopped()
    peer.request("setExpression", expression="grad_outputs[0]", value="FakeTensor([1, 2, 3, 4])")
    with pytest.raises(Refused, match="shape"):
        peer.request("setExpression", expression="grad_outputs[0]", value="FakeTensor([1, 2])")
    peer.go()
    assert peer.value("grad_inputs[0].tolist()") == [4.0, 8.0, 12.0, 16.0]
    peer.request("setExpression", expression="grad_inputs[0]", value="grad_inputs[0] * 10")
    peer.request("continue")
    assert debuggee.join()["w"].tolist() == [40.0, 80.0, 120.0, 160.0]


def failing(backend: FakeBackend) -> FakeGraph:
    graph = FakeGraph()

    def broken(_backend: FakeBackend, _grads: Any) -> Any:
        raise ValueError("no such gradient")

    graph.add("BrokenBackward", graph.leaf("w"), fn=broken)
    return graph


@pytest.mark.parametrize("specs", [(), ("Nothing*",)], ids=["unarmed", "armed"])
def test_an_exception_stops_at_its_node_once_and_goes_on_as_it_would(start: Start, specs: tuple[str, ...]) -> None:
    def script(backend: FakeBackend) -> Any:
        graph = FakeGraph()

        def runs_broken(_backend: FakeBackend, _grads: Any) -> Any:
            return backend.backward(failing(backend))

        graph.add("OuterBackward", graph.leaf("w"), fn=runs_broken)
        return backend.backward(graph)

    peer, debuggee = start(script, *specs)
    stop = peer.stopped()
    assert (stop["reason"], stop["phase"], stop["node"]["unique_name"]) == ("error", "error", "BrokenBackward#1")
    assert stop["message"].startswith("ValueError: no such gradient")
    peer.request("continue")
    with pytest.raises(ValueError, match="no such gradient"):
        debuggee.join()
    peer.drain()
    assert len(peer.bodies("stopped")) == 1


def test_two_errors_in_a_row_are_two_stops(start: Start) -> None:
    def script(backend: FakeBackend) -> None:
        for _ in range(2):
            with pytest.raises(ValueError):
                backend.backward(failing(backend))

    peer, debuggee = start(script)
    peer.stopped()
    assert peer.go()["backward"] == 2
    peer.request("continue")
    debuggee.join()


def test_errors_do_not_stop_when_their_filter_is_off(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(failing(b)), filters=[])
    with pytest.raises(ValueError):
        debuggee.join()
    peer.drain()
    assert peer.bodies("stopped") == []


def test_the_first_nonfinite_gradient_stops_with_its_evidence(start: Start) -> None:
    def script(backend: FakeBackend) -> Any:
        graph = FakeGraph()
        low = graph.add("MulBackward0", graph.leaf("w"))
        bad = graph.add("SqrtBackward0", low, fn=lambda b, g: [FakeTensor([math.inf, 1.0, math.nan, 1.0])])
        graph.add("MulBackward0", bad)
        return backend.backward(graph)

    peer, debuggee = start(script, "nonfinite")
    stop = peer.stopped()
    assert stop["node"]["unique_name"] == "SqrtBackward0#1" and stop["phase"] == "after"
    assert stop["message"] == "", "the front end words it"
    (found,) = from_json(NodeStop, stop).evidence
    assert found == Evidence(
        Role.GRAD_INPUTS, "grad_inputs[0]", 4, 1, 1, Origin.MADE_HERE, slot=0, pos_inf=1, neg_inf=0
    )
    peer.request("continue")
    debuggee.join()
    peer.drain()
    assert len(peer.bodies("stopped")) == 1  # only the first node


def test_a_condition_decides_and_one_that_raises_stops_and_says_so(start: Start) -> None:
    peer, debuggee = start(
        lambda b: b.backward(FakeGraph.chain(5, 2.0)),
        "MulBackward0 if norm(grad_outputs[0]) > 3",
        "AddBackward0#1 if nope > 1",
    )
    assert where(peer.stopped())[1] == "MulBackward0#2"
    stop = peer.go()
    assert where(stop)[1] == "AddBackward0#1" and "nope" in stop["message"]
    assert where(peer.go())[1] == "MulBackward0#1"
    peer.request("continue")
    debuggee.join()


def test_tracepoints_report_and_do_not_stop(start: Start) -> None:
    with_trace = {"id": 3, "name": "MulBackward0", "trace": True}
    peer, debuggee = start(lambda b: [b.backward(FakeGraph.chain(5)) for _ in range(2)], entry=True)
    peer.stopped()
    peer.request("setFunctionBreakpoints", breakpoints=[with_trace])
    peer.request("continue")
    debuggee.join()
    peer.drain()
    traces = peer.bodies("adbg/trace")
    assert [t["stop"]["index"] for t in traces] == [1, 3, 5, 1, 3, 5]
    assert traces[0]["text"] == "before MulBackward0#3: grad_outputs[0] [4] f32 norm 2"
    assert len(peer.bodies("stopped")) == 1


def test_begin_and_end_of_a_backward_are_places_to_stop(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(FakeGraph.chain(3)), "backward", "backward-end")
    stop = peer.stopped()
    assert (stop["reason"], stop["phase"], stop["index"]) == ("backward", "begin", 0)
    stop = peer.go()
    assert (stop["reason"], stop["phase"], stop["index"]) == ("backward", "end", 5)


def test_breakpoints_changed_at_a_stop_act_from_the_next_node_and_are_counted(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(FakeGraph.chain(9)), "#2")
    peer.stopped()
    (state, bad) = peer.set("AddBackward0#1", "if")
    assert state["matches"] == 1 and state["verified"] and not bad["verified"]
    assert where(peer.go())[:2] == ("breakpoint", "AddBackward0#1")


def test_a_temporary_breakpoint_is_taken_once_and_reported_removed(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(9)), entry=True)
    peer.stopped()
    peer.set("MulBackward0", temporary=True)
    assert where(peer.go())[2] == 1
    peer.request("continue")
    debuggee.join()
    assert ("removed", 1) in [(b["reason"], b["breakpoint"]["id"]) for b in peer.bodies("breakpoint")]


def test_pause_stops_at_the_next_node_of_the_next_call(start: Start) -> None:
    ended = threading.Event()

    def script(backend: FakeBackend) -> None:
        while not ended.is_set():
            backend.backward(FakeGraph.chain(3))
            time.sleep(0.001)

    peer, debuggee = start(script)
    peer.request("pause")
    stop = peer.stopped()
    assert where(stop)[::2] == ("pause", 1)
    with pytest.raises(Refused, match="stopped already"):
        peer.request("pause")
    ended.set()
    peer.request("continue")
    debuggee.join()


def test_events_of_calls_and_nodes(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(3)), "#4 after")
    peer.stopped()
    begun = peer.event("adbg/backwardBegin")
    assert (begun["backward"], begun["nodes"], begun["roots"]) == (1, 4, ["MulBackward0"])
    peer.go("stepOut")
    assert [n["index"] for body in peer.bodies("adbg/nodes") for n in body["nodes"]] == [4]
    peer.request("continue")
    debuggee.join()
    end = peer.event("adbg/backwardEnd")
    assert end["backward"] == 1 and end["us"] > 0 and end["error"] == ""


def test_node_batches_come_at_most_twenty_times_a_second(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(20_000)), "* after if False")
    debuggee.join()
    peer.drain()
    batches = peer.bodies("adbg/nodes")
    assert 1 <= len(batches) <= 20 * debuggee.seconds + 2
    assert [n["index"] for batch in batches for n in batch["nodes"]] == list(range(1, 20_002))  # none is lost


def test_time_at_a_stop_is_not_time_of_the_node(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(nested_graph(b)), "OuterBackward", "AddBackward0#1 backward 2")
    peer.stopped()
    peer.go()
    time.sleep(0.3)  # inside the nested call, at a stop
    stop = peer.go("stepOut")
    assert where(stop)[1] == "OuterBackward#1" and 0 < stop["elapsed_us"] < 200_000


def test_unarmed_calls_are_not_reported(start: Start) -> None:
    peer, debuggee = start(lambda b: [b.backward(FakeGraph.chain(3)) for _ in range(3)] and b.calls_reported)
    assert debuggee.join() == 0
    peer.drain()
    assert peer.bodies("adbg/backwardBegin") == []


def test_all_stop_the_other_thread_waits_and_decides_afterwards(start: Start) -> None:
    gate = threading.Barrier(2)

    def script(backend: FakeBackend) -> Any:
        results: dict[str, Any] = {}

        def work(name: str, factor: float) -> None:
            gate.wait()
            results[name] = backend.backward(FakeGraph.chain(3, factor))["w"].tolist()

        threads = [threading.Thread(target=work, args=(n, f), name=n) for n, f in (("one", 2.0), ("two", 3.0))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    peer, debuggee = start(script, "MulBackward0#1")
    first = peer.stopped()["thread"]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        states = {t["adbg"] for t in peer.request("threads")["threads"]}
        if {"stopped", "waiting"} <= states:
            break
    assert {"stopped", "waiting"} <= states
    assert len(peer.bodies("stopped")) == 1
    second = peer.go()["thread"]
    assert first != second
    peer.request("continue")
    assert debuggee.join() == {"one": [4.0] * 4, "two": [9.0] * 4}


def test_an_expression_may_run_a_backward_itself(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(3, 2.0)), "MulBackward0")
    peer.stopped()
    peer.request("evaluate", expression="from fake_backend import FakeGraph", context="statement")
    assert peer.value("fake.backward(FakeGraph.chain(3, 5.0))['w'].sum()") == 100.0
    assert len(peer.bodies("stopped")) == 1
    assert where(peer.go())[1] == "MulBackward0#1"
    peer.request("continue")
    assert debuggee.join()["w"].tolist() == [4.0] * 4


def test_a_stop_at_a_python_line(start: Start) -> None:
    import adbg

    def script(backend: FakeBackend) -> Any:
        graph = FakeGraph.chain(3)
        secret = 41
        adbg.breakpoint()
        return backend.backward(graph) and secret

    peer, debuggee = start(script)
    stop = peer.stopped()
    assert (stop["reason"], stop["phase"], stop["backward"], stop["node"]) == ("breakpoint", "python", 0, None)
    assert stop["location"]["function"] == "script" and stop["location"]["file"] == __file__
    assert peer.value("secret + 1") == 42
    assert peer.request("adbg/graph")["total"] == 4
    with pytest.raises(Refused, match="no backward"):
        peer.request("stepOut")
    assert where(peer.go("stepIn"))[:2] == ("step", "MulBackward0#2")
    peer.request("continue")
    debuggee.join()


def test_deep_nesting_is_stepped_through(start: Start) -> None:
    peer, _ = start(lambda b: b.backward(nested_graph(b, 80)), "AddBackward0#1")
    stop = peer.stopped()
    assert stop["depth"] == 80 and len(stop["enclosing"]) == 80
    assert peer.go("stepOut")["depth"] == 79


def test_a_chain_of_100k_nodes_steps_and_ends(start: Start) -> None:
    peer, debuggee = start(lambda b: b.backward(FakeGraph.chain(100_000)), "#50000")
    assert peer.stopped()["index"] == 50_000
    assert peer.go("stepIn")["index"] == 50_001
    peer.request("continue")
    debuggee.join(60)
