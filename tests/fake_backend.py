"""A backend without a framework: graphs of plain Python, run on whatever thread calls ``backward``.

It drives session, stepping, protocol and front ends in tests, and keeps the contract of ``backends/base.py``: hooks
lazily, reports nodes in torch's order (accumulate nodes first, then the latest recorded), sums fan-in, nests, edits,
fails.

    backend = FakeBackend()
    graph = FakeGraph.chain(5)                       # Mul/Add alternate; ends in AccumulateGrad of "w"
    result = backend.backward(graph)                 # {"w": FakeTensor}: edits at a stop are visible in it
    debuggee = FakeDebuggee(config, lambda b: b.backward(graph))   # the same behind a real agent and socket
"""

from __future__ import annotations

import array
import contextlib
import heapq
import itertools
import math
import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import (
    Backend,
    BackwardCall,
    Capabilities,
    DoctorLine,
    Graph,
    HookPlan,
    HookSink,
    Part,
    SavedValue,
)
from adbg.engine.backends.common.backend import NonFinite
from adbg.engine.backends.common.slices import resolve, to_two, written
from adbg.engine.errors import CommandError
from adbg.engine.types import Edge, NodeInfo, SourceLine, TensorMeta, TensorStats, TensorWindow, ValueState

Fn = Callable[["FakeBackend", tuple[Any, ...]], Sequence[Any]]


# ------------------------------------------------------------------ values


class FakeTensor:
    """Row-major floats and a shape. Arithmetic is elementwise, with numbers or equal shapes."""

    def __init__(self, values: Iterable[float], shape: tuple[int, ...] | None = None) -> None:
        self.values = [float(v) for v in values]
        self.shape = (len(self.values),) if shape is None else shape
        if math.prod(self.shape) != len(self.values):
            raise ValueError(f"{len(self.values)} values do not fill shape {self.shape}")

    @classmethod
    def full(cls, shape: tuple[int, ...], value: float) -> FakeTensor:
        return cls([value] * math.prod(shape), shape)

    def numel(self) -> int:
        return len(self.values)

    def clone(self) -> FakeTensor:
        return FakeTensor(self.values, self.shape)

    def item(self) -> float:
        (value,) = self.values
        return value

    def tolist(self) -> list[float]:
        return list(self.values)

    def sum(self) -> float:
        return math.fsum(self.values)

    def _with(self, other: Any, op: Callable[[float, float], float]) -> FakeTensor:
        if isinstance(other, FakeTensor):
            if other.shape != self.shape:
                raise ValueError(f"shapes {self.shape} and {other.shape} differ")
            return FakeTensor(map(op, self.values, other.values), self.shape)
        return FakeTensor((op(v, float(other)) for v in self.values), self.shape)

    def __add__(self, other: Any) -> FakeTensor:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> FakeTensor:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> FakeTensor:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> FakeTensor:
        return self._with(other, lambda a, b: a / b)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> FakeTensor:
        return self * -1

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> Any:
        row = math.prod(self.shape[1:])
        start = range(self.shape[0])[index] * row
        return (
            self.values[start] if len(self.shape) == 1 else FakeTensor(self.values[start : start + row], self.shape[1:])
        )

    def __setitem__(self, index: int, value: float) -> None:
        row = math.prod(self.shape[1:])
        start = range(self.shape[0])[index] * row
        self.values[start : start + row] = [float(value)] * row

    def __repr__(self) -> str:
        return f"FakeTensor({self.values[:6]}{'...' if len(self.values) > 6 else ''}, shape={self.shape})"


# ------------------------------------------------------------------ graphs


@dataclass(slots=True)
class FakeNode:
    """``fn(backend, grad_outputs)`` returns one gradient per edge. ``edges`` lead to the producers."""

    key: int
    name: str
    seq: int
    edges: list[Edge]
    fn: Fn
    inputs: int = 1
    module: str | None = None
    parameter: str | None = None
    stack: tuple[SourceLine, ...] = ()
    custom: bool = False
    compiled: bool = False
    saved: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    meta: tuple[TensorMeta, ...] = ()


