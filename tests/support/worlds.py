"""What the contract suite needs of a framework beside its backend: a few operators under neutral names, once for each
framework. A third backend passes the suite with a ``World`` of its own."""

from __future__ import annotations

import abc
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from fake_backend import FakeBackend, FakeGraph, FakeTensor

from adbg.engine.backends.base import Backend
from adbg.engine.types import Edge, TensorMeta


class World(abc.ABC):
    """Tensors are the framework's own, except that the fake's carry their node. All are f32."""

    name: ClassVar[str]
    huge: ClassVar[float]  # two factors of it overflow
    names: ClassVar[dict[str, str]]  # of nodes, by operator

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    # ---- building

    @abc.abstractmethod
    def leaf(self, values: Sequence[float]) -> Any:
        """A leaf that wants a gradient."""

    @abc.abstractmethod
    def tensor(self, values: Sequence[float], shape: tuple[int, ...] | None = None) -> Any:
        """A plain tensor, as gradients are."""

    @abc.abstractmethod
    def scale(self, x: Any, factor: float) -> Any: ...

    @abc.abstractmethod
    def tanh(self, x: Any) -> Any: ...

    @abc.abstractmethod
    def add(self, a: Any, b: Any) -> Any: ...

    @abc.abstractmethod
    def mul(self, a: Any, b: Any) -> Any: ...

    @abc.abstractmethod
    def split(self, x: Any) -> tuple[Any, Any]:
        """Its halves: outputs of one node."""

    @abc.abstractmethod
    def total(self, x: Any) -> Any:
        """The sum of all elements: a root."""

    @abc.abstractmethod
    def custom(self, x: Any, factor: float, inside: Callable[[], object] = lambda: None) -> Any:
        """A custom function "Scaled"; ``inside`` is run by its backward."""

    # ---- running

    @abc.abstractmethod
    def backward(self, root: Any, retain: bool = False) -> None: ...

    @abc.abstractmethod
    def gradients(self, root: Any, *leaves: Any) -> None:
        """Those of ``leaves`` alone, where they are not added to the leaves."""

    @abc.abstractmethod
    def gradient(self, leaf: Any) -> list[float] | None:
        """What the leaf has accumulated."""

    # ---- looking

    @abc.abstractmethod
    def values(self, tensor: Any) -> list[float]:
        """Row-major."""

    @abc.abstractmethod
    def below(self, node: Any) -> list[int | None]:
        """Addresses of the framework's own nodes that a node of its gives gradients to, in order; None for nowhere."""

    def address(self, node: Any) -> int:
        return id(node)

    def footprint(self) -> list[object]:
        """What the backend replaces in the framework."""
        return []


# ------------------------------------------------------------------ fake


class Handle:
    """A value of a fake forward, with the node that made it."""

    def __init__(self, key: int, values: Sequence[float], slot: int = 0, shape: tuple[int, ...] | None = None) -> None:
        self.key = key
        self.values = list(values)
        self.slot = slot
        self.shape = (len(self.values),) if shape is None else shape


