"""Debuggers over scripted agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.scripted_agent import ScriptedAgent, ScriptedProgram
from support.watched_debugger import Watched


@pytest.fixture
def watched() -> Iterator[Callable[..., Watched]]:
    """Makes debuggers whose events are collected; all are closed at the end."""
    made: list[Watched] = []

    def make(
        ranks: int = 1,
        startup: tuple[str, ...] = (),
        prepare: Callable[[ScriptedAgent], None] | None = None,
        entry: bool = False,
    ) -> Watched:
        one = Watched(ScriptedProgram(ranks, prepare), startup, entry)
        made.append(one)
        return one

    yield make
    for one in made:
        one.debugger.close()
