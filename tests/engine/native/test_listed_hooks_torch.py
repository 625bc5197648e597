"""Hooks in the nodes' own lists, beside those that torch registers: the same nodes, edits, errors and gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.torch import hooks  # noqa: E402
from tests.support.torch_watch import Watch, watching  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]


class Inner(torch.autograd.Function):
    """Its backward runs a backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (inner,) = torch.autograd.grad((y * 2).tanh() * 3, y, grad)
        return inner


def step(w: Any, twice: bool = False) -> list[Any]:
    """A diamond, a nested backward, a sum of several, a leaf that is used twice; gradients of all."""
    w.grad = None
    x = torch.linspace(-1, 1, 3, requires_grad=True)
    y = Inner.apply(x * w) + (x * w).exp() * w
    loss = (y.sin() + y.cos().unbind(0)[1] + y).sum()
    loss.backward(retain_graph=twice)
    if twice:
        loss.backward()
    (third,) = torch.autograd.grad((w * w).sum(), w)
    return [w.grad, x.grad, third]


def both(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Watch], run: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """What was seen, and what ``run`` gave: by hooks that torch registers, then by those in lists."""
    results = []
    for small in (1_000, 0):
        monkeypatch.setattr(hooks, "SMALL", small)
        watch = make()
        listed: list[bool] = []
        inner = watch.end

        def end(call: Any, inner: Any = inner, listed: list[bool] = listed) -> None:
            listed.append(call._hooks is not None and call._hooks._lists)
            inner(call)

        watch.end = end
        with watching(watch):
            (torch.ones(2, requires_grad=True) * torch.ones(2, requires_grad=True)).sum().backward()  # edges are found
            watch.calls.clear()
            listed.clear()
            given = run()
        assert listed and all(listed) == (small == 0) == any(listed)
        results.append(([seen_of(each) for each in watch.calls], given))
    return results


def seen_of(each: Any) -> tuple[Any, ...]:
    return (
        each.depth, each.entry, each.roots, each.enclosing, each.hooked, each.order, each.begun, each.ended, each.error,
        each.failed,
    )  # fmt: skip


def weights() -> Any:
    return torch.tensor([0.5, -1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("twice", [False, True])
def test_the_same_nodes_in_the_same_order(monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    plain = step(weights(), twice)
    one, other = both(monkeypatch, Watch, lambda: step(weights(), twice))
    assert one[0] == other[0] and any(len(each[6]) > 12 for each in one[0])
    assert any(each[0] == 1 for each in one[0]), "the nested one too"
    for _, given in (one, other):
        assert all(map(torch.equal, plain, given))


def test_edits_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a hook of the script's own that does the same."""

    def make() -> Watch:
        watch = Watch(HookPlan(name=lambda name: name in ("SinBackward0", "CosBackward0"), post=True))
        watch.before = lambda call, key, outs: (outs[0] * 3,) if call.name(key) == "SinBackward0" else None
        watch.after = lambda call, key, ins, outs: (ins[0] - 7,) if call.name(key) == "CosBackward0" else None
        return watch

    def run(script: bool = False) -> Any:
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        sine, cosine = x.sin(), x.cos()
        if script:
            sine.grad_fn.register_prehook(lambda outs: (outs[0] * 3,))
            cosine.grad_fn.register_hook(lambda ins, outs: (ins[0] - 7,))
        (sine * cosine).sum().backward()
        return x.grad

    expected = run(True)
    one, other = both(monkeypatch, make, run)
    assert one[0] == other[0] and torch.equal(one[1], expected) and torch.equal(other[1], expected)


def test_what_a_hook_raises_leaves_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Watch:
        watch = Watch(HookPlan(name=lambda name: name == "ExpBackward0"))

        def kill(call: Any, key: int, outs: Any) -> None:
            raise KeyboardInterrupt("at a stop")

        watch.before = kill
        return watch

    def run() -> Any:
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(KeyboardInterrupt, match="at a stop"):
            (x.sin().exp() * 2).sum().backward()
        return x.grad

    one, other = both(monkeypatch, make, run)
    assert one == other and one[1] is None


def test_a_node_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Any:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        loss = (y * y).sin().sum()
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="inplace"):
            loss.backward()

    one, other = both(monkeypatch, Watch, run)
    assert one == other and one[0][0][9][0][0].startswith("MulBackward0")


def test_threads_that_train_one_parameter(monkeypatch: pytest.MonkeyPatch, native: Any) -> None:
    """The accumulate node is in all graphs: each thread's call is told of it once, whichever ends first."""
    monkeypatch.setattr(hooks, "SMALL", 0)
    w = weights()
    keep = w * 1  # holds the accumulate node
    watch = Watch()
    with watching(watch):
        (w * w).sum().backward()
        watch.calls.clear()
        gate = threading.Barrier(3)

        def train() -> None:
            gate.wait()
            for _ in range(10):
                (w.sin() * w).sum().backward()

        threads = [threading.Thread(target=train) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(watch.calls) == 30
    assert all(sorted(each.begun) == sorted(each.order) == sorted(each.ended) for each in watch.calls)
    w.grad = None
    keep.sum().backward()  # without adbg: nothing of it is called
    assert w.grad.tolist() == [1.0, 1.0, 1.0]
