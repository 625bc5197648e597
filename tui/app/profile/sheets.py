"""Tables of a report: what their columns are, and their rows as numbers to sort by and text to show. Pure; made on a
worker thread."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from adbg.profiles.report.model import NODE, SECONDS, Frame, Profile
from adbg.profiles.report.node_groups import NodeGroup, node_groups
from adbg.profiles.report.tables import Difference, Grouping, Row, matches, table
from adbg.profiles.report.verdict import ITERATION_PARTS
from adbg.tui.app.profile.colours import change_style, kind_of
from adbg.tui.text.cells import Spans, elide, width_of
from adbg.tui.text.profile_report import amount_text, place_text

Number = float | None
GROUPINGS = (
    Grouping.FUNCTION, Grouping.LINE, Grouping.FILE, Grouping.MODULE, Grouping.ORIGIN, Grouping.PHASE, Grouping.THREAD,
)  # fmt: skip
_NAME, _PLACE = 26, 16  # cells at least
_BY_NAME = -1


@dataclass(frozen=True, slots=True)
class Column:
    """``text`` writes a number of it; ``signed`` ones are sorted by their size."""

    title: str
    width: int
    text: Callable[[Number], str]
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """A row: a number for each column, and what it is of."""

    numbers: tuple[Number, ...]
    name: str
    frame: Frame
    style: str = ""
    more: str = ""  # what else is known of it


@dataclass(frozen=True, slots=True)
class Sheet:
    """``order``: the column that it is sorted by, -1: by name. ``what`` an item is."""

    columns: tuple[Column, ...]
    items: tuple[Item, ...]
    what: str
    order: int = 0

    def sorted_by(self, order: int) -> Sheet:
        if order == _BY_NAME:
            rows = sorted(self.items, key=lambda item: (item.name.lower(), item.frame.file, item.frame.line))
        else:
            size: Callable[[Number], float] = abs if self.columns[order].signed else float  # type: ignore[assignment]
            rows = sorted(self.items, key=lambda item: -size(item.numbers[order] or 0.0))
        return replace(self, items=tuple(rows), order=order)

    def next_order(self, step: int) -> int:
        """The column to sort by behind the present one; the name is the last."""
        if not self.what:
            return (self.order + step) % len(self.columns)
        return (self.order + step + 1) % (len(self.columns) + 1) - 1

    def find(self, pattern: re.Pattern[str], row: int, step: int) -> int | None:
        """The next row from ``row`` that matches."""
        size = len(self.items)
        for distance in range(1, size + 1):
            at = (row + step * distance) % size
            item = self.items[at]
            if pattern.search(item.name) or matches(item.frame, pattern):
                return at
        return None

    # ---- in cells

    def places(self, width: int) -> tuple[list[tuple[int, int, int]], int, int]:
        """(column, first cell, cells) of the columns that there is room for, the first cell of the name, and its cells.
        Columns on the right give way."""
        shown: list[tuple[int, int, int]] = []
        at = 0
        kept = _NAME + _PLACE + 3 + 2 if self.what else 0  # where rows have no names, all is for the numbers
        for number, column in enumerate(self.columns):
            if at + column.width > width - kept and number:
                break
            shown.append((number, at, column.width))
            at += column.width + 2
        place = max((width - at) // 3, min(_PLACE, (width - at) // 2))
        return shown, at, max(width - at - place - 2, 4)

    def heading(self, width: int) -> Spans:
        shown, _, name = self.places(width)
        spans: Spans = []
        for number, _, cells in shown:
            column = self.columns[number]
            title = f"▾{column.title}" if number == self.order else column.title
            spans.append((f"{elide(title, cells):>{cells}}  ", "bold" if number == self.order else "dim"))
        if not self.what:
            return spans
        title = f"▾{self.what}" if self.order == _BY_NAME else self.what
        spans.append((f"{elide(title, name):<{name}}  ", "bold" if self.order == _BY_NAME else "dim"))
        return [*spans, ("where", "dim")]

    def column_at(self, x: int, width: int) -> int | None:
        """The column whose title stands at cell ``x``, as ``order`` has it."""
        shown, at, name = self.places(width)
        for number, first, cells in shown:
            if first <= x < first + cells + 1:
                return number
        return _BY_NAME if self.what and at <= x < at + name else None

    def line(self, row: int, width: int) -> Spans:
        item = self.items[row]
        shown, at, name = self.places(width)
        spans: Spans = [
            (f"{self.columns[number].text(item.numbers[number]):>{cells}}  ", "bold" if number == self.order else "")
            for number, _, cells in shown
        ]
        if not self.what:
            return spans
        text = elide(item.name, name)
        spans.append((text + " " * (name - width_of([(text, "")])), item.style or f"ink-{kind_of(item.frame)}"))
        where = place_text(item.frame) if item.frame.file or item.frame.module else ""
        room = width - at - name - 2
        if room > 4 and where:
            spans.append(("  " + (where if len(where) <= room else "…" + where[len(where) - room + 1 :]), "dim"))
        return spans


def _share(whole: float) -> Callable[[Number], str]:
    return lambda weight: f"{100 * (weight or 0.0) / whole:.1f}" if whole else ""


def _count(number: Number) -> str:
    return "" if number is None else f"{number:,.0f}"


def _amount(unit: str) -> Callable[[Number], str]:
    return lambda weight: amount_text(weight, unit)


def _known(weight: Number) -> str:
    """Of what was not measured, nothing."""
    return amount_text(weight, SECONDS) if weight is not None else "·"


def functions(profile: Profile, grouping: Grouping) -> Sheet:
    """Self and cumulative of each function, file, part, …"""
    rows = table(profile, grouping)
    amount, share = _amount(rows.unit), _share(rows.total)
    columns = [
        Column("self", 7, amount), Column("%", 5, share), Column("cumul.", 7, amount), Column("%", 5, share),
    ]  # fmt: skip
    counted = any(row.calls is not None for row in rows.rows)
    if counted:
        columns += [Column("calls", 9, _count), Column("per call", 8, amount)]

    def item(row: Row) -> Item:
        numbers: tuple[Number, ...] = (row.own, row.own, row.cumulative, row.cumulative)
        recursive = counted and row.calls != row.primitive and row.primitive is not None
        more = f"{row.calls:,} calls, {row.primitive:,} of them not within itself" if recursive else ""
        return Item(numbers + ((row.calls, row.per_call) if counted else ()), row.frame.name, row.frame, more=more)

    return Sheet(tuple(columns), tuple(map(item, rows.rows)), grouping.value)


def nodes(profile: Profile, single: bool = False) -> Sheet:
    """The node timer's rows: kernel against launching and gaps. Of nodes of one kind that one line made, or each."""
    amount = _amount(SECONDS)
    columns = [
        Column("node+gap", 9, amount), Column("node", 7, amount), Column("gap", 7, amount),
        Column("kernel", 7, amount), Column("launch", 7, amount), Column("calls", 7, _count),
        Column("per call", 9, amount),
    ]  # fmt: skip
    forward = any(node.forward is not None for node in profile.nodes)
    if forward:
        columns[5:5] = [Column("forward", 8, _known), Column("each", 7, _known)]
    if not single:
        columns.append(Column("nodes", 6, _count))

    def item(row: NodeGroup) -> Item:
        node = row.heaviest
        numbers: tuple[Number, ...] = (
            row.usual + row.gap, row.usual, row.gap, row.kernel, row.launch, row.calls,
            row.usual / row.calls if row.calls else None,
        )  # fmt: skip
        if forward:
            each = row.forward / row.calls if row.forward is not None and row.calls and not row.untimed else None
            numbers = (*numbers[:5], row.forward, each, *numbers[5:])
        frame = Frame(node.unique_name or node.name, node.file, node.line, NODE, node.module)
        label = row.name if node.phase == "backward" else f"{row.name} {node.phase}"
        more = f"{node.phase} of {node.module}" if row.module else node.phase
        more += f"; most in {frame.name}" if row.count > 1 else ""
        more += "" if row.forward is None or not row.untimed else f"; forward of {row.untimed:,} not measured"
        more += "; forward not measured" if row.forward is None else ""
        return Item(numbers if single else (*numbers, row.count), label, frame, more=more)

    return Sheet(tuple(columns), tuple(map(item, node_groups(profile, single))), "node").sorted_by(0)


