"""Windows and caches of the program's that fill up are not accused for long, and leaks are: by what the program holds
in the end, which it counts itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.frameworks import on_frameworks

from adbg.engine.backends import REGISTRY
from adbg.engine.inspect.memory.course import MemoryCourse
from adbg.engine.protocol.messages import Growth, MemoryGrows
from adbg.engine.session.session import Session
from adbg.tui.text.memory import growth_lines

ITERATIONS = 60


class _Silent:
    def event(self, body: object, droppable: bool = False) -> None:
        """Nobody is there."""


@pytest.fixture
def session(framework: str) -> Iterator[Session]:
    session = Session(_Silent())
    session.set_filters([])
    session.add_backend(REGISTRY[framework]())
    session.attach()
    yield session
    session.detach()


def loss_of(framework: str) -> Any:
    if framework == "torch":
        import torch

        return (torch.ones(4, requires_grad=True) * 2).sum()
    import paddle

    x = paddle.ones([4])
    x.stop_gradient = False
    return (x * 2).sum()


def window(losses: Any, number: int, loss: Any) -> None:
    """Of 16 micro-batches, whose mean is told."""
    losses.append(loss)
    if len(losses) == 16:
        losses.clear()


def bank(losses: Any, number: int, loss: Any) -> None:
    losses.append(loss)
    if len(losses) > 32:
        losses.pop(0)


def cache(losses: Any, number: int, loss: Any) -> None:
    if number % 24 >= len(losses):
        losses.append(loss)


def leak(losses: Any, number: int, loss: Any) -> None:
    losses.append(loss)


def slow_leak(losses: Any, number: int, loss: Any) -> None:
    if number % 5 == 0:
        losses.append(loss)


@on_frameworks()
@pytest.mark.parametrize(
    ("keep", "bounded"), [(window, True), (bank, True), (cache, True), (leak, False), (slow_leak, False)]
)
def test_a_window_is_not_accused(
    framework: str, session: Session, keep: Callable[[Any, int, Any], None], bounded: bool
) -> None:
    told: list[Growth] = []

    def tell(event: MemoryGrows) -> None:
        told.append(event.growth)

    course = MemoryCourse(session, tell)
    session.observe(course)
    course.switch(True)
    losses: list[Any] = []
    made, alive = [], []
    for number in range(ITERATIONS):
        loss = loss_of(framework)
        loss.backward()
        keep(losses, number, loss)
        made.append(weakref.ref(loss))
        del loss
        alive.append(sum(ref() is not None for ref in made))
    course.switch(False)
    assert (max(alive) <= 33) is bounded or keep is slow_leak, "what the program holds"
    mine = [growth for growth in told if growth.owner.path == "losses[*]"]
    assert mine and not mine[0].sure and mine[0].counts[-1][1] <= 18, "early, and as what it may be"
    (last,) = [growth for growth in course.course().growths if growth.owner.path == "losses[*]"]
    assert bool(last.ended) is bounded
    assert any(growth.sure for growth in mine) is last.sure is not bounded
    words = growth_lines(mine[0])
    assert words[0].startswith("losses[*] may grow: ") and not any(".detach()" in line for line in words)
    assert growth_lines(last)[0].startswith(f"losses[*] {'grew until iteration' if bounded else 'grows:'}")
    assert any(".detach()" in line for line in growth_lines(last)) is not bounded
    assert len(mine) == (1 if bounded else 2), "not told of at each look"
