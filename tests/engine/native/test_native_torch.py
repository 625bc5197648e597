"""The extension on torch: what it says beside torch's own word, and that nothing of it is left."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.base import HookPlan  # noqa: E402
from tests.support.program import ROOT  # noqa: E402
from tests.support.torch_watch import Watch, watching  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class Part(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def forward(self, x: Any) -> Any:
        return Twice.apply(self.inner(x)) + x


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(Part(), Part(), torch.nn.LayerNorm(4))


def nodes_below(root: Any) -> list[Any]:
    """Breadth first, by torch's own next_functions."""
    nodes = [root]
    for node in nodes:
        for below, _ in node.next_functions:
            if below is not None and below not in nodes:
                nodes.append(below)
    return nodes


def test_every_stack_is_that_of_anomaly_mode(native: Any) -> None:
    """torch's anomaly mode keeps traceback.format_list of the same stack on each node: all frames are compared."""
    with watching(Watch(), stacks=True) as backend, torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss = model()(torch.randn(3, 4)).sum()
        compared = 0
        for node in nodes_below(loss.grad_fn):
            trace = backend._stacks.trace(node)
            told = [_FRAME.match(line) for line in node.metadata["traceback_"]]
            expected = [(match[1], int(match[2]), match[3]) for match in told if match]
            taken = [
                (code.co_filename, backend._stacks._native._line(code, lasti), code.co_name)
                for code, lasti in reversed(trace.frames)
            ]
            # What format_stack itself adds at the end is no part of the program's stack.
            assert expected[: len(taken)] == taken, node
            assert all("torch/fx/traceback" in file for file, _, _ in expected[len(taken) :])
            compared += 1
        assert compared > 15


def test_module_paths_are_those_of_named_modules() -> None:
    net = model()
    inside: dict[int, str] = {}
    for path, module in net.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _m, _a, out, path=path: inside.__setitem__(id(out.grad_fn), path))
    with watching(Watch(), stacks=True) as backend:
        loss = net(torch.randn(3, 4)).sum()
        found = {id(node): backend._stacks.module_path(node) for node in nodes_below(loss.grad_fn)}
        assert len(inside) == 2 and inside.items() <= found.items()


def test_modules_that_ran_before_are_not_all_that_there_are() -> None:
    before, other = model(), torch.nn.Linear(3, 5)  # the other one has not run
    with watching(Watch(), stacks=True):
        before(torch.randn(3, 4)).sum().backward()
    with watching(Watch()) as backend:
        assert {tuple(p.shape) for p in (*before.parameters(), *other.parameters())} <= {
            tuple(parameter.shape) for _, parameter in backend.parameters()
        }


def test_walk_order_and_edges_are_torchs() -> None:
    net = model()
    seen: list[Any] = []
    watch = Watch()
    ran: list[Any] = []

    def begin(call: Any) -> None:
        assert call.far is not None
        nodes = nodes_below(call.root_nodes[0])
        assert call.count() == len(nodes)
        for key, node in enumerate(nodes):
            assert call.far.node(key) is node and call.key_of(node) == key
            told = [(nodes.index(below) if below is not None else None, slot) for below, slot in node.next_functions]
            assert [(edge.to, edge.to_slot) for edge in call.edges(key)] == told
            assert call.name(key) == type(node).__name__
        seen.extend(call.order())
        for key in seen:
            nodes[key].register_prehook(lambda _grads, key=key: ran.append(key))

    watch.begin = begin
    with watching(watch) as backend:
        for _ in range(2):  # edges are looked for in the first graph
            loss = net(torch.randn(3, 4)).sum()
            backend._core.walk([loss.grad_fn])
        loss.backward()
    assert ran == seen and len(ran) > 15


def step(net: Any, bad: bool) -> list[Any]:
    net.zero_grad()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    out = net(x)
    loss = (out * (float("inf") if bad else 1.0)).sum() if bad else out.sum()
    loss.backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


@pytest.mark.parametrize("bad", [False, True])
def test_watch_finds_what_plain_hooks_find_and_changes_no_bit(bad: bool) -> None:
    """Which nodes gave a bad gradient: by hooks of torch's on every node that count with isfinite."""
    net = model()
    plain = step(net, bad)
    expected: list[str] = []

    def look(node: Any) -> Any:
        def hook(grad_inputs: Any, _outs: Any) -> None:
            if any(grad is not None and not torch.isfinite(grad).all() for grad in grad_inputs):
                expected.append(type(node).__name__)

        return hook

    out = net(torch.linspace(-1, 1, 12).reshape(3, 4))
    loss = (out * (float("inf") if bad else 1.0)).sum() if bad else out.sum()
    for node in nodes_below(loss.grad_fn):
        if node.next_functions:
            node.register_hook(look(node))
    loss.backward()

    watch = Watch(HookPlan())
    plan = HookPlan(screen=True)
    natively: list[bool] = []

    def begin(call: Any) -> None:
        call.hook(plan)
        natively.append(call._hooks._native)

    watch.begin = begin
    found: list[str] = []
    watch.after = lambda call, key, *_: found.append(call.name(key)) if call.edges(key) else None
    with watching(watch, stacks=True):
        step(net, False)
        watched = step(net, bad)
    assert natively[-1]
    assert all(torch.equal(a, b) or (bad and torch.equal(a.isnan(), b.isnan())) for a, b in zip(plain, watched))
    assert found == expected and bool(found) == bad


