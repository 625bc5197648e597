"""What the extension writes down of nodes on Paddle, tried in a process of its own: prints one JSON object, by case.
Run with ``ADBG_NATIVE=FILE``."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import paddle
from paddle import nn

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.backends.paddle.native import core as cores
from adbg.engine.node_batch import NodeRow
from tests.support.paddle_watch import EVERY, Watch, watching

NO_NODE = HookPlan(name=lambda name: False)


class Collecting(Watch):
    """Takes what is written down, at the end and where ``take_at`` says so. Without hooks (``plan``), or with ours
    beside it, whose norms are of numpy's making."""

    def __init__(self, plan: HookPlan = NO_NODE, take_at: int = 0) -> None:
        super().__init__(plan)
        self.take_at = take_at
        self.written: dict[int, list[NodeRow]] = {}  # by number of the call
        self.names: dict[int, list[str]] = {}
        self.orders: dict[int, list[int]] = {}
        self.collects: dict[int, bool] = {}
        self.twins: list[list[Any]] = []
        self.hooked: dict[int, list[tuple[int, float | None]]] = {}

    def backward_begin(self, call: BackwardCall) -> None:
        self.collects[call.number] = call.collect()
        super().backward_begin(call)

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: Any) -> Any:
        first = next((value for value in grad_outputs if value is not None), None)
        norm = None if first is None else float(np.linalg.norm(first.numpy().astype("float64").ravel()))
        seen = self.hooked.setdefault(call.number, [])
        seen.append((key, norm))
        if len(seen) == self.take_at:
            self._take(call)
        return super().node_begin(call, key, grad_outputs)

    def _take(self, call: BackwardCall) -> None:
        batch = call.collected()
        if batch is not None:
            self.written.setdefault(call.number, []).extend(batch)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        self._take(call)
        self.names[call.number] = [call.name(row.key) for row in self.written.get(call.number, ())]
        self.orders[call.number] = list(call.order())
        self.twins.append([call.twin(False), list(call.twin(True) or ())])  # type: ignore[call-overload]
        super().backward_end(call, error)


class Net(nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.LayerList([nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(2)])
        self.image = nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), nn.ReLU())

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        y = self.image(x.unsqueeze(1))
        parts = paddle.concat([part.mean(axis=-1) for part in paddle.split(x, 2, axis=1)], axis=1)
        return parts.sum() + y.mean()


def leaf(*values: float, dtype: str = "float32") -> Any:
    tensor = paddle.to_tensor(list(values), dtype=dtype)
    tensor.stop_gradient = False
    return tensor


def rows_of(watch: Collecting, number: int) -> list[list[Any]]:
    return [
        [name, row.key, row.index, row.norm, row.nonfinite, row.failed]
        for name, row in zip(watch.names[number], watch.written.get(number, ()))
    ]


def case_norms() -> dict[str, Any]:
    """Beside what the Python hooks were given, whose norm is numpy's; and results bit by bit."""
    paddle.seed(3)
    net, x = Net(), paddle.randn([2, 6, 8])

    def gradients() -> list[bytes]:
        net.clear_gradients()
        net(x).backward()
        return [each.grad.numpy().tobytes() for each in net.parameters() if each.grad is not None]

    plain = gradients()
    alone, beside = Collecting(), Collecting(EVERY, take_at=20)
    same = []
    for watch in (alone, beside):
        with watching(watch, stacks=True):
            same += [gradients() == plain for _ in range(2)]
    found: dict[str, Any] = {"same": same, "collects": [*alone.collects.values(), *beside.collects.values()]}
    number = max(alone.written)
    found["alone"] = rows_of(alone, number)
    found["order"] = alone.orders[number]
    found["begins"] = [row.begin_ns for row in alone.written[number]]
    found["us"] = [row.us for row in alone.written[number]]
    number = max(beside.written)
    found["beside"] = rows_of(beside, number)
    found["hooked"] = beside.hooked[number]
    found["twins"] = [alone.twins, beside.twins]
    with watching(other := Collecting(), stacks=True):
        net(x).backward()
    found["other"] = other.twins
    return found


