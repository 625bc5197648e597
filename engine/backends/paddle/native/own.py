"""Operators of adbg's own, without a trace: what tells of operators is off while they run, and put back.

A backend's checks run at the import, before the script's first operator, on tensors of the CPU with a name of their
own: no device is set up, no random number drawn, no name of the script's shifted. At a stop only what cannot be done
by numpy on a tensor's memory runs an operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
from paddle.base import core

from adbg.engine.backends.paddle import private

_TELLING: dict[str, Any] = {
    "FLAGS_check_nan_inf": False,
    "FLAGS_tensor_md5_checksum_output_path": "",
    "FLAGS_enable_unique_name": False,
    "FLAGS_dump_api_python_stack_path": "",
    "FLAGS_dump_grad_node_forward_stack_path": "",
    "FLAGS_dump_api_and_gradnode_python_stack_dir": "",
    "FLAGS_benchmark": False,
}
_LEVEL = "FLAGS_call_stack_level"  # set silently together with a path


@contextlib.contextmanager
def aids_aside() -> Iterator[None]:
    """What tells of every operator (checksums, NaN checks, numbered names, stacks in files) is off: 6 us where all of
    it is off anyway. What somebody else sets meanwhile stays as it is set."""
    before = _values()
    loud = {flag: off for flag, off in _TELLING.items() if before.get(flag, off) != off}
    if not loud:
        yield
        return
    level = {_LEVEL: before[_LEVEL]} if _LEVEL in before else {}
    paddle.set_flags(loud)
    try:
        yield
    finally:
        now = _values()
        back = {flag: before[flag] for flag, off in loud.items() if now[flag] == off}
        for _ in range(2):  # again for those that another one sets on its way
            now = _values()
            different = {flag: value for flag, value in {**back, **level}.items() if now[flag] != value}
            if different:
                paddle.set_flags(different)


def _values() -> dict[str, Any]:
    """0.4 us a flag: ``paddle.get_flags`` takes twenty times that."""
    flags = core.globals()
    found = {}
    for flag in (*_TELLING, _LEVEL):
        with contextlib.suppress(Exception):  # a Paddle that has no such flag
            found[flag] = flags[flag]
    return found


@contextlib.contextmanager
def own_operators() -> Iterator[None]:
    """Operators of our own: recorded, at full precision, told of nowhere."""
    before = private.has_grad()
    private.set_has_grad(True)
    try:
        with aids_aside(), paddle.amp.auto_cast(enable=False):
            yield
    finally:
        private.set_has_grad(before)


def own_leaf(shape: list[int], dtype: str = "float32", value: float = 0.0) -> Any:
    """A leaf that asks for a gradient, made by no operator."""
    array = np.full(shape, value, dtype)
    return core.eager.Tensor(
        value=array, place=core.CPUPlace(), persistable=False, zero_copy=False, name="adbg", stop_gradient=False
    )
