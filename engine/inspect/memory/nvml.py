"""Memory of NVIDIA devices as their driver sees it, by NVML through ctypes. Any thread.

Asked only in a process that uses such a device already: the library is that of the driver, and starts nothing there.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from adbg.engine.outside import own
from adbg.engine.protocol.messages import DeviceMemory

_MOST_PROCESSES = 256
_UNKNOWN = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE


class _Used(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint),
    )  # fmt: skip


def device_memory() -> list[DeviceMemory]:
    """Of every device; none where there is no NVML, or it refuses."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        if library.nvmlInit_v2():
            return []
    except own(OSError, AttributeError):
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = (_device(library, number) for number in range(count.value))
        return [device for device in found if device is not None]
    except own(OSError, AttributeError, ValueError):
        return []
    finally:
        library.nvmlShutdown()


def _device(library: Any, number: int) -> DeviceMemory | None:
    handle, used = ctypes.c_void_p(), _Used()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)):
        return None
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(used)):
        return None
    name = ctypes.create_string_buffer(96)
    library.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name)))
    text = name.value.decode(errors="replace")
    return DeviceMemory(f"{number} {text}".strip(), used.total, used.used, _own(library, handle))


def _own(library: Any, handle: Any) -> int | None:
    """Bytes of this process there. None where the driver does not tell (a container hides pids)."""
    count, table = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), table):
        return None
    mine = [each.used for each in table[: count.value] if each.pid == os.getpid() and each.used != _UNKNOWN]
    return sum(mine) if mine else None
