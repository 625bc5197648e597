"""Which tensors the program's optimizers hold. Asked at a stop, on the parked thread: it goes over all objects that the
collector knows (some 60 ms for a million)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any


def of_kind(kind: type) -> Iterator[Any]:
    """The live objects of ``kind``. By their types alone: ``isinstance`` would ask a proxy for its ``__class__``."""
    for found in gc.get_objects():
        if issubclass(type(found), kind):
            yield found
