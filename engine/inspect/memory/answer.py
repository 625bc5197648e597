"""``adbg/memory``: on the parked thread, while the program runs without the graph on "adbg-reader"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.memory.course import MemoryCourse
from adbg.engine.inspect.memory.nodes import MemoryByNode
from adbg.engine.inspect.memory.nvml import device_memory
from adbg.engine.inspect.memory.process import process_memory
from adbg.engine.inspect.memory.retained import retained
from adbg.engine.protocol.messages import Memory, MemoryBody
from adbg.engine.session.session import Session

_MOST_ROWS = 1_000


class MemoryWatch:
    """The observers of memory."""

    def __init__(self, session: Session, tell: Callable[[Any], object]) -> None:
        self.course = MemoryCourse(session, tell)
        self.by_node = MemoryByNode(session)
        session.observe(self.course, self.by_node)


def memory(session: Session, watch: MemoryWatch, stop: StopContext | None, request: Memory) -> MemoryBody:
    """What is known of the memory here; ``stop`` is None while the program runs."""
    if request.watch is not None:
        watch.course.switch(request.watch)
    if request.by_node is not None:
        watch.by_node.switch(request.by_node)
    allocators = [each for backend in session.backends for each in backend.allocators()]
    found, why = None, ""
    if request.rows:
        graph = stop.point.graph if stop is not None else None
        if stop is None:
            why = "the program runs: what its graph retains is known at a stop"
        elif graph is None:
            why = "there is no graph here"
        else:
            found = retained(stop.backend, graph, min(request.rows, _MOST_ROWS))
    on_device = any(each.allocated is not None for each in allocators)
    devices = device_memory() if on_device else []
    return MemoryBody(
        process=process_memory(),
        allocators=allocators,
        devices=devices,
        course=watch.course.course(),
        nodes=watch.by_node.nodes(),
        retained=found,
        why_none=why,
        no_devices="NVML does not answer: what all processes use of the device is not known"
        if on_device and not devices
        else "",
    )
