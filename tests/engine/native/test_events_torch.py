"""What the extension writes down of every node, beside hooks of torch's own on the same nodes in the same backward."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.torch.backend import TorchBackend  # noqa: E402
from adbg.engine.node_batch import NodeBatch, NodeRow  # noqa: E402
from tests.support.program import ROOT  # noqa: E402
from tests.support.torch_watch import Watch, watching  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class Within(torch.autograd.Function):
    """Its backward runs a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.detach())
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with torch.enable_grad():
            inner = ctx.saved_tensors[0].requires_grad_()
            (found,) = torch.autograd.grad(inner.exp().sum(), inner)
        return grad * found


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise ValueError("planted")


def nodes_below(root: Any) -> list[Any]:
    nodes = [root]
    seen = {root}
    for node in nodes:
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                nodes.append(below)
    return nodes


class Written(Watch):
    """Has every call written down: batches by number of the call, with the names that the indices stand for."""

    def __init__(self) -> None:
        super().__init__(HookPlan())
        self.batches: dict[int, NodeBatch] = {}
        self.names: dict[int, list[str]] = {}
        self.walls: dict[int, tuple[int, int]] = {}
        self.twins: dict[int, Any] = {}
        self.began: dict[int, int] = {}
        self.can: list[bool] = []

    def backward_begin(self, call: Any) -> None:
        self.began[call.number] = time.perf_counter_ns()
        self.can.append(call.collect())
        super().backward_begin(call)
        self.names[call.number] = self.open[id(call)].order  # `last` may be another thread's

    def backward_end(self, call: Any, error: BaseException | None) -> None:
        self.walls[call.number] = (self.began[call.number], time.perf_counter_ns())
        batch = call.collected()
        if batch is not None:
            self.batches[call.number] = batch
            self.twins[call.number] = call.twin(shapes=True)
        super().backward_end(call, error)

    def rows(self, number: int) -> list[tuple[str, NodeRow]]:
        names = self.names[number]
        return [(names[row.index - 1], row) for row in self.batches[number]]


class Told:
    """The second witness: pre-hooks of torch's, put on the nodes before backward begins."""

    def __init__(self, root: Any) -> None:
        self.seen: list[tuple[str, float | None]] = []
        for node in nodes_below(root):
            node.register_prehook(self._hook(type(node).__name__))

    def _hook(self, name: str) -> Callable[[Any], None]:
        def hook(grads: Any) -> None:
            first = next((grad for grad in grads if grad is not None), None)
            if first is not None and first.is_sparse:
                first = first._values()
            self.seen.append((name, None if first is None else first.detach().abs().double().norm().item()))

        return hook


def agree(rows: list[tuple[str, NodeRow]], seen: list[tuple[str, float | None]], wall: tuple[int, int]) -> None:
    assert [name.partition("#")[0] for name, _ in rows] == [name for name, _ in seen]
    for (name, row), (_, norm) in zip(rows, seen, strict=True):
        if norm is None or norm != norm:
            assert row.norm is None or row.norm != row.norm, name
        else:
            assert row.norm == pytest.approx(norm, rel=1e-5, abs=1e-12), name
            assert not row.nonfinite
    begins = [row.begin_ns for _, row in rows]
    ends = [row.begin_ns + row.us * 1e3 for _, row in rows]
    assert begins == sorted(begins) and wall[0] <= begins[0] and ends[-1] <= wall[1]
    assert all(end <= begin + 1000 for end, begin in zip(ends, begins[1:])), "one thread runs one node at a time"


def model(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.LayerNorm(40)]
    return torch.nn.Sequential(*layers).to(dtype)


def views(net: Any, dtype: Any) -> Any:
    """Gradients that are passed on as they are, as views, transposed, expanded, in strides, and summed."""
    x = torch.linspace(-1, 1, 1200, dtype=dtype).reshape(30, 40)
    out = net(x)
    parts = out.t().reshape(40, 5, 6).permute(2, 0, 1)
    return (parts[::2].sum() + out[:, ::3].mean() + (out + out).view(-1).square().mean() + Twice.apply(out).sum()) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_order_and_norms_are_those_of_torchs_hooks(dtype: Any) -> None:
    net, watch = model(dtype), Written()
    with watching(watch):
        for _ in range(3):  # edges are looked for in the first graph
            net.zero_grad()
            loss = views(net, dtype)
            told = Told(loss.grad_fn)
            loss.backward()
    assert watch.can[1:] == [True, True]
    agree(watch.rows(3), told.seen, watch.walls[3])
    assert len(watch.batches[3]) == len({row.index for row in watch.batches[3]}) > 25
    assert watch.twins[2] == watch.twins[3] is not None


