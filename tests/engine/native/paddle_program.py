"""What the extension does on Paddle, tried in a process of its own: prints one JSON object, by case. Run with
``ADBG_NATIVE=FILE``."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle import nn

from adbg.engine.backends.base import BackwardCall, HookPlan
from adbg.engine.backends.paddle import stacks
from adbg.engine.backends.paddle.native import core as cores
from adbg.engine.backends.paddle.native import screen, symbols
from adbg.engine.backends.paddle.tensors import bad
from tests.support.paddle_watch import Watch, watching

NO_NODE = HookPlan(name=lambda name: False)


class Twice(paddle.autograd.PyLayer):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2.0


class Net(nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.LayerList([nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(2)])
        self.lstm = nn.LSTM(8, 8)
        self.image = nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), nn.ReLU())

    def forward(self, tokens: Any, custom: bool = True) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        x, _ = self.lstm(x)
        y = self.image(x.unsqueeze(1))
        if custom:
            x = Twice.apply(x)
        return sum([part.mean() for part in paddle.split(x, 2, axis=1)], y.mean())


def leaf(*values: float, dtype: str = "float32") -> Any:
    tensor = paddle.to_tensor(list(values), dtype=dtype)
    tensor.stop_gradient = False
    return tensor


def nodes_of(root: Any) -> list[Any]:
    nodes = [root.grad_fn]
    for node in nodes:
        nodes.extend(each for each in node.next_functions if each is not None and each not in nodes)
    return nodes


def case_stacks() -> dict[str, Any]:
    """Node for node, beside what Paddle itself writes at level 3."""
    paddle.seed(1)
    net, tokens = Net(), paddle.randint(0, 10, [2, 6])
    native = symbols.native()
    found: list[list[Any]] = []
    for way in ("paddle", "native"):
        before = paddle.get_flags("FLAGS_call_stack_level")
        with contextlib.ExitStack() as stack:
            if way == "paddle":
                paddle.set_flags({"FLAGS_call_stack_level": 3})
            else:
                backend = stack.enter_context(watching(Watch(), stacks=True))
            loss = net(tokens)
            nodes = nodes_of(loss)
            if way == "paddle":
                paddle.set_flags(before)
                reader = stacks.Stacks(stacks.SharedFlags())
                texts = [native.trace(node.node_ptr()) for node in nodes]
                found.append([(node.name(), reader.parsed(text) if text else None) for node, text in zip(nodes, texts)])
            else:
                assert paddle.get_flags("FLAGS_call_stack_level") == before
                found.append([(node.name(), backend._stacks.lines(node)[0]) for node in nodes])
                operators = [node for node in nodes if node.name() != "GradNodeAccumulation"]
                orders = [backend._stacks.number(node) for node in operators]
    told = [(a, b) for a, b in zip(*found, strict=True) if a[1] is not None and a[0] != "GradNodeAccumulation"]
    return {
        "nodes": len(found[0]),
        "compared": len(told),
        "different": [[str(a), str(b)] for a, b in told if a != b],
        "without": sorted({b[0] for b in found[1] if not b[1]}),
        "paddle_without": sorted({a[0] for a in found[0] if a[1] is None}),
        "orders_distinct": len(set(orders)) == len(orders) and 0 not in orders,
    }


def trained(under: Callable[[], Any]) -> str:
    paddle.seed(3)
    net, tokens = Net(), paddle.randint(0, 10, [2, 6])
    optimizer = paddle.optimizer.Adam(0.01, parameters=net.parameters())
    digest = hashlib.sha256()
    for number in range(3):
        with under():
            loss = net(tokens, custom=number == 2)
            loss.backward()
        for parameter in net.parameters():
            if parameter.grad is not None:
                digest.update(parameter.grad.numpy().tobytes())
        optimizer.step()
        optimizer.clear_grad()
    digest.update(loss.numpy().tobytes() + paddle.rand([4]).numpy().tobytes())
    return digest.hexdigest()


def case_results() -> dict[str, Any]:
    """Gradients, weights and random numbers, bit by bit."""
    made: dict[str, Any] = {"plain": trained(contextlib.nullcontext)}
    made["again"] = trained(contextlib.nullcontext)
    made["stacks"] = trained(lambda: watching(Watch(), stacks=True))
    made["nothing"] = trained(lambda: watching(Watch(NO_NODE)))
    made["watch"] = trained(lambda: watching(Watch(HookPlan(screen=True)), stacks=True))
    flags = dict(paddle.get_flags(["FLAGS_call_stack_level", "FLAGS_enable_unique_name"]))
    return {"same": len(set(made.values())) == 1, "flags": list(flags.values())}


class Reports(Watch):
    """Reports of bad gradients; ``edit``: what the node's gradients become."""

    def __init__(self, edit: float | None = None) -> None:
        super().__init__(HookPlan(screen=True))
        self.edit = edit
        self.told: list[Any] = []

    def _told(self, phase: str, call: BackwardCall, key: int, values: Any, others: Any) -> Any:
        judged = [[None if value is None else bad(value) for value in some] for some in (values, others)]
        self.told.append([phase, call.name(key), *judged])
        if self.edit is None:
            return None
        return tuple(paddle.full_like(value, self.edit) for value in values)

    def node_begin(self, call: BackwardCall, key: int, outs: Any) -> Any:
        return self._told("begin", call, key, outs, ())

    def node_end(self, call: BackwardCall, key: int, ins: Any, outs: Any) -> Any:
        return self._told("end", call, key, ins, outs)


