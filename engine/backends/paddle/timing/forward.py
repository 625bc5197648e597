"""How long the operators of a forward took on Paddle.

Paddle numbers no node and does not tell that it makes one, so the functions that make nodes are stood in for while a
forward is timed: those of ``paddle._C_ops`` (in Paddle's other modules too, which hold some of them under their own
name), the operators of ``Tensor`` and ``PyLayer.apply``. Behind a call the node of its result is asked for its address
(1 us). What a call makes besides (a cast of another type before it) is in its time. 1,895 names are put in
in 0.4 ms and taken out in as much. A program's own name for a function of Paddle's that asks ``_C_ops`` (``from paddle
import matmul``) is seen; a name for one of ``_C_ops`` itself is not.

Compilers (``to_static``) look at the functions that they meet: before a compiled function is called, all is taken out,
and such a program's forwards are not timed again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import paddle

from adbg.engine.backends.base import ForwardTimer, ForwardTimes, Graph
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.paddle import private
from adbg.engine.median import median
from adbg.engine.outside import own

_TENSOR = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__div__", "__truediv__", "__rdiv__",
    "__rtruediv__", "__pow__", "__rpow__", "__mod__", "__rmod__", "__matmul__", "__rmatmul__", "_getitem_dygraph",
    "_getitem_from_offset", "_setitem_dygraph", "clone", "contiguous", "_inplace_assign",
)  # fmt: skip
_HOLDERS = ("paddle.tensor", "paddle.nn.", "paddle.linalg", "paddle.special", "paddle.incubate.nn", "paddle.sparse")
_COMPILED = "the program compiles functions (to_static)"
_MOST = 200_000  # nodes of one forward
_Stamps = dict[int, tuple[int, str]]  # by address of the node: (ns, its name)


class PaddleForward(ForwardTimer):
    """Puts the functions in and takes them out."""

    def __init__(self) -> None:
        self._thread = 0  # that is timed now; 0: none
        self._stamps: _Stamps = {}
        self._places: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, ours), made once
        self._compilers: list[tuple[Any, str, Any, Any]] = []
        self._compiles = False
        self._cost = 0  # ns of a pair of stamps

    def begin(self) -> bool:
        if self._compiles:
            self.problem = _COMPILED
            return False
        self.problem = ""
        if not self._places:
            self._cost = _cost_of_stamps()
            self._places = [(owner, name, was, _timed(self, was)) for owner, name, was in functions()]
            self._places += [(owner, name, was, _timed_method(self, was)) for owner, name, was in methods()]
            layer = _layer(self)
            self._places += [layer] if layer is not None else []
            self._compilers = [(owner, name, was, _compiling(self, was)) for owner, name, was in compilers()]
        self._stamps = {}
        for owner, name, original, ours in (*self._places, *self._compilers):
            if vars(owner).get(name) is original:  # what somebody else put there stays
                setattr(owner, name, ours)
        self._thread = threading.get_ident()
        return True

    def end(self) -> ForwardTimes | None:
        if not self._thread:
            return None
        self._take_out()
        stamps, self._stamps = self._stamps, {}
        return PaddleTimes(stamps, self._cost) if not self.problem else None

    def abandon(self) -> None:
        self.end()

    def _take_out(self) -> None:
        self._thread = 0
        for owner, name, original, ours in (*self._places, *self._compilers):
            if vars(owner).get(name) is not ours:
                continue
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    # ---- on the program's threads

    def note(self, result: Any, ns: int) -> None:
        """A call on the thread that is timed gave ``result``."""
        try:
            tensor = _made(result)
            if tensor is None or not private.has_grad():
                return
            stamps = self._stamps
            if len(stamps) < _MOST:
                node = tensor.grad_fn
                if node is not None:
                    stamps[node.node_ptr()] = ns, node.name()
            else:
                self.problem = f"it made more than {_MOST:,} nodes"
        except own(Exception) as error:  # knowing less about a node is no reason to hurt the forward
            self.problem = f"{type(error).__name__}: {error}"

    def compiles(self) -> None:
        """A compiled function is about to run, on any thread."""
        self._compiles, self.problem = True, _COMPILED
        self._take_out()

    @property
    def thread(self) -> int:
        return self._thread


class PaddleTimes(ForwardTimes):
    def __init__(self, stamps: _Stamps, cost: int) -> None:
        self._stamps = stamps
        self._cost = cost

    def of(self, graph: Graph, key: int) -> float | None:
        node = graph.node(key)
        ns, name = self._stamps.get(graph.address(key), (0, ""))
        return max(ns - self._cost, 0) / 1000 if name and name == node.name() else None


def _made(result: Any) -> Any:
    """The first tensor in an operator's result that a node made."""
    if isinstance(result, paddle.Tensor):
        return result if not result.stop_gradient and not result.is_leaf else None
    if isinstance(result, (list, tuple)):
        return next((found for value in result if (found := _made(value)) is not None), None)
    return None


