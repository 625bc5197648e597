"""Every operator that the user's code calls on Paddle: functions stand in for those of ``paddle._C_ops`` and for the
methods of ``Tensor`` that come down to none (see ``timing/forward``, which times the same ones).

What a function of Paddle's calls is told one by one, with the user's line: ``F.mse_loss`` is the operators that it is
made of. Some are told as a whole, too (``composites``). Compilers (``to_static``) look at the functions that they meet:
before a compiled function is called all is taken out, and this program's operators are not told again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle.base.framework import EagerParamBase

from adbg.engine.backends.base import Need, OperatorCall, Tap, Watcher
from adbg.engine.backends.common.observing.operands import tensors_in
from adbg.engine.backends.common.observing.user_lines import UserLines
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native.handwritten import OPERATORS
from adbg.engine.backends.paddle.observing.composites import composite
from adbg.engine.backends.paddle.timing.forward import compilers, functions, like, methods
from adbg.engine.outside import suppress

#: Methods of ``Tensor`` beside those that ``timing`` knows: they cut, alias, overwrite or leave the graph, or compare.
_MORE = (
    "detach", "detach_", "numpy", "item", "tolist", "__float__", "__int__", "__bool__", "__array__", "copy_",
    "set_value", "_share_buffer_to", "__eq__", "__ne__", "equal", "not_equal", "logical_not", "__invert__",
    "__ge__", "__gt__", "__le__", "__lt__", "_use_gpudnn", "_new_shared_tensor",
)  # fmt: skip
_NAMES = {
    # Another tensor of the same node: pools of one size make one, and a recomputed region of what it is given.
    "_use_gpudnn": "assign",
    "_new_shared_tensor": "assign",
    "_setitem_dygraph": "__setitem__",
    "_getitem_dygraph": "__getitem__",
    "_getitem_from_offset": "__getitem__",
    "view_shape": "view",
}
_FACTS = frozenset({"contiguous"})
_INTO_PARAMETER = "_set_impl"  # what ``nn.Parameter(x)`` and ``EagerParamBase.from_tensor(x)`` come down to
_Place = tuple[Any, str, Any, Any]  # owner, name, original, ours


class _Inside(threading.local):
    depth = 0  # methods of _MORE that run: what they call is not told
    telling = False


class OperatorTap(Tap):
    need = Need.OPERATORS

    def __init__(self) -> None:
        self._lines = UserLines(paddle.__path__[0])
        self._places: list[_Place] = []
        self._wrapped: list[_Place] = []  # around what adbg's forward stacks stand in for, which come and go
        self._compilers: list[_Place] = []
        self._inside = _Inside()
        self.watcher: Watcher | None = None
        self.listeners: list[Callable[[OperatorCall], None]] = []  # told before the watcher: a recomputed region's pass
        self.thread = 0
        self.problem = ""

    def put_in(self, watcher: Watcher) -> None:
        if self.problem:
            return
        if not self._places:
            self._places = [(owner, name, was, _function(self, name, was)) for owner, name, was in functions()]
            self._places += [(owner, name, was, _method(self, name, was)) for owner, name, was in methods()]
            self._places += [(owner, name, was, _whole(self, name, was)) for owner, name, was in _more()]
            self._places += [(owner, name, was, _into_parameter(self, was)) for owner, name, was in _impl()]
            self._compilers = [(owner, name, was, _compiling(self, was)) for owner, name, was in compilers()]
        self._wrapped = [(owner, name, was, _function(self, name, was)) for owner, name, was in _handwritten()]
        for owner, name, original, ours in (*self._places, *self._wrapped, *self._compilers):
            if vars(owner).get(name) is original:  # what somebody else put there stays
                setattr(owner, name, ours)
        self.watcher = watcher
        self.thread = threading.get_ident()

    def take_out(self) -> None:
        self.watcher = None
        self.thread = 0
        for owner, name, original, ours in (*self._places, *self._wrapped, *self._compilers):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

    def compiles(self) -> None:
        self.problem = "operators are not seen where the program compiles functions (to_static)"
        self.take_out()

    # ---- on the program's threads

    def watched(self) -> Watcher | None:
        """Who is told of a call on this thread."""
        inside, watcher = self._inside, self.watcher
        return None if inside.depth or inside.telling or watcher is None or watcher.deaf else watcher

    def call(self, watcher: Watcher, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = tensors_in(paddle.Tensor, args)
        if kwargs:
            operands += tensors_in(paddle.Tensor, kwargs.values())
        versions = tuple([_version(each) for each in operands])
        grad_mode = private.has_grad()
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            told = OperatorCall(name, tuple(operands), versions, (), (), grad_mode, False, args, kwargs, error)
            self._tell(watcher, told)
            raise
        results = (result,) if isinstance(result, paddle.Tensor) else tuple(tensors_in(paddle.Tensor, (result,)))
        self._tell(watcher, OperatorCall(name, tuple(operands), versions, results, (), grad_mode, False, args, kwargs))
        return result

    def whole(self, watcher: Watcher, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inside = self._inside

        def run(*args: Any, **kwargs: Any) -> Any:
            inside.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                inside.depth -= 1

        return self.call(watcher, name, run, args, kwargs)

    def parameter_made(self, made: Any, data: Any) -> None:
        """Of a tensor with a graph: of any other one nothing is cut."""
        watcher = self.watched()
        if watcher is None or self.thread != threading.get_ident():
            return
        with suppress(Exception):
            if isinstance(made, EagerParamBase) and not data.stop_gradient and not data.is_leaf:
                call = OperatorCall("Parameter", (data,), (_version(data),), (made,), (), private.has_grad())
                call.arguments = (data,)
                self._tell(watcher, call)

    def _tell(self, watcher: Watcher, call: OperatorCall) -> None:
        self._inside.telling = True
        try:
            with suppress(Exception):
                frame = sys._getframe(3)
                call.lines = self._lines(frame)
                for each in self.listeners:
                    each(call)
                watcher.operator(call)
                whole = composite(call, frame)
                if whole is not None:
                    watcher.composite(whole)
        finally:
            self._inside.telling = False


def _version(value: Any) -> int | None:
    try:
        return int(value.inplace_version)
    except (AttributeError, RuntimeError, ValueError):
        return None


def _function(tap: OperatorTap, name: str, original: Callable[..., Any]) -> Any:
    told, ident = _NAMES.get(name, name), threading.get_ident
    if told in _FACTS:
        return original

    def operator(*args: Any, **kwargs: Any) -> Any:
        watcher = tap.watched()
        try:
            if watcher is None or tap.thread != ident():
                return original(*args, **kwargs)
            return tap.call(watcher, told, original, args, kwargs)
        except BaseException as error:
            strip_own(error)
            raise

    return like(operator, original)


def _method(tap: OperatorTap, name: str, original: Callable[..., Any]) -> Any:
    told, ident = _NAMES.get(name, name), threading.get_ident
    if told in _FACTS:
        return original

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher = tap.watched()
        try:
            if watcher is None or tap.thread != ident():
                return original(self, *args, **kwargs)
            return tap.call(watcher, told, original, (self, *args), kwargs)
        except BaseException as error:
            strip_own(error)
            raise

    return like(method, original)


def _whole(tap: OperatorTap, name: str, original: Callable[..., Any]) -> Any:
    ident = threading.get_ident

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher = tap.watched()
        try:
            if watcher is None or tap.thread != ident():
                return original(self, *args, **kwargs)
            return tap.whole(watcher, _NAMES.get(name, name), original, (self, *args), kwargs)
        except BaseException as error:
            strip_own(error)
            raise

    return like(method, original)


def _into_parameter(tap: OperatorTap, original: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
            if args:
                tap.parameter_made(self, args[0])
            return result
        except BaseException as error:
            strip_own(error)
            raise

    return like(method, original)


def _compiling(tap: OperatorTap, original: Callable[..., Any]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        tap.compiles()
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            strip_own(error)
            raise

    return like(call, original)


def _handwritten() -> Iterator[tuple[Any, str, Any]]:
    for module in (paddle._C_ops, paddle._legacy_C_ops):
        for name in OPERATORS:
            value = vars(module).get(name)
            if hasattr(value, "__wrapped__"):
                yield module, name, value


def _more() -> Iterator[tuple[Any, str, Any]]:
    for name in _MORE:
        value = vars(paddle.Tensor).get(name)
        if value is not None:
            yield paddle.Tensor, name, value


def _impl() -> Iterator[tuple[Any, str, Any]]:
    value = vars(paddle.Tensor).get(_INTO_PARAMETER)
    if value is not None:
        yield paddle.Tensor, _INTO_PARAMETER, value