class FakeWorld(World):
    name = "fake"
    huge = 1e200
    names = {"scale": "MulBackward0", "tanh": "TanhBackward0", "custom": "Scaled", "sum": "SumBackward0"}

    def __init__(self, backend: Backend | None = None) -> None:
        super().__init__(backend or FakeBackend())
        self.graph = FakeGraph()
        self.leaves: dict[str, list[float]] = {}

    def _node(self, name: str, feeds: Sequence[Handle], values: Sequence[float], fn: Any, **facts: Any) -> Handle:
        shape = facts.pop("shape", (len(values),))
        metas = tuple(TensorMeta(s, "f32", "cpu", 4 * math.prod(s), math.prod(s)) for s in facts.pop("slots", [shape]))
        key = self.graph.add(name, fn=fn, meta=metas, inputs=len(metas), **facts)
        self.graph.nodes[key].edges = [Edge(slot, feed.key, feed.slot) for slot, feed in enumerate(feeds)]
        return Handle(key, values, 0, shape)

    def leaf(self, values: Sequence[float]) -> Handle:
        return Handle(self.graph.leaf(f"p{len(self.graph.nodes)}"), values)

    def tensor(self, values: Sequence[float], shape: tuple[int, ...] | None = None) -> FakeTensor:
        return FakeTensor(values, shape)

    def scale(self, x: Handle, factor: float) -> Handle:
        return self._node(self.names["scale"], [x], [v * factor for v in x.values], lambda b, g: [g[0] * factor])

    def tanh(self, x: Handle) -> Handle:
        out = [math.tanh(v) for v in x.values]
        slope = FakeTensor([1 - v * v for v in out])
        saved = {"result": FakeTensor(out)}
        return self._node(self.names["tanh"], [x], out, lambda b, g: [g[0] * slope], saved=saved)

    def add(self, a: Handle, b: Handle) -> Handle:
        sums = [v + w for v, w in zip(a.values, b.values)]
        return self._node("AddBackward0", [a, b], sums, lambda _, g: [g[0], g[0]])

    def mul(self, a: Handle, b: Handle) -> Handle:
        out = [v * w for v, w in zip(a.values, b.values)]
        one, other = FakeTensor(b.values), FakeTensor(a.values)
        return self._node("MulBackward0", [a, b], out, lambda _, g: [g[0] * one, g[0] * other])

    def split(self, x: Handle) -> tuple[Handle, Handle]:
        half = len(x.values) // 2

        def joined(_: Any, grads: Sequence[Any]) -> list[Any]:
            return [FakeTensor([v for g in grads for v in (g.values if g is not None else [0.0] * half)])]

        node = self._node("SplitBackward0", [x], x.values, joined, slots=[(half,), (half,)])
        return Handle(node.key, x.values[:half], 0), Handle(node.key, x.values[half:], 1)

    def total(self, x: Handle) -> Handle:
        shape = x.shape
        values = [math.fsum(x.values)]
        return self._node("SumBackward0", [x], values, lambda b, g: [FakeTensor.full(shape, g[0].item())], shape=())

    def custom(self, x: Handle, factor: float, inside: Callable[[], object] = lambda: None) -> Handle:
        def back(_: Any, grads: Sequence[Any]) -> list[Any]:
            inside()
            return [grads[0] * factor]

        return self._node("Scaled", [x], [v * factor for v in x.values], back, custom=True)

    def _run(self, root: Handle, entry: str) -> dict[str, Any]:
        graph = FakeGraph(())
        graph.nodes = self.graph.nodes
        graph.root_keys = [root.key]
        assert isinstance(self.backend, FakeBackend)
        return self.backend.backward(graph, FakeTensor([1.0], ()), entry=entry)

    def backward(self, root: Handle, retain: bool = False) -> None:
        for name, gradient in self._run(root, "backward").items():
            before = self.leaves.get(name, [0.0] * gradient.numel())
            self.leaves[name] = [v + w for v, w in zip(before, gradient.values)]

    def gradients(self, root: Handle, *leaves: Handle) -> None:
        self._run(root, "grad")

    def gradient(self, leaf: Handle) -> list[float] | None:
        return self.leaves.get(self.graph.nodes[leaf.key].parameter or "")

    def values(self, tensor: Any) -> list[float]:
        return list(tensor.values)

    def below(self, node: Any) -> list[int | None]:
        return [id(self.graph.nodes[edge.to]) for edge in node.edges]


# ------------------------------------------------------------------ torch


