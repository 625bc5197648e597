"""Forward stacks of the nodes that Paddle gives none: those of operators written by hand in C++.

At call stack level 3 every operator that Paddle generates keeps its stack on its node. conv2d (conv1d too, and so all
of a ResNet), add_n and compiled programs (``to_static``) have code of their own, which forgets it. While stacks are on,
these operators are wrapped: what Paddle was told of the call is put where all other nodes have it, by the assignment of
libstdc++, into the node's own string, which is freed with it. 2 us a call of these operators, nothing for others.

Runs on the threads of the forward; put in and taken out on any thread. An operator is called as before in every case.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle

from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.texts import GIVEN, StackTexts
from adbg.engine.frames import locals_of
from adbg.engine.outside import own

#: paddle/fluid/eager/api/manual and to_static: their nodes have no forward_trace_ in 3.3.1. Where one has, it is kept.
OPERATORS = (
    "conv2d", "add_n", "run_program", "_run_custom_op", "sync_batch_norm_", "reshard", "fused_attention",
    "fused_feedforward", "fused_gate_attention", "fused_gemm_epilogue", "fused_bias_dropout_residual_layer_norm",
)  # fmt: skip
#: Of these the extension does not see which function was compiled.
COMPILED = ("run_program",)
ASSIGN = "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_replaceEmmPKcm"
_STATIC = os.path.join("dy2static", "program_translator.py")
_USE = PrivateUse("libstdc++ string::_M_replace", "forward stacks of conv2d, add_n and compiled programs", True)
private.USES.append(_USE)


class Handwritten:
    """The wrapped operators."""

    def __init__(self, texts: StackTexts) -> None:
        self._texts = texts
        self._put: list[tuple[Any, str, Any, Any]] = []  # (module, name, original, ours)

    def put_in(self, operators: Sequence[str] = OPERATORS) -> None:
        if self._put:
            return
        for module in (paddle._C_ops, paddle._legacy_C_ops):
            for name in operators:
                original = getattr(module, name, None)
                if original is not None:
                    ours = self._wrapped(original)
                    setattr(module, name, ours)
                    self._put.append((module, name, original, ours))

    def take_out(self) -> None:
        """Paddle's own back; where somebody wrapped ours meanwhile, ours stays below it and only passes on."""
        for module, name, original, ours in self._put:
            if getattr(module, name, None) is ours:
                setattr(module, name, original)
        self._put = []

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        number = self._texts.number

        @functools.wraps(original)
        def operator(*args: Any, **kwargs: Any) -> Any:
            before = number()
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                strip_own(error)
                raise
            if self._put:
                try:
                    self._tell(args, result, before, sys._getframe(1))
                except own(Exception):  # knowing less about a node is no reason to hurt the forward
                    return result
            return result

        return operator

    def _tell(self, args: tuple[Any, ...], result: Any, before: int, caller: types.FrameType) -> None:
        """Give the node of ``result`` its stack, if it has none. What was handed through has a node of somebody
        else's."""
        given = {id(tensor) for tensor in _made(args)}
        tensor = next((tensor for tensor in _made(result) if id(tensor) not in given), None)
        native = symbols.native() if tensor is not None else None
        replace = _replace() if native is not None else None
        if native is None or replace is None:
            return
        address = native.leaf_node(tensor)
        if not address or native.trace_end(address, 1):
            return
        if self._texts.number() != before:  # Paddle did ask, and forgot the answer
            text = self._texts.latest()
        else:
            text = self._texts.of(caller, _region(caller))
        native.give_trace(address, (GIVEN + text).encode("utf-8", "replace"), replace)


def _made(result: Any) -> Iterator[Any]:
    """The tensors in an operator's result that a node made."""
    for value in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(value, (list, tuple)):
            yield from _made(value)
        elif isinstance(value, paddle.Tensor) and not value.stop_gradient and not value.is_leaf:
            yield value


def _region(frame: types.FrameType | None) -> str:
    """The function that a compiled program was made of, as the innermost line of its stack (as torch has it, where the
    compiled function has a frame of its own); "" where that is not known."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_STATIC):
            static = locals_of(frame).get("self")
            function = getattr(static, "dygraph_function", None) or getattr(static, "_dygraph_function", None)
            code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
            if code is not None:
                return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}\n'
        frame = frame.f_back
    return ""


@functools.cache
def _replace() -> Callable[[int, int, int, bytes, int], object] | None:
    """libstdc++'s own; None where it is not there."""
    try:
        replace: Any = getattr(ctypes.PyDLL("libstdc++.so.6"), ASSIGN)
    except (OSError, AttributeError) as error:
        _USE.present, _USE.problem = False, str(error)
        return None
    size = ctypes.c_size_t
    replace.restype, replace.argtypes = ctypes.c_void_p, [ctypes.c_void_p, size, size, ctypes.c_char_p, size]
    function: Callable[[int, int, int, bytes, int], object] = replace
    return function
