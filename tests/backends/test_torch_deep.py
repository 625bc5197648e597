"""Chains of 100,000 nodes: hooked, matched by name, failing, freed; each in its own process, for it may crash."""

from __future__ import annotations

import pytest

from tests.backends.test_torch_features import run_python

DEEP = """
import gc, sys, threading, torch
from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.torch_backend import TorchBackend

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
        ("main(HookPlan(every=True))", "100001 100001 100001 whole"),
        ("main(HookPlan(name=lambda name: name == 'AccumulateGrad'))", "1 1 100001 whole"),
        ("main(HookPlan(screen=True))", "0 0 100001 whole"),
        ("main(HookPlan(), armed=False, stacks=True)", "0 0 0 whole"),
        ("main(HookPlan(every=True), stacks=True, graph_of=True)", "100001 100001 100001 whole"),
    ],
)
def test_long_chain(call, expected):
    assert expected in deep(call)


def test_long_chain_fails_post_mortem():
    out = deep("main(HookPlan(), armed=False, fail=True)")
    assert "[('MulBackward0'" in out and "is at version 1; expected version 0" in out


def test_long_chain_on_another_thread_is_capped():
    out = deep("thread = threading.Thread(target=main, args=(HookPlan(every=True),)); thread.start(); thread.join()")
    assert "walk capped at 30,00" in out
    assert out.startswith(("30000 30000", "30001 30001"))


def test_long_chain_with_a_graph_that_is_never_run():
    assert "graph 100001" in deep(
        "backend = TorchBackend(); start, end = chain(100_000); graph = backend.graph_of([end]);"
        " print('graph', graph.count()); del end, start; del graph; gc.collect()"
    )