class FakeGraph(Graph):
    """Nodes are added leaf first, as a forward pass records them; ``add`` names the producers that a node feeds."""

    def __init__(self, shape: tuple[int, ...] = (4,), note: str = "") -> None:
        self.shape = shape
        self.note = note
        self.nodes: dict[int, FakeNode] = {}
        self.root_keys: list[int] = []
        self._order: list[int] | None = None
        self._unique: dict[int, str] = {}

    def leaf(self, parameter: str, module: str | None = None) -> int:
        """An accumulate node of ``parameter``."""
        return self._put("AccumulateGrad", [], lambda backend, grads: (), parameter=parameter, module=module)

    def add(self, name: str, *feeds: int, fn: Fn | None = None, factor: float = 1.0, **facts: Any) -> int:
        """A node feeding ``feeds``. Without ``fn`` edges take grad_outputs[0] * factor. ``facts``: fields."""
        edges = [Edge(slot, to) for slot, to in enumerate(feeds)]
        return self._put(name, edges, fn or _scale(factor, len(feeds)), **facts)

    def _put(self, name: str, edges: list[Edge], fn: Fn, **facts: Any) -> int:
        key = len(self.nodes) + 1
        facts.setdefault(
            "meta", (TensorMeta(self.shape, "f32", "cpu", 4 * math.prod(self.shape), math.prod(self.shape)),)
        )
        self.nodes[key] = FakeNode(key, name, key, edges, fn, **facts)
        self.root_keys = [key]
        self._order = None
        return key

    @classmethod
    def chain(
        cls, n: int, factor: float = 1.0, shape: tuple[int, ...] = (4,), file: str = "/fake/model.py"
    ) -> FakeGraph:
        """``n`` nodes in a row, MulBackward0 (by ``factor``) and AddBackward0 alternating, over one leaf "w"."""
        graph = cls(shape)
        last = graph.leaf("w")
        for i in range(1, n + 1):
            mul = i % 2 == 1
            last = graph.add(
                "MulBackward0" if mul else "AddBackward0",
                last,
                factor=factor if mul else 1.0,
                module=f"layers.{i}",
                stack=(SourceLine(file, i, "forward"), SourceLine(file, 100, "train")),
                saved={"self": FakeTensor.full(shape, i)},
                attributes={"alpha": "1"},
            )
        return graph

    def count(self) -> int:
        return len(self.order())

    def order(self) -> Sequence[int]:
        if self._order is None:
            self._order = self._execution_order()
        return self._order

    def _execution_order(self) -> list[int]:
        """Ready nodes run accumulate nodes first, then by descending seq (torch's priority queue)."""
        reachable = self._reachable()
        waits = dict.fromkeys(reachable, 0)
        for key in reachable:
            for edge in self.nodes[key].edges:
                if edge.to is not None:
                    waits[edge.to] += 1
        ready = [self._rank(key) for key in dict.fromkeys(self.root_keys) if waits[key] == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            key = -heapq.heappop(ready)[1]
            order.append(key)
            for edge in self.nodes[key].edges:
                if edge.to is not None:
                    waits[edge.to] -= 1
                    if waits[edge.to] == 0:
                        heapq.heappush(ready, self._rank(edge.to))
        return order

    def _rank(self, key: int) -> tuple[int, int]:
        return (0 if self.nodes[key].name == "AccumulateGrad" else 1, -key)

    def _reachable(self) -> set[int]:
        seen: set[int] = set()
        work = list(self.root_keys)
        while work:
            key = work.pop()
            if key not in seen:
                seen.add(key)
                work += [e.to for e in self.nodes[key].edges if e.to is not None]
        return seen

    def roots(self) -> Sequence[int]:
        return self.root_keys

    def unique_name(self, key: int) -> str:
        if len(self._unique) != len(self.nodes):
            counts: dict[str, int] = {}
            for node in self.nodes.values():
                counts[node.name] = counts.get(node.name, 0) + 1
                self._unique[node.key] = f"{node.name}#{counts[node.name]}"
        return self._unique[key]

    def describe(self, key: int) -> NodeInfo:
        node = self.nodes[key]
        leaf = node.name == "AccumulateGrad"
        return NodeInfo(
            key=key,
            name=node.name,
            unique_name=self.unique_name(key),
            seq=None if leaf else node.seq,
            module=node.module,
            parameter=node.parameter,
            forward=node.stack[0] if node.stack else None,
            accumulate=leaf,
            compiled=node.compiled,
        )

    def name(self, key: int) -> str:
        return self.nodes[key].name

    def edges(self, key: int) -> Sequence[Edge]:
        return self.nodes[key].edges

    def saved(self, key: int) -> Sequence[SavedValue]:
        return [SavedValue(name, value) for name, value in self.nodes[key].saved.items()]

    def attributes(self, key: int) -> Mapping[str, str]:
        return self.nodes[key].attributes

    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        return self.nodes[key].meta

    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        stack = self.nodes[key].stack
        return stack, "" if stack else "made before stacks were on"

    def node(self, key: int) -> Any:
        return self.nodes[key]

    def is_custom(self, key: int) -> bool:
        return self.nodes[key].custom


_TOLD = "__fake_told__"


def _told(error: BaseException) -> bool:
    return bool(vars(error).get(_TOLD))


def _scale(factor: float, edges: int) -> Fn:
    return lambda backend, grads: [grads[0] * factor] * edges


# ------------------------------------------------------------------ one running call


class FakeCall(BackwardCall):
    """One run of a FakeGraph: what it answers is the graph's."""

    def __init__(
        self,
        backend: FakeBackend,
        graph: FakeGraph,
        number: int,
        parent: tuple[FakeCall, int] | None,
        entry: str,
        create_graph: bool = False,
    ) -> None:
        self.backend = backend
        self.graph = graph
        self.note = graph.note
        self.number = number
        self.thread = threading.get_ident()
        self.parent, self.parent_key = parent if parent else (None, None)
        self.depth = self.parent.depth + 1 if self.parent else 0
        self.entry = entry
        self.create_graph = create_graph
        self.root_names = tuple(graph.describe(key).name for key in graph.roots())
        self.location = SourceLine("/fake/train.py", 88, "<module>")
        self.hooked: dict[int, bool] = {}  # key -> report node_end too
        self.screen = False
        self.reported = False  # its begin, or that it was asked for
        self.current: int | None = None
        self.executed: set[int] = set()
        self.parts: dict[int, list[Part]] = {}
        self.failed: int | None = None

    def count(self) -> int:
        return self.graph.count()

    def order(self) -> Sequence[int]:
        return self.graph.order()

    def roots(self) -> Sequence[int]:
        return self.graph.roots()

    def describe(self, key: int) -> NodeInfo:
        return self.graph.describe(key)

    def name(self, key: int) -> str:
        return self.graph.name(key)

    def edges(self, key: int) -> Sequence[Edge]:
        return self.graph.edges(key)

    def saved(self, key: int) -> Sequence[SavedValue]:
        return self.graph.saved(key)

    def attributes(self, key: int) -> Mapping[str, str]:
        return self.graph.attributes(key)

    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        return self.graph.input_meta(key)

    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        return self.graph.forward_stack(key)

    def node(self, key: int) -> Any:
        return self.graph.node(key)

    def is_custom(self, key: int) -> bool:
        return self.graph.is_custom(key)

    def hook(self, plan: HookPlan) -> int:
        self.screen = self.screen or plan.screen
        verdicts = {name: plan.name(name) for name in self.graph.names()} if plan.name is not None else {}
        for index, key in enumerate(self.order(), 1):
            if key not in self.executed and self._taken(plan, verdicts, index, key):
                self.hooked[key] = self.hooked.get(key, False) or plan.post
        return len(self.hooked)

    def _taken(self, plan: HookPlan, verdicts: Mapping[str, bool], index: int, key: int) -> bool:
        node = self.graph.nodes[key]
        return bool(
            plan.every
            or index in plan.indices
            or verdicts.get(node.name)
            or (plan.info and plan.info(self.describe(key), node.stack))
        )

    def unhook(self) -> None:
        self.hooked.clear()
        self.screen = False

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        parts = self.parts.get(key, [])
        return (parts, "") if len(parts) > 1 else ((), "one consumer only: the gradient is not a sum")

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        return [(self.failed, "it raised")] if self.failed is not None else []

    def run(self, sink: HookSink | None, grads: Sequence[Any]) -> dict[str, Any]:
        """Execute; ``sink`` None: nothing is reported."""
        buffers: dict[int, list[Any]] = {}
        for key, grad in zip(self.roots(), grads):
            buffers[key] = [grad]
        leaves: dict[str, Any] = {}
        for key in self.order():
            incoming = tuple(buffers.pop(key, [None]))
            self.current = key
            try:
                outgoing, incoming = self._node(sink, key, incoming)
            except BaseException:
                self.failed = key
                raise
            parameter = self.graph.nodes[key].parameter
            if parameter is not None and incoming[0] is not None:
                leaves[parameter] = leaves[parameter] + incoming[0] if parameter in leaves else incoming[0]
            self._flow(buffers, key, outgoing)
        return leaves

    def _node(
        self, sink: HookSink | None, key: int, incoming: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        if sink is not None and (key in self.hooked or (self.screen and self._bad(incoming))):
            replaced = sink.node_begin(self, key, incoming)
            incoming = incoming if replaced is None else replaced
        outgoing = tuple(self.graph.nodes[key].fn(self.backend, incoming))
        self.executed.add(key)
        if sink is not None and (self.hooked.get(key) or (self.screen and self._bad(outgoing))):
            replaced = sink.node_end(self, key, outgoing, incoming)
            outgoing = outgoing if replaced is None else replaced
        return outgoing, incoming

    def _bad(self, grads: tuple[Any, ...]) -> bool:
        return any(g is not None and not math.isfinite(self.backend.norm(g)) for g in grads)

    def _flow(self, buffers: dict[int, list[Any]], key: int, outgoing: tuple[Any, ...]) -> None:
        for edge, grad in zip(self.graph.nodes[key].edges, outgoing):
            if edge.to is None:
                continue
            slots = buffers.setdefault(edge.to, [None] * self.graph.nodes[edge.to].inputs)
            if grad is not None:
                self.parts.setdefault(edge.to, []).append(Part(edge.to_slot, key, grad))
                slots[edge.to_slot] = grad if slots[edge.to_slot] is None else slots[edge.to_slot] + grad


# ------------------------------------------------------------------ the backend


class FakeBackend(Backend):
    """Runs FakeGraphs. ``backward`` is what a script calls; everything else is the contract of ``Backend``."""

    name = "fake"
    version = "1.0"
    capabilities = Capabilities(
        pre_hooks=True,
        post_hooks=True,
        edit_grad_outputs=True,
        edit_grad_inputs=True,
        saved_tensors=True,
        forward_stacks=True,
        module_paths=True,
        nested_backward=True,
        execution_order=True,
        contributions=True,
    )

    def __init__(self) -> None:
        self.sink: HookSink | None = None
        self.armed = False
        self.stacks = True
        self.calls_reported = 0
        self._numbers = itertools.count(1)
        self._count = 0
        self._iteration = 0
        self._local = threading.local()
        self._lock = threading.Lock()
        self.graphs: list[FakeGraph] = []  # of adbg.breakpoint(): every graph whose values are asked for

    def backward(
        self, graph: FakeGraph, *grads: Any, entry: str = "backward", create_graph: bool = False
    ) -> dict[str, Any]:
        """Run ``graph`` on this thread, roots fed with ``grads`` (default ones); leaf gradients by parameter name."""
        grads = grads or tuple(FakeTensor.full(graph.shape, 1.0) for _ in graph.roots())
        if getattr(self._local, "passing", 0):  # of an expression: neither counted nor reported
            return FakeCall(self, graph, 0, None, entry).run(None, grads)
        with self._lock:
            number = self._count = next(self._numbers)
            stack = self._stack()
            self._iteration += not stack
        parent = (stack[-1], stack[-1].current) if stack else None
        call = FakeCall(self, graph, number, parent, entry, create_graph)  # type: ignore[arg-type]
        sink = self.sink if self.armed else None
        if sink is not None:
            self.calls_reported += 1
            call.reported = True
            sink.backward_begin(call)
        stack.append(call)
        error: BaseException | None = None
        try:
            return call.run(sink, grads)
        except BaseException as raised:
            error = raised
            raise
        finally:
            stack.pop()
            if self.sink is not None and (call.reported or (isinstance(error, Exception) and not _told(error))):
                if error is not None:
                    vars(error)[_TOLD] = True
                self.sink.backward_end(call, error)
            call.unhook()

    def _stack(self) -> list[FakeCall]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[FakeCall] = self._local.stack
        return stack

    def nested(self, graph: FakeGraph) -> Fn:
        """A node function that runs a backward of ``graph`` and hands its "w" gradient on."""
        return lambda backend, grads: [backend.backward(graph, grads[0], entry="grad")["w"]]

    def install(self, sink: HookSink) -> None:
        self.sink = sink

    def uninstall(self) -> None:
        self.sink = None
        self.armed = False

    def arm(self, armed: bool) -> None:
        self.armed = armed

    @property
    def backward_count(self) -> int:
        return self._count

    @property
    def iteration(self) -> int:
        return self._iteration

    def set_stacks(self, on: bool) -> None:
        self.stacks = on

    def doctor(self) -> Sequence[DoctorLine]:
        off = [name for name in Capabilities.__dataclass_fields__ if not getattr(self.capabilities, name)]
        why = "a backend without a framework does not have it"
        return [DoctorLine("ok", "fake", "1.0"), *(DoctorLine("off", name.replace("_", " "), why) for name in off)]

    # ---- tensors

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, FakeTensor)

    def meta(self, value: Any) -> TensorMeta:
        if value is None:
            return TensorMeta(None, state=ValueState.UNDEFINED)
        return TensorMeta(value.shape, "f32", "cpu", 4 * value.numel(), value.numel())

    def feed_bits(self, value: Any, put: Callable[[memoryview], object]) -> None:
        for part in (value.values[:2], value.values[2:]):
            put(memoryview(array.array("f", part)).cast("B"))

    def stats(self, value: Any, exact: bool = False, bins: int = 16) -> TensorStats:
        values = value.values
        finite = [v for v in values if math.isfinite(v)]
        mean = math.fsum(finite) / len(finite) if finite else math.nan
        spread = math.fsum((v - mean) ** 2 for v in finite)
        low, high = (min(finite), max(finite)) if finite else (math.nan, math.nan)
        histogram = [0] * bins
        for v in finite:
            histogram[min(bins - 1, int((v - low) / ((high - low) or 1.0) * bins))] += 1
        return TensorStats(
            numel=len(values),
            sampled=None,
            min=low,
            max=high,
            mean=mean,
            std=math.sqrt(spread / (len(finite) - 1)) if len(finite) > 1 else math.nan,
            norm=math.sqrt(math.fsum(v * v for v in finite)),
            neg_inf=values.count(-math.inf),
            negative=sum(v < 0 for v in finite),
            zero=sum(v == 0 for v in finite),
            positive=sum(v > 0 for v in finite),
            pos_inf=values.count(math.inf),
            nan=sum(v != v for v in values),
            histogram=tuple(histogram),
        )

    def window(self, value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
        """The first ``rows`` x ``cols`` numbers of the slice, exact: nothing is reduced here."""
        indices = to_two(resolve(slice_text, value.shape))
        chosen = [range(*index.indices(1 << 62)) if isinstance(index, slice) else [index] for index in indices]
        strides = [math.prod(value.shape[dim + 1 :]) for dim in range(len(value.shape))]
        places = [sum(map(operator.mul, place, strides)) for place in itertools.product(*chosen)]
        shape = tuple(len(span) for span, index in zip(chosen, indices) if isinstance(index, slice))
        width = shape[-1] if shape else 1
        numbers = [value.values[place] for place in places]
        table = [tuple(numbers[i : i + width][:cols]) for i in range(0, len(numbers), max(1, width))][:rows]
        text = "[" + ", ".join(map(written, indices)) + "]"
        return TensorWindow(text, shape, tuple(table), "exact", (0, len(table)), (0, min(width, cols)))

    def norm(self, value: Any) -> float:
        return math.hypot(*value.values)

    def nonfinite(self, value: Any) -> tuple[int, int]:
        return sum(v != v for v in value.values), sum(math.isinf(v) for v in value.values)

    def adopt(self, old: Any, new: Any, where: str) -> Any:
        if old is None:
            raise CommandError(f"{where} is undefined: the engine refuses a value in its place", "edit a defined slot")
        if isinstance(new, (int, float)):
            return FakeTensor.full(old.shape, float(new))
        if not isinstance(new, FakeTensor):
            raise CommandError(f"{where}: a {type(new).__name__} is no tensor", "give a FakeTensor or a number")
        if new.shape != old.shape:
            raise CommandError(
                f"{where} has shape {list(old.shape)}, the new value {list(new.shape)}", "give the same shape"
            )
        return new.clone()

    def text(self, value: Any) -> str:
        return repr(value)

    def gradient_of(self, parameter: Any) -> Any:
        return None

    @contextlib.contextmanager
    def user_mode(self) -> Iterator[None]:
        self._local.passing = getattr(self._local, "passing", 0) + 1
        try:
            yield
        finally:
            self._local.passing -= 1

    def at_hand(self) -> tuple[BackwardCall, int | None] | None:
        stack = self._stack()
        if not stack or self.sink is None or getattr(self._local, "passing", 0):
            return None
        for call in stack:
            call.reported = True
        return stack[-1], stack[-1].current

    def helpers(self) -> Mapping[str, Any]:
        return {
            "norm": self.norm,
            "stats": self.stats,
            "nonfinite": lambda value: NonFinite(self.nonfinite(value)),
            "FakeTensor": FakeTensor,
            "fake": self,
        }

    def graph_of(self, values: Iterable[Any]) -> Graph | None:
        graphs = [v if isinstance(v, FakeGraph) else getattr(v, "fake_graph", None) for v in values]
        graphs = [graph for graph in graphs if graph is not None]
        return graphs[0] if graphs else None

    def memory(self) -> Mapping[str, float]:
        return {"rss": 1e6}

    def parameters(self) -> Iterable[tuple[str, Any]]:
        return (("w", FakeTensor.full((4,), 1.0)),)


# ------------------------------------------------------------------ a whole debuggee


class FakeDebuggee:
    """A program on a thread with a real agent in it, that dials ``config.socket`` as one launched by ``adbg run`` does.

    ``script(backend)`` starts once the client sent ``configurationDone``. ``join`` returns its result or raises its
    error.
    """

    def __init__(self, config: Any, script: Callable[[FakeBackend], Any]) -> None:
        self.config = config
        self.script = script
        self.backend = FakeBackend()
        self.agent: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._main, name="fake-program", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        from adbg.engine.agent import agent

        try:
            self.agent = agent.start(self.config, main=True, backends={"fake": lambda: self.backend})
            begun = time.perf_counter()
            self.result = self.script(self.backend)
            self.seconds = time.perf_counter() - begun
        except BaseException as error:
            self.error = error
        finally:
            if self.agent is not None:
                self.agent.close()

    def join(self, timeout: float = 20.0) -> Any:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the fake program did not end")
        if self.error is not None:
            raise self.error
        return self.result
