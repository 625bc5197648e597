"""The parts of a summed gradient on Paddle, which adds the later ones to the memory of the first: each must be what its
own consumer gave. The witness: the gradient of every consumer alone, in a run of its own."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

import numpy as np  # noqa: E402
from paddle.autograd import PyLayer  # noqa: E402
from support.dialled import Dialled  # noqa: E402

from adbg.engine.backends.base import HookPlan  # noqa: E402
from tests.support.paddle_watch import Watch, watching  # noqa: E402

VALUES = [1.2765, 0.3, -0.7]


class Thrice(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 3.0

    @staticmethod
    def backward(ctx, d):
        return d * 3.0


class Inner(PyLayer):
    """Its backward runs a backward of its own, over a sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return paddle.exp(x) + x * 3.0

    @staticmethod
    def backward(ctx, d):
        (x,) = ctx.saved_tensor()
        inner = x.detach()
        inner.stop_gradient = False
        with paddle.enable_grad():
            e = paddle.scale(inner, 1.0)
            loss = ((paddle.exp(e) + e * 3.0) * d.detach()).sum()
        loss.backward()
        return inner.grad


#: Consumers of one tensor; the sum of all is what backward is called on.
CONSUMERS = {
    "exp, three times, sine": [paddle.exp, lambda d: d * 3, lambda d: paddle.sin(d) * 12.33],
    "two": [paddle.exp, paddle.sin],
    "four": [paddle.exp, lambda d: d * 3, paddle.sin, paddle.tanh],
    "passed through": [lambda d: d + 0.0, lambda d: d * 3, lambda d: d.reshape([3, 1])],
    "pylayers": [Thrice.apply, lambda d: d * 5, Thrice.apply],
    "nested": [Inner.apply, paddle.sin],
    "scaled": [lambda d: d * 2, lambda d: d * 3, lambda d: d * 0.5],
}
TWICE = {"squared": lambda d: d * d, "to a power": lambda d: paddle.pow(d, 2) + d}


def given(dtype="float32"):
    return paddle.to_tensor(VALUES, dtype="float32").astype(dtype)


def leaf(dtype="float32"):
    x = given(dtype)
    x.stop_gradient = False
    return x


def apart(consumers, dtype):
    """What each consumer alone gives."""
    found = []
    for consumer in consumers:
        d = leaf(dtype)
        consumer(d).astype("float32").sum().backward()
        found.append(d.grad.astype("float32").numpy())
    return sorted(found, key=repr)


def parts_of(backward, summed, plan=None, at="before"):
    """(the parts, the sum) at node ``summed`` while ``backward`` runs."""
    watch = Watch(plan or HookPlan(every=True, contributions=True))
    found = []

    def look(call, key, outs):
        if call.name(key) == summed and call.depth == 0 and call.consumers(key) > 1:
            parts, why = call.contributions(key)
            assert not why
            values = [part.value.astype("float32").numpy().copy() for part in parts]
            found.append((sorted(values, key=repr), outs[0].astype("float32").numpy().copy()))

    if at == "before":
        watch.before = look
    else:
        watch.after = lambda call, key, ins, outs: look(call, key, outs)
    with watching(watch):
        backward()
    return found


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, "float32") for kind in CONSUMERS), ("two", "float64"), ("scaled", "float16"), ("scaled", "bfloat16")],
)
def test_each_part_is_what_its_consumer_gave(kind, dtype, at):
    def backward():
        d = paddle.scale(leaf(dtype), 1.0)
        sum(consumer(d).astype("float32").flatten() for consumer in CONSUMERS[kind]).sum().backward()

    ((parts, whole),) = [found for found in parts_of(backward, "ScaleGradNode", at=at) if len(found[0]) > 1]
    expected = apart(CONSUMERS[kind], dtype)
    assert len(parts) == len(expected)
    for part, alone in zip(parts, expected):
        assert np.array_equal(part, alone), (parts, expected)
    assert np.allclose(np.sum(parts, axis=0), whole, rtol=0.02 if "16" in dtype else 1e-5)


@pytest.mark.parametrize("before", ["nothing", "a gradient"])
def test_a_sum_that_reaches_a_leaf(before):
    """Also one that has a gradient already: the parts are of this backward."""
    kind = CONSUMERS["exp, three times, sine"]
    x = leaf()
    if before == "a gradient":
        (x * 100.0).sum().backward()
    had = x.grad.numpy().copy() if x.grad is not None else 0.0
    found = parts_of(lambda: sum(f(x) for f in kind).sum().backward(), "GradNodeAccumulation")
    ((parts, whole),) = found
    assert np.array_equal(parts, apart(kind, "float32"))
    assert np.allclose(x.grad.numpy(), had + whole)


def test_a_breakpoint_keeps_the_parts_beside_a_watch_for_nan():
    kind = CONSUMERS["exp, three times, sine"]

    def backward():
        d = paddle.scale(leaf(), 1.0)
        sum(f(d) for f in kind).sum().backward()

    plan = HookPlan(name=lambda name: name == "ScaleGradNode", contributions=True, screen=True)
    (found,) = [found for found in parts_of(backward, "ScaleGradNode", plan) if len(found[0]) > 1]
    assert np.array_equal(found[0], apart(kind, "float32"))


def test_the_same_tensor_twice_in_one_operator():
    d = leaf()
    found = parts_of(lambda: (paddle.scale(d, 1.0) ** 1 * 1).sum().backward(), "ScaleGradNode")
    assert found == []

    def backward():
        e = paddle.scale(leaf(), 1.0)
        (e * e).sum().backward()

    ((parts, whole),) = parts_of(backward, "ScaleGradNode")
    assert np.array_equal(parts, [np.array(VALUES, "float32")] * 2) and np.array_equal(whole, parts[0] * 2)


SCRIPT = """
import paddle
x = paddle.to_tensor([1.2765], stop_gradient=False)
for _ in range(2):
    d = paddle.tanh(x) * 1.5
    (paddle.exp(d) + d * 3 + paddle.sin(d) * 12.33).sum().backward()
"""


@pytest.mark.parametrize("specs", [("ScaleGradNode",), ("Scale* if norm(grad_outputs[0]) > 2", "nan")])
def test_a_stop_shows_the_parts_of_its_sum(tmp_path, specs):
    """Sine's is 12.33 cos(d), not the sum that the memory it lay in holds by then."""
    d = np.tanh(1.2765) * 1.5
    expected = sorted([np.exp(d), 3.0, abs(12.33 * np.cos(d))])
    with Dialled(tmp_path, SCRIPT) as run:
        run.peer.begin(*specs)
        shown = []
        run.peer.stopped()
        try:
            while True:
                parts = run.peer.request("adbg/node")["contributions"]
                if parts:
                    shown.append(sorted(part["norm"] for part in parts))
                run.peer.go()
        except ConnectionError:
            pass
        assert run.end()[0] == 0
    assert len(shown) == 2
    for parts in shown:
        assert parts == pytest.approx(expected, rel=1e-5)
