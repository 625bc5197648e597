"""Stops at every kind of node of real Paddle, edits, and what must never reach it."""

from __future__ import annotations

import random

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

import numpy as np  # noqa: E402
from paddle.autograd import PyLayer  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from adbg.engine.backends.paddle import private  # noqa: E402
from adbg.engine.backends.paddle.native import symbols  # noqa: E402
from tests.support.paddle_watch import EVERY, Watch, watching  # noqa: E402


def leaf(*shape, value=0.5):
    tensor = paddle.full(list(shape), value)
    tensor.stop_gradient = False
    return tensor


class Double(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, d):
        return d * 2.0


class Two(PyLayer):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2.0, x + y

    @staticmethod
    def backward(ctx, d, e):
        return d * 2.0 + e, e


class Again(PyLayer):
    """Runs a backward in its backward, ``depth`` levels deep."""

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        ctx.save_for_backward(x)
        return x * 3.0

    @staticmethod
    def backward(ctx, d):
        (x,) = ctx.saved_tensor()
        inner = x.detach()
        inner.stop_gradient = False
        with paddle.enable_grad():
            y = (Again.apply(inner, ctx.depth - 1) if ctx.depth else paddle.tanh(inner)).sum()
        y.backward()
        return d * 3.0 + 0.0 * inner.grad


def checked(seen):
    assert seen.begun == seen.ended == seen.order, seen
    assert seen.hooked == len(seen.order)


def test_the_exported_symbols_are_in_use():
    assert symbols.native() is not None, symbols.native_problem()
    assert "self-checks passed" in symbols.mechanism()


def test_every_kind_of_node_before_and_after():
    x, w = leaf(3), leaf(3)
    watch = Watch()
    with watching(watch):
        a, b, c = paddle.split(Double.apply(paddle.tanh(x)) * w, 3)
        d, e = Two.apply(paddle.concat([a, c]), paddle.stack([a, b]).flatten())
        (d.sum() + (e * 2.0).sum()).backward()
    checked(watch.last)
    kinds = {name.partition("#")[0] for name in watch.last.order}
    assert kinds >= {
        "GradNodePyLayer_Double", "GradNodePyLayer_Two", "GradNodeAccumulation", "SplitWithNumGradNode",
        "ConcatGradNode", "StackGradNode", "TanhGradNode",
    }  # fmt: skip


@pytest.mark.parametrize("depth", [1, 3, 12])
def test_nested_backward_to_any_depth(depth):
    x = leaf(2)
    watch = Watch()
    with watching(watch):
        Again.apply(x, depth).sum().backward()
    assert [seen.depth for seen in watch.calls] == list(range(depth + 2))
    assert [seen.parent for seen in watch.calls] == [None, *range(1, depth + 2)]
    assert all(seen.enclosing == "GradNodePyLayer_Again#1" for seen in watch.calls[1:])
    for seen in watch.calls:
        checked(seen)


def test_every_entry():
    layer = paddle.nn.Linear(3, 3)
    x = leaf(2, 3)
    watch = Watch()
    with watching(watch) as backend:
        paddle.tanh(x).sum().backward()
        paddle.autograd.backward([x.exp().sum(), (x * x).sum()])
        (first,) = paddle.grad([(x**3).sum()], [x], create_graph=True)
        first.sum().backward()
        recompute(layer, x, use_reentrant=True).sum().backward()
        recompute(layer, x, use_reentrant=False).sum().backward()
        scaler = paddle.amp.GradScaler(init_loss_scaling=8.0)
        scaler.scale(layer(x).sum()).backward()
        paddle.DataParallel(layer)(x).sum().backward()
        count = backend.backward_count
        iterations = backend.iteration
    entries = [(seen.entry, seen.depth) for seen in watch.calls]
    assert entries == [
        ("backward", 0), ("backward", 0), ("grad", 0), ("backward", 0), ("backward", 0), ("backward", 1),
        ("backward", 0), ("backward", 0), ("backward", 0),
    ]  # fmt: skip
    assert (count, iterations) == (9, 8)
    for seen in watch.calls:
        checked(seen)


