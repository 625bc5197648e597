"""Custom functions on Paddle: ``PyLayer.apply``, which is a method of C++, and the backward of their nodes."""

from __future__ import annotations

import contextlib
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.autograd import py_layer

from adbg.engine.backends.base import FunctionCall, Need, Tap, Watcher
from adbg.engine.backends.common.observing.derivatives import (
    DerivativeProbe,
    filling,
    numpy_filled,
    standing_in,
)
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.random_numbers import random_kept, seeded
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle import private, tensors

_PyLayer: Any = py_layer.PyLayer
_Context: Any = py_layer.PyLayerBackward


class FunctionsTap(Tap):
    need = Need.FUNCTIONS

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._stand_ins = StandIns(lambda: False)
        self._watcher: Watcher | None = None
        self._probe = PaddleProbe(_plain_apply)
        self._added = False
        self._begun: Any = None
        self._making = threading.local()  # .calls: those whose forward runs on this thread

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        if "apply" not in vars(_PyLayer):  # it is inherited
            self._added = True
            _PyLayer.apply = classmethod(_plain_apply)
        self._stand_ins.put(_PyLayer, "apply", self._begins, self._ended)
        if "__init__" not in vars(_Context):  # that of an apply is made in C++, and handed to forward only
            self._begun = _Context.__init__ = self._context_made()
        self._stand_ins.put(_Context, "backward", self._backward_begins, self._backward_ended)

    def take_out(self) -> None:
        self._watcher = None
        self._stand_ins.restore()
        own = vars(_PyLayer).get("apply")
        if self._added and getattr(own, "__func__", None) is _plain_apply:
            del _PyLayer.apply
        if self._begun is not None and vars(_Context).get("__init__") is self._begun:
            del _Context.__init__
        self._begun = None
        self._added = False

    def _is_users(self, function: type) -> bool:
        code = getattr(getattr(function, "backward", None), "__code__", None)
        return code is not None and self._frames.user_file(code.co_filename) is not None

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> FunctionCall | None:
        function = args[0]
        if self._probe.running or not self._is_users(function) or not paddle.in_dynamic_mode():
            return None
        versions = tuple([_version(each) for each in args[1:]])
        line = self._frames.live_line(frame)
        call = FunctionCall("forward", function, None, args[1:], kwargs, None, line, None, versions, self._probe)
        self._calls().append(call)
        return call

    def _calls(self) -> list[FunctionCall]:
        calls: list[FunctionCall] | None = getattr(self._making, "calls", None)
        if calls is None:
            calls = self._making.calls = []
        return calls

    def _context_made(self) -> Callable[..., None]:
        plain, calls_of = _Context.__init__, self._calls

        def begun(context: Any, *args: Any, **kwargs: Any) -> None:
            plain(context, *args, **kwargs)
            calls = calls_of()
            if calls and getattr(context, "_forward_cls", None) is calls[-1].function:
                calls[-1].context = context

        return begun

    def _ended(self, call: FunctionCall, result: Any, error: BaseException | None) -> None:
        calls = self._calls()
        while calls and calls.pop() is not call:
            pass
        call.results, call.error = result, error
        self._tell(call)

    def _backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        function = getattr(args[0], "_forward_cls", None)
        if self._probe.running or function is None or not self._is_users(function):
            return None
        versions = tuple([_version(each) for each in args[1:]])
        return FunctionCall("backward", function, args[0], args[1:], {}, None, None, None, versions)

    def _backward_ended(self, call: FunctionCall, result: Any, error: BaseException | None) -> None:
        call.results, call.error = result, error
        self._tell(call)

    def _tell(self, call: FunctionCall) -> None:
        if self._watcher is not None:
            recorded = private.has_grad()
            private.set_has_grad(False)
            try:
                self._watcher.function(call)
            finally:
                private.set_has_grad(recorded)


def _version(value: Any) -> int | None:
    return value.inplace_version if tensors.is_tensor(value) else None


def _plain_apply(function: type, *args: Any, **kwargs: Any) -> Any:
    return super(_PyLayer, function).apply(*args, **kwargs)


