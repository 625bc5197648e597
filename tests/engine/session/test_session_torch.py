"""The session on real PyTorch, through the agent's real socket, the script in a process of its own."""

from __future__ import annotations

import sqlite3
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from support.dialled import Dialled
from support.front_end import Refused, where
from support.program import own_lines
from support.record_samples import nodes_ran

pytest.importorskip("torch")

MLP = """
import torch
torch.manual_seed(0)
w = torch.nn.Linear(4, 4)
x = torch.ones(2, 4)
for i in range(3):
    loss = torch.tanh(w(x)).sum()
    loss.backward()
print([round(v, 6) for v in w.weight.grad[0].tolist()])
"""

NESTED = """
import torch

class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            out = Outer.apply(y * 1, ctx.depth - 1) if ctx.depth else y * 2
        (inner,) = torch.autograd.grad(out, y, grad)
        return inner, None

x = torch.ones(3, requires_grad=True)
(Outer.apply(x, DEPTH) * 3).sum().backward()
print(x.grad.tolist())
"""

FAILS = """
import torch
x = torch.ones(3, requires_grad=True)
y = x.exp()
z = (y * 2).sum()
y.add_(1)
try:
    z.backward()
except RuntimeError as error:
    print("caught", "is at version 1" in str(error))
"""

THREADS = """
import threading, torch

def work(name, factor):
    x = torch.ones(3, requires_grad=True)
    gate.wait()
    (x * factor).sum().backward()
    results[name] = x.grad.tolist()

results, gate = {}, threading.Barrier(2)
threads = [threading.Thread(target=work, args=(n, f), name=n) for n, f in (("one", 2.0), ("two", 3.0))]
[t.start() for t in threads]
[t.join() for t in threads]
print(sorted(results.items()))
"""


def test_break_step_edit_and_see_the_result(tmp_path: Path) -> None:
    with Dialled(tmp_path, MLP) as plain:
        plain.peer.begin()
        untouched = plain.end()[1]
    with Dialled(tmp_path, MLP) as run:
        run.peer.begin("TanhBackward0 backward 3")
        stop = run.peer.stopped()
        assert where(stop) == ("breakpoint", "TanhBackward0#1", 2, 0)
        assert (stop["backward"], stop["iteration"]) == (3, 3)
        assert stop["location"]["line"] == run.line("loss.backward()")
        assert stop["location"]["file"] == str(run.script)
        assert run.peer.value("grad_outputs[0].sum().item()") == 8.0
        assert run.peer.value("i") == 2
        run.peer.request("setExpression", expression="grad_outputs[0]", value="grad_outputs[0] * 0")
        assert where(run.peer.go("stepIn"))[1:3] == ("AddmmBackward0#1", 3)
        assert run.peer.value("grad_outputs[0].abs().sum().item()") == 0.0
        run.peer.request("continue")
        status, out, err = run.end()
        assert (status, err) == (0, "")
    two_thirds = [round(v * 2 / 3, 4) for v in eval(untouched)]
    assert [round(v, 4) for v in eval(out)] == pytest.approx(two_thirds, abs=2e-4)


def test_stepping_through_nested_functions_past_the_depth_at_which_torch_changes_thread(tmp_path: Path) -> None:
    with Dialled(tmp_path, NESTED.replace("DEPTH", "70")) as run:
        run.peer.begin("SumBackward0")
        run.peer.stopped()
        deepest, threads = 0, set()
        for _ in range(400):
            stop = run.peer.go("stepIn")
            threads.add(stop["thread"])
            assert len(stop["enclosing"]) == stop["depth"]
            deepest = max(deepest, stop["depth"])
            if deepest > 65 and stop["depth"] < deepest - 2:
                break
        assert deepest == 71 and len(threads) == 2
        stop = run.peer.go("stepOut")
        assert stop["phase"] == "after" and stop["node"]["name"] == "OuterBackward"
        assert where(run.peer.go("next"))[3] <= stop["depth"]
        run.peer.set()
        run.peer.request("continue")
        assert run.end()[:2] == (0, "[6.0, 6.0, 6.0]\n")


