"""The contract suite: one set of test bodies that every backend passes. It says what a backend is.

``world`` is a framework and its backend, made anew for each test. A test that needs an ability which a backend lacks
(``@pytest.mark.needs``) is skipped there with the reason: ``support.frameworks.LACKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from support.frameworks import LACKS, case
from support.watch import Watch, installed
from support.worlds import WORLDS, World

Watching = Callable[..., AbstractContextManager[object]]


@pytest.fixture(params=["fake", case("torch", "torch"), case("paddle", "paddle")])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    for mark in request.node.iter_markers("needs"):
        why = LACKS.get((request.param, mark.args[0]))
        if why is not None:
            pytest.skip(f"{request.param}: {why}")
    made = WORLDS[request.param]()
    yield made
    made.backend.uninstall()


@pytest.fixture
def watching(world: World) -> Watching:
    """``with watching(watch): ...``: the backend is in, and armed unless told otherwise."""

    def watching(watch: Watch, armed: bool = True, stacks: bool = False) -> AbstractContextManager[object]:
        return installed(world.backend, watch, armed, stacks)

    return watching
