"""The promise of ``detach``, over and over: nothing grows, and the result is that of a run that nobody came to.
``python -m tests.stress.cycles`` does it 200 times."""

from __future__ import annotations

from stress.cycles import run
from support.frameworks import on_frameworks


@on_frameworks()
def test_attached_to_again_and_again(framework: str) -> None:
    outcome = run(framework, 8)
    assert outcome.same, outcome.line()
    assert not outcome.grown(), outcome.line()
    assert len(outcome.sizes) >= 2