# ------------------------------------------------------------------ what stands in


def _timed(timer: PaddleForward, original: Callable[..., Any]) -> Any:
    note, ident, now = timer.note, threading.get_ident, perf_counter_ns

    def operator(*args: Any, **kwargs: Any) -> Any:
        if timer.thread != ident():
            return original(*args, **kwargs)
        try:
            begin = now()
            result = original(*args, **kwargs)
            end = now()
        except BaseException as error:
            strip_own(error)
            raise
        note(result, end - begin)
        return result

    return like(operator, original)


def _timed_method(timer: PaddleForward, original: Callable[..., Any]) -> Any:
    """An operation in place gives nothing back: the tensor itself is asked."""
    note, ident, now = timer.note, threading.get_ident, perf_counter_ns

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if timer.thread != ident():
            return original(self, *args, **kwargs)
        try:
            begin = now()
            result = original(self, *args, **kwargs)
            end = now()
        except BaseException as error:
            strip_own(error)
            raise
        note(result if result is not None else self, end - begin)
        return result

    return like(method, original)


def _layer(timer: PaddleForward) -> tuple[Any, str, Any, Any] | None:
    """``PyLayer.apply``, which the class has of its base."""
    layer = paddle.autograd.PyLayer
    if "apply" in vars(layer) or not hasattr(layer, "apply"):
        return None
    original = getattr(layer.apply, "__func__", None) or _inherited(layer, "apply")
    if original is None:
        return None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return timed(original.__get__(None, cls), *args, **kwargs)

    def called(bound: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    timed = _timed(timer, called)
    return layer, "apply", None, classmethod(like(apply, original))


def _inherited(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _compiling(timer: PaddleForward, original: Callable[..., Any]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer.compiles()
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            strip_own(error)
            raise

    return like(call, original)


def like(ours: Any, original: Any) -> Any:
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(original, name, None)
        if isinstance(value, str):
            setattr(ours, name, value)
    return ours


# ------------------------------------------------------------------ what is stood in for


def functions() -> Iterator[tuple[Any, str, Any]]:
    """(module, name, function): operators, and where Paddle's own modules hold them."""
    builtin = type(len)
    known: set[int] = set()
    for module in (paddle._C_ops, paddle._legacy_C_ops):
        for name, value in list(vars(module).items()):
            if isinstance(value, builtin) and not name.endswith("_grad"):
                known.add(id(value))
                yield module, name, value
    for title, module in list(sys.modules.items()):
        if title.startswith(_HOLDERS) and module is not None:
            for name, value in list(vars(module).items()):
                if isinstance(value, builtin) and id(value) in known:
                    yield module, name, value


def methods() -> Iterator[tuple[Any, str, Any]]:
    for name in _TENSOR:
        value = vars(paddle.Tensor).get(name)
        if value is not None and not hasattr(value, "__code__"):  # Python's own come down to one of ``_C_ops``
            yield paddle.Tensor, name, value


def compilers() -> Iterator[tuple[Any, str, Any]]:
    translator = sys.modules.get("paddle.jit.dy2static.program_translator")
    for kind in ("StaticFunction", "SymbolicStaticFunction", "ASTStaticFunction"):
        owner = getattr(translator, kind, None)
        for name in ("__call__", "get_concrete_program", "concrete_program_specify_input_spec"):
            value = vars(owner).get(name) if owner is not None else None
            if value is not None:
                yield owner, name, value


def _cost_of_stamps() -> int:
    now, taken = perf_counter_ns, []
    for _ in range(200):
        begin = now()
        taken.append(now() - begin)
    return int(median(taken))
