"""torch.compile beside the watch of a step's parts: what is compiled, and how often, is as without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def compiled() -> Iterator[Any]:
    """A compiled module with a graph break, which calls a module beyond it."""
    torch: Any = pytest.importorskip("torch")
    import torch._dynamo as dynamo

    dynamo.reset()

    class Inner(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.linear(x).tanh()

    class Outer(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Inner(), Inner()

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            dynamo.graph_break()
            return self.second(x)

    yield torch.compile(Outer(), backend="eager")
    dynamo.reset()


@pytest.mark.parametrize("when", ["from the first call on", "once it is compiled"])
def test_nothing_is_compiled_again(compiled: Any, when: str) -> None:
    import torch
    from torch._dynamo.callback import callback_handler
    from torch._dynamo.utils import counters

    from adbg.engine.backends.torch.backend import TorchBackend

    counters.clear()
    backend, heard = TorchBackend(), list[tuple[str, bool]]()
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    callbacks = [*callback_handler.start_callbacks], [*callback_handler.end_callbacks]
    call = vars(torch.nn.Module)["__call__"]

    def train() -> tuple[int, int, int]:
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        return (
            counters["stats"]["unique_graphs"],
            sum(counters["graph_break"].values()),
            counters["frames"]["total"],
        )

    if when == "once it is compiled":
        before = train()
    backend.watch_phases(lambda phase, begins, line: heard.append((phase, begins)))
    during = train()
    assert heard.count(("forward", True)) == heard.count(("forward", False)) == 2
    backend.watch_phases(None)
    if when == "once it is compiled":
        assert during == before
    assert train() == during, "nor after it"
    assert vars(torch.nn.Module)["__call__"] is call
    assert ([*callback_handler.start_callbacks], [*callback_handler.end_callbacks]) == callbacks
