"""The names that an expression sees (on the parked thread, or in an autograd hook that evaluates a condition).

Order: the node's names (grad_outputs, grad_inputs, saved, node, index, ctx of a custom Function) and helpers, then
locals and globals of the frame, then the framework's module, then builtins. A local that one of the first hides is
still there as ``locals()['index']``. Only names that an expression mentions are looked up, so that a condition costs
microseconds whatever the size of the frame.
"""

from __future__ import annotations

import builtins
import contextlib
import types
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import Backend, Graph, SavedValue
from adbg.engine.errors import CommandError
from adbg.engine.python.over import OverFrame
from adbg.engine.types import SourceLine

GRADIENT_NAMES = ("grad_outputs", "grad_inputs")
_DYNAMIC = frozenset({"eval", "exec", "vars", "dir"})  # see names that the text does not mention: they get all of them

FrameSource = types.FrameType | Callable[[], types.FrameType | None] | None


class Namespace:
    """Names for expressions at one place.

    Args:
        frame: whose locals and globals are seen; a callable is asked once, and only when a name needs it.
        names: values by name, made when the name is used; a CommandError from one reaches the user.
        values: helpers, by name.
        fallbacks: used where the frame has no such name.

    Attributes:
        forward: the line that made the node at hand, whose function's locals may be asked for in vain.
        over: in place of ``frame``, one that ended: names of its module are seen, and no others.
        mode: entered around the evaluation (grad mode on).
        text: how an echoed value is written.
    """

    def __init__(
        self,
        frame: FrameSource = None,
        names: Mapping[str, Callable[[], Any]] | None = None,
        values: Mapping[str, Any] | None = None,
        mode: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        text: Callable[[Any], str] = repr,
        fallbacks: Mapping[str, Any] | None = None,
    ) -> None:
        self._frame = frame
        self.names = dict(names or {})
        self.values = dict(values or {})
        self.fallbacks = dict(fallbacks or {})
        self.mode = mode
        self.text = text
        self.over: OverFrame | None = None
        self.forward: Callable[[], SourceLine | None] = lambda: None

    @property
    def frame(self) -> types.FrameType | None:
        if self._frame is not None and not isinstance(self._frame, types.FrameType):
            self._frame = self._frame()
        return self._frame

    def known(self) -> list[str]:
        """All names, for completion and closest matches."""
        return sorted({*self.own_names(), *dir(builtins)})

    def own_names(self) -> set[str]:
        """All names but the builtins."""
        found = {*self.names, *self.values, *self.fallbacks}
        if self.frame is not None:
            found.update(self.frame.f_locals, self.frame.f_globals)
        elif self.over is not None:
            found.update(self.over.globals())
        return found

    def before_the_frame(self) -> set[str]:
        """Names that are looked up before those of the frame."""
        return {*self.names, *self.values}

    def globals_for(self, used: Sequence[str]) -> dict[str, Any]:
        """A new dict with the values of ``used``, to be the globals of ``eval``: in it, comprehensions and lambdas see
        every name too (with a separate locals mapping they would not)."""
        if not _DYNAMIC.isdisjoint(used):
            return self.everything()
        frame_names: list[Mapping[str, Any]] = []
        found: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__"}
        for name in used:
            if name in self.names:
                found[name] = self.names[name]()
            elif name in self.values:
                found[name] = self.values[name]
            else:
                if not frame_names:
                    frame_names = self._frame_names()
                for mapping in frame_names:
                    if name in mapping:
                        found[name] = mapping[name]
                        break
        return found

    def everything(self) -> dict[str, Any]:
        """A new dict with all names; one that cannot be had here (grad_inputs before the node) is left out."""
        found: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__"}
        for mapping in reversed(self._frame_names()):
            found.update(mapping)
        found["__builtins__"] = builtins
        found.update(self.values)
        for name, make in self.names.items():
            with contextlib.suppress(CommandError):
                found[name] = make()
        return found

    def _frame_names(self) -> list[Mapping[str, Any]]:
        if self.over is not None:
            seen = self.over.globals()
            return [seen, {"locals": self.over.refuse_locals, "globals": lambda: seen, **_LEAVE}, self.fallbacks]
        frame = self.frame
        if frame is None:
            return [_LEAVE, self.fallbacks]
        local_names, global_names = frame.f_locals, frame.f_globals
        own = {"locals": lambda: dict(local_names), "globals": lambda: global_names, **_LEAVE}
        return [local_names, global_names, own, self.fallbacks]


def _leave(code: Any = None) -> None:
    raise SystemExit(code)


_LEAVE = {"exit": _leave, "quit": _leave}  # those of ``site`` would close the program's stdin


