"""Places in source files as the user writes them: FILE:LINE and FILE:FIRST-LAST; and what stands there, parsed. Any
thread."""

from __future__ import annotations

import functools
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError
from adbg.engine.names import file_matches
from adbg.engine.outside import own

if TYPE_CHECKING:
    import ast

_LARGEST = 1 << 20  # bytes of a file that is parsed: 1.1 MB took 0.9-1.4 s, and 0.3 s to be walked
_PLACE = re.compile(r"(?P<file>.*[^:]):(?P<first>\d+)(?:-(?P<last>\d+))?", re.DOTALL)
EXAMPLE = "model.py:10-14"
_PARSES = threading.RLock()
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines ``first`` to ``last`` of ``file``: a path, or the end of one by whole components."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")

    def in_file(self, path: str) -> bool:
        """Never raises: a trace function that raises would break the program."""
        if path == self.file or file_matches(self.file, path):
            return True
        try:
            return os.path.realpath(path) == self.file
        except own(OSError, ValueError):  # a relative path, and the working directory was removed
            return False

    def holds(self, path: str, line: int) -> bool:
        return self.first <= line <= self.last and self.in_file(path)


def parse_lines(text: str, example: str = EXAMPLE) -> Lines:
    """ "train.py:10-14" or "train.py:10", quotes allowed.

    Raises:
        CommandError: anything else; ``example`` is a use of it to show.
    """
    match = _PLACE.fullmatch(text.strip().strip("'\""))
    if match is None:
        raise CommandError(f"invalid source lines {text!r}", f"expected FILE:FIRST-LAST, for example: {example}")
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 0 < first <= last:
        raise CommandError(
            f"invalid line range in {text!r}: lines count from 1, and the first is not greater than the last",
            f"for example: {example}",
        )
    return Lines(match["file"].removeprefix("./"), first, last)


def parsed(text: str | bytes, file: str = "<unknown>", mode: str = "exec") -> Any:
    """``ast.parse``. Raises what that does: SyntaxError, ValueError, RecursionError.

    Python 3.11 counts in one place for all threads how deep a tree is: where another one parses meanwhile, SystemError
    is raised ("AST constructor recursion depth mismatch", seen in 3.11.7). Threads of adbg's wait for each other; where
    one of the program's comes between, it is tried again.
    """
    import ast  # 5 ms, which the command line has no use for

    for _ in range(_TRIES):
        try:
            with _PARSES:
                return ast.parse(text, file, mode)
        except SystemError:
            continue
    raise ValueError("the source cannot be parsed now: other threads parse, too")


def source_tree(file: str) -> ast.Module | None:
    """A file parsed as it is now; None where it cannot be read or parsed, or is too large."""
    try:
        return _tree(file, os.stat(file).st_mtime, os.path.getsize(file))
    except own(OSError):
        return None


@functools.lru_cache(maxsize=64)
def _tree(file: str, changed: float, size: int) -> ast.Module | None:
    """``changed``: so that an edited file is read again."""
    if not changed or size > _LARGEST:
        return None
    try:
        with open(file, "rb") as source:
            tree: ast.Module = parsed(source.read())
            return tree
    except own(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
