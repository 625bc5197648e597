"""The predicted execution order is the real one, on random graphs, with ties, several roots and ``inputs=``."""

from __future__ import annotations

import random

import pytest
import torch

from adbg.engine.backends.torch.order import pop, push
from tests.support.torch_watch import Watch, watching


class Twice(torch.autograd.Function):
    """Two outputs, one of them unused now and then."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x * y, x + y

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first + second, first * x + second


def random_graph(seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """(leaves, inner tensors, roots) of a graph with fan-out, multi-output nodes, layer norms and unused outputs."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(rng.randint(1, 5))]
    pool = list(leaves)
    for _ in range(rng.randint(3, 40)):
        kind = rng.randrange(9)
        a, b = rng.choice(pool), rng.choice(pool)
        if kind == 0:
            pool.append(a @ b)
        elif kind == 1:
            pool.append(a + b)
        elif kind == 2:
            pool.extend(part @ a for part in b.view(2, 2, 4).unbind(0) if part.shape[0] == 4)
            pool.append(torch.cat(a.split(2), 0))
        elif kind == 3:
            pool.append(torch.nn.functional.layer_norm(a, (4,), rng.choice(leaves)[0], rng.choice(leaves)[1]))
        elif kind == 4:
            pool.extend(Twice.apply(a, b))
        elif kind == 5:
            pool.append(torch.addmm(rng.choice(leaves), a, b))
        elif kind == 6:
            first, second = a.chunk(2)
            pool.append(torch.cat([second, first]).tanh())
        elif kind == 7:
            pool.append(torch.stack([a, b, rng.choice(leaves)]).sum(0))
        else:
            pool.append(torch.where(a > 0, a, b).sigmoid())
    inner = [tensor for tensor in pool if not tensor.is_leaf]
    roots = rng.sample(inner, min(len(inner), rng.choice([1, 1, 2, 3])))
    return leaves, inner, roots


@pytest.mark.parametrize("block", range(8))
def test_order_is_the_engines_own(block):
    watch = Watch()
    with watching(watch):
        for seed in range(block * 40, block * 40 + 40):
            _, _, roots = random_graph(seed)
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
            assert watch.last.begun == watch.last.order, seed
            assert watch.last.ended == watch.last.order, seed


@pytest.mark.parametrize("block", range(4))
def test_order_with_inputs(block):
    """autograd.grad leaves out what is not needed and the captured nodes; backward(inputs=) runs them."""
    watch = Watch()
    with watching(watch):
        for seed in range(1000 + block * 30, 1030 + block * 30):
            leaves, inner, roots = random_graph(seed)
            rng = random.Random(seed)
            wanted = rng.sample(leaves + inner, min(2, len(leaves + inner)))
            ones = [torch.ones_like(root) for root in roots]
            torch.autograd.grad(roots, wanted, ones, allow_unused=True, retain_graph=True)
            assert watch.last.entry == "grad"
            assert watch.last.begun == watch.last.order, seed
            torch.autograd.backward(roots, ones, inputs=wanted)
            assert watch.last.entry == "backward"
            assert watch.last.begun == watch.last.order, seed


def test_root_that_is_below_another_root():
    watch = Watch()
    with watching(watch):
        a = torch.randn(3, requires_grad=True)
        b = a.exp()
        c = b.sin()
        torch.autograd.backward([b, c, b], [torch.ones(3)] * 3)
        assert watch.last.begun == watch.last.order
        assert watch.last.roots == ("ExpBackward0", "SinBackward0")


def test_leaf_as_root():
    watch = Watch()
    with watching(watch):
        a = torch.randn(3, requires_grad=True)
        a.sum().backward()
        a.backward(torch.ones(3))
        assert watch.last.begun == watch.last.order == ["AccumulateGrad#1"]


def test_names_are_stable_over_iterations_and_count_in_order_of_recording():
    watch = Watch()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2), torch.nn.Tanh())
    with watching(watch):
        for _ in range(3):
            model(torch.randn(2, 3)).sum().backward()
    assert watch.calls[0].order == watch.calls[1].order == watch.calls[2].order
    order = watch.last.order
    assert order.index("TanhBackward0#2") < order.index("TanhBackward0#1")  # the later one runs first
    assert order[0] == "SumBackward0#1"


def test_heap_pops_by_priority_and_keeps_all_items():
    rng = random.Random(3)
    for _ in range(200):
        heap: list[tuple[int, int]] = []
        expected: list[int] = []
        for key in range(rng.randint(1, 30)):
            priority = rng.randrange(6)
            push(heap, (priority, key))
            expected.append(priority)
            if rng.random() < 0.3:
                assert pop(heap)[0] == max(expected)
                expected.remove(max(expected))
        assert [pop(heap)[0] for _ in range(len(heap))] == sorted(expected, reverse=True)
