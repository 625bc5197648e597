"""Bytes that a graph retains, against what torch's own saved-tensor hooks were handed in the same forward."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.frameworks import only

from adbg.engine.backends import REGISTRY
from adbg.engine.inspect.memory.process import resident
from adbg.engine.inspect.memory.retained import retained


def _handed(forward: Any) -> dict[int, int]:
    """Address -> bytes of every memory that torch hands to be saved while ``forward`` runs."""
    import torch

    seen: dict[int, int] = {}
    kept: list[Any] = []

    def pack(value: Any) -> Any:
        storage = value.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        kept.append(value)  # so that no address comes twice
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        kept.append(forward())
    return seen


@only("torch", "saved tensors are torch's alone")
def test_each_memory_counts_once_torch() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Sigmoid(), torch.nn.Linear(50, 30))
    x = torch.randn(64, 100)

    def forward() -> Any:
        y = model(x)
        part = y[:, :10]  # a view: its whole memory is kept
        return (part.exp() * y[:, 10:20] * y[:, 20:]).sum() + y.pow(2).sum()

    seen = _handed(forward)
    leaves = {each.untyped_storage().data_ptr() for each in model.parameters()}
    expected = sum(size for at, size in seen.items() if at not in leaves)
    weights = sum(size for at, size in seen.items() if at in leaves)
    backend = REGISTRY["torch"]()
    loss = forward()
    graph = backend.graph_of([loss])
    assert graph is not None
    found = retained(backend, graph, 1000)
    assert (found.bytes, found.held) == (expected, weights)
    assert weights == model[2].weight.untyped_storage().nbytes()  # of the first one no input needs a gradient
    assert sum(row.bytes for row in found.rows) == expected and sum(row.held for row in found.rows) == weights
    assert (found.freed, found.unread, found.hidden, found.contexts) == (0, 0, 0, [])
    largest = found.rows[0]
    assert largest.name == "AddmmBackward0#1" and largest.bytes == x.untyped_storage().nbytes()
    # ``y`` is saved by three nodes, by two of them as a slice: at the last of them to run
    (row,) = [row for row in found.rows if row.bytes == 64 * 30 * 4]
    assert row.name == "MulBackward0#1" and row.tensors == ["other"]
    savers = ["PowBackward0#1", "MulBackward0#1", "MulBackward0#2"]
    order = [graph.describe(key).unique_name for key in graph.order()]
    assert row.index - 1 == max(map(order.index, savers))
    loss.backward()
    spent = retained(backend, graph, 10)
    assert (spent.bytes, spent.held, spent.rows) == (0, 0, []) and spent.freed > 5


@only("torch", "saved tensors are torch's alone")
def test_what_would_be_unpacked_is_not_read_torch() -> None:
    import torch

    from adbg.engine.backends.base import Graph

    x = torch.randn(1000, requires_grad=True)
    unpacked: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: unpacked.append(1) or value):
        y = x.exp()
    loss = (y * y).sum()
    backend = REGISTRY["torch"]()
    graph = backend.graph_of([loss])
    assert isinstance(graph, Graph)
    found = retained(backend, graph, 10)
    assert (found.unread, unpacked) == (1, [])
    assert found.bytes == 4000  # ``y``, which the multiplication saved twice, in the open


@only("paddle", "a PyLayer's context is found among Python's objects")
@pytest.mark.parametrize("views", [True, False], ids=["views", "copies"])
def test_contexts_of_pylayers_count_paddle(views: bool) -> None:
    """A slice is a view where Paddle has its stride kernels, a copy elsewhere: by Paddle's own word."""
    import paddle

    shared: list[bool] = []

    class Halved(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            half = x[:50]
            shared.append(half._is_shared_buffer_with(x))
            ctx.save_for_backward(x, half)
            return x * 0.5

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 0.5

    gc.collect()
    backend = REGISTRY["paddle"]()
    before = paddle.get_flags(["FLAGS_use_stride_kernel"])
    paddle.set_flags({"FLAGS_use_stride_kernel": views})
    try:
        x = paddle.ones([100, 10])
        x.stop_gradient = False
        first, second = Halved.apply(x), Halved.apply(x * 2)
    finally:
        paddle.set_flags(before)
    graph = backend.graph_of([(first + second).sum()])
    assert graph is not None
    found = retained(backend, graph, 10)
    assert found.hidden > 2 and "no saved tensors" in found.why_hidden and found.bytes == 0
    ((count, nbytes),) = [(each.count, each.bytes) for each in found.contexts if each.name == "Halved"]
    assert count == 2 and shared == [views, views]
    assert nbytes == 2 * (4000 if views else 4000 + 2000)


@only("paddle", "a PyLayer's context is found among Python's objects")
def test_what_a_context_keeps_is_free_again_without_its_graph_paddle() -> None:
    import paddle

    class Keeping(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x[:1] * 1.0

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad.expand([24 << 20])

    backend = REGISTRY["paddle"]()
    leaf = paddle.ones([1])
    leaf.stop_gradient = False
    loss = Keeping.apply(leaf.expand([24 << 20]) * 2.0)
    graph = backend.graph_of([loss])
    assert graph is not None
    (nbytes,) = [each.bytes for each in retained(backend, graph, 10).contexts if each.name == "Keeping"]
    assert nbytes == 96 << 20
    there = resident()
    del graph, loss
    gc.collect()
    gone = resident()
    assert there is not None and gone is not None and abs(there - gone - nbytes) < 4 << 20, "the system has it back"


@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_views_have_the_memory_of_their_base(framework: str) -> None:
    module = pytest.importorskip(framework)
    backend = REGISTRY[framework]()
    base = module.ones([100, 10])
    (mine,) = backend.storages(base)
    (view,) = backend.storages(base.reshape([10, 100]))
    (other,) = backend.storages(base * 2)
    assert mine == view and mine[1] == 4000
    assert other[0] != mine[0] and other[1] == 4000
