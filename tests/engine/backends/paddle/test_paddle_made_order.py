"""``name#k`` counts in order of the forward. The witness is Paddle's own log: "Create node NAME addr 0x...", level 4."""

from __future__ import annotations

import re
import threading

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from adbg.engine.backends.paddle.backend import PaddleBackend  # noqa: E402
from adbg.engine.backends.paddle.graph import NUMBERED_NOTE  # noqa: E402

_CREATED = re.compile(r"[Cc]reate (?:grad )?node (\w+) addr (0x[0-9a-f]+)")


def leaf(*shape):
    tensor = paddle.ones(list(shape))
    tensor.stop_gradient = False
    return tensor


class Doubled(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2.0


def powers(a):
    first = a**2
    second = a**3
    return [first * second]


def branches(a):
    first, second, third = paddle.tanh(a), paddle.tanh(a * 2.0), paddle.tanh(a)
    return [third + first * second + paddle.tanh(first)]


def convolutions(a):
    image, kernel = leaf(1, 2, 5, 5), leaf(2, 2, 3, 3)
    wide = [paddle.nn.functional.conv2d(image, kernel, padding=1) for _ in range(3)]
    sums = [paddle.add_n([wide[2], wide[0]]), paddle.add_n([wide[1], wide[0]])]
    return [sums[1].sum(), sums[0].sum()], [*wide, *sums]


def products(a):
    made = [a * a]
    made += [a * 2.0 * a, made[0] * a]
    return [made[2] + made[0] + made[1]], made


def layers(a):
    parts = [Doubled.apply(a) for _ in range(3)]
    return [parts[1] + parts[2], parts[0]]


def earlier_forward(a):
    kept = paddle.tanh(a)
    for _ in range(3):
        paddle.tanh(a)
    return [kept * paddle.tanh(a)]


def threads(a):
    made = []

    def work():
        for _ in range(20):
            made.append(paddle.tanh(a))

    running = [threading.Thread(target=work) for _ in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    made.reverse()
    return [paddle.add_n(made)]


def logged(forward, capfd):
    """The roots, and addresses in order of making: as the log has them, and as the forward itself has those of which
    Paddle logs nothing."""
    a = leaf(3)
    capfd.readouterr()
    paddle.base.core.set_vlog_level(4)
    try:
        roots = forward(a)
    finally:
        paddle.base.core.set_vlog_level(0)
    made = [int(match[2], 16) for match in _CREATED.finditer(capfd.readouterr().err)]
    if isinstance(roots, tuple):
        roots, tensors = roots
        made += [tensor.grad_fn.node_ptr() for tensor in tensors]
    return roots, made


@pytest.mark.parametrize("forward", [powers, branches, convolutions, products, layers, earlier_forward, threads])
def test_names_count_in_the_order_in_which_paddle_made_the_nodes(forward, capfd):
    backend = PaddleBackend()
    backend.set_stacks(True)
    try:
        roots, made = logged(forward, capfd)
        graph = backend.graph_of(roots)
        expected: dict[str, list[int]] = {}
        for address in made:
            key = graph.addresses().get(address)
            if key is not None and address not in expected.setdefault(graph.name(key), []):
                expected[graph.name(key)].append(address)
        told = {graph.unique_name(key): graph.address(key) for key in graph.order() if graph.name(key) in expected}
        assert told == {f"{name}#{k}": at for name, all_ in expected.items() for k, at in enumerate(all_, 1)}
        assert any(unique.endswith("#2") for unique in told)
    finally:
        backend.set_stacks(False)
        backend.abandon()


def test_nodes_without_a_number_stand_where_they_must_and_say_so():
    backend = PaddleBackend()
    a = leaf(3)
    before = paddle.tanh(a)
    backend.set_stacks(True)
    try:
        after = paddle.tanh(before)
        first, last = paddle.tanh(after), paddle.tanh(a)
        (gradient,) = paddle.grad([(first * last).sum()], [a], create_graph=True)
        graph = backend.graph_of([gradient])
        unique = {graph.address(key): graph.unique_name(key) for key in graph.order()}
        assert [unique[tensor.grad_fn.node_ptr()] for tensor in (before, after, first, last)] == [
            f"TanhGradNode#{k}" for k in (1, 2, 3, 4)
        ]
        notes = {graph.unique_name(key): graph.attributes(key).get("numbered") for key in graph.order()}
        assert notes["TanhGradNode#1"] == NUMBERED_NOTE and notes["TanhGradNode#2"] is None
    finally:
        backend.set_stacks(False)
        backend.abandon()
