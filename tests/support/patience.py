"""How long a test waits at most: what hangs must end, what is only slow on a busy machine must not fail."""

from __future__ import annotations

import os


def patience(seconds: float) -> float:
    """A deadline for an idle machine, extended by how many processes share a processor now."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
