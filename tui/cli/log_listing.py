"""VLOG files as indented text: folded, filtered, followed, through a pager. Main thread."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator

from adbg.engine.errors import CommandError
from adbg.engine.glog import Parser
from adbg.engine.record.budget import beginning
from adbg.tui.cli.log_scan import Folder, Scanner, View
from adbg.tui.text.gunzip import MAGIC, unpacked

CHUNK = 1 << 20
STDIN = "-"
AT_ONCE = 500  # lines
TICK = 0.2  # seconds between two looks at a followed file


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
        scanner = Scanner(view)
        problem = ""
        try:
            for data in _pieces(path):
                yield from scanner.feed(data)
        except EOFError as error:
            problem = f"{path} is truncated: {error}"
        except (OSError, zlib.error) as error:
            problem = f"cannot read {path} to its end: {getattr(error, 'strerror', None) or error}"
        yield from scanner.close()
        if problem:
            raise CommandError(problem, "what could be read was shown")


def _pieces(path: str) -> Iterator[bytes]:
    """The bytes of a file, unpacked."""
    with sys.stdin.buffer if path == STDIN else open(path, "rb") as file:
        if start := beginning(path) if path != STDIN else 0:  # adbg gave its beginning back to the disk
            file.seek(start)
            file.readline()
        first = file.read(CHUNK)
        if first.startswith(MAGIC):
            yield from unpacked(file, first)
            return
        while first:
            yield first
            first = file.read(CHUNK)


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


def write(lines: Iterable[str]) -> int:
    """To stdout, many at a time; what was read before an error is written."""
    some: list[str] = []
    try:
        for line in lines:
            some.append(line)
            if len(some) >= AT_ONCE:
                sys.stdout.write("\n".join(some) + "\n")
                some.clear()
    finally:
        sys.stdout.write("".join(line + "\n" for line in some))
        sys.stdout.flush()
    return 0


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