def test_until_a_node_that_this_backward_does_not_have_keeps_the_stop(tmp_path: Path) -> None:
    with Dialled(tmp_path, NESTED.replace("DEPTH", "1")) as run:
        run.peer.begin("OuterBackward")
        here = where(run.peer.stopped())
        with pytest.raises(Refused, match=r"no node named .Sumn. in the current graph; closest: Sum") as refusal:
            run.peer.request("adbg/until", spec="Sumn")
        assert "tbreak Sumn" in str(refusal.value.error)
        with pytest.raises(Refused, match="no node #99 in the current graph: it has 4 nodes"):
            run.peer.request("adbg/until", spec="#99")
        assert run.peer.value("index") == 3, "the stop is still there"
        assert where(run.peer.go())[1] == here[1] == "OuterBackward#1"
        run.peer.set()
        stop = run.peer.go("adbg/until", spec="Accumulate*")
        assert where(stop) == ("step", "AccumulateGrad#1", 4, 0), "of the backward around the nested one at hand"
        run.peer.request("continue")
        assert run.end()[0] == 0


def test_next_runs_nested_calls_at_once_and_finish_leaves_them(tmp_path: Path) -> None:
    with Dialled(tmp_path, NESTED.replace("DEPTH", "3")) as run:
        run.peer.begin("OuterBackward")
        assert where(run.peer.stopped()) == ("breakpoint", "OuterBackward#1", 3, 0)
        assert where(run.peer.go("next")) == ("breakpoint", "OuterBackward#1", 1, 1)  # a breakpoint inside wins
        assert where(run.peer.go()) == ("breakpoint", "OuterBackward#1", 1, 2)
        run.peer.set()
        assert where(run.peer.go("next")) == ("step", "MulBackward0#1", 2, 2)
        for depth, index in ((1, 1), (0, 3)):
            stop = run.peer.go("stepOut")
            assert (stop["phase"], where(stop)) == ("after", ("step", "OuterBackward#1", index, depth))
        assert where(run.peer.go("next")) == ("step", "AccumulateGrad#1", 4, 0)
        run.peer.request("continue")
        assert run.end()[:2] == (0, "[6.0, 6.0, 6.0]\n")


def test_an_error_stops_with_its_node_without_anything_armed(tmp_path: Path) -> None:
    with Dialled(tmp_path, FAILS) as run:
        run.peer.begin()
        stop = run.peer.stopped()
        assert (stop["reason"], stop["phase"], stop["node"]["name"]) == ("error", "error", "ExpBackward0")
        assert "is at version 1" in stop["message"]
        saved = run.peer.request("adbg/node")["saved"]
        assert any((slot["meta"] or {}).get("version") == 1 for slot in saved)
        run.peer.request("continue")
        assert run.end()[:2] == (0, "caught True\n")


def test_two_threads_at_once(tmp_path: Path) -> None:
    with Dialled(tmp_path, THREADS) as run:
        run.peer.begin("MulBackward0")
        first = run.peer.stopped()["thread"]
        states: set[str] = set()
        deadline = time.monotonic() + 10
        while not {"stopped", "waiting"} <= states and time.monotonic() < deadline:
            states = {t["adbg"] for t in run.peer.request("threads")["threads"]}
        assert {"stopped", "waiting"} <= states
        run.peer.request("setExpression", expression="grad_outputs[0]", value="grad_outputs[0] * 10")
        assert run.peer.go()["thread"] != first
        run.peer.request("continue")
        status, out, _ = run.end()
        assert status == 0
        values = sorted(v[0] for _, v in eval(out))
        assert values in ([2.0, 30.0], [3.0, 20.0])  # the first to stop was edited, the other one not


