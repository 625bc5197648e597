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
from adbg.engine.outside import suppress

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


_FLAGS: Any = core.globals()  # 0.4 us a look: ``paddle.get_flags`` takes twenty times that


def _known() -> dict[str, Any]:
    """Those of ``_TELLING`` that this Paddle has."""
    found = {}
    for flag, off in _TELLING.items():
        with suppress(Exception):
            found[flag] = off if type(_FLAGS[flag]) is type(off) else type(_FLAGS[flag])(off)
    return found


_OFF = _known()
_SILENT = list(_OFF.values())


def aids_tell() -> bool:
    """Something tells of every operator; 3 us."""
    return [_FLAGS[flag] for flag in _OFF] != _SILENT


@contextlib.contextmanager
def aids_aside() -> Iterator[None]:
    """What tells of every operator (checksums, NaN checks, numbered names, stacks in files) is off. What somebody else
    sets meanwhile stays as it is set."""
    if not aids_tell():
        yield
        return
    before = {flag: _FLAGS[flag] for flag in (*_OFF, _LEVEL)}
    loud = {flag: off for flag, off in _OFF.items() if before[flag] != off}
    paddle.set_flags(loud)
    try:
        yield
    finally:
        back = {flag: before[flag] for flag, off in loud.items() if _FLAGS[flag] == off}
        back[_LEVEL] = before[_LEVEL]
        for _ in range(2):  # again for those that another one sets on its way
            different = {flag: value for flag, value in back.items() if _FLAGS[flag] != value}
            if different:
                paddle.set_flags(different)


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
