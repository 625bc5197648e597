"""VLOG files as indented text: folded, filtered, followed, through a pager. Main thread."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adbg.engine.errors import CommandError
from adbg.engine.glog import Parser, Record
from adbg.engine.record.budget import beginning
from adbg.tui.text.gunzip import MAGIC, unpacked

CHUNK = 1 << 20
STDIN = "-"
TICK = 0.2  # seconds between two looks at a followed file


@dataclass(frozen=True, slots=True)
class View:
    """What is shown. ``depth`` None folds nothing; ``level`` None keeps all."""

    depth: int | None = None
    level: int | None = None
    pattern: re.Pattern[str] | None = None

    def keeps(self, record: Record) -> bool:
        level = record.level
        if self.level is not None and level is not None and level > self.level:
            return False
        return self.pattern is None or any(map(self.pattern.search, (record.text, *record.continuation)))


def logs(paths: Iterable[str]) -> list[str]:
    """The log files that ``paths`` name, folders of runs among them. Raises CommandError: one cannot be read."""
    files = [file for path in paths for file in _files(path)]
    for path in files:
        _check(path)
    return files


def listing(paths: list[str], view: View) -> Iterator[str]:
    """The lines of all files; each under its name when there are several."""
    for path in paths:
        if len(paths) > 1:
            yield f"==> {path} <=="
        folder = Folder(view)
        for records in _records(path):
            yield from folder.lines(records)
        yield from folder.rest()


class Folder:
    """Turns records into lines, counting what lies deeper than ``view.depth`` into one line."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.folded = 0
        self.indent = 0

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        view = self.view
        for record in records:
            if not view.keeps(record):
                continue
            if view.depth is not None and record.indent > view.depth and record.level != 0:
                self.folded += 1
                self.indent = view.depth
                continue
            yield from self.rest()
            yield from record_lines(record)

    def rest(self) -> Iterator[str]:
        """The line of what was folded so far."""
        if self.folded:
            yield f"{'':>16}  {'│ ' * self.indent}▸ {self.folded} record{'s' if self.folded > 1 else ''} deeper"
            self.folded = 0


def record_lines(record: Record) -> Iterator[str]:
    """ "00:54:27.615494 4  │ apply MmBackward0  (nodes:4)", then its continuation lines. A record whose message begins
    on its second line has it on the first here."""
    more = [_printable(text) for text in record.continuation]
    text = _printable(record.text)
    if not record.severity:
        yield text
        yield from more
        return
    if not text.strip() and more:
        text = more.pop(0).rstrip()
    level = record.level
    mark = record.severity if record.severity != "I" or level is None else str(level)
    clock = record.time.rpartition(" ")[2]
    bars = "│ " * record.indent
    yield f"{clock:>15} {mark} {bars}{text}  ({record.file}:{record.line})"
    for text in more:
        yield f"{'':>15}   {bars}{text}"


def _records(path: str) -> Iterator[list[Record]]:
    """All records that can be read, then CommandError when the file is damaged."""
    parser = Parser()
    problem = ""
    try:
        with sys.stdin.buffer if path == STDIN else open(path, "rb") as file:
            if start := beginning(path) if path != STDIN else 0:  # adbg gave its beginning back to the disk
                file.seek(start)
                file.readline()
            first = file.read(CHUNK)
            plain = itertools.chain([first], iter(lambda: file.read(CHUNK), b""))
            for data in unpacked(file, first) if first.startswith(MAGIC) else plain:
                yield parser.feed(data)
    except EOFError as error:
        problem = f"{path} is truncated: {error}"
    except (OSError, zlib.error) as error:
        problem = f"cannot read {path} to its end: {getattr(error, 'strerror', None) or error}"
    yield parser.flush()
    if problem:
        raise CommandError(problem, "what could be read was shown")


def follow(path: str, view: View) -> int:
    """Until Ctrl-C. A record is shown when it is complete, or nothing came for a moment."""
    parser = Parser()
    folder = Folder(view)
    with open(path, "rb") as file:
        while True:
            data = file.read(CHUNK)
            records = parser.feed(data) if data else parser.pending()
            for line in folder.lines(records):
                print(line, flush=True)
            if not data:
                for line in folder.rest():
                    print(line, flush=True)
                time.sleep(TICK)


def _files(path: str) -> list[str]:
    """The logs in the directory of a run; any other path is itself."""
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.startswith("vlog-") and ".log" in name)
    if not names:
        raise CommandError(f"no VLOG in {path}", "`vlog 4` in a session, or `adbg run -e 'vlog 4' …`, writes one")
    return [os.path.join(path, name) for name in names]


def _printable(text: str) -> str:
    """Control characters escaped, so that a terminal does not obey them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _check(path: str) -> None:
    if path == STDIN:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}", "`adbg runs show NAME` names the log of a run"
        ) from None


def pattern(text: str | None) -> re.Pattern[str] | None:
    """Of ``--grep``. Raises CommandError."""
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise CommandError(f"--grep: invalid regular expression {text!r}: {error}") from None


def page(lines: Iterable[str]) -> int:
    """Show the lines in the user's pager; returns its exit status."""
    pager = os.environ.get("PAGER") or ("less -RSFX" if shutil.which("less") else "cat")
    process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, text=True, errors="replace")
    assert process.stdin is not None
    try:
        for line in lines:
            process.stdin.write(line + "\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # the user left the pager
    return process.wait()
