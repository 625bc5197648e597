"""A small file that two processes map: how long each step took, and whether to go on. Writing a step costs 1 us."""

from __future__ import annotations

import mmap
import os
import struct

PAUSE, RUN, END = 0, 1, 2
STEPS = 1 << 16  # that are kept
_HEAD = struct.Struct("=QQQ")  # wanted, ready, steps so far
_STEP = struct.Struct("=d")


class Gauge:
    def __init__(self, path: str) -> None:
        size = _HEAD.size + STEPS * _STEP.size
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.truncate(size)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)

    def _number(self, place: int) -> int:
        number: int = struct.unpack_from("=Q", self._map, 8 * place)[0]
        return number

    def _put(self, place: int, number: int) -> None:
        struct.pack_into("=Q", self._map, 8 * place, number)

    @property
    def wanted(self) -> int:
        return self._number(0)

    @wanted.setter
    def wanted(self, word: int) -> None:
        self._put(0, word)

    def ready(self) -> None:
        self._put(1, 1)

    @property
    def is_ready(self) -> bool:
        return bool(self._number(1))

    @property
    def steps(self) -> int:
        return self._number(2)

    def note(self, seconds: float) -> None:
        steps = self.steps
        _STEP.pack_into(self._map, _HEAD.size + steps % STEPS * _STEP.size, seconds)
        self._put(2, steps + 1)

    def times(self, since: int) -> list[float]:
        """Seconds of every step from number ``since`` on."""
        places = (number % STEPS for number in range(max(since, self.steps - STEPS), self.steps))
        return [_STEP.unpack_from(self._map, _HEAD.size + place * _STEP.size)[0] for place in places]