def test_slots_are_restored(native: Any) -> None:
    before = {}
    for symbol, _, _ in native.torch_interposed():
        for _, address, _ in native.slots(symbol, "libtorch"):
            before[address] = ctypes.c_void_p.from_address(address).value
    with watching(Watch(), stacks=True):
        assert all(on for _, on, _ in native.torch_interposed())
        changed = [a for a, value in before.items() if ctypes.c_void_p.from_address(a).value != value]
        assert changed == list(before) and changed
    assert all(ctypes.c_void_p.from_address(a).value == value for a, value in before.items())
    assert native.torch_screening(0) == 0


def test_no_hook_is_left_in_a_node_that_lives_on(native: Any) -> None:
    """The graph is retained and run again without the watch: torch's own count of calls in Python stays as it was."""
    net = model()
    watch = Watch(HookPlan(screen=True))
    with watching(watch):
        step(net, False)
        net.zero_grad()
        loss = net(torch.ones(3, 4)).sum()
        loss.backward(retain_graph=True)
    first = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    loss.backward()
    assert all(map(torch.equal, first, [parameter.grad for parameter in net.parameters()]))
    assert native.torch_screening(0) == 0


def test_threads_that_end_leave_their_stacks(native: Any) -> None:
    made: list[Any] = []
    with watching(Watch(), stacks=True) as backend:
        for _ in range(20):
            thread = threading.Thread(target=lambda: made.append(torch.ones(2, requires_grad=True).exp().sin()))
            thread.start()
            thread.join()
        for tensor in made:
            trace = backend._stacks.trace(tensor.grad_fn)
            assert trace is not None and trace.frames[0][0].co_name == "<lambda>"


def test_graph_of_a_million_is_counted_without_touching_it() -> None:
    """300,000 here, which would crash as it is freed if Python had touched them."""
    with watching(Watch()) as backend:
        x = torch.ones(1, requires_grad=True)
        small = (x * 2 + x.exp()).sum()
        assert backend._core.walk([small.grad_fn]) is not None
        end = x
        for _ in range(300_000):
            end = end * 1.0
        graph = backend.graph_of([end])
        assert graph is not None and graph.count() == 300_001 and not graph.truncated
        assert graph.describe(graph.order()[-2]).unique_name == "MulBackward0#1"
        assert len(graph.order()) == 300_001
        del graph, end
        gc.collect()


def test_wrong_layouts_and_objects_are_refused(native: Any) -> None:
    nodes = nodes_below((torch.ones(2, requires_grad=True) * 2).sum().grad_fn)
    assert native.torch_layout([(node, 1 << 40) for node in nodes * 2]) is False
    assert native.torch_edges([]) is False
    dice = random.Random(3)
    things: list[Any] = [None, 3, "x", object(), torch.ones(1), type, nodes, Part, lambda: 0, b"x" * 64, 1j, {}, set()]
    for _ in range(300):
        thing = dice.choice(things)
        assert native.torch_stack_number(thing) == 0
        with pytest.raises((TypeError, ValueError)):
            native.torch_walk([thing])
    for call, wrong in (
        (native.torch_layout, 3),
        (native.torch_layout, [1, 2, 3, 4]),
        (native.torch_edges, None),
        (native.torch_walk, None),
        (native.torch_survey, None),
        (native.torch_leaves, None),
        (native.torch_objects, 3),
        (native.torch_hooking, 3),
        (native.torch_hooked, 5),
        (native.torch_hooked, "x"),
        (native.torch_screening, 5),
        (native.torch_screening, "x"),
    ):
        with pytest.raises((TypeError, ValueError)):
            call(wrong)
    walk = native.torch_walk(nodes[:1])
    for wrong in (-1, 1 << 70, 999_999, "x"):
        for ask in (walk.node, walk.address, lambda key: walk.hook(key, True, True)):
            with pytest.raises((IndexError, OverflowError, TypeError)):
                ask(wrong)
    for method in (walk.keys, walk.into, walk.places, walk.screen):
        with pytest.raises(ValueError):
            method(b"")
    walk.release()
    with pytest.raises(ValueError):
        walk.order()
    with pytest.raises(TypeError):
        type(walk)()


ENDINGS = """
import os, sys, threading, torch
from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.torch.backend import TorchBackend

class Sink:
    def backward_begin(self, call): call.hook(HookPlan(screen=True))
    def node_begin(self, *a): pass
    def node_end(self, *a): pass
    def backward_end(self, *a): pass
    def passes_over(self, kinds, alike=None): return False

backend = TorchBackend(); backend.prepare(False)
assert backend._core.module is not None, backend._core.why
backend.install(Sink()); backend.set_stacks(True); backend.arm(True)
x = torch.ones(4, requires_grad=True)
def work():
    loss = (x * 2 + x.exp()).sum(); loss.backward()
for _ in range(3): work()
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        # (A thread inside backward as Python ends aborts in plain torch too: "terminate called".)
        ("import atexit\nclass Late:\n def __del__(self): work()\nlate = Late(); atexit.register(work)", b""),
        ("child = os.fork()\nif not child: backend.abandon(); work(); print('child', flush=True); os._exit(0)\n"
         "assert os.waitpid(child, 0)[1] == 0; work(); print('parent')", b"child\nparent\n"),
        ("child = os.fork()\nif not child: work(); print('child', flush=True); os._exit(0)\n"
         "assert os.waitpid(child, 0)[1] == 0; work(); print('parent')", b"child\nparent\n"),
        ("os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])", b"1\n"),
        ("backend._core.module.restore(); work(); print('restored')", b"restored\n"),
    ],
)  # fmt: skip
def test_however_a_process_ends(extension: Path, ending: str, expected: bytes) -> None:
    environment = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT)}
    code = ENDINGS.replace("{ending}", ending)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=110)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr.decode()[-2000:]