class PaddleProbe(DerivativeProbe):
    def copied(self, value: Any) -> Any:
        return value.detach().clone()

    def is_tensor(self, value: Any) -> bool:
        return tensors.is_tensor(value)

    def is_float(self, value: Any) -> bool:
        return bool(value.dtype in (paddle.float16, paddle.bfloat16, paddle.float32, paddle.float64))

    def needs_gradient(self, value: Any) -> bool:
        return not value.stop_gradient

    def size(self, value: Any) -> int:
        return int(np.prod(value.shape, dtype=np.int64))

    def shape(self, value: Any) -> tuple[int, ...]:
        return tuple(value.shape)

    def widened(self, value: Any) -> Any:
        return value.astype("float64")

    def is_double(self, value: Any) -> bool:
        return bool(value.dtype == paddle.float64)

    def random_like(self, value: Any, seed: int) -> Any:
        return paddle.to_tensor(np.asarray(np.random.RandomState(seed).standard_normal(tuple(value.shape))), "float64")

    def unit_like(self, value: Any, place: int) -> Any:
        unit = np.zeros(self.size(value))
        unit[place] = 1
        return paddle.to_tensor(unit.reshape(tuple(value.shape)), "float64")

    def moved(self, value: Any, direction: Any, by: float) -> Any:
        return (value.detach().astype("float64") + direction * by).astype(value.dtype)

    def dot(self, one: Any, other: Any) -> float:
        return float((one.detach().astype("float64") * other.astype("float64")).sum().item())

    def equal(self, one: Any, other: Any) -> bool:
        return list(one.shape) == list(other.shape) and bool(
            np.array_equal(one.detach().numpy(), other.detach().numpy())
        )

    def finite(self, value: Any) -> bool:
        return bool(np.isfinite(value.detach().astype("float64").numpy()).all())

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        state = paddle.get_rng_state()
        self.running = True
        try:
            with random_kept(), warnings.catch_warnings(), paddle.enable_grad():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.running = False
            paddle.set_rng_state(state)

    @contextlib.contextmanager
    def repeatable(self) -> Iterator[None]:
        state = getattr(self, "_state", None)
        if state is None:
            self._state = state = paddle.get_rng_state()
        paddle.set_rng_state(state)
        seeded(5)
        yield

    @contextlib.contextmanager
    def filled(self, value: float) -> Iterator[None]:
        def fill(made: Any) -> None:
            if self.is_float(made):
                paddle.assign(paddle.full_like(made, value), made)  # fill_ takes no NaN

        # What every way leads to: paddle.empty, however it was imported, empty_like, new_empty.
        core = paddle._C_ops
        with (
            standing_in(*[(core, name, filling(getattr(core, name), fill)) for name in ("empty", "empty_like")]),
            numpy_filled(value),
        ):
            yield

    def gradients(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        factor: float = 1.0,
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        leaves = []
        for place, each in enumerate(values):
            if self.is_tensor(each) and self.is_float(each):
                each = each.detach().clone()
                each.stop_gradient = place not in needed
            leaves.append(each)
        outputs = _run(run, leaves, needed)
        roots = [
            (each, (self.random_like(each, seed + n) * factor).astype(each.dtype))
            for n, each in enumerate(outputs)
            if not each.stop_gradient
        ]
        if not roots:
            return outputs, [None] * len(needed)
        paddle.autograd.backward([each for each, _ in roots], [weight for _, weight in roots])
        return outputs, [leaves[n].grad for n in needed]

    def again(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        directions: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        leaves = [each.detach().clone() if self.is_tensor(each) and self.is_float(each) else each for each in values]
        wanted = [leaves[n] for n in needed]
        for each in wanted:
            each.stop_gradient = False
        outputs = _run(run, leaves, needed)
        roots = [(each, self.random_like(each, seed + n).astype(each.dtype)) for n, each in enumerate(outputs)]
        roots = [each for each in roots if not each[0].stop_gradient]
        first = paddle.grad(
            [each for each, _ in roots], wanted, [weight for _, weight in roots], create_graph=True, allow_unused=True
        )
        sums = [(one * way.astype(one.dtype)).sum() for one, way in zip(first, directions) if one is not None]
        sums = [each for each in sums if not each.stop_gradient]
        return list(paddle.grad(sums, wanted, allow_unused=True)) if sums else [None] * len(needed)


def _run(run: Callable[[list[Any]], list[Any]], leaves: list[Any], needed: list[int]) -> list[Any]:
    """With the leaves themselves: a backward that gives None to an operator's node makes Paddle fail, or die. Of a
    function that returns what it is given, which Paddle takes as one that works in place, with what is made of them."""
    try:
        return run(leaves)
    except ValueError as error:
        if "inplace strategy" not in str(error):
            raise
        return run([each * 1 if place in needed else each for place, each in enumerate(leaves)])