def iterations(profile: Profile) -> Sheet:
    """Each iteration and its parts, in their order."""
    amount = _amount(SECONDS)
    names = ("total", *ITERATION_PARTS)
    columns = (Column("iteration", 10, _count), *(Column(name, 9, amount) for name in names))
    items = tuple(
        Item((row.index, *(getattr(row, name) for name in names)), "", Frame("", side=NODE))
        for row in profile.iterations
    )
    return Sheet(columns, items, "")


def changes(difference: Difference) -> Sheet:
    """What takes more and what takes less in the second profile."""
    unit = difference.unit
    plain = _amount(unit)

    def signed(weight: Number) -> str:
        return ("+" if (weight or 0.0) > 0 else "") + plain(weight)

    columns = (
        Column("self +/-", 9, signed, signed=True), Column("cumul. +/-", 10, signed, signed=True),
        Column("before", 9, plain), Column("after", 9, plain),
    )  # fmt: skip
    largest = max((abs(change.own) for change in difference.changes), default=0.0)
    items = []
    for change in difference.changes:
        if change.own or change.cumulative:
            before, after = change.before, change.after
            numbers = (change.own, change.cumulative, before.own if before else None, after.own if after else None)
            more = "" if before and after else "only in the first" if before else "only in the second"
            style = change_style(change.own, largest).replace("flame-", "ink-")
            items.append(Item(numbers, change.frame.name, change.frame, style, more))
    return Sheet(columns, tuple(items), "function")