def random_graph(rng):
    leaves = [leaf(4, value=0.3 + place / 10) for place in range(rng.randint(1, 4))]
    tensors = list(leaves)
    for _ in range(rng.randint(2, 16)):
        a, b = rng.choice(tensors), rng.choice(tensors)
        makers = (
            lambda a, b: [paddle.tanh(a)], lambda a, b: [a * b], lambda a, b: [a + b], lambda a, b: [a - b],
            lambda a, b: paddle.split(paddle.concat([a, b]), 2), lambda a, b: list(Two.apply(a, b)),
            lambda a, b: [Double.apply(a)], lambda a, b: [paddle.exp(a * 0.1)],
        )  # fmt: skip
        tensors += rng.choice(makers)(a, b)
    return leaves, tensors


@pytest.mark.parametrize("seed", range(60))
def test_the_predicted_order_is_the_order(seed):
    rng = random.Random(seed)
    _, tensors = random_graph(rng)
    roots = [t for t in rng.sample(tensors, min(len(tensors), rng.randint(1, 3))) if t.grad_fn is not None]
    if not roots:
        roots = [tensors[0].exp()]
    watch = Watch()
    with watching(watch):
        paddle.autograd.backward(roots)
    checked(watch.last)


@pytest.mark.parametrize("plan", [EVERY, HookPlan(screen=True)], ids=["every", "screen"])
@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_bit_identical_with_every_node_hooked(seed, plan):
    def run():
        leaves, tensors = random_graph(random.Random(seed))
        loss = sum((t.sum() for t in tensors if t.grad_fn is not None), leaf(1) * 1.0)
        loss.backward()
        return [loss.numpy().tobytes(), *(t.grad.numpy().tobytes() if t.grad is not None else b"" for t in leaves)]

    plain = run()
    with watching(Watch(plan), stacks=True):
        hooked = run()
    assert hooked == plain == run()


def test_an_edit_before_a_node_reaches_the_leaf():
    x = leaf(3)
    watch = Watch()
    with watching(watch) as backend:

        def before(call, key, outs):
            if call.name(key) == "TanhGradNode":
                return (backend.adopt(outs[0], outs[0] * 10.0, "grad_outputs[0]"),)
            return None

        watch.before = before
        paddle.tanh(x * 1.0).sum().backward()
    expected = 10.0 * (1 - np.tanh(0.5) ** 2)
    assert np.allclose(x.grad.numpy(), expected)


def test_an_edit_of_an_earlier_slot_of_many():
    x = leaf(4)
    watch = Watch()
    with watching(watch) as backend:

        def before(call, key, outs):
            if call.name(key) == "SplitWithNumGradNode":
                assert [out is not None for out in outs] == [True] * 4
                return (outs[0], backend.adopt(outs[1], 7.0, "grad_outputs[1]"), outs[2], outs[3])
            return None

        watch.before = before
        a, b, c, d = paddle.split(x * 1.0, 4)
        (a + b + c + d).sum().backward()
    assert x.grad.numpy().tolist() == [1.0, 7.0, 1.0, 1.0]


def test_an_edit_before_a_pylayer_reaches_it():
    """Paddle itself forgets what a hook in front of a PyLayer returned."""
    x, y = leaf(3), leaf(3)
    watch = Watch()
    with watching(watch) as backend:

        def before(call, key, outs):
            if call.is_custom(key):
                return (backend.adopt(outs[0], 5.0, "grad_outputs[0]"), *outs[1:])
            return None

        watch.before = before
        a, b = Two.apply(x * 1.0, y * 1.0)
        (Double.apply(a) + b).sum().backward()
    assert (x.grad.numpy().tolist(), y.grad.numpy().tolist()) == ([11.0] * 3, [1.0] * 3)


@pytest.mark.parametrize("name", ["TanhGradNode", "GradNodePyLayer_Double"])
def test_an_edit_behind_a_node_reaches_the_leaf(name):
    x = leaf(3)
    watch = Watch()
    with watching(watch) as backend:

        def after(call, key, ins, outs):
            if call.name(key) == name:
                return (backend.adopt(ins[0], 5.0, "grad_inputs[0]"),)
            return None

        watch.after = after
        (paddle.tanh(x) if name.startswith("Tanh") else Double.apply(x)).sum().backward()
    assert x.grad.numpy().tolist() == [5.0] * 3