class Given(torch.autograd.Function):
    """Its backward hands on the gradient that it was given, laid out as it is."""

    @staticmethod
    def forward(ctx: Any, x: Any, gradient: Any) -> Any:
        ctx.gradient = gradient
        return x.sum()

    @staticmethod
    def backward(ctx: Any, _: Any) -> Any:
        return ctx.gradient, None


LAYOUTS: dict[str, Callable[[Any], Any]] = {  # of 60,000 elements
    "every other": lambda flat: flat[::2],
    "one of four": lambda flat: flat.view(-1, 4)[:, 1],
    "columns, transposed": lambda flat: flat.view(300, 200)[:, ::3].t(),
    "long rows, transposed": lambda flat: flat.view(10, 6000)[:, 1:5999].t(),
    "short rows": lambda flat: flat.view(-1, 10)[:, 2:9],
    "three dimensions": lambda flat: flat.view(20, 30, 100)[::2, 1::4, ::3].permute(2, 0, 1),
    "expanded": lambda flat: flat[5000:9000:4, None].expand(1000, 5),
    "expanded between": lambda flat: flat[::3].view(50, 1, 400).expand(50, 3, 400),
    "one, expanded": lambda flat: flat[7].expand(40, 30),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_layout_is_read_where_it_lies_and_nothing_beside_it(dtype: Any) -> None:
    gradients = []
    for layout in LAYOUTS.values():
        used = layout(torch.arange(60_000)).unique()
        memory = torch.full((60_000,), float("nan"), dtype=dtype)
        memory[used] = torch.linspace(-2, 3, len(used), dtype=dtype)
        gradients.append(layout(memory))
    for bad in (False, True):
        watch, strides = Written(), []
        for gradient in gradients if bad else ():
            gradient[(-1,) * gradient.dim()] = float("inf")
        with watching(watch):
            for _ in range(3):
                strides.clear()
                middles = [torch.ones(gradient.shape, dtype=dtype, requires_grad=True) * 2 for gradient in gradients]
                loss = sum(map(Given.apply, middles, gradients))
                for middle in middles:
                    middle.grad_fn.register_prehook(lambda grads, seen=strides: seen.append(grads[0].stride()))
                told = Told(loss.grad_fn)
                loss.backward()
        assert sorted(strides) == sorted(gradient.stride() for gradient in gradients), "handed on as they are"
        rows = watch.rows(3)
        read = [row for name, row in rows if name.startswith("MulBackward0")]
        assert len(read) == len(gradients) and [row.nonfinite for row in read] == [bad] * len(read)
        if not bad:
            agree(rows, told.seen, watch.walls[3])


def test_results_are_those_without_it() -> None:
    def train(net: Any) -> list[Any]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            views(net, torch.float32).backward()
            optimizer.step()
        return [parameter.detach().clone() for parameter in net.parameters()]

    plain = train(model())
    watch = Written()
    with watching(watch, stacks=True):
        watched = train(model())
    assert any(watch.can) and all(map(torch.equal, plain, watched))


def test_what_changes_a_gradient_in_between_is_seen() -> None:
    """Hooks on tensors and parameters, in place past the counter of changes and a new tensor: the norm is that of what
    the node was given, also where the memory is that of a gradient that was read before."""
    watch = Written()
    weight = torch.linspace(1, 2, 4096).requires_grad_()
    weight.register_hook(lambda grad: grad.clamp(max=0.5))

    def behind(grad: Any) -> None:
        grad.data.mul_(7)  # no change is counted

    with watching(watch):
        for _ in range(3):
            middle = weight * 2
            passed = middle.view(64, 64)
            passed.register_hook(behind)
            out = passed.t().t() + 0
            loss = (out * 3).sum()
            told = Told(loss.grad_fn)
            loss.backward()
            weight.grad = None
    agree(watch.rows(3), told.seen, watch.walls[3])
    norms = {name: row.norm for name, row in watch.rows(3)}
    assert norms["AccumulateGrad#1"] == pytest.approx(0.5 * 64)
    assert norms["MulBackward0#1"] == pytest.approx(3 * 7 * 64)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_element_is_told(bad: float) -> None:
    watch = Written()
    factor = torch.ones(5000)
    factor[4321] = bad
    x = torch.ones(5000, requires_grad=True)
    with watching(watch):
        for _ in range(2):
            ((x * 2).view(50, 100).t().reshape(-1) * factor).sum().backward()
    rows = [row for _, row in watch.rows(2)]
    assert [row.nonfinite for row in rows][:2] == [False, False] and rows[-1].nonfinite
    assert not any(row.norm is None for row in rows)
    large = torch.full((5000,), 1e30)
    with watching(watch := Written()):
        for _ in range(2):
            (x * 2 * large * 1.0).sum().backward()
    told = [row for _, row in watch.rows(2)]
    assert not any(row.nonfinite for row in told), "the squares overflow, the numbers do not"
    assert max(row.norm or 0 for row in told) == pytest.approx(2e30 * 5000**0.5, rel=1e-5)


def test_other_kinds_of_gradients_are_asked_of_torch() -> None:
    """Sparse and complex ones are read by torch itself, through a hook in Python."""
    watch = Written()
    table = torch.nn.Embedding(10, 3, sparse=True)
    phase = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    with watching(watch):
        for _ in range(2):
            table.weight.grad = None
            loss = table(torch.tensor([1, 2, 2])).sum() + (phase * 2j).abs().sum()
            told = Told(loss.grad_fn)
            loss.backward()
    agree(watch.rows(2), told.seen, watch.walls[2])
    assert {name for name, row in watch.rows(2) if row.norm is not None} == set(watch.names[2])


def test_nested_backwards_are_told_apart() -> None:
    """A backward inside a node, and what checkpointing computes again: each call has its own nodes, and no others."""
    watch = Written()
    net = model()
    x = torch.ones(3, 40, requires_grad=True)
    with watching(watch):
        for _ in range(3):
            loss = (Within.apply(x).sum() + checkpoint(net, x, use_reentrant=True).sum()).sum()
            told = Told(loss.grad_fn)
            loss.backward()
    outer = next(seen for seen in reversed(watch.calls) if seen.depth == 0)
    inner = [seen for seen in watch.calls if seen.parent == outer.number]
    assert len(inner) == 2
    agree(watch.rows(outer.number), told.seen, watch.walls[outer.number])
    for seen in inner:
        rows = watch.rows(seen.number)
        assert [name for name, _ in rows] == [name for name in seen.order if name in dict(rows)] and len(rows) >= 2
        around = dict(watch.rows(outer.number))[seen.enclosing]
        assert all(
            around.begin_ns <= row.begin_ns and row.begin_ns + row.us * 1e3 <= around.begin_ns + around.us * 1e3 + 1000
            for _, row in rows
        ), "within the node that runs them"


def test_an_exception_in_the_middle() -> None:
    """What ran until then is told, the node that raised as failed, and the next backward is as ever."""
    watch = Written()
    x = torch.ones(3, requires_grad=True)
    with watching(watch):
        for fails in (False, True, False):
            y = x * 2
            loss = ((Fails.apply(y) if fails else y.clone()) * 3).sum()
            told = Told(loss.grad_fn)
            if fails:
                with pytest.raises(ValueError, match="planted"):
                    loss.backward()
            else:
                loss.backward()
            number = watch.calls[-1].number
            rows = watch.rows(number)
            assert [name.partition("#")[0] for name, _ in rows] == [name for name, _ in told.seen]
            assert [row.failed for _, row in rows] == [*[False] * (len(rows) - 1), fails]
    assert [name for name, row in rows] == watch.names[number]


def test_threads_at_once() -> None:
    """Four threads train models that share a parameter; the nodes of each call are its own."""
    watch = Written()
    shared = torch.linspace(-1, 1, 900).reshape(30, 30).requires_grad_()
    problems: list[str] = []
    ready = threading.Barrier(4)

    def work(number: int) -> None:
        own = torch.full((30, 30), float(number + 1), requires_grad=True)
        ready.wait()
        for _ in range(30):
            loss = ((shared * own).tanh() @ shared).sum() * (number + 1)
            loss.backward()
            with lock:
                mine = max(n for n, seen in enumerate(watch.calls) if seen.thread == threading.get_ident())
                call = watch.calls[mine].number
                rows = watch.rows(call)
                if rows[1][1].norm != pytest.approx(number + 1) or len(rows) != len(watch.names[call]):
                    problems.append(f"{number}: {rows[1]}, {len(rows)} of {len(watch.names[call])}")

    lock = threading.Lock()
    with watching(watch):
        for _ in range(2):
            (shared * 2 + shared).sum().backward()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == [] and len(watch.batches) == 2 + 4 * 30


def test_what_there_is_no_room_for_is_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    from adbg.engine.backends.torch.native import events

    begin = events.begin
    monkeypatch.setattr(events, "begin", lambda core, walk, outputs, norms: begin(core, walk, outputs, norms, most=7))
    watch = Written()
    x = torch.ones(3, requires_grad=True)
    with watching(watch):
        for _ in range(2):
            y = x
            for _ in range(20):
                y = y * 2
            y.sum().backward()
    assert len(watch.batches[2]) == 7 and watch.batches[2].lost == len(watch.names[2]) - 7 == 15


def test_a_chain_of_50_000_nodes() -> None:
    """No Python object is made for its nodes: it is freed as without adbg (45,000 of them would crash)."""
    watch = Watch(HookPlan())
    batches: list[NodeBatch] = []
    watch.begin = lambda call: call.collect() and None
    watch.end = lambda call: batches.append(call.collected())
    x = torch.ones(1, requires_grad=True)
    with watching(watch) as backend:
        backend._core.walk([(x * 2 + x.exp()).sum().grad_fn])
        y = x
        for _ in range(50_000):
            y = y * 1.0
        backend._entry._sink.backward_begin = lambda call: (call.collect(), setattr(watch, "call", call))  # type: ignore
        backend._entry._sink.backward_end = lambda call, error: batches.append(call.collected())  # type: ignore
        y.backward()
    assert len(batches[0]) == 50_001 and batches[0].lost == 0
    assert [row.index for row in batches[0]] == list(range(1, 50_002)) and all(row.norm == 1 for row in batches[0])


@pytest.fixture
def slots(native: Any) -> Iterator[dict[int, Any]]:
    found = {}
    for symbol, _, _ in native.torch_events_interposed():
        for _, address, _ in native.slots(symbol, "libtorch"):
            found[address] = ctypes.c_void_p.from_address(address).value
    yield found


def test_slots_and_hooks_are_gone_afterwards(native: Any, slots: dict[int, Any]) -> None:
    watch = Written()
    net = model()
    with watching(watch):
        for _ in range(3):
            loss = views(net, torch.float32)
            loss.backward(retain_graph=True)
        assert watch.can[-1] and all(on for _, on, _ in native.torch_events_interposed())
        assert all(ctypes.c_void_p.from_address(at).value != was for at, was in slots.items()) and slots
    assert all(ctypes.c_void_p.from_address(at).value == was for at, was in slots.items())
    before = [parameter.grad.clone() for parameter in net.parameters()]
    loss.backward()  # the same nodes, with nobody there
    once = [parameter.grad - old for parameter, old in zip(net.parameters(), before, strict=True)]
    assert all(torch.allclose(new * 3, old, rtol=1e-4, atol=1e-5) for new, old in zip(once, before, strict=True))


FORKED = """
import os, torch
from adbg.engine.backends.torch.backend import TorchBackend

class Sink:
    def backward_begin(self, call): told.append(call.collect())
    def node_begin(self, *a): pass
    def node_end(self, *a): pass
    def backward_end(self, call, error): told.append(len(call.collected() or ()))
    def passes_over(self, kinds, alike=None): return False

told = []
backend = TorchBackend(); backend.prepare(False); backend.install(Sink()); backend.arm(True)
x = torch.ones(4, requires_grad=True)
def work():
    loss = (x * 2 + x.exp()).sum(); loss.backward()
class Forks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        global child
        child = os.fork()
        if not child and {leave}: backend.abandon()
        return grad * 2
for _ in range(3): work()
assert told[-2:] == [True, 5], told
Forks.apply(x * 1).sum().backward()
work()
if not child: print("child", flush=True); os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert told[-2:] == [True, 5], told
print("parent")
"""


@pytest.mark.parametrize("leave", ["True", "False"])
def test_a_fork_in_the_middle_of_a_node(extension: Path, leave: str) -> None:
    environment = {**os.environ, "ADBG_NATIVE": str(extension), "PYTHONPATH": str(ROOT)}
    code = FORKED.replace("{leave}", leave)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=110)
    assert (done.returncode, done.stdout) == (0, b"child\nparent\n"), done.stderr.decode()[-2000:]


