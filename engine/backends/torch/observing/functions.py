"""Custom functions on torch: ``autograd.Function.apply``, and the backward of its nodes."""

from __future__ import annotations

import contextlib
import math
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from adbg.engine.backends.base import FunctionCall, Need, Tap, Watcher
from adbg.engine.backends.common.observing.derivatives import (
    DerivativeProbe,
    numpy_filled,
)
from adbg.engine.backends.common.observing.stand_ins import of_class
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.observing.random_numbers import random_kept, seed_all
from adbg.engine.backends.torch.observing.stand_ins import TorchStandIns
from adbg.engine.outside import suppress

_Function: Any = torch.autograd.Function
_deterministic: Any = torch.utils.deterministic
_Node: Any = torch.autograd.function.BackwardCFunction
_transforming: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


class FunctionsTap(Tap):
    need = Need.FUNCTIONS

    def __init__(self, frames: FrameFilter) -> None:
        self._frames = frames
        self._stand_ins = TorchStandIns()
        self._watcher: Watcher | None = None
        self._probe = TorchProbe(apply_now())

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._probe = TorchProbe(apply_now())
        self._stand_ins.put(_Function, "apply", self._begins, self._ended)
        self._stand_ins.put(_Node, "apply", self._backward_begins, self._backward_ended)
        self._stand_ins.put(_Node, "apply_boxed", self._boxed_begins, self._backward_ended)  # from torch 2.14 on

    def take_out(self) -> None:
        self._watcher = None
        self._stand_ins.restore()

    def _is_users(self, function: type) -> bool:
        backward = getattr(function, "backward", None)
        code = getattr(getattr(backward, "__wrapped__", backward), "__code__", None)  # once_differentiable wraps
        return code is not None and self._frames.user_file(code.co_filename) is not None

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> FunctionCall | None:
        function = args[0]
        if self._probe.running or not self._is_users(function) or _transforming():
            return None
        versions = tuple([_version(each) for each in args[1:]])
        return FunctionCall(
            "forward",
            function,
            None,
            args[1:],
            kwargs,
            None,
            self._frames.live_line(frame),
            None,
            versions,
            self._probe,
        )

    def _ended(self, call: FunctionCall, result: Any, error: BaseException | None) -> None:
        call.results, call.error = result, error
        results = result if isinstance(result, (tuple, list)) else (result,)
        for each in results:
            node = private.attribute_grad_fn(each) if isinstance(each, torch.Tensor) else None
            if getattr(type(node), "_forward_cls", None) is call.function:
                call.context = node
                break
        self._tell(call)

    def _backward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        function = getattr(args[0], "_forward_cls", None)
        if self._probe.running or function is None or not self._is_users(function):
            return None
        versions = tuple([_version(each) for each in args[1:]])
        return FunctionCall("backward", function, args[0], args[1:], {}, None, None, None, versions)

    def _boxed_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        """Of a function that is given its gradients in a list, which it may empty: they are not kept for it."""
        return self._backward_begins(args[:1], kwargs, frame)

    def _backward_ended(self, call: FunctionCall, result: Any, error: BaseException | None) -> None:
        call.results, call.error = result, error
        self._tell(call)

    def _tell(self, call: FunctionCall) -> None:
        if self._watcher is not None:
            with private.undisturbed():
                self._watcher.function(call)


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def apply_now() -> Callable[..., Any]:
    """``Function.apply``, given the function first: torch's own, where nothing stands in for it now."""
    method = vars(_Function)["apply"]
    return of_class(method) or method.__func__