BAD = {
    "too long": lambda values: (*values, paddle.ones([3])),
    "too short": lambda values: (),
    "a shape": lambda values: tuple(paddle.ones([7]) for _ in values),
    "a dtype": lambda values: tuple(paddle.ones([3], "float64") for _ in values),
    "None": lambda values: tuple(None for _ in values),
    "a list": lambda values: tuple([1.0, 2.0, 3.0] for _ in values),
    "a number": lambda values: tuple(1.0 for _ in values),
    "text": lambda values: "abc",
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_would_kill_paddle_never_reaches_it(when, what):
    def run():
        x = leaf(3)
        Double.apply(paddle.tanh(x) * 2.0).sum().backward()
        return x.grad.numpy().tobytes()

    plain = run()
    watch = Watch()
    if when == "before":
        watch.before = lambda call, key, outs: BAD[what](outs)
    else:
        watch.after = lambda call, key, ins, outs: BAD[what](ins)
    with watching(watch):
        assert run() == plain
    assert paddle.is_grad_enabled()
    checked(watch.last)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_defect_of_ours_never_reaches_the_engine(when):
    def fail(*args):
        raise RuntimeError("a defect")

    watch = Watch()
    setattr(watch, when, fail)
    x = leaf(3)
    with watching(watch):
        Double.apply(paddle.tanh(x)).sum().backward()
    assert x.grad is not None and paddle.is_grad_enabled()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["TanhGradNode", "GradNodePyLayer_Double", "GradNodeAccumulation"])
def test_a_kill_at_a_stop_arrives_as_what_it_was(when, name):
    """Also out of a nested backward; and the engine and the grad mode are as before."""

    def kill(call, key, *rest):
        if call.name(key) == name and call.depth == 1:
            raise KeyboardInterrupt("a person")

    class Outer(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, d):
            inner = leaf(3)
            with paddle.enable_grad():
                loss = Double.apply(paddle.tanh(inner)).sum()
            loss.backward()
            return d

    watch = Watch()
    setattr(watch, when, kill)
    x = leaf(3)
    with watching(watch):
        with pytest.raises(KeyboardInterrupt, match="a person"):
            Outer.apply(x * 1.0).sum().backward()
        assert paddle.is_grad_enabled()
        setattr(watch, when, lambda *args: None)
        y = leaf(3)
        Outer.apply(y * 1.0).sum().backward()
    assert y.grad.numpy().tolist() == [1.0] * 3


def test_what_is_left_behind_is_nothing():
    core = paddle.base.core.eager
    before = (core.run_backward, core.run_partial_grad, private.py_layer_backward.backward, paddle.nn.Layer.__call__)
    flags = paddle.get_flags(["FLAGS_call_stack_level", "FLAGS_enable_unique_name"])
    x = leaf(3)
    with watching(Watch(), stacks=True):
        assert core.run_backward is not before[0]
        paddle.tanh(x).sum().backward()
    assert (
        core.run_backward, core.run_partial_grad, private.py_layer_backward.backward, paddle.nn.Layer.__call__
    ) == before  # fmt: skip
    assert paddle.get_flags(["FLAGS_call_stack_level", "FLAGS_enable_unique_name"]) == flags


def test_hooks_of_a_call_are_gone_after_it():
    """An accumulate node lives as long as its tensor: a hook left there would fire once more each iteration."""
    x = leaf(3)
    watch = Watch(EVERY)
    with watching(watch):
        for _ in range(3):
            (x * 2.0).sum().backward()
    assert [seen.begun.count("GradNodeAccumulation#1") for seen in watch.calls] == [1, 1, 1]
    watch.before = lambda *args: pytest.fail("a hook fired after uninstall")
    (x * 2.0).sum().backward()


def test_paddle_grad_after_an_exception_in_it():
    """Paddle keeps copies of the hooked nodes then, and frees them without Python's lock."""

    class Fails(PyLayer):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, d):
            raise ValueError("on purpose")

    with watching(Watch()):
        for _ in range(10):
            x = leaf(4)
            with pytest.raises(OSError, match="on purpose"):
                paddle.grad([Fails.apply(x).exp().sum()], [x])
            (grad,) = paddle.grad([x.exp().sum()], [x])
    assert np.allclose(grad.numpy(), np.exp(0.5))


def test_a_chain_of_20000_nodes():
    x = leaf(1)
    watch = Watch(HookPlan(name=lambda name: name == "GradNodeAccumulation"))
    with watching(watch):
        y = x
        for _ in range(20_000):
            y = y + 0.0
        y.backward()
    assert watch.last.begun == ["GradNodeAccumulation#1"] and x.grad.numpy().tolist() == [1.0]
