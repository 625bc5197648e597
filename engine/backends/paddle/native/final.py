"""What the script wants called at the end of the next run of Paddle's engine, kept out of a run of our own.

``core.eager._add_backward_final_hook`` (AMP with master gradients, sharding) is for whichever run ends next, and is
forgotten then: a run of ours would call it before the script's backward, whose gradients then stay as they should not.
Paddle cannot say what waits, so the vector is found in its controller by what one entry of ours changes there, and is
empty for the time of our run. Runs as the backend is made, which a script may have attached itself to late.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from paddle.base import core

from adbg.engine.backends.paddle.native.memory import ReadMemory

INSTANCE = "_ZN3egr10Controller8InstanceEv"
_BYTES = 1024  # of the controller, searched for the vector
_ENTRY = 16  # a shared pointer


@contextlib.contextmanager
def final_hooks_aside(library: ctypes.PyDLL, memory: ReadMemory) -> Iterator[None]:
    """Raises LookupError: they cannot be found."""
    add = getattr(core.eager, "_add_backward_final_hook", None)
    if add is None:  # a Paddle without such hooks
        yield
        return
    try:
        instance: Any = getattr(library, INSTANCE)
    except AttributeError:
        raise LookupError(f"libpaddle does not export {INSTANCE}") from None
    instance.restype, instance.argtypes = ctypes.c_void_p, []
    controller = int(instance() or 0)
    before = dict(memory.words(controller, _BYTES))
    add(_nothing)
    after = dict(memory.words(controller, _BYTES))
    places = [at for at in after if at + 16 in after and _grew(_three(before, at), _three(after, at))]
    if len(places) != 1:
        raise LookupError("what the script wants called at the end of a backward cannot be set aside")
    begin, end, room = _three(after, places[0])
    vector = (ctypes.c_uint64 * 3).from_address(controller + places[0])
    vector[:] = [0, 0, 0]
    try:
        yield
    finally:
        vector[:] = [begin, end - _ENTRY, room]  # without ours, whose 64 bytes stay


def _nothing() -> None:
    """The entry that shows where the vector is."""


def _three(words: dict[int, int], at: int) -> tuple[int, int, int]:
    return words.get(at, 0), words.get(at + 8, 0), words.get(at + 16, 0)


def _grew(old: tuple[int, int, int], new: tuple[int, int, int]) -> bool:
    """By one entry, in place or somewhere else."""
    sound = all(v[0] <= v[1] <= v[2] and (v[1] - v[0]) % _ENTRY == 0 for v in (old, new))
    return sound and new[0] != 0 and new[1] - new[0] == old[1] - old[0] + _ENTRY
