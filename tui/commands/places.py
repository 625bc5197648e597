"""Source lines that the user gives to a command: FILE:FIRST-LAST. Any thread."""

from __future__ import annotations

import os
from collections.abc import Sequence

from adbg.engine.errors import CommandError
from adbg.engine.places import Lines, parse_lines


def checked_place(place: str, words: Sequence[str] = (), example: str = "model.py:10-14") -> tuple[str, str]:
    """``place`` as it is sent to the program, and a remark for the user ("" for none).

    A file that exists, or that the program's command line (``words``) names, is sent with its whole path. Any other is
    taken as the end of a path: the program may have been started elsewhere.

    Raises:
        CommandError: it is not FILE:FIRST-LAST, or the file exists and has fewer lines.
    """
    lines = parse_lines(place, example)
    meant = [os.path.expanduser(lines.file), *(word for word in words if word.endswith(f"{os.sep}{lines.file}"))]
    path = next((os.path.realpath(name) for name in meant if os.path.isfile(name)), "")
    if not path:
        return str(lines), f"no file {lines.file} here: this matches every file whose path ends in {lines.file}"
    count = _line_count(path)
    if count is not None and lines.first > count:
        raise CommandError(f"{lines.file} has only {count} lines", "`list` shows them")
    return str(Lines(path, lines.first, lines.last)), ""


def _line_count(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return None