class TorchWorld(World):
    name = "torch"
    huge = 1e30
    names = {"scale": "MulBackward0", "tanh": "TanhBackward0", "custom": "ScaledBackward", "sum": "SumBackward0"}

    def __init__(self) -> None:
        import torch

        from adbg.engine.backends.torch.backend import TorchBackend

        super().__init__(TorchBackend())
        self.torch: Any = torch

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, factor: float, inside: Callable[[], object]) -> Any:
                ctx.rest = factor, inside
                return x * factor

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                factor, inside = ctx.rest
                with torch.enable_grad():
                    inside()
                return gradient * factor, None, None

        self.scaled = Scaled

    def leaf(self, values: Sequence[float]) -> Any:
        return self.torch.tensor(values, requires_grad=True)

    def tensor(self, values: Sequence[float], shape: tuple[int, ...] | None = None) -> Any:
        made = self.torch.tensor(values, dtype=self.torch.float32)
        return made if shape is None else made.reshape(shape)

    def scale(self, x: Any, factor: float) -> Any:
        return x * factor

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def split(self, x: Any) -> tuple[Any, Any]:
        first, second = self.torch.split(x, len(x) // 2)
        return first, second

    def total(self, x: Any) -> Any:
        return x.sum()

    def custom(self, x: Any, factor: float, inside: Callable[[], object] = lambda: None) -> Any:
        return self.scaled.apply(x, factor, inside)

    def backward(self, root: Any, retain: bool = False) -> None:
        root.backward(retain_graph=retain)

    def gradients(self, root: Any, *leaves: Any) -> None:
        self.torch.autograd.grad(root, leaves)

    def gradient(self, leaf: Any) -> list[float] | None:
        return leaf.grad.tolist() if leaf.grad is not None else None

    def values(self, tensor: Any) -> list[float]:
        return list(tensor.detach().reshape(-1).tolist())

    def below(self, node: Any) -> list[int | None]:
        return [id(other) if other is not None else None for other, _ in node.next_functions]

    def footprint(self) -> list[object]:
        mixin = importlib.import_module("torch.autograd.function")._HookMixin
        return [self.torch.autograd.Variable._execution_engine, vars(mixin)["_register_hook"]]


# ------------------------------------------------------------------ paddle


class PaddleWorld(World):
    name = "paddle"
    huge = 1e30
    names = {
        "scale": "ScaleGradNode", "tanh": "TanhGradNode", "custom": "GradNodePyLayer_Scaled", "sum": "SumGradNode",
    }  # fmt: skip

    def __init__(self) -> None:
        import paddle

        from adbg.engine.backends.paddle.backend import PaddleBackend

        super().__init__(PaddleBackend())
        self.paddle: Any = paddle

        class Scaled(paddle.autograd.PyLayer):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any, factor: float, inside: Callable[[], object]) -> Any:
                ctx.rest = factor, inside
                return x * factor

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                factor, inside = ctx.rest
                with paddle.enable_grad():
                    inside()
                return gradient * factor

        self.scaled = Scaled

    def leaf(self, values: Sequence[float]) -> Any:
        return self.paddle.to_tensor(values, dtype="float32", stop_gradient=False)

    def tensor(self, values: Sequence[float], shape: tuple[int, ...] | None = None) -> Any:
        made = self.paddle.to_tensor(values, dtype="float32")
        return made if shape is None else made.reshape(list(shape))

    def scale(self, x: Any, factor: float) -> Any:
        return self.paddle.scale(x, factor)

    def tanh(self, x: Any) -> Any:
        return self.paddle.tanh(x)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def split(self, x: Any) -> tuple[Any, Any]:
        first, second = self.paddle.split(x, 2)
        return first, second

    def total(self, x: Any) -> Any:
        return x.sum()

    def custom(self, x: Any, factor: float, inside: Callable[[], object] = lambda: None) -> Any:
        return self.scaled.apply(x, factor, inside)

    def backward(self, root: Any, retain: bool = False) -> None:
        root.backward(retain_graph=retain)

    def gradients(self, root: Any, *leaves: Any) -> None:
        self.paddle.grad([root], list(leaves))

    def gradient(self, leaf: Any) -> list[float] | None:
        return leaf.grad.tolist() if leaf.grad is not None else None

    def values(self, tensor: Any) -> list[float]:
        return [float(value) for value in tensor.numpy().reshape(-1)]

    def below(self, node: Any) -> list[int | None]:
        return [other.node_ptr() if other is not None else None for other in node.next_functions]

    def address(self, node: Any) -> int:
        return int(node.node_ptr())

    def footprint(self) -> list[object]:
        eager = self.paddle.base.core.eager
        layer = importlib.import_module("paddle.autograd.py_layer").PyLayerBackward
        return [eager.run_backward, eager.run_partial_grad, layer.backward, self.paddle.nn.Layer.__call__]


WORLDS: dict[str, Callable[[], World]] = {"fake": FakeWorld, "torch": TorchWorld, "paddle": PaddleWorld}