def test_a_chain_of_50k_nodes(tmp_path: Path) -> None:
    script = """
import torch
x = torch.ones(1, requires_grad=True)
y = x
for _ in range(50_000):
    y = y + 1
y.backward()
print(x.grad.item())
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin("#10000")
        stop = run.peer.stopped()
        assert stop["index"] == 10_000
        assert run.peer.go("stepIn")["index"] == 10_001
        page = run.peer.request("adbg/graph", start=9_990, count=20)
        assert [row["state"] for row in page["rows"]].count("here") == 1
        run.peer.set()
        run.peer.request("continue")
        assert run.end()[:2] == (0, "1.0\n")


@pytest.mark.parametrize("moment", ["stopped", "running", "request", "before"])
def test_the_program_ends_by_itself_when_the_front_end_dies(tmp_path: Path, moment: str) -> None:
    script = MLP.replace("range(3)", "range(300)")
    with Dialled(tmp_path, script) as run:
        run.peer.begin() if moment != "before" else run.peer.event("adbg/hello")
        expected = run.end()[1] if moment != "before" else ""
    with Dialled(tmp_path, script) as run:
        if moment == "before":
            run.peer.event("adbg/hello")
        else:
            run.peer.begin("TanhBackward0 if i == 150" if moment != "running" else "TanhBackward0 if False")
        if moment in ("stopped", "request"):
            run.peer.stopped()
        if moment == "request":
            run.peer.send("evaluate", expression="sum(range(30_000_000))")
        run.peer.close()
        status, out, err = run.end()
        assert status == 0 and err == ""
        assert not expected or out == expected


def test_a_forked_child_has_an_agent_of_its_own_from_its_first_backward_on(tmp_path: Path) -> None:
    script = """
import os, sys, torch
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
pid = os.fork()
if pid == 0:
    assert sys.breakpointhook is sys.__breakpointhook__
    (x * 2).sum().backward()
    os.write(1, f"child {x.grad.tolist()}\\n".encode())
    os._exit(0)
print("status", os.waitpid(pid, 0)[1], flush=True)
(x * 2).sum().backward()
print(x.grad.tolist())
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin("MulBackward0")
        assert run.peer.stopped()["backward"] == 1
        run.peer.request("continue")
        child = run.front.accept()
        child.begin("MulBackward0")
        assert child.stopped()["backward"] == 1, "the parent's are not its own"
        child.request("continue")
        assert run.peer.stopped()["backward"] == 2  # of the parent, after the child ended
        run.peer.request("continue")
        assert run.end() == (0, "child [4.0, 4.0, 4.0]\nstatus 0\n[4.0, 4.0, 4.0]\n", "")


def test_breakpoint_of_python_stops_with_locals_and_the_graph_so_far(tmp_path: Path) -> None:
    script = """
import torch
def forward(x):
    y = x.sin()
    breakpoint()
    return y
forward(torch.ones(3, requires_grad=True)).sum().backward()
print("done")
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin()
        stop = run.peer.stopped()
        assert (stop["phase"], stop["location"]["line"]) == ("python", run.line("breakpoint()"))
        assert run.peer.value("y.shape[0]") == 3
        assert [r["name"] for r in run.peer.request("adbg/graph")["rows"]] == ["SinBackward0", "AccumulateGrad"]
        assert where(run.peer.go("stepIn"))[1] == "SumBackward0#1"
        run.peer.request("continue")
        assert run.end() == (0, "done\n", "")


def test_a_keyboard_interrupt_at_a_stop_goes_into_the_program(tmp_path: Path) -> None:
    script = """
import torch
x = torch.ones(3, requires_grad=True)
try:
    (x * 2).sum().backward()
except KeyboardInterrupt:
    print("interrupted")