class Briefly(Reports):
    """Nothing is of interest but bad gradients, and a call is told in short where the extension looks for them."""

    def __init__(self, edit: float | None = None) -> None:
        super().__init__(edit)
        self.course: list[str] = []

    def passes_over(self, kinds: frozenset[str], alike: Any = None, watched: bool = False) -> bool:
        return watched

    def brief_begin(self, call: Any) -> None:
        self.course.append(f"brief {call.nodes}")

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None:
        self.course.append("brief end")

    def backward_begin(self, call: BackwardCall) -> None:
        self.course.append("begin")
        super().backward_begin(call)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        self.course.append("end")
        super().backward_end(call, error)


def zero_in_sqrt(dtype: str = "float32") -> tuple[Any, Any]:
    x = leaf(0.0, 4.0, dtype=dtype)
    return x, (paddle.sqrt(x * 1.0) * 3.0).sum()


def strided() -> tuple[Any, Any]:
    """The gradient of a transposed tensor lies in memory as that one does."""
    x = paddle.to_tensor([[1.0, 4.0, 9.0], [1.0, 0.0, 9.0]])
    x.stop_gradient = False
    return x, paddle.sqrt(paddle.transpose(x * 1.0, [1, 0])).sum()


def sum_overflows() -> tuple[Any, Any]:
    x = leaf(1.0, 1.0)
    y = x * 1.0
    return x, (y * 3e38).sum() + (y * 3e38).sum()


def leaf_overflows() -> tuple[Any, Any]:
    x = leaf(1.0)
    return x, (x * 3e38).sum() + (x * 3e38).sum()


def scripts_hook() -> tuple[Any, Any]:
    x = leaf(1.0)
    y = x * 2.0
    y.register_hook(lambda gradient: gradient * float("inf"))
    return x, y.sum()


def finite() -> tuple[Any, Any]:
    x = leaf(1.0, 2.0)
    return x, (x * 2.0).sum()


def beside_a_pylayer() -> tuple[Any, Any]:
    x = leaf(0.0)
    return x, Twice.apply(paddle.sqrt(x * 1.0)).sum()


def beside_a_concat() -> tuple[Any, Any]:
    x = leaf(0.0)
    return x, paddle.concat([paddle.sqrt(x * 1.0), x]).sum()


MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "sqrt": zero_in_sqrt,
    "sqrt64": lambda: zero_in_sqrt("float64"),
    "strided": strided,
    "sum": sum_overflows,
    "leaf": leaf_overflows,
    "hook": scripts_hook,
    "finite": finite,
    "pylayer": beside_a_pylayer,
    "concat": beside_a_concat,
}


@contextlib.contextmanager
def python_only() -> Iterator[None]:
    """As without the extension."""
    kept = screen.core
    screen.core = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        screen.core = kept


def case_watch() -> dict[str, Any]:
    """What is told of gradients that are not finite, and what becomes of them: with the watch in C++, and without."""
    answers: dict[str, Any] = {}
    module = cores.core().module  # type: ignore[union-attr]
    for name, make in MAKERS.items():
        for edit in (None, 7.0):
            found: list[Any] = []
            courses: list[Any] = []
            for kind, way in (
                (Reports, contextlib.nullcontext),
                (Reports, python_only),
                (Briefly, contextlib.nullcontext),
            ):
                watch = kind(edit)
                with watching(watch), way():
                    make()[1].backward()  # classes that are new are left to Python
                    watch.told.clear()
                    del getattr(watch, "course", [])[:]
                    module.paddle_watch_probe()
                    x, loss = make()
                    loss.backward()
                looked = module.paddle_watch_probe()[1]
                found.append([watch.told, json.dumps(x.grad.numpy().tolist()), looked > 0])
                courses.append(getattr(watch, "course", None))
            answers[f"{name} {edit}"] = [*found, courses[-1]]
    return answers


