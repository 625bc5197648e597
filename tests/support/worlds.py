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
    large: ClassVar[float]  # the square of it overflows
    largest: ClassVar[float]  # two of it overflow when they are added
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
    def backward(self, root: Any, retain: bool = False, given: Any = None) -> None:
        """``given``: the gradient of the root, a ``tensor``; 1 unless given."""

    @abc.abstractmethod
    def gradients(self, root: Any, *leaves: Any, create_graph: bool = False) -> None:
        """Those of ``leaves`` alone, where they are not added to the leaves."""

    def tensor_hook(self, leaf: Any, change: Callable[[Any], Any]) -> None:
        """A hook of the framework's own that changes what the leaf is given ("tensor_hooks")."""
        raise NotImplementedError

    @abc.abstractmethod
    def gradient(self, leaf: Any) -> list[float] | None:
        """What the leaf has accumulated."""

    # ---- what not every framework has: ``LACKS``

    def wide(self, tensor: Any) -> Any:
        """It as f64 ("dtypes")."""
        raise NotImplementedError

    def records(self, tensor: Any) -> bool:
        """Whether the framework records what is done with it ("grad_modes")."""
        raise NotImplementedError

    def model(self) -> tuple[Callable[[Any], Any], Any]:
        """A module of which "inner", a module with the parameter "weight" of one element, multiplies by it and applies
        tanh; and that parameter ("modules")."""
        raise NotImplementedError

    def training(self, inside: Callable[[str], object]) -> Callable[[], object]:
        """A training step that takes a batch of the framework's own loader, runs a module in a module, backward, and
        an optimizer's step; ``inside`` is told in which it is. It gives the weight ("phases")."""
        raise NotImplementedError

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
        self.nodes: dict[int, Any] = {}

    @property
    def fake_graph(self) -> FakeGraph:
        """What is below it, for ``graph_of``."""
        graph = FakeGraph(())
        graph.nodes, graph.root_keys = self.nodes, [self.key]
        return graph


