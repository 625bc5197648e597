"""Something new that listens to a run is one class: nothing of the session or the hooks is touched for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from adbg.engine.backends.base import Backend, HookPlan
from adbg.engine.session.observers import Observer
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.session import Session

pytestmark = pytest.mark.torch


class NodesPerModule(Observer):
    """Counts the nodes that ran, by the module that made them."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.on = True

    @property
    def active(self) -> bool:
        return self.on

    @property
    def arms(self) -> bool:
        return self.on

    def plan(self, running: Running) -> HookPlan | None:
        return HookPlan(every=True)

    def node_end(self, visit: Visit) -> None:
        self.counts[visit.running.call.describe(visit.key).module or ""] += 1


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


@pytest.fixture
def session() -> Iterator[Session]:
    pytest.importorskip("torch")
    from adbg.engine.backends.torch.backend import TorchBackend

    session = Session(_Silent())
    session.set_filters([])
    backend: Backend = TorchBackend()
    session.set_stacks(True)
    session.attach()
    session.add_backend(backend)
    yield session
    session.detach()


def test_nodes_are_counted_per_module(session: Session) -> None:
    import torch

    counter = NodesPerModule()
    session.observe(counter)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    model(torch.ones(5, 4)).sum().backward()
    # Linear: Addmm and TBackward; the accumulate nodes of weight and bias belong to it too
    assert counter.counts == {"": 1, "0": 4, "1": 1, "2": 4}
    before = counter.counts.copy()
    session.change(lambda: setattr(counter, "on", False))
    model(torch.ones(5, 4)).sum().backward()
    assert counter.counts == before, "one that is not active is not told"
