"""The random numbers of Python and NumPy, which any code of the program's may draw, kept as they are while adbg has
such code run once more. A framework's own are its backend's business."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def random_kept() -> Iterator[None]:
    """The same random numbers come next as if nothing had been drawn here. NumPy's where it is imported already."""
    state = random.getstate()
    drawn = _numpy_random()
    numpys = drawn.get_state() if drawn is not None else None
    try:
        yield
    finally:
        random.setstate(state)
        if drawn is not None:
            drawn.set_state(numpys)


def seeded(seed: int) -> None:
    """The same random numbers from here on each time; inside ``random_kept``."""
    random.seed(seed)
    drawn = _numpy_random()
    if drawn is not None:
        drawn.seed(seed)


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None) if numpy is not None else None
