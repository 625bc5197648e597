"""Addresses of a process to functions: which file is mapped there, what its symbols say, demangled, remembered.

What was found is kept in ``$XDG_CACHE_HOME/adbg/symbols/<build-id>.json``: reading a report the second time opens no
library. A file without a build-id is read each time.
"""

from __future__ import annotations

import json
import os
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from adbg.profiles.report.symbols.demangle import demangled
from adbg.profiles.report.symbols.elf import build_id, functions

_VERSION = 1


class Mapping(NamedTuple):
    """A line of /proc/PID/maps that can be executed."""

    start: int
    end: int
    offset: int
    path: str
    device: tuple[int, int] = (0, 0)  # (major, minor), and the file's number on it; 0 where they are not known
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Located:
    name: str  # "" where no symbol is known
    module: str  # the file's name; "[jit]" for memory that belongs to no file
    offset: int  # in the file, of the function where its beginning is known


class Resolver:
    """For one process. ``notes`` tell which files could not be read. ``until``: when the process was last seen, in
    seconds since 1970; a file that was written after that is not the one that was mapped."""

    def __init__(self, maps: Sequence[Mapping], cache: Path | None = None, until: float = 0.0) -> None:
        self._until = until
        self._maps = sorted(maps)
        self._starts = [mapping.start for mapping in self._maps]
        self._cache = cache or cache_folder()
        self.notes: list[str] = []

    def locate(self, counters: Iterable[int]) -> dict[int, Located]:
        found: dict[int, Located] = {}
        files: dict[str, dict[int, int]] = defaultdict(dict)
        for counter in counters:
            index = bisect_right(self._starts, counter) - 1
            mapping = self._maps[index] if index >= 0 else None
            if mapping is None or counter >= mapping.end:
                found[counter] = Located("", "", counter)
            elif not mapping.path.startswith("/"):
                module = mapping.path or "[jit]"
                found[counter] = Located("" if mapping.path else module, module, counter - mapping.start)
            else:
                files[mapping.path][counter] = counter - mapping.start + mapping.offset
        for path, offsets in files.items():
            module = os.path.basename(path.removesuffix(" (deleted)"))
            named = self._names(path, set(offsets.values()))
            for counter, offset in offsets.items():
                name, begin = named.get(offset, ("", offset))
                found[counter] = Located(name, module, begin)
        return found

    def _names(self, path: str, offsets: set[int]) -> dict[int, tuple[str, int]]:
        """(name, where its function begins) of offsets in a file."""
        file = Path(path)
        try:
            self._check(file)
            identity = build_id(file)
            known = self._load(identity)
            missing = offsets - known.keys()
            if missing:
                known |= _resolve(file, missing)
                self._save(identity, known)
            return known
        except (OSError, ValueError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self.notes.append(f"no symbols of {os.path.basename(path)}: {why}")
            return {}

    def _check(self, file: Path) -> None:
        """Raises OSError, or ValueError for another file than the one that was mapped: its functions lie elsewhere."""
        now = file.stat()
        for mapping in self._maps:
            # Where a device has another number to the kernel than to stat (overlays), inodes say nothing
            device = (os.major(now.st_dev), os.minor(now.st_dev))
            known = mapping.path == str(file) and mapping.inode and mapping.device == device
            if known and mapping.inode != now.st_ino:
                raise ValueError("the file is another one than when it was profiled")
        if self._until and now.st_mtime > self._until:
            raise ValueError("the file was written again after it was profiled")

    def _load(self, identity: str) -> dict[int, tuple[str, int]]:
        if not identity:
            return {}
        try:
            body = json.loads((self._cache / f"{identity}.json").read_text("utf-8"))
            if body.get("version") != _VERSION:
                return {}
            return {int(offset): (str(name), int(begin)) for offset, (name, begin) in body["names"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none yet, or cut off: it is made anew
            return {}

    def _save(self, identity: str, known: dict[int, tuple[str, int]]) -> None:
        """Whole or not at all: another adbg may read it meanwhile. A folder that cannot be written is no cache."""
        if not identity:
            return
        body = json.dumps({"version": _VERSION, "names": known})
        with suppress(OSError):
            self._cache.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self._cache, prefix=".new-")
            try:
                with os.fdopen(number, "w", encoding="utf-8") as file:
                    file.write(body)
                os.replace(name, self._cache / f"{identity}.json")
            except OSError:
                os.unlink(name)
                raise


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "adbg" / "symbols"


def _resolve(path: Path, offsets: set[int]) -> dict[int, tuple[str, int]]:
    table = functions(path)
    raw = {offset: table.name(table.address(offset)) for offset in offsets}
    plain = demangled(sorted({name for name in raw.values() if name}))
    shift = {offset: table.address(offset) - offset for offset in offsets}
    return {
        offset: (plain.get(name, name), table.begin(table.address(offset)) - shift[offset])
        for offset, name in raw.items()
    }
