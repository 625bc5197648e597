"""Saved tensors and attributes by name, read without setting anything off."""

from __future__ import annotations

import pytest
import torch

from adbg.engine.backends.torch.backend import TorchBackend
from adbg.engine.backends.torch.saved import NodeFields, holds_some
from adbg.engine.types import ValueState


@pytest.fixture
def backend():
    return TorchBackend()


def saved_of(backend, tensor, key=0):
    graph = backend.graph_of([tensor])
    return {value.name: value for value in graph.saved(key)}, graph


def test_builtin_saved_by_name(backend):
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    values, graph = saved_of(backend, a @ b)
    assert set(values) == {"self", "mat2"}
    assert torch.equal(values["self"].value, a) and torch.equal(values["mat2"].value, b)
    assert values["self"].remark == ""
    values, graph = saved_of(backend, torch.logsumexp(a, 1, keepdim=True))
    assert set(values) == {"result", "self"}
    assert graph.attributes(0) == {"dim": "(1,)", "keepdim": "True"}


def test_attributes_are_signed_and_without_the_sizes_of_the_inputs(backend):
    a = torch.randn(2, 3, requires_grad=True)
    _, graph = saved_of(backend, a.sum(-1))
    assert graph.attributes(0) == {"dim": "(-1,)", "keepdim": "False"}
    _, graph = saved_of(backend, a.softmax(-1))
    assert graph.attributes(0) == {"dim": "-1"}
    values, graph = saved_of(backend, a.mm(torch.randn(3, 4)))
    assert graph.attributes(0) == {} and values["self"].value is None


def test_lists_of_saved_tensors(backend):
    a = torch.randn(4, 3, requires_grad=True)
    values, _ = saved_of(backend, a[torch.tensor([0, 2])])
    assert values["indices[0]"].value.tolist() == [0, 2]
    values, graph = saved_of(backend, torch.cat([a, a]))
    assert values == {} and graph.attributes(0) == {"dim": "0"}


def test_accumulate_node_shows_its_tensor(backend):
    a = torch.randn(4, 3, requires_grad=True)
    graph = backend.graph_of([a.exp()])
    key = graph.edges(0)[0].to
    (value,) = graph.saved(key)
    assert value.name == "variable" and value.value is a
    assert graph.attributes(key)["shape"] == "[4, 3]"


def test_corrupted_and_freed(backend):
    a = torch.randn(3, requires_grad=True)
    b = a.exp()
    c = b.sin()
    b.add_(1)
    values, _ = saved_of(backend, c)
    assert (values["self"].state, values["self"].version, values["self"].saved_at) == (ValueState.CORRUPTED, 1, 0)
    assert torch.equal(values["self"].value, b)  # as it is now
    d = a.exp().sin()
    d.sum().backward()
    values, _ = saved_of(backend, d)
    assert values["self"].value is None and values["self"].state is ValueState.FREED


def test_checkpoint_is_not_recomputed(backend):
    runs = []

    def forward(x):
        runs.append(1)
        return x.exp().sin()

    a = torch.randn(3, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(forward, a, use_reentrant=False)
    graph = backend.graph_of([y])
    noted = [value for key in graph.order() for value in graph.saved(key) if value.value is None]
    assert {value.name for value in noted} == {"self", "result"}
    assert all(value.state is ValueState.UNREAD for value in noted)
    assert runs == [1]


def test_offloaded_tensors_are_not_copied_back(backend):
    unpacked = []
    a = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: (unpacked.append(1), x)[1]):
        y = a.exp()

        class Custom(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g

        z = Custom.apply(y)
    values, graph = saved_of(backend, z)
    assert values["saved_tensors[0]"].value is None
    assert graph.saved(1)[0].value is None
    assert unpacked == []


def test_function_saves_tensors_attributes_and_what_it_likes(backend):
    class Odd:
        def __repr__(self):
            raise ValueError("no")

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, None, y)
            ctx.scale, ctx.mask, ctx.odd = 3, x > 0, Odd()
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g, g

    a, b = torch.randn(3, requires_grad=True), torch.randn(3)
    values, graph = saved_of(backend, Custom.apply(a, b))
    assert set(values) == {"saved_tensors[0]", "saved_tensors[1]", "saved_tensors[2]", "mask"}
    assert values["saved_tensors[1]"].value is None
    assert torch.equal(values["saved_tensors[2]"].value, b)
    assert graph.attributes(0) == {"scale": "3", "odd": "<Odd: its repr raised ValueError>"}
    assert graph.is_custom(0) and not graph.is_custom(1)
    assert graph.describe(0).name == "CustomBackward"
    b.add_(1)
    values = {value.name: value for value in graph.saved(0)}
    assert values["saved_tensors[0]"].state is ValueState.OK and torch.equal(values["saved_tensors[0]"].value, a)
    assert values["saved_tensors[2]"].state is ValueState.CORRUPTED
    assert torch.equal(values["saved_tensors[2]"].value, b)


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x * 2
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        x, result = ctx.saved_tensors
        return gradient * result / x


def _leaf():
    return torch.randn(3, requires_grad=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _leaf().exp(), lambda: _leaf() * _leaf(), lambda: torch.cat([_leaf(), _leaf()]).sin(),
        lambda: _Kept.apply(_leaf()), lambda: _leaf()[torch.tensor([0, 2])],
    ],
)  # fmt: skip
def test_what_is_saved_is_told_without_unpacking_it(make):
    """Witness: torch itself, which runs the node back, and refuses to once it has let go of what it saved."""
    result = make()
    node, fields = result.grad_fn, NodeFields()
    assert holds_some(node, fields)
    result.sum().backward(retain_graph=True)
    assert holds_some(node, fields)
    result.sum().backward()
    assert not holds_some(node, fields)
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


def test_what_saved_nothing_holds_nothing():
    assert not holds_some((_leaf() + _leaf()).grad_fn, NodeFields())
    assert not holds_some(_leaf().sum().grad_fn, NodeFields())


def test_a_value_that_was_overwritten_is_there():
    result = _leaf().exp()
    result.add_(1)
    assert holds_some(result.grad_fn.next_functions[0][0], NodeFields())