class FakeWorld(World):
    name = "fake"
    huge = 1e200
    large = 1e300
    largest = 1.7e308
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
        return self._handle(key, values, 0, shape)

    def _handle(self, key: int, values: Sequence[float], slot: int, shape: tuple[int, ...] | None = None) -> Handle:
        handle = Handle(key, values, slot, shape)
        handle.nodes = self.graph.nodes
        return handle

    def leaf(self, values: Sequence[float]) -> Handle:
        return self._handle(self.graph.leaf(f"p{len(self.graph.nodes)}"), values, 0)

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
        return self._handle(node.key, x.values[:half], 0), self._handle(node.key, x.values[half:], 1)

    def total(self, x: Handle) -> Handle:
        shape = x.shape
        values = [math.fsum(x.values)]
        return self._node("SumBackward0", [x], values, lambda b, g: [FakeTensor.full(shape, g[0].item())], shape=())

    def custom(self, x: Handle, factor: float, inside: Callable[[], object] = lambda: None) -> Handle:
        def back(_: Any, grads: Sequence[Any]) -> list[Any]:
            inside()
            return [grads[0] * factor]

        return self._node("Scaled", [x], [v * factor for v in x.values], back, custom=True)

    def backward(self, root: Handle, retain: bool = False, given: Any = None) -> None:
        assert isinstance(self.backend, FakeBackend)
        one = FakeTensor([1.0], ()) if given is None else given
        for name, gradient in self.backend.backward(root.fake_graph, one).items():
            before = self.leaves.get(name, [0.0] * gradient.numel())
            self.leaves[name] = [v + w for v, w in zip(before, gradient.values)]

    def gradients(self, root: Handle, *leaves: Handle, create_graph: bool = False) -> None:
        assert isinstance(self.backend, FakeBackend)
        one = FakeTensor([1.0], ())
        self.backend.backward(root.fake_graph, one, entry="grad", create_graph=create_graph)

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
    large = 1e38
    largest = 3e38
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

    def backward(self, root: Any, retain: bool = False, given: Any = None) -> None:
        root.backward(given, retain_graph=retain)

    def gradients(self, root: Any, *leaves: Any, create_graph: bool = False) -> None:
        self.torch.autograd.grad(root, leaves, create_graph=create_graph)

    def tensor_hook(self, leaf: Any, change: Callable[[Any], Any]) -> None:
        leaf.register_hook(change)

    def wide(self, tensor: Any) -> Any:
        return tensor.double()

    def records(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad)

    def model(self) -> tuple[Callable[[Any], Any], Any]:
        nn, torch = self.torch.nn, self.torch

        class Inner(nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.tensor([2.0]))

            def forward(self, x: Any) -> Any:
                return (x * self.weight).tanh()

        class Outer(nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            def forward(self, x: Any) -> Any:
                return self.inner(x)

        made = Outer()
        return made, made.inner.weight

    def gradient(self, leaf: Any) -> list[float] | None:
        return leaf.grad.tolist() if leaf.grad is not None else None

    def values(self, tensor: Any) -> list[float]:
        return list(tensor.detach().reshape(-1).tolist())

    def below(self, node: Any) -> list[int | None]:
        return [id(other) if other is not None else None for other, _ in node.next_functions]

    def training(self, inside: Callable[[str], object]) -> Callable[[], object]:
        torch, model = self.torch, self.model()[0]

        class Batches(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
            def __len__(self) -> int:
                return 100

            def __getitem__(self, place: int) -> Any:
                inside("data")
                return torch.tensor([0.5 + place])

        class Told(torch.optim.SGD):  # type: ignore[misc,name-defined]
            def step(self, closure: Any = None) -> Any:
                inside("optimizer")
                return super().step(closure)

        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)  # a step that calls another one with hooks
        model.register_forward_hook(lambda module, args, result: inside("forward"))
        loader, optimizer = iter(torch.utils.data.DataLoader(Batches())), Told(model.parameters(), lr=0.125)

        def step() -> object:
            batch = next(loader)
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            return model.inner.weight

        return step

    def footprint(self) -> list[object]:
        torch = self.torch
        mixin = importlib.import_module("torch.autograd.function")._HookMixin
        hooks = importlib.import_module("torch.optim.optimizer")
        iterator = importlib.import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        return [
            torch.autograd.Variable._execution_engine, vars(mixin)["_register_hook"], torch.nn.Module.__call__,
            iterator.__next__, *hooks._global_optimizer_pre_hooks.values(),
            *hooks._global_optimizer_post_hooks.values(),
        ]  # fmt: skip


# ------------------------------------------------------------------ paddle


class PaddleWorld(World):
    name = "paddle"
    huge = 1e30
    large = 1e38
    largest = 3e38
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

    def backward(self, root: Any, retain: bool = False, given: Any = None) -> None:
        root.backward(given, retain_graph=retain)

    def gradients(self, root: Any, *leaves: Any, create_graph: bool = False) -> None:
        self.paddle.grad([root], list(leaves), create_graph=create_graph)

    def tensor_hook(self, leaf: Any, change: Callable[[Any], Any]) -> None:
        leaf.register_hook(change)

    def wide(self, tensor: Any) -> Any:
        return tensor.astype("float64")

    def records(self, tensor: Any) -> bool:
        return not tensor.stop_gradient

    def model(self) -> tuple[Callable[[Any], Any], Any]:
        nn, paddle = self.paddle.nn, self.paddle

        class Inner(nn.Layer):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.weight = self.create_parameter([1])

            def forward(self, x: Any) -> Any:
                return paddle.tanh(x * self.weight)

        class Outer(nn.Layer):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = Inner()

            def forward(self, x: Any) -> Any:
                return self.inner(x)

        made = Outer()
        return made, made.inner.weight

    def gradient(self, leaf: Any) -> list[float] | None:
        return leaf.grad.tolist() if leaf.grad is not None else None

    def values(self, tensor: Any) -> list[float]:
        return [float(value) for value in tensor.numpy().reshape(-1)]

    def below(self, node: Any) -> list[int | None]:
        return [other.node_ptr() if other is not None else None for other in node.next_functions]

    def training(self, inside: Callable[[str], object]) -> Callable[[], object]:
        paddle = self.paddle
        paddle.seed(7)
        model = self.model()[0]

        class Batches(paddle.io.Dataset):  # type: ignore[misc,name-defined]
            def __len__(self) -> int:
                return 100

            def __getitem__(self, place: int) -> Any:
                inside("data")
                return paddle.to_tensor([0.5 + place]).numpy()

        class Told(paddle.optimizer.SGD):  # type: ignore[misc,name-defined]
            def _apply_optimize(self, *args: Any, **kwargs: Any) -> Any:
                inside("optimizer")
                return super()._apply_optimize(*args, **kwargs)

        model.register_forward_post_hook(lambda layer, inputs, result: inside("forward"))
        loader = iter(paddle.io.DataLoader(Batches(), use_buffer_reader=False))  # no batch ahead of its step
        optimizer = Told(0.125, parameters=model.parameters())

        def step() -> object:
            (batch,) = next(loader)
            optimizer.clear_grad()
            model(batch).sum().backward()
            optimizer.step()
            return model.inner.weight

        return step

    def address(self, node: Any) -> int:
        return int(node.node_ptr())

    def footprint(self) -> list[object]:
        eager = self.paddle.base.core.eager
        layer = importlib.import_module("paddle.autograd.py_layer").PyLayerBackward
        loaders = importlib.import_module("paddle.io.dataloader.dataloader_iter")
        steps = [vars(kind)[name] for kind in vars(self.paddle.optimizer).values() if isinstance(kind, type)
                 for name in ("step", "minimize") if name in vars(kind)]  # fmt: skip
        return [
            eager.run_backward, eager.run_partial_grad, layer.backward, self.paddle.nn.Layer.__call__, *steps,
            loaders._DataLoaderIterSingleProcess.__next__, loaders._DataLoaderIterMultiProcess.__next__,
        ]  # fmt: skip


WORLDS: dict[str, Callable[[], World]] = {"fake": FakeWorld, "torch": TorchWorld, "paddle": PaddleWorld}
