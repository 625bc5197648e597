"""Standard output of one thread only: other threads print as before."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

MAX_CAPTURED = 1 << 20  # characters; more than that is counted and dropped


class Captured:
    """What one thread printed."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._left_out = 0

    def write(self, text: str) -> None:
        room = MAX_CAPTURED - self._size
        self._pieces.append(text[:room])
        self._size += min(len(text), room)
        self._left_out += max(0, len(text) - room)

    @property
    def text(self) -> str:
        note = f"\n… {self._left_out:,} more characters not shown\n" if self._left_out else ""
        return "".join(self._pieces) + note


class _ThreadStdout:
    """Stands in for ``sys.stdout`` while any thread captures; everything else goes to the real stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.captures: dict[int, list[Captured]] = {}

    def write(self, text: str) -> int:
        stack = self.captures.get(threading.get_ident())
        if stack:
            stack[-1].write(str(text))
            return len(text)
        return int(self.stream.write(text) or 0)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if threading.get_ident() not in self.captures:
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_lock = threading.Lock()
_proxy: _ThreadStdout | None = None


@contextlib.contextmanager
def thread_stdout() -> Iterator[Captured]:
    """Capture what this thread prints. Nests; a ``sys.stdout`` that the code itself replaced is left as it is."""
    global _proxy
    captured = Captured()
    ident = threading.get_ident()
    with _lock:
        if _proxy is None or sys.stdout is not _proxy:
            _proxy = _ThreadStdout(sys.stdout)
            sys.stdout = _proxy
        proxy = _proxy
        proxy.captures.setdefault(ident, []).append(captured)
    try:
        yield captured
    finally:
        with _lock:
            proxy.captures[ident].remove(captured)
            if not proxy.captures[ident]:
                del proxy.captures[ident]
            if not proxy.captures and sys.stdout is proxy:
                sys.stdout = proxy.stream
                _proxy = None if _proxy is proxy else _proxy