(x * 2).sum().backward()
print(x.grad.tolist())
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin("MulBackward0")
        run.peer.stopped()
        run.process.send_signal(2)
        run.peer.event("continued")
        assert run.peer.stopped()["backward"] == 2
        run.peer.request("continue")
        assert run.end() == (0, "interrupted\n[2.0, 2.0, 2.0]\n", "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="a bare raise puts the old traceback back before 3.11")
@pytest.mark.parametrize("spec", ["MulBackward0", "MulBackward0 after", "backward", "backward-end"])
def test_the_traceback_of_an_interrupt_at_a_stop_has_no_frame_of_adbg(tmp_path: Path, spec: str) -> None:
    script = """
import torch
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
"""
    with Dialled(tmp_path, script) as run:
        run.peer.begin(spec)
        run.peer.stopped()
        run.process.send_signal(2)
        status, _, err = run.end()
    trace = err[err.rindex("Traceback") :]
    assert status != 0 and trace.rstrip().endswith("KeyboardInterrupt")
    assert f'script.py", line {run.line("backward()")}' in trace
    assert not own_lines(trace), trace


def test_interrupts_at_any_moment_leave_nothing_locked(tmp_path: Path) -> None:
    flag = tmp_path / "stop"
    script = (
        f"FLAG = {str(flag)!r}"
        + """
import os, signal, torch

def interrupt(number, frame):
    if inside:
        raise KeyboardInterrupt

x = torch.ones(64, requires_grad=True)
y = x
for _ in range(50):
    y = y.sin()
y = y.sum()
inside, stopping, caught, done = False, False, 0, 0
signal.signal(signal.SIGINT, interrupt)
while not stopping:
    try:
        inside = True
        y.backward(retain_graph=True)
        inside = False
        done += 1
        stopping = os.path.exists(FLAG)
    except KeyboardInterrupt:
        inside = False
        caught += 1
print("caught", caught > 0, done > 0)
"""
    )
    with Dialled(tmp_path, script) as run:
        run.peer.begin("* after if False")
        run.peer.event("adbg/backwardEnd")
        for i in range(150):
            run.process.send_signal(2)
            time.sleep(0.002 + 0.0001 * (i % 7))
        flag.touch()
        assert run.end()[:2] == (0, "caught True True\n")


def test_results_are_the_same_stepped_traced_or_left_alone(tmp_path: Path) -> None:
    outs = set()
    script = MLP.replace("round(v, 6)", "v.hex()")
    for how in ("alone", "stepped", "traced", "vlog"):
        with Dialled(tmp_path, script) as run:
            run.peer.begin("*" if how == "stepped" else "* if False" if how == "traced" else "Nothing")
            if how == "vlog":
                run.peer.request("adbg/vlog", levels="6")
            while how == "stepped" and run.process.poll() is None:
                try:
                    run.peer.stopped()
                    run.peer.request("stepIn")
                except (ConnectionError, Refused):
                    break
            status, out, _ = run.end()
            assert status == 0
            outs.add(out)
    assert len(outs) == 1


def test_an_evaluation_takes_less_than_a_millisecond(tmp_path: Path) -> None:
    with Dialled(tmp_path, MLP) as run:
        run.peer.begin("TanhBackward0")
        run.peer.stopped()
        times = []
        for _ in range(300):
            begun = time.perf_counter()
            run.peer.value("norm(grad_outputs[0])")
            times.append(time.perf_counter() - begun)
        run.peer.set()
        run.peer.request("continue")
        median = statistics.median(times) * 1e3
        print(f"evaluate: median {median:.3f} ms")
        assert median <= 5.0  # measured 0.2 ms; the bound leaves room for a busy machine


def test_the_run_directory_holds_stops_and_calls(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Dialled(tmp_path, MLP, run_dir=str(folder)) as run:
        run.peer.begin("TanhBackward0")
        run.peer.stopped()
        run.peer.set()
        run.peer.request("continue")
        assert run.end()[0] == 0
    with sqlite3.connect(folder / "events-r0.sqlite") as base:
        assert base.execute("select count(*) from backward").fetchone()[0] >= 1
        assert base.execute("select count(*) from stop").fetchone()[0] == 1
        names = [name for (name,) in base.execute("select unique_name from node where backward = 1")]
    assert {"SumBackward0#1", "TanhBackward0#1", "AddmmBackward0#1"} <= set(names)


def test_every_node_is_recorded_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Dialled(tmp_path, MLP, run_dir=str(folder)) as run:
        run.peer.begin("backward 2")
        run.peer.stopped()
        assert run.peer.request("adbg/record", on=True)["recording"] is True
        run.peer.set()
        run.peer.request("continue")
        assert run.end()[0] == 0
    counts = Counter(backward for backward, *_ in nodes_ran(folder))
    assert counts[2] == counts[3] >= 5