class TorchProbe(DerivativeProbe):
    def sample(self, call: FunctionCall) -> Any:
        if any(private.is_wrapper(each) for each in call.arguments):  # a copy would be an operator of its class
            return None
        return super().sample(call)

    def copied(self, value: Any) -> Any:
        with private.undisturbed():  # no mode of the program's sees a copy
            return value.detach().clone()

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def is_float(self, value: Any) -> bool:
        return bool(value.is_floating_point())

    def needs_gradient(self, value: Any) -> bool:
        return bool(value.requires_grad)

    def size(self, value: Any) -> int:
        return int(value.numel())

    def shape(self, value: Any) -> tuple[int, ...]:
        return tuple(value.shape)

    def widened(self, value: Any) -> Any:
        return value.double()

    def is_double(self, value: Any) -> bool:
        return bool(value.dtype == torch.float64)

    def random_like(self, value: Any, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        made = torch.randn(tuple(value.shape), generator=generator, dtype=torch.float64)
        return made.to(value.device, torch.float64)

    def unit_like(self, value: Any, place: int) -> Any:
        unit = torch.zeros(value.numel(), dtype=torch.float64, device=value.device)
        unit[place] = 1
        return unit.reshape(value.shape)

    def moved(self, value: Any, direction: Any, by: float) -> Any:
        return (value.detach().double() + direction * by).to(value.dtype)

    def dot(self, one: Any, other: Any) -> float:
        return float((one.detach().double() * other.double()).sum().item())

    def equal(self, one: Any, other: Any) -> bool:
        return one.shape == other.shape and bool(torch.equal(one.detach().double(), other.detach().double()))

    def finite(self, value: Any) -> bool:
        return bool(torch.isfinite(value.detach()).all().item())

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        self.running = True
        try:
            with private.undisturbed(), random_kept(), warnings.catch_warnings(), torch.enable_grad():
                warnings.simplefilter("ignore")
                yield
        finally:
            self.running = False

    @contextlib.contextmanager
    def repeatable(self) -> Iterator[None]:
        seed_all(5)
        yield

    @contextlib.contextmanager
    def filled(self, value: float) -> Iterator[None]:
        with numpy_filled(value), _memory_of_nan() if math.isnan(value) else _memory_of(value):
            yield

    def gradients(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        factor: float = 1.0,
    ) -> tuple[list[Any], list[Any]]:  # fmt: skip
        leaves = [each.detach().clone().requires_grad_(n in needed) if self.is_tensor(each) and self.is_float(each)
                  else each for n, each in enumerate(values)]  # fmt: skip
        # Not the leaves themselves: a function may change what it is given in place.
        outputs = run([each.clone() if n in needed else each for n, each in enumerate(leaves)])
        roots = [each for each in outputs if each.requires_grad]
        if not roots:
            return outputs, [None] * len(needed)
        weights = [
            (self.random_like(each, seed + n) * factor).to(each.dtype)
            for n, each in enumerate(outputs)
            if each.requires_grad
        ]
        found = torch.autograd.grad(roots, [leaves[n] for n in needed], weights, allow_unused=True)
        return outputs, list(found)

    def again(
        self, run: Callable[[list[Any]], list[Any]], values: list[Any], needed: list[int], seed: int,
        directions: Sequence[Any],
    ) -> list[Any]:  # fmt: skip
        leaves = [each.detach().clone().requires_grad_(n in needed) if self.is_tensor(each) and self.is_float(each)
                  else each for n, each in enumerate(values)]  # fmt: skip
        outputs = run([each.clone() if n in needed else each for n, each in enumerate(leaves)])
        roots = [(each, self.random_like(each, seed + n).to(each.dtype)) for n, each in enumerate(outputs)]
        roots = [each for each in roots if each[0].requires_grad]
        wanted = [leaves[n] for n in needed]
        first = torch.autograd.grad(
            [each for each, _ in roots], wanted, [weight for _, weight in roots], allow_unused=True, create_graph=True
        )
        sums = [(one * way.to(one.dtype)).sum() for one, way in zip(first, directions) if one is not None]
        sums = [each for each in sums if each.requires_grad]
        return list(torch.autograd.grad(sums, wanted, allow_unused=True)) if sums else [None] * len(needed)


@contextlib.contextmanager
def _memory_of_nan() -> Iterator[None]:
    """torch's own way, which C++ takes too."""
    was, only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    _deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        _deterministic.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(was, warn_only=only)


def _memory_of(value: float) -> contextlib.AbstractContextManager[Any]:
    """By whatever name the program makes it, C++ too: a stand-in of ``torch.empty`` is not what a program calls that
    bound the name before, whose memory may then be what was filled with NaN a moment ago."""
    from torch.utils._python_dispatch import TorchDispatchMode  # there once torch is

    aten = torch.ops.aten
    fresh = {
        aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.empty_permuted.default,
        aten.new_empty.default, aten.new_empty_strided.default, aten.resize_.default,
    }  # fmt: skip

    class Filled(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = args[0].numel() if func is aten.resize_.default else 0
            made = func(*args, **(kwargs or {}))
            if func in fresh and made.is_floating_point():
                with suppress(RuntimeError):  # a layout without elements of its own
                    filled = made.as_strided((made.numel(),), (1,), made.storage_offset())[before:] if before else made
                    filled.fill_(value)
            return made

    return Filled()  # type: ignore[no-untyped-call]
