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
from support.frameworks import on_frameworks

from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import Backend, ForwardTimes

SIZE, ROUNDS = 256, 15
#: Between the script's clock and the operator: Python's call, and the timer's own work around it. The machine may be
#: busy: of several rounds the least is compared.
MOST_US, SHARE = 60.0, 0.25


@pytest.fixture
def backend(framework: str) -> Iterator[Backend]:
    made = REGISTRY[framework]()
    yield made
    timer = made.forward_timer()
    assert timer is not None
    timer.abandon()


def operators(framework: str) -> dict[str, Callable[[Any], Any]]:
    """By the begin of the name of the node that each of them makes; each of one tensor."""
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
        weight = torch.randn(SIZE, SIZE)
        return {
            "MmBackward": lambda x: torch.mm(x, weight),
            "TanhBackward": torch.tanh,
            "MulBackward": lambda x: x * weight,
            "AddmmBackward": lambda x: torch.nn.functional.linear(x, weight, weight[0]),
            "NativeLayerNormBackward": lambda x: torch.nn.functional.layer_norm(x, (SIZE,)),
            "SoftmaxBackward": lambda x: x.softmax(-1),
            "ReluBackward": torch.nn.functional.relu,
        }
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


def leaf(framework: str) -> Any:
    if framework == "torch":
        import torch

        return torch.randn(SIZE, SIZE, requires_grad=True)
    import paddle

    made = paddle.randn([SIZE, SIZE])
    made.stop_gradient = False
    return made


def forward(framework: str, calls: dict[str, Callable[[Any], Any]], x: Any) -> tuple[Any, dict[str, float]]:
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


@on_frameworks(frameworks=["paddle"])
def test_what_the_scripts_own_clock_says(framework: str, backend: Backend) -> None:
    calls, x = operators(framework), leaf(framework)
    timer = backend.forward_timer()
    assert timer is not None
    plain, clocked, found = [], [], []
    for _ in range(ROUNDS):
        plain.append(forward(framework, calls, x)[1])
        assert timer.begin(), timer.problem
        result, taken = forward(framework, calls, x)
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


def footprint(framework: str) -> list[tuple[object, list[tuple[str, int]]]]:
    """Every name that could be stood in for, in its order, with what it stands for."""
    module = importlib.import_module
    if framework == "torch":
        import torch

        owners: list[Any] = [
            torch, torch.Tensor, torch.nn.functional, torch.nn.Module, torch.autograd,
            torch.autograd.profiler, torch.autograd.profiler_legacy, torch.overrides,
        ]  # fmt: skip
        modes = [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()]
        modes.append(int(torch.autograd._profiler_enabled()))  # type: ignore[attr-defined]
    else:
        import paddle

        owners = [value for name, value in sys.modules.items() if name.startswith(("paddle.tensor", "paddle.nn"))]
        owners += [paddle, paddle.Tensor, paddle._C_ops, paddle._legacy_C_ops, paddle.autograd.PyLayer]
        translator = module("paddle.jit.dy2static.program_translator")
        owners += [translator.StaticFunction, translator.SymbolicStaticFunction, translator.ASTStaticFunction]
        modes = [int(paddle.is_grad_enabled())]
    return [("modes", [(str(mode), 0) for mode in modes])] + [
        (owner, [(name, id(value)) for name, value in vars(owner).items()]) for owner in owners
    ]


@on_frameworks(frameworks=["paddle"])
def test_everything_is_as_it_was(framework: str, backend: Backend) -> None:
    calls, x = operators(framework), leaf(framework)
    timer = backend.forward_timer()
    assert timer is not None
    before = footprint(framework)
    assert timer.begin()
    forward(framework, calls, x)
    assert footprint(framework) != before, "a footprint that could not change proves nothing"
    assert timer.end() is not None
    assert footprint(framework) == before
    assert timer.end() is None and footprint(framework) == before
    timer.abandon()
    assert footprint(framework) == before


@on_frameworks(frameworks=["paddle"])
def test_the_same_bits(framework: str, backend: Backend) -> None:
    """Of results, gradients and random numbers; also where no gradient is wanted and a mode of the framework is on."""
    timer = backend.forward_timer()
    assert timer is not None

    def run() -> bytes:
        if framework == "torch":
            import torch

            torch.manual_seed(1)
            encoder = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            x = torch.randn(2, 3, 16, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = encoder(x).float()
            with torch.no_grad():  # its fast path
                z = encoder.eval()(x)
            (gradient,) = torch.autograd.grad(y.square().sum(), x)
            parts = [y.detach(), z, gradient, torch.rand(4)]
        else:
            import paddle

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


@on_frameworks(frameworks=["paddle"])
def test_an_operators_error_is_the_scripts_own(framework: str, backend: Backend) -> None:
    import traceback

    calls, x = operators(framework), leaf(framework)
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
    result, _ = forward(framework, calls, x)
    times = timer.end()
    assert times is not None and None not in [
        us for name, us in told(backend, times, result).items() if "Acc" not in name
    ]


@on_frameworks(frameworks=["paddle"])
def test_nodes_of_another_thread_are_not_timed(framework: str, backend: Backend) -> None:
    calls, x = operators(framework), leaf(framework)
    timer, made = backend.forward_timer(), list[Any]()
    assert timer is not None and timer.begin()
    thread = threading.Thread(target=lambda: made.append(forward(framework, calls, x)[0]))
    thread.start()
    thread.join()
    times = timer.end()
    assert times is not None and set(told(backend, times, made[0]).values()) == {None}


@on_frameworks(frameworks=["paddle"])
def test_custom_functions_and_what_they_call(framework: str, backend: Backend) -> None:
    """All of its forward is the node's of a custom function."""
    timer = backend.forward_timer()
    assert timer is not None

    def busy() -> None:
        end = time.perf_counter() + 0.003
        while time.perf_counter() < end:
            pass

    base: Any = importlib.import_module(f"{framework}.autograd")
    x = leaf(framework)

    class SlowGELU(base.Function if framework == "torch" else base.PyLayer):  # type: ignore[misc]
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
    (total,) = (us for name, us in rows.items() if name.startswith(("Sum", "GradNodeSum")))
    assert slow is not None and total is not None and slow > 3000 and slow > total


@on_frameworks(frameworks=["paddle"])
def test_a_forked_child_records_nothing(framework: str, backend: Backend) -> None:
    timer = backend.forward_timer()
    assert timer is not None
    before = footprint(framework)
    assert timer.begin()
    pid = os.fork()
    if not pid:
        timer.abandon()
        os._exit(0 if footprint(framework) == before else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0 and footprint(framework) != before
    assert timer.end() is not None
