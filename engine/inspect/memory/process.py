"""Memory of this process as the system sees it. Any thread."""

from __future__ import annotations

import ctypes
import os

from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import ProcessMemory

_PRIVATE = ("Private_Clean", "Private_Dirty", "Private_Hugetlb")
_LIBC = ctypes.PyDLL(None)
_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_memory() -> ProcessMemory:
    """Of Linux all, elsewhere nothing. The kernel looks at every page for it: 10-20 ms of an RSS of 220-290 MiB, 57-100
    ms of 2.3 GiB."""
    now = _kilobytes("/proc/self/smaps_rollup")
    status = _kilobytes("/proc/self/status")
    rss, uss = now.get("Rss"), [now[name] for name in _PRIVATE if name in now]
    if rss is None:
        rss = resident()
    peak = status.get("VmHWM")
    if peak is not None:
        peak = max(peak, Peaks.before)
    return ProcessMemory(
        rss=rss,
        peak_rss=peak if rss is None or peak is None else max(peak, rss),  # the kernel adds to it now and then only
        uss=sum(uss) if uss else None,
        pss=now.get("Pss"),
        swap=now.get("Swap", status.get("VmSwap")),
    )


def resident() -> int | None:
    """RSS alone: 14-23 us. Python's lock is kept: to give it up three times for a file would cost a program with other
    busy threads milliseconds an iteration."""
    with suppress(ValueError, IndexError):
        return int(_read(b"/proc/self/statm", 128).split()[1]) * _PAGE
    return None


class Peaks:
    """The highest RSS between two moments, as the kernel keeps it (VmHWM; the program's own look at that mark, and at
    getrusage's, begins anew too): what is taken and given back in between
    counts. To set it back loses what the process had before, so that is kept here: ``before``, of this process."""

    before = 0

    @staticmethod
    def set_back() -> bool:
        """From here on. False where the system does not have it, as on anything but Linux."""
        with suppress(ValueError, IndexError, AttributeError):
            Peaks.before = max(Peaks.before, Peaks.now()[1])
            file = _LIBC.open(b"/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            if file >= 0:
                written = _LIBC.write(file, b"5", 1)
                _LIBC.close(file)
                return bool(written == 1)
        return False

    @staticmethod
    def now() -> tuple[int, int]:
        """(RSS, the highest since it was set back), in bytes.

        Raises:
            IndexError, ValueError: the system does not tell.
        """
        text = _read(b"/proc/self/status", 4096)
        rss, peak = (int(text.split(name, 1)[1].split(None, 1)[0]) << 10 for name in (b"VmRSS:", b"VmHWM:"))
        return rss, peak


def _read(path: bytes, most: int) -> bytes:
    """Of a file of the kernel's; nothing where it cannot be read."""
    with suppress(AttributeError):
        file = _LIBC.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if file >= 0:
            text = ctypes.create_string_buffer(most)
            _LIBC.read(file, text, most - 1)
            _LIBC.close(file)
            return text.value
    return b""


def _kilobytes(path: str) -> dict[str, int]:
    """Lines "Rss:   230936 kB", in bytes."""
    found: dict[str, int] = {}
    with suppress(OSError, ValueError), open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) == 2 and words[1] == "kB":
                found[name] = int(words[0]) << 10
    return found