class SavedNames:
    """``saved`` in an expression: what the forward pass kept for the node, as a read-only mapping from name to value.

    ``saved.self``, ``saved['self']`` and, in the order of ``info node``, ``saved[0]``; ``keys()``, ``values()``,
    ``items()``, ``get()``, ``len(saved)``, ``'self' in saved``. Iteration gives names, as of any mapping. The tensors
    of a custom function are named ``saved_tensors[0]``, ``saved_tensors[1]``, ...: ``saved[0]`` is the short way. A
    tensor called as one of the methods is read by item. A value that must not be read raises, in a loop too.
    """

    def __init__(
        self,
        load: Callable[[], Sequence[SavedValue]],
        hidden: Callable[[], str] = lambda: "",
        shape_of: Callable[[Any], str] = lambda value: "",
    ) -> None:
        """Args: hidden: why the framework does not show what the node saved; "" where it does.
        shape_of: shape and dtype of a tensor in a phrase; "" of what is none."""
        self.__dict__.update(_load=load, _hidden=hidden, _shape_of=shape_of)

    def _all(self) -> dict[str, SavedValue]:
        return {value.name: value for value in self.__dict__["_load"]()}

    def __getitem__(self, name: str | int) -> Any:
        found = self._all()
        if not found and (why := self.__dict__["_hidden"]()):
            raise CommandError(f"what this node saved is not known: {why}")
        if isinstance(name, int):
            if not -len(found) <= name < len(found):
                raise CommandError(f"no saved[{name}]: this node saved {len(found)} values", _saved_hint(found))
            name = list(found)[name]
        if name not in found:
            raise CommandError(f"this node saved nothing named {name!r}", _saved_hint(found))
        value = found[name]
        if value.value is None and value.remark:
            raise CommandError(f"saved[{name!r}] is not read: {value.remark}")
        return value.value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python itself (copy, inspect) must see an ordinary object
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise CommandError(_SAVED_READ_ONLY, _SAVED_HINT)

    __setitem__ = __setattr__

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def keys(self) -> KeysView[str]:
        return self._all().keys()

    def values(self) -> list[Any]:
        return [self[name] for name in self._all()]

    def items(self) -> list[tuple[str, Any]]:
        return [(name, self[name]) for name in self._all()]

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self._all() else default

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __len__(self) -> int:
        return len(self._all())

    def __dir__(self) -> list[str]:
        return list(self._all())

    def __repr__(self) -> str:
        if why := self.__dict__["_hidden"]():
            return f"saved: not known: {why}"
        parts = []
        for place, (name, saved) in enumerate(self._all().items()):
            named = f"saved[{place}]" if name.startswith("saved_tensors[") else name
            shape = "" if saved.value is None else self.__dict__["_shape_of"](saved.value)
            parts.append(" ".join(part for part in (named, shape, f"({saved.remark})" if saved.remark else "") if part))
        return f"saved: {', '.join(parts) or 'nothing'}"


_SAVED_READ_ONLY = "saved tensors are read-only: the framework checks that they are unchanged"
_SAVED_HINT = "edit grad_outputs[i] before the node or grad_inputs[i] after it"


def _saved_hint(found: Mapping[str, SavedValue]) -> str:
    return f"saved here: {', '.join(found)}" if found else "this node saved nothing"


class NormHelper:
    """``norm(t)``, and on its own (``if norm > 1e-2``) the norm of grad_outputs[0]."""

    def __init__(self, function: Callable[[Any], Any], default: Callable[[], Any]) -> None:
        self._function = function
        self._default = default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __float__(self) -> float:
        return float(self._function(self._default()))

    def __eq__(self, other: object) -> bool:
        return float(self) == other

    def __lt__(self, other: Any) -> bool:
        return bool(float(self) < other)

    def __le__(self, other: Any) -> bool:
        return bool(float(self) <= other)

    def __gt__(self, other: Any) -> bool:
        return bool(float(self) > other)

    def __ge__(self, other: Any) -> bool:
        return bool(float(self) >= other)

    __hash__ = None  # type: ignore[assignment]

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)


def node_namespace(
    backend: Backend | None,
    graph: Graph | None,
    key: int | None,
    index: int,
    grad_outputs: Sequence[Any] | None,
    grad_inputs: Sequence[Any] | None,
    frame: FrameSource = None,
) -> Namespace:
    """Names at a node: grad_outputs, grad_inputs (None: it has not run yet), saved, node, index, helpers.

    ``key`` None: at no node (begin or end of a backward, a Python line); then the names say so.
    """

    def outputs() -> tuple[Any, ...]:
        if key is None or grad_outputs is None:
            raise CommandError("no grad_outputs here: the program is not at a node", "`step` goes to one")
        return tuple(grad_outputs)

    def inputs() -> tuple[Any, ...]:
        if key is None:
            raise CommandError("no grad_inputs here: the program is not at a node", "`step` goes to one")
        if grad_inputs is None:
            raise CommandError("no grad_inputs yet: the node has not run", "`after` runs it and stops after it")
        return tuple(grad_inputs)

    def shape_of(value: Any) -> str:
        shown = backend.meta(value) if backend is not None and backend.is_tensor(value) else None
        return f"{list(shown.shape)} {shown.dtype}" if shown is not None and shown.shape is not None else ""

    def of_graph(name: str, make: Callable[[Graph, int], Any]) -> Callable[[], Any]:
        def value() -> Any:
            if graph is None or key is None:
                raise CommandError(f"no {name} here: the program is not at a node", "`step` goes to one")
            return make(graph, key)

        return value

    names: dict[str, Callable[[], Any]] = {
        "grad_outputs": outputs,
        "grad_inputs": inputs,
        "saved": of_graph(
            "saved", lambda graph, key: SavedNames(lambda: graph.saved(key), lambda: graph.saved_hidden(key), shape_of)
        ),
        "node": of_graph("node", lambda graph, key: graph.node(key)),
        "index": lambda: index,
    }
    if key is None:  # no node: its names must not hide a user's variable of the same name
        names = {name: names[name] for name in GRADIENT_NAMES}
    elif graph is not None and graph.is_custom(key):
        names["ctx"] = of_graph("ctx", lambda graph, key: graph.context(key))
    if backend is None:
        return Namespace(frame, names)
    helpers = dict(backend.helpers())
    modules = {name: helpers.pop(name) for name in list(helpers) if isinstance(helpers[name], types.ModuleType)}
    if key is not None and "norm" in helpers:
        helpers["norm"] = NormHelper(helpers["norm"], lambda: outputs()[0])
    made = Namespace(frame, names, helpers, backend.user_mode, backend.text, modules)
    if graph is not None and key is not None:
        made.forward = lambda: graph.describe(key).forward
    return made
