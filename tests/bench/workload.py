"""What is measured: one training step of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """``step`` runs forward, backward and the optimiser once; ``nodes`` execute in its backward."""

    step: Callable[[], None]
    nodes: int
