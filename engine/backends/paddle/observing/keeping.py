"""What tensors and optimizers keep, where no backward runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import paddle

from adbg.engine.backends.base.graph import Graph
from adbg.engine.backends.base.observing import Keeping
from adbg.engine.backends.paddle.graph import ACCUMULATE, PaddleGraph, Services
from adbg.engine.backends.paddle.observing.steps import state_of


class PaddleKeeping(Keeping):
    """Nodes are numbered by their forward stacks, while these are on."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def own_name(self, tensor: Any) -> str:
        return str(getattr(tensor, "name", "") or "")

    def forward_mark(self) -> int | None:
        stacks = self._services.stacks
        return stacks.texts.take_number() if stacks.on else None

    def number_of(self, graph: Graph, key: int) -> int | None:
        return self._services.stacks.number(graph.node(key)) or None

    def nodes_before(self, value: Any, mark: int, most: int) -> int:
        graph = PaddleGraph([value], self._services)
        try:
            if graph.count() >= most:
                return most
            made = (node for node, name in zip(graph.walk(), graph.printed()) if name != ACCUMULATE)
            return sum(0 < self._services.stacks.number(node) < mark for node in made)
        finally:
            graph.release()

    def random_state(self) -> int | None:
        generator: Any = paddle.framework.core.default_cpu_generator()
        *_, state = str(generator.get_state()).split(" ", 4)  # behind a device, a seed, an offset and an address
        return hash(state)

    def optimizer_state(self, optimizer: Any, tensor: Any) -> tuple[float | None, Mapping[str, Any]]:
        return state_of(optimizer, tensor)
