"""The numbers of a framework's device allocator, by the functions that torch and Paddle both have for CUDA. Not run on
a device in the tests of a machine that has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adbg.engine.outside import own
from adbg.engine.protocol.messages import Allocator


def allocators_of(framework: str, devices: Any) -> Sequence[Allocator]:
    """``devices``: the framework's module for a device in use (``torch.cuda``); None where none is."""
    if devices is None:
        note = f"{framework} has no allocator of its own on the CPU: its tensors are in the RSS"
        return [Allocator(framework, "cpu", note=note)]
    found = []
    for number in range(int(devices.device_count())):
        try:
            found.append(
                Allocator(
                    framework,
                    f"cuda:{number}",
                    allocated=int(devices.memory_allocated(number)),
                    reserved=int(devices.memory_reserved(number)),
                    peak_allocated=int(devices.max_memory_allocated(number)),
                    peak_reserved=int(devices.max_memory_reserved(number)),
                )
            )
        except own(Exception) as error:
            found.append(Allocator(framework, f"cuda:{number}", note=f"{type(error).__name__}: {error}"[:200]))
    return found
