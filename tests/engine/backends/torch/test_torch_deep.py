"""Chains of 100,000 nodes: hooked, matched by name, failing, freed; each in its own process, for it may crash."""

from __future__ import annotations

import pytest

from adbg.engine.native import load
from tests.engine.backends.torch.test_torch_features import run_python

#: With the extension graphs are walked whole, and as many nodes are hooked as are wanted.
WHOLE = 100_001 if load.core()[0] is not None else 0
CAPPED = "30000 30000 30000 walk capped at 30,000"
EVERY = f"{WHOLE} {WHOLE} {WHOLE} whole" if WHOLE else CAPPED

DEEP = """
import gc, sys, threading, torch
from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.torch.backend import TorchBackend

class Counting:
    plan = HookPlan()
    begun = ended = 0
    note = failed = ""
    nodes = 0
    def backward_begin(self, call):
        call.hook(self.plan); self.note = call.note; self.nodes = call.count()
    def node_begin(self, call, key, outs): self.begun += 1
    def node_end(self, call, key, ins, outs): self.ended += 1
    def backward_end(self, call, error):
        if error is not None:
            self.note = call.note
            self.failed = [(call.describe(key).name, why) for key, why in call.failed_nodes(error)]

def chain(length):
    x = start = torch.ones(1, requires_grad=True)
    for _ in range(length): x = x * 1.0
    return start, x

def main(plan, armed=True, stacks=False, length=100_000, fail=False, graph_of=False):
    sink = Counting(); sink.plan = plan
    backend = TorchBackend(); backend.install(sink); backend.set_stacks(stacks); backend.arm(armed)
    start, end = chain(length)
    if graph_of:
        graph = backend.graph_of([end]); print("graph", graph.count()); del graph
    if fail:
        b = start.exp(); c = b * b; b.add_(1)
        try: (c + end).sum().backward()
        except RuntimeError as error: assert "inplace" in str(error)
        else: raise AssertionError
    else:
        end.backward()
        assert start.grad.item() == 1.0
    del end; gc.collect()
    backend.uninstall()
    print(sink.begun, sink.ended, sink.nodes, sink.note or "whole", sink.failed)

{body}
"""


def deep(body: str) -> str:
    done = run_python(DEEP.replace("{body}", body), timeout=110)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("main(HookPlan(every=True))", EVERY),
        (
            "main(HookPlan(name=lambda name: name == 'MulBackward0'))",
            "100000 100000 100001 whole" if WHOLE else CAPPED,
        ),
        ("main(HookPlan(screen=True))", f"0 0 {WHOLE} whole" if WHOLE else "0 0 30000 walk capped at 30,000"),
        ("main(HookPlan(), armed=False, stacks=True)", "0 0 0 whole"),
        ("main(HookPlan(every=True), stacks=True, graph_of=True)", EVERY),
        ("main(HookPlan(every=True), length=29_000)", "29001 29001 29001 whole"),
    ],
)
def test_long_chain(call, expected):
    assert expected in deep(call)


@pytest.mark.parametrize(
    "call",
    [
        "main(HookPlan(every=True), length=120_000)\nbox = [chain(120_000)[1]]\nbackend = TorchBackend()\n"
        "print(backend.graph_of(box).count())\n"
        "thread = threading.Thread(target=box.clear); thread.start(); thread.join(); print('freed')",
    ],
)
def test_walked_on_the_main_thread_and_freed_on_another(call):
    assert deep(call).endswith(f"{120_001 if WHOLE else 30_000}\nfreed\n")


SEVERAL = """
def several():
    backend = TorchBackend()
    start, x = chain(25_000); marks = [x]
    for _ in range(2):
        for _ in range({gap}): x = x * 1.0
        marks.append(x)
    counts = [backend.graph_of([mark]).count() for mark in marks for _ in range(2)]
    print(*counts, flush=True)
    marks.clear(); del x, start
    print("freed", backend.graph_of([chain(29_000)[1]]).count())
thread = threading.Thread(target=several); thread.start(); thread.join()
"""


def test_several_walks_of_one_graph_share_what_is_safe():
    """The same roots again see what they saw; what is above gets what is left, at the end a thousand nodes; nothing of
    it counts once the graph is gone."""
    assert deep(SEVERAL.replace("{gap}", "25_000")).splitlines() == [
        "25001 25001 50001 50001 75001 75001" if WHOLE else "25001 25001 4999 4999 1000 1000",
        "freed 29001",
    ]


def test_small_graphs_are_walked_whole_beside_deep_ones():
    assert (
        deep(
            "backend = TorchBackend(); start, end = chain(100_000); deeps = backend.graph_of([end]).count()\n"
            "print(deeps, backend.graph_of([chain(900)[1]]).count())"
        )
        == f"{WHOLE or 30_000} 901\n"
    )


def test_long_chain_fails_post_mortem():
    out = deep("main(HookPlan(), armed=False, fail=True)")
    assert "[('MulBackward0'" in out and "is at version 1; expected version 0" in out


def test_long_chain_on_another_thread_is_capped():
    out = deep("thread = threading.Thread(target=main, args=(HookPlan(every=True),)); thread.start(); thread.join()")
    assert out.startswith(EVERY)


def test_long_chain_with_a_graph_that_is_never_run():
    assert f"graph {WHOLE or 30_000}" in deep(
        "backend = TorchBackend(); start, end = chain(100_000); graph = backend.graph_of([end]);"
        " print('graph', graph.count()); del end, start; del graph; gc.collect()"
    )
