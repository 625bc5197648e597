"""Source places that a person types at a command: FILE:A-B. Any thread."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from adbg.engine.errors import CommandError

_LINES = re.compile(r"(\d+)(?:-(\d+))?\Z")


def checked_place(place: str, words: Sequence[str] = ()) -> tuple[str, str]:
    """``place`` as the program is to be asked for it, and what a person should be told about it ("" for nothing).

    A file that is there, or that the program's command line (``words``) has, is meant with its whole path. Another one
    is taken as the end of a path: the program may have other folders than this shell.

    Raises:
        CommandError: the file is there and has not that many lines.
    """
    place = place.strip()
    file, colon, lines = place.rpartition(":")
    if not colon or not file:
        return place, ""
    meant = [os.path.expanduser(file), *(word for word in words if word.endswith(f"{os.sep}{file}"))]
    path = next((os.path.realpath(name) for name in meant if os.path.isfile(name)), "")
    if not path:
        return place, f"there is no file {file} here: lines of every file are meant whose path ends so"
    numbers = _LINES.match(lines.strip())
    there = _line_count(path)
    if numbers and there is not None and int(numbers[1]) > there:
        raise CommandError(f"{file} has {there} lines, and {lines} is behind its end", "`list` shows the lines")
    return f"{path}:{lines}", ""


def _line_count(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return None