def test_wrong_arguments_are_python_errors(native: Any) -> None:
    backend = TorchBackend()
    assert backend._core.layout() == ""
    x = torch.ones(3, requires_grad=True)
    root = (x * 2 + x).sum().grad_fn
    walk = backend._core.walk([root])
    for call in (
        lambda: native.torch_events_begin(None, x, 3),
        lambda: native.torch_events_begin(walk, x, "x"),
        lambda: native.torch_events_take(walk, walk, b""),
        lambda: native.torch_events_take(None, walk, b""),
        lambda: native.torch_events_end(None),
        lambda: native.torch_alike(3),
        lambda: native.torch_events_figure("x", 1),
        lambda: native.torch_leaves(3),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    walk.release()
    with pytest.raises(ValueError):
        native.torch_alike(walk)


def test_custom_functions_at_one_line_are_two_graphs(native: Any) -> None:
    """torch has one C++ type for all of them. The class of the first one is gone as the third comes."""
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    numbers = []
    with watching(Watch()) as backend:
        assert backend._core.layout() == ""
        (x * w).sum().backward()
        for name in ("One", "Two", "One", "Three"):
            functions = {name: staticmethod(lambda ctx, value: value * 2) for name in ("forward", "backward")}
            kind = type(name, (torch.autograd.Function,), functions)
            root = kind.apply(x * w).sum().grad_fn
            walk = backend._core.walk([root])
            numbers.append((native.torch_alike(walk), native.torch_alike(walk)))
            walk.release()
            del root, walk, kind, functions
            gc.collect()
    assert all(one == again and one is not None for one, again in numbers)
    assert len({one for one, _ in numbers}) == 4