def case_kinds() -> dict[str, Any]:
    """Every dtype, strides, what is no float, and numbers that are not finite: beside Paddle's own word."""
    found: dict[str, Any] = {}
    for dtype in ("float32", "float64", "float16", "bfloat16", "complex64"):
        watch = Collecting()
        with watching(watch):
            x = leaf(1.0, 2.0, 3.0, dtype=dtype)
            paddle.scale(x, 2.0).backward(paddle.to_tensor([3.0, 0.0, 4.0]).astype(dtype))
        found[dtype] = [watch.collects[max(watch.collects)], rows_of(watch, max(watch.collects))]
    watch = Collecting()
    with watching(watch):
        x = paddle.to_tensor(np.arange(6, dtype="float32").reshape(2, 3))
        x.stop_gradient = False
        paddle.scale(paddle.transpose(x, [1, 0]), 1.0).backward(
            paddle.to_tensor(np.arange(6, dtype="float32").reshape(2, 3)).transpose([1, 0])
        )
        found["strided"] = rows_of(watch, max(watch.collects))
        paddle.set_flags({"FLAGS_check_nan_inf": True, "FLAGS_check_nan_inf_level": 1})
        x = leaf(0.0, 4.0)
        (paddle.sqrt(x * 2.0) * 3.0).sum().backward()
        paddle.set_flags({"FLAGS_check_nan_inf": False})
        found["infinite"] = rows_of(watch, max(watch.collects))
    return found


class Inner(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        with paddle.enable_grad():
            y = leaf(5.0)
            paddle.tanh(y).sum().backward()
        return gradient * 2.0


class Fails(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise ValueError("no")


def case_calls() -> dict[str, Any]:
    """Nested calls, exceptions, and what is left to the Python hooks."""
    found: dict[str, Any] = {}
    for name, layer in (("nested", Inner), ("fails", Fails)):
        watch = Collecting()
        with watching(watch):
            x = leaf(1.0, 2.0)
            raised = ""
            try:
                paddle.tanh(layer.apply(paddle.scale(x, 3.0))).sum().backward()
            except Exception as error:
                raised = type(error).__name__
        found[name] = [raised, [[watch.collects[n], rows_of(watch, n)] for n in sorted(watch.collects)]]
    watch = Collecting()
    with watching(watch):
        x = leaf(1.0)
        y = paddle.scale(x, 2.0)
        y.register_hook(lambda gradient: gradient * 7.0)
        paddle.tanh(y).backward()
        hooked = watch.collects[max(watch.collects)]
        z = paddle.tanh(paddle.scale(x, 2.0))
        paddle.grad(z, [x])
        found["left"] = [hooked, watch.collects[max(watch.collects)], x.grad.numpy().tolist()]
    return found


def case_errors() -> dict[str, Any]:
    """Values that are none: an exception, and no crash."""
    module = cores.core().module  # type: ignore[union-attr]
    node = paddle.scale(leaf(1.0), 2.0).grad_fn
    raised = []
    none_or = (None, [], 0, (1, 2), "x", 1 << 80, -1, print)
    for name in (
        "paddle_events_begin", "paddle_events_take", "paddle_events_nodes", "paddle_events_end", "paddle_entry",
        "paddle_entry_begin", "paddle_entry_mode", "paddle_entry_learn", "paddle_entry_pass", "paddle_entry_count",
    ):  # fmt: skip
        function = getattr(module, name)
        single = name in ("paddle_events_nodes", "paddle_events_end", "paddle_entry_pass", "paddle_entry_count")
        tries = [(each,) for each in none_or] + (
            [] if single else [(a, b, c) for a in none_or for b in none_or for c in none_or]
        )
        for arguments in tries:
            if name in ("paddle_entry_pass", "paddle_entry_count") and arguments[0] in (0, -1):
                continue
            try:
                function(*arguments)
            except (LookupError, TypeError, OverflowError, ValueError):
                continue
            if name not in ("paddle_events_begin", "paddle_entry"):  # of no graph nothing is written down
                raised.append(f"{name}{arguments}")
    for arguments in (
        (1, (), (), None, None), (2, (), (), None, None), (2, (), (b"12345678",), print, None),
        (3, (), (), print, None), (2, (), (), print, bytearray(3)), (2, (), (), print, b"x" * 24),
    ):  # fmt: skip
        try:
            module.paddle_entry_mode(*arguments)
            if arguments[0] != 1:
                raised.append(f"paddle_entry_mode{arguments}")
        except (LookupError, TypeError, OverflowError, ValueError, BufferError):
            continue
    module.paddle_entry_mode(0, (), (), None, None)
    outside = module.paddle_events_begin((node.node_ptr(),), 10, print)  # no call of the engine is under way
    null = module.paddle_events_begin((0,), 10, print)
    return {"raised_nothing": raised, "outside": outside, "null": null, "open": module.paddle_entry_open()}


def main() -> None:
    with watching(Watch()):
        assert cores.core() is not None, cores.core_problem()
        assert cores.core().watch is not None, cores.core().watch_problem  # type: ignore[union-attr]
    cases = {name[5:]: case for name, case in globals().items() if name.startswith("case_")}
    print(json.dumps({name: cases[name]() for name in sys.argv[1:] or list(cases)}), flush=True)


if __name__ == "__main__":
    main()
