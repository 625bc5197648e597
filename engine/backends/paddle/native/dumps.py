"""Whether Paddle writes forward stacks to files of the program's: then they must be what they are without adbg.

Three flags name such files, and ``capture_backward_subgraph_guard`` has the nodes made meanwhile written at the end of
their backward. All of them are read where they are, once an operator while stacks are on: a read of Paddle's flags by
``get_flags`` takes 3 us each, one here 0.1.

A flag is a ``std::string`` of libstdc++, whose length is its second word. Where the guard's switch is, is read from the
first comparison in Paddle's own ``AddGradNode`` (``cmpb $0, at(%rdi)``), the function that it switches.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable

from adbg.engine.backends.paddle.native import symbols
from adbg.engine.outside import own

_FLAGS = (
    "_ZN12paddle_flags32FLAGS_dump_api_python_stack_pathB5cxx11E",
    "_ZN12paddle_flags39FLAGS_dump_grad_node_forward_stack_pathB5cxx11E",
    "_ZN12paddle_flags44FLAGS_dump_api_and_gradnode_python_stack_dirB5cxx11E",
)
_RECORDER = "_ZZN3egr33EagerBackwardSubGraphNodeRecorder8InstanceEvE8instance"
_ADDS = "_ZN3egr33EagerBackwardSubGraphNodeRecorder11AddGradNodeEPKNS_12GradNodeBaseE"
_COMPARISON = re.compile(rb"\x80\xbf(....)\x00", re.DOTALL)
_BEGINNING = 64  # bytes of that function


def writing_stacks() -> Callable[[], bool]:
    """A function that tells it now. What this Paddle does not export is taken to be off."""
    words = [*_lengths(), *_capturing()]

    def writing() -> bool:
        for word in words:  # noqa: SIM110  a generator would cost as much as the reads
            if word.value:
                return True
        return False

    return writing


def _lengths() -> list[ctypes.c_uint64]:
    """The flags live in a library that libpaddle has loaded for all."""
    try:
        exported = symbols.library()
    except own(OSError, symbols.NativeProblem):
        return []
    found = []
    for symbol in _FLAGS:
        try:
            address = ctypes.addressof(ctypes.c_uint64.in_dll(exported, symbol))
        except own(ValueError):
            continue
        found.append(ctypes.c_uint64.from_address(address + 8))
    return found


def _capturing() -> list[ctypes.c_uint8]:
    try:
        exported = symbols.library()
        recorder = ctypes.addressof(ctypes.c_uint8.in_dll(exported, _RECORDER))
        code = ctypes.string_at(ctypes.addressof(ctypes.c_uint8.in_dll(exported, _ADDS)), _BEGINNING)
    except own(OSError, ValueError, symbols.NativeProblem):
        return []
    comparison = _COMPARISON.search(code)
    return [ctypes.c_uint8.from_address(recorder + struct.unpack("<I", comparison[1])[0])] if comparison else []