class Aborts(Reports):
    def _told(self, *args: Any) -> Any:
        raise KeyboardInterrupt


class BrieflyAborts(Briefly):
    def _told(self, *args: Any) -> Any:
        raise KeyboardInterrupt


def case_abort() -> dict[str, Any]:
    """What the user does at a stop (kill, Ctrl-C) comes out of ``backward`` as it went in: in front of other nodes, and
    at the last one."""
    raised, reached = [], []
    for kind in (Aborts, BrieflyAborts):
        with watching(kind()):
            for make in (zero_in_sqrt, leaf_overflows) * 2:
                x, loss = make()
                try:
                    loss.backward()
                except BaseException as error:
                    raised.append(type(error).__name__)
                reached.append(x.grad is not None)
            x, loss = finite()
            loss.backward()
    return {
        "raised": raised,
        "reached": reached,
        "grad_mode": paddle.is_grad_enabled(),
        "later": x.grad.numpy().tolist(),
    }


def case_restored() -> dict[str, Any]:
    """What stands in libpaddle's slots and tables before, while and after adbg is there."""
    module = cores.core().module  # type: ignore[union-attr]
    table = ctypes.c_uint64.from_address(finite()[1].grad_fn.node_ptr()).value

    def entries() -> list[int]:
        at = [slot for symbol, _, _ in module.paddle_interposed() for _, slot, _ in module.slots(symbol, "libpaddle")]
        return [ctypes.c_uint64.from_address(place).value for place in (*at, *range(table, table + 64, 8))]

    with watching(Watch(HookPlan(screen=True))):
        finite()[1].backward()
    before = entries()
    with watching(Watch(HookPlan(screen=True)), stacks=True):
        finite()[1].backward()
        during = entries()
        made = finite()[1]
        marked = cores.core().mark(made.grad_fn.node_ptr())  # type: ignore[union-attr]
    after = entries()
    return {
        "changed": sum(a != b for a, b in zip(before, during)),
        "back": after == before,
        "marked": marked[1] > 0,
        "forgotten": cores.core().mark(made.grad_fn.node_ptr())[0] == 0,  # type: ignore[union-attr]
    }


def case_fork() -> dict[str, Any]:
    with watching(Watch(HookPlan(screen=True)), stacks=True) as backend:
        child = os.fork()
        if child == 0:
            first = finite()
            first[1].backward()
            backend.abandon()
            second = finite()
            second[1].backward()
            same = first[0].grad.numpy().tolist() == second[0].grad.numpy().tolist() == [2.0, 2.0]
            os._exit(0 if same else 3)
        _, status = os.waitpid(child, 0)
    return {"status": status}


def case_errors() -> dict[str, Any]:
    """Values that are none: an exception, and no crash."""
    module = cores.core().module  # type: ignore[union-attr]
    raised = []
    for name, arguments in {
        "paddle_begin": [(0, 0, 0, 0), (880, 8, 8, 0), (880, -8, 200, 0), (7, 8, 200, 0)],
        "paddle_watch_begin": [(0, 16, 64, 1, 2, 3, 4, 0), (2, 16, 4096, 1, 2, 3, 4, 0), (2, -1, 64, 1, 2, 3, 4, 0)],
        "paddle_watch_start": [((), (), None), (("x",), (), print), (None, (), print), ((1 << 80,), (), print)],
        "paddle_survey": [("x",), (7,)],
        "paddle_mark": [("x",), (1 << 80,)],
    }.items():
        for each in arguments:
            try:
                getattr(module, name)(*each)
                raised.append(f"{name}{each}: nothing")
            except (LookupError, TypeError, OverflowError, ValueError):
                continue
    begun = [module.paddle_watch_start(roots, (), print) for roots in ((), (0,))]
    begun.append(len(module.paddle_watch_stop()))
    found = {"null": module.paddle_mark(0), "empty": module.paddle_survey(())[0], "begun": begun}
    return {"raised_nothing": raised, **found}


def main() -> None:
    with watching(Watch()):
        assert cores.core() is not None, cores.core_problem()
        assert cores.core().watch is not None, cores.core().watch_problem  # type: ignore[union-attr]
    cases = {name[5:]: case for name, case in globals().items() if name.startswith("case_")}
    wanted = sys.argv[1:] or list(cases)
    print(json.dumps({name: cases[name]() for name in wanted}), flush=True)


if __name__ == "__main__":
    main()
