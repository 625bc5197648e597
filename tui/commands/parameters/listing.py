"""``info params``: which of the parameters, in which order, one by one or by module."""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError
from adbg.tui.commands.table import CommandResult, table_result

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

# words of `by` for a column; `size` is no column, but the elements of the shape
_SHORT = {"grad": "grad norm", "ratio": "grad/norm", "elements": "size"}
_USAGE = "for example: info params fc*, info params by grad, info params by -norm, info params per module 1"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Asked:
    """``PATTERN``, `by [-]COLUMN`, `per module [DEPTH]`, in this order; "", "" and None where it is not said. ``depth``
    0: each module that has parameters."""

    pattern: str = ""
    column: str = ""
    smallest: bool = False
    depth: int | None = None


def params_result(debugger: Debugger, argument: str) -> CommandResult:
    """``info params [PATTERN] [by [-]COLUMN] [per module [DEPTH]]``.

    Raises:
        CommandError: no such column, a pattern that no parameter matches, other words.
    """
    asked = _asked(argument)
    body = debugger.view.info("params")
    rows = [dict(zip(body.columns, row)) for row in body.rows]
    if not rows:
        return CommandResult(body.text, [])
    head = body.text
    if asked.pattern:
        names = [row["name"] for row in rows]
        rows = [row for row in rows if matches(row["name"], asked.pattern)]
        if not rows:
            close = difflib.get_close_matches(asked.pattern, names, 3, 0.4)
            hint = f"closest: {', '.join(close)}" if close else "`info params` lists all"
            raise CommandError(f"no parameter matches {asked.pattern!r}", hint)
        head = f"{len(rows)} of {head}"
    columns = list(body.columns)
    if asked.depth is not None:
        rows = by_module(rows, asked.depth)
        columns = list(rows[0])
        head += "; the norm of a module is that of all its parameters together"
    if asked.column:
        rows = _sorted(rows, asked.column, columns, asked.smallest)
    return table_result(columns, [[row[name] for name in columns] for row in rows], head, rows)


def _asked(argument: str) -> _Asked:
    words = argument.split()
    found = _Asked()
    if words and words[0] not in ("by", "per"):
        found = _Asked(words.pop(0))
    if words[:1] == ["by"] and len(words) > 1:
        smallest, column = words[1].startswith("-"), words[1].lstrip("-")
        if column == "grad" and words[2:3] == ["norm"]:
            words.pop(2)
        found = _Asked(found.pattern, _SHORT.get(column, column), smallest)
        words = words[2:]
    if words[:2] in (["per", "module"], ["per", "modules"]):
        depth = words[2] if len(words) > 2 else "0"
        if depth.isdecimal():
            found = _Asked(found.pattern, found.column, found.smallest, int(depth))
            words = words[3:]
    if words:
        raise CommandError(f"cannot read {' '.join(words)!r}", _USAGE)
    return found


def matches(name: str, pattern: str) -> bool:
    """Whether the glob is of the name; without a wildcard, of the name itself or of a module around it."""
    if any(sign in pattern for sign in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return name == pattern or name.startswith(f"{pattern}.")


def _sorted(rows: list[Row], column: str, columns: Sequence[str], smallest: bool) -> list[Row]:
    """Largest first, those without a value at the end."""
    if column != "size" and column not in columns:
        hint = f"one of: size, {', '.join(columns)}; - before it has the smallest first"
        raise CommandError(f"no column {column!r}", hint)
    with_value = [row for row in rows if value_of(row, column) is not None]
    ordered = sorted(with_value, key=lambda row: value_of(row, column), reverse=not smallest)
    return ordered + [row for row in rows if value_of(row, column) is None]


def value_of(row: Row, column: str) -> Any:
    """What is sorted by. NaN is larger than any number: it is what one looks for."""
    if column == "size":
        return row["size"] if "size" in row else _elements(row["shape"])
    value = row[column]
    return math.inf if isinstance(value, float) and math.isnan(value) else value


def _elements(shape: str) -> int:
    return math.prod(json.loads(shape))


def by_module(rows: Sequence[Row], depth: int) -> list[Row]:
    """Totals: of all parameters whose names have the same first ``depth`` parts, or 0: the same module."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        parts = [""] if " " in row["name"] else row["name"].split(".")  # "SGD params[1]", "leaf of …"
        groups.setdefault(".".join(parts[: min(depth, len(parts) - 1)] if depth else parts[:-1]), []).append(row)
    found = []
    for name, members in groups.items():
        grad, norm = (_together([row.get(column) for row in members]) for column in ("grad norm", "norm"))
        missing = sum(row["grad"] is False for row in members)
        found.append(
            {
                "module": name or "(no module)", "parameters": len(members),
                "size": sum(_elements(row["shape"]) for row in members), "without grad": missing,
                "grad norm": grad, "norm": norm, "grad/norm": grad / norm if grad is not None and norm else None,
            }
        )  # fmt: skip
    return found


def _together(norms: Sequence[float | None]) -> float | None:
    """The norm of all as one vector; None where none is known."""
    known = [norm for norm in norms if norm is not None]
    return math.hypot(*known) if known else None
