"""Which Layer a node was made in, and what parameters are called.

While names and stacks are on, ``Layer.__call__`` notes (path, addresses of the nodes of its inputs, of its outputs):
4 us a call. Which nodes lie between them is worked out when somebody asks, once per graph. Nothing here keeps a
Layer, a parameter or a node alive. The wrapper runs in the script's forward, on its threads; answers are given on
any thread.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.nn import Layer

from adbg.engine.backends.paddle_nodes import node_of

_MOST_CALLS = 50_000  # Layer calls remembered; a forward of more is named from its end


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a Layer that made nodes. A node is known by address and name, for addresses are used again."""

    path: str
    above: frozenset[int]  # where its inputs came from
    outputs: tuple[tuple[int, str], ...]


class _Inside(threading.local):
    """The Layers this thread is in, outermost first."""

    def __init__(self) -> None:
        self.layers: list[Any] = []


class Modules:
    """Layer paths and parameter names, learned while the script runs its Layers."""

    def __init__(self) -> None:
        self._inside = _Inside()
        self._calls: deque[LayerCall] = deque(maxlen=_MOST_CALLS)
        self._paths: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._roots: list[weakref.ref[Any]] = []
        self._original: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None
        self._scanned = False

    # ---- in the forward

    def watch(self) -> None:
        if self._ours is not None:
            return
        original = self._original = Layer.__call__
        inside, leave = self._inside, self._leave

        def __call__(self: Any, *inputs: Any, **kwargs: Any) -> Any:
            layers = inside.layers
            layers.append(self)
            try:
                result = original(self, *inputs, **kwargs)
            except BaseException:
                layers.pop()
                raise
            leave(self, inputs, kwargs, result)
            layers.pop()
            return result

        __call__.__doc__ = original.__doc__
        __call__.__qualname__ = original.__qualname__
        __call__.__module__ = original.__module__
        self._ours = __call__
        setattr(Layer, "__call__", __call__)  # noqa: B010  (typed as one function)

    def unwatch(self) -> None:
        """Paddle's own function back; where somebody wrapped ours meanwhile, ours goes on below it."""
        if self._ours is not None and Layer.__call__ is self._ours:
            setattr(Layer, "__call__", self._original)  # noqa: B010
        self._ours = None
        self.forget_calls()

    def forget_calls(self) -> None:
        """The graph was run backward and is gone: its addresses will be used again."""
        self._calls.clear()

    def _leave(self, layer: Any, inputs: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        try:
            outputs = tuple((node.node_ptr(), node.name()) for node in _nodes_of(result))
            if outputs:
                above = frozenset(node.node_ptr() for node in _nodes_of((inputs, tuple(kwargs.values()))))
                self._calls.append(LayerCall(self._path(layer), above, outputs))
        except Exception:  # a value that answers oddly: this call stays without a name
            return

    def _path(self, layer: Any) -> str:
        known = self._paths.get(id(layer))
        if known is None or known[0]() is not layer:
            self._learn(self._inside.layers[0] if self._inside.layers else layer)
            known = self._paths.get(id(layer))
            if known is None or known[0]() is not layer:  # made on the fly, no part of the outermost Layer
                known = self._paths[id(layer)] = (weakref.ref(layer), type(layer).__name__)
        return known[1]

    def _learn(self, root: Any) -> None:
        """Name everything below ``root``. A part that ran alone before gets its full path; nothing loses one."""
        try:
            for path, layer in root.named_sublayers(include_self=True):
                known = self._paths.get(id(layer))
                if known is None or known[0]() is not layer or path:
                    self._paths[id(layer)] = (weakref.ref(layer), path)
            for path, parameter in root.named_parameters():
                self._names[id(parameter)] = (weakref.ref(parameter), path)
        except Exception:  # a Layer with a property that raises: its nodes stay without a path
            return
        if not any(known() is root for known in self._roots):
            self._roots = [known for known in self._roots if known() is not None]
            self._roots.append(weakref.ref(root))
        if len(self._paths) > 20_000:
            self._paths = {key: entry for key, entry in self._paths.items() if entry[0]() is not None}
            self._names = {key: entry for key, entry in self._names.items() if entry[0]() is not None}

    # ---- answers

    def modules_of(
        self, addresses: dict[int, int], names: Sequence[str], producers: Sequence[Sequence[int]]
    ) -> dict[int, str]:
        """The innermost Layer of each node, by key: inner calls end first, and take what is between their outputs and
        their inputs."""
        found: dict[int, str] = {}
        for call in list(self._calls):
            todo = [addresses[at] for at, name in call.outputs if at in addresses and names[addresses[at]] == name]
            above = {addresses[at] for at in call.above if at in addresses}
            seen = set(todo)
            while todo:
                key = todo.pop()
                if key in above:
                    continue
                found.setdefault(key, call.path)
                for below in producers[key]:
                    if below not in seen:
                        seen.add(below)
                        todo.append(below)
        return found

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """(name, parameter), outermost Layers in the order in which they were seen."""
        self.refresh()
        for known in list(self._roots):
            root = known()
            if root is not None:
                yield from root.named_parameters()

    def refresh(self) -> None:
        """Parameters may have been added since, or no Layer was followed (stacks off)."""
        roots = [root for root in (known() for known in self._roots) if root is not None]
        if not roots and not self._scanned:
            self._scanned = True
            roots = _outermost_layers()
        for root in roots:
            self._learn(root)


def _nodes_of(value: Any, depth: int = 0) -> Iterable[Any]:
    """The nodes of the tensors in a value: a tensor, or containers of them."""
    if isinstance(value, paddle.Tensor):
        node = node_of(value)
        if node is not None:
            yield node
    elif depth < 4 and isinstance(value, (tuple, list)):
        for item in value:
            yield from _nodes_of(item, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from _nodes_of(item, depth + 1)


def _outermost_layers() -> list[Any]:
    """Layers that are part of no other, found through the garbage collector (some 50 ms in a large process)."""
    layers = [value for value in gc.get_objects() if issubclass(type(value), Layer)]
    inner = {id(child) for layer in layers for child in layer.children()}
    return [layer for layer in layers if id(layer) not in inner and any(True for _ in layer.parameters())]
