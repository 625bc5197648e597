"""Bytes that a graph retains, against what torch's own saved-tensor hooks were handed in the same forward."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from support.frameworks import only

from adbg.engine.backends import REGISTRY
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
def test_contexts_of_pylayers_count_paddle() -> None:
    import paddle

    class Halved(paddle.autograd.PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            half = x[:50]
            ctx.save_for_backward(x, half)  # one memory
            return x * 0.5

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 0.5

    gc.collect()
    backend = REGISTRY["paddle"]()
    x = paddle.ones([100, 10])
    x.stop_gradient = False
    first, second = Halved.apply(x), Halved.apply(x * 2)
    graph = backend.graph_of([(first + second).sum()])
    assert graph is not None
    found = retained(backend, graph, 10)
    assert found.hidden > 2 and "no saved tensors" in found.why_hidden and found.bytes == 0
    ((count, nbytes),) = [(each.count, each.bytes) for each in found.contexts if each.name == "Halved"]
    assert count == 2
    # the slice copies in Paddle where the tensor needs a gradient: asked of the tensors themselves
    assert nbytes in (2 * 4000, 2 * (4000 + 2000))


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
