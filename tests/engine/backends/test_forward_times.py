"""How long the operators of a forward took, against the script's own clock around each call; and what the framework is
meanwhile and afterwards."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.frameworks import only_here

from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import Backend, ForwardTimes

SIZE, ROUNDS = 256, 15
#: Between the script's clock and the operator: Python's call, and the timer's own work around it. The machine may be
#: busy: of several rounds the least is compared.
MOST_US, SHARE = 60.0, 0.25


pytestmark = only_here("paddle", "torch has no way that is safe beside checkpoints and torch.compile")


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = REGISTRY["paddle"]()
    yield made
    timer = made.forward_timer()
    assert timer is not None
    timer.abandon()


def operators() -> dict[str, Callable[[Any], Any]]:
    """By the begin of the name of the node that each of them makes; each of one tensor."""
    import paddle

    weight = paddle.randn([SIZE, SIZE])
    return {
        "MatmulGradNode": lambda x: paddle.matmul(x, weight),
        "TanhGradNode": paddle.tanh,
        "MultiplyGradNode": lambda x: x * weight,
        "LayerNormGradNode": lambda x: paddle.nn.functional.layer_norm(x, [SIZE]),
        "SoftmaxGradNode": lambda x: paddle.nn.functional.softmax(x),
        "ReluGradNode": paddle.nn.functional.relu,
        "ExpGradNode": lambda x: x.exp(),
    }


def leaf() -> Any:
    import paddle

    made = paddle.randn([SIZE, SIZE])
    made.stop_gradient = False
    return made


def forward(calls: dict[str, Callable[[Any], Any]], x: Any) -> tuple[Any, dict[str, float]]:
    """The result, and microseconds of each call by the script's own clock."""
    taken = {}
    for name, call in calls.items():
        begin = time.perf_counter()
        x = call(x)
        taken[name] = (time.perf_counter() - begin) * 1e6
    return x, taken


def told(backend: Backend, times: ForwardTimes, result: Any) -> dict[str, float | None]:
    graph = backend.graph_of([result])
    assert graph is not None
    return {graph.describe(key).name: times.of(graph, key) for key in graph.order()}


def least(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(row[name] for row in rows) for name in rows[0]}


def test_what_the_scripts_own_clock_says(backend: Backend) -> None:
    calls, x = operators(), leaf()
    timer = backend.forward_timer()
    assert timer is not None
    plain, clocked, found = [], [], []
    for _ in range(ROUNDS):
        plain.append(forward(calls, x)[1])
        assert timer.begin(), timer.problem
        result, taken = forward(calls, x)
        times = timer.end()
        assert times is not None
        clocked.append(taken)
        rows = told(backend, times, result)
        found.append({name: next(us for node, us in rows.items() if node.startswith(name)) or 0.0 for name in calls})
        assert [us for node, us in rows.items() if "Accum" in node] == [None], "a leaf has no operator"
    for row, own in zip(found, clocked, strict=True):
        assert all(0 < row[name] <= own[name] for name in calls), "inside the very same call"
    around = [{name: own[name] - row[name] for name in calls} for row, own in zip(found, clocked, strict=True)]
    assert all(us < MOST_US for us in least(around).values()), (least(around), "all but the way to the operator")
    for name, us in least(found).items():
        truth = least(plain)[name]
        assert us < MOST_US + (1 + SHARE) * truth, (name, us, truth, "what timing costs is not in it")


def footprint() -> list[tuple[object, list[tuple[str, int]]]]:
    """Every name that could be stood in for, in its order, with what it stands for."""
    import paddle

    owners: list[Any] = [
        value for name, value in sys.modules.items() if name.startswith(("paddle.tensor", "paddle.nn"))
    ]
    owners += [paddle, paddle.Tensor, paddle._C_ops, paddle._legacy_C_ops, paddle.autograd.PyLayer]
    translator = importlib.import_module("paddle.jit.dy2static.program_translator")
    owners += [translator.StaticFunction, translator.SymbolicStaticFunction, translator.ASTStaticFunction]
    modes = [int(paddle.is_grad_enabled())]
    return [("modes", [(str(mode), 0) for mode in modes])] + [
        (owner, [(name, id(value)) for name, value in vars(owner).items()]) for owner in owners
    ]


def test_everything_is_as_it_was(backend: Backend) -> None:
    calls, x = operators(), leaf()
    timer = backend.forward_timer()
    assert timer is not None
    before = footprint()
    assert timer.begin()
    forward(calls, x)
    assert footprint() != before, "a footprint that could not change proves nothing"
    assert timer.end() is not None
    assert footprint() == before
    assert timer.end() is None and footprint() == before
    timer.abandon()
    assert footprint() == before


def test_the_same_bits(backend: Backend) -> None:
    """Of results, gradients and random numbers; also where no gradient is wanted and a mode of the framework is on."""
    import paddle

    timer = backend.forward_timer()
    assert timer is not None

    def run() -> bytes:
        paddle.seed(1)
        encoder = paddle.nn.TransformerEncoderLayer(16, 2, 32)
        x = paddle.randn([2, 3, 16])
        x.stop_gradient = False
        with paddle.amp.auto_cast(dtype="bfloat16"):
            y = encoder(x).astype("float32")
        with paddle.no_grad():
            encoder.eval()
            z = encoder(x)
        (gradient,) = paddle.grad((y * y)[:, 1].sum(), x)
        parts = [y.detach(), z, gradient, paddle.rand([4])]
        return b"".join(part.numpy().tobytes() for part in parts)

    plain = run()
    assert timer.begin()
    assert run() == plain
    assert timer.end() is not None


def test_an_operators_error_is_the_scripts_own(backend: Backend) -> None:
    import traceback

    calls, x = operators(), leaf()
    timer = backend.forward_timer()
    assert timer is not None

    def wrong() -> tuple[str, list[str]]:
        try:
            next(iter(calls.values()))(x.reshape([1, -1]))
        except Exception as error:
            return str(error), [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        raise AssertionError("it did not raise")

    plain = wrong()
    assert timer.begin()
    assert wrong() == plain
    result, _ = forward(calls, x)
    times = timer.end()
    assert times is not None and None not in [
        us for name, us in told(backend, times, result).items() if "Acc" not in name
    ]


def test_nodes_of_another_thread_are_not_timed(backend: Backend) -> None:
    calls, x = operators(), leaf()
    timer, made = backend.forward_timer(), list[Any]()
    assert timer is not None and timer.begin()
    thread = threading.Thread(target=lambda: made.append(forward(calls, x)[0]))
    thread.start()
    thread.join()
    times = timer.end()
    assert times is not None and set(told(backend, times, made[0]).values()) == {None}


def test_custom_functions_and_what_they_call(backend: Backend) -> None:
    """All of its forward is the node's of a custom function."""
    timer = backend.forward_timer()
    assert timer is not None

    def busy() -> None:
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass

    import paddle

    x = leaf()

    class SlowGELU(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            busy()
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    assert timer.begin()
    result = SlowGELU.apply(x).sum()
    times = timer.end()
    assert times is not None
    rows = told(backend, times, result)
    (slow,) = (us for name, us in rows.items() if "Slow" in name)
    (total,) = (us for name, us in rows.items() if name.startswith("Sum"))
    assert slow is not None and total is not None and slow > 3000 and slow > total


def test_a_forked_child_records_nothing(backend: Backend) -> None:
    timer = backend.forward_timer()
    assert timer is not None
    before = footprint()
    assert timer.begin()
    pid = os.fork()
    if not pid:
        timer.abandon()
        os._exit(0 if footprint() == before else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0 and footprint() != before
    assert timer.end() is not None
