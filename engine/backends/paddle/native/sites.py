"""glog's levels in Paddle's libraries, read and written where they are. Any thread under the GIL.

A VLOG site asks for its level once and keeps a pointer to it: to its module's own level if one was set by then, else to
the global one, ``FLAGS_v``. So a module's level set later has no effect on it, which is why ``set_vlog_level`` by
module does nothing for code that ran. Written here: the global level itself, without the record that Paddle makes of
every change; and the pointers of the sites that ran, so that they look for their level again.

Paddle's ``backward_vlog_guard`` writes ``FLAGS_v`` around a node: it reaches the sites that point there, and no other.
There are two copies of glog; Paddle's ``set_vlog_level`` knows the first only, ``GLOG_v`` and that guard know both.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence

from adbg.engine.backends.common.private_use import PrivateUse
from adbg.engine.backends.paddle import private
from adbg.engine.outside import own

_LIBRARIES = ("libpaddle.so", "libphi_core.so")
_LEVEL = "_ZN3fLI7FLAGS_vE"
_UNASKED = "_ZN6google21kLogSiteUninitializedE"  # what a site points to that has not asked yet
_UNASKED_LEVEL = 1000
_WORD = struct.Struct("<Q")
USE = PrivateUse("libpaddle FLAGS_v", "change VLOG levels without a record of it, by module at any time", True)
private.USES.append(USE)


class LogSites:
    """``variables``: the global level of each copy, where it is. Raises LookupError: a library has no such symbols, or
    is not where it is looked for."""

    def __init__(self) -> None:
        self.variables: list[ctypes.c_int32] = []
        self._sites: list[tuple[int, int, list[tuple[int, int]]]] = []  # of each copy: level, unasked, written data
        self._bound: set[int] = set()  # levels of modules that sites were seen to point to after ``ask_again``
        self._asked: set[int] = set()  # addresses of sites that pointed to the global level
        self._unrun: set[int] = set()  # of sites that had not run by then
        for name in _LIBRARIES:
            self._add(name)

    def _add(self, name: str) -> None:
        path, data = _mapped(name)
        try:
            library = ctypes.PyDLL(path)
            level = ctypes.c_int32.in_dll(library, _LEVEL)
            unasked = ctypes.c_int32.in_dll(library, _UNASKED)
        except own(OSError, ValueError) as error:
            raise LookupError(f"{name}: {error}") from None
        if unasked.value != _UNASKED_LEVEL:
            raise LookupError(f"{name}: a site that has not asked is not marked as expected")
        self.variables.append(level)
        place = ctypes.addressof(unasked)  # among the sites: written data with a value from the file
        self._sites.append(
            (ctypes.addressof(level), place, [(begin, end) for begin, end in data if begin <= place < end])
        )

    @property
    def levels(self) -> tuple[int, ...]:
        """The global level of each copy; 0.2 us."""
        return tuple([level.value for level in self.variables])

    def write(self, levels: Sequence[int]) -> None:
        for variable, level in zip(self.variables, levels):
            variable.value = level

    def ask_again(self) -> None:
        """Every site that follows the global level looks for its module's when it runs next. 3 ms."""
        for level, unasked, data in self._sites:
            self._unrun.update(_words(data, unasked))
            for address in list(_words(data, level)):
                ctypes.c_uint64.from_address(address).value = unasked
                self._asked.add(address)

    def follow(self) -> None:
        """The sites that ``ask_again`` had look for their module's level follow the global one again, and those that
        ran first meanwhile. Sites that had a module's level before keep it: the script's own."""
        for level, unasked, data in self._sites:
            asked, unrun = (_inside(data, addresses) for addresses in (self._asked, self._unrun))
            self._bound.update({word.value for word in asked} - {level, unasked})
            for word in (*asked, *unrun):
                if word.value in self._bound:
                    word.value = level
        self._asked.clear()
        self._unrun.clear()


def _inside(data: Sequence[tuple[int, int]], addresses: set[int]) -> list[ctypes.c_uint64]:
    return [
        ctypes.c_uint64.from_address(address)
        for address in addresses
        if any(begin <= address < end for begin, end in data)
    ]


def _mapped(name: str) -> tuple[str, list[tuple[int, int]]]:
    """Where the library is, and what it has of written data in memory."""
    path, data = "", []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            span, rights, _, _, _, *rest = line.split(None, 5)
            if rest and rest[0].rstrip("\n").endswith("/" + name):
                path = rest[0].rstrip("\n")
                if rights.startswith("rw"):
                    begin, _, end = span.partition("-")
                    data.append((int(begin, 16), int(end, 16)))
    if not path or not data:
        raise LookupError(f"{name} is not loaded as a file")
    return path, data


def _words(data: Sequence[tuple[int, int]], value: int) -> Iterator[int]:
    """Addresses of aligned words that hold ``value``."""
    wanted = _WORD.pack(value)
    for begin, end in data:
        raw = ctypes.string_at(begin, end - begin)
        at = raw.find(wanted)
        while at >= 0:
            if at % 8 == 0:
                yield begin + at
            at = raw.find(wanted, at + 1)


def log_sites() -> LogSites | None:
    """None where they were not found; ``adbg doctor`` says why."""
    try:
        return LogSites()
    except own(LookupError, OSError) as error:
        USE.present, USE.problem = False, str(error)
        return None
