"""Reports of profiles as plain text: tables, flame graphs, differences, verdicts. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import Protocol

from rich.cells import cell_len

from adbg.profiles.report.flame import ROOT, Tree, layout
from adbg.profiles.report.model import BYTES, SECONDS, Frame, NodeTime, Profile
from adbg.profiles.report.node_groups import NodeGroup, node_groups
from adbg.profiles.report.tables import Order, Row, Table
from adbg.profiles.report.verdict import (
    FEWEST_BACKWARDS,
    Bound,
    Verdict,
    data_uncertain,
    judge,
    medians,
    too_few,
    whole,
)
from adbg.tui.text.cells import elide
from adbg.tui.text.quantities import duration, size


class Saved(Protocol):
    """A profile in a run's folder."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...


_WAYS = {
    Bound.SCHEDULING: "launching operators takes longer than computing them: larger batches, fused operators or a "
    "compiled graph would win most",
    Bound.KERNEL: "the kernels take most of the time: better kernels, a smaller type or less to compute would win most",
    Bound.DATA: "the step waits for its data: more workers of the data loader, or data prepared ahead, would win most",
}
_LAUNCHED = ("compute nothing", "compute next to nothing: one operator on at most 1,024 numbers")
_WORKERS = "what its Dataset does on another thread, or in workers, is not measured here: `--with py-spy` shows it"
_READ_AHEAD = (
    "no verdict: the loader read ahead while adbg was at work in most of these iterations, and the step may wait for "
    "it most; from 30 iterations on there is one (`--iterations 30`)"
)
_LOADERS = {  # who runs __getitem__ and the collate function
    "torch": "its Dataset's own lines: `--with cprofile`; with num_workers they are in other processes, which `--with "
    "py-spy --pid WORKER --seconds 5` sees",
    "paddle": "its Dataset runs on another thread, which is not measured here: `--with py-spy` shows its lines",
}
_NARROW = 100  # cells: a table of fewer has one column of shares
_BASES = {
    "kernel": "kernel times are measured",
    "launch": "sums of the nodes' medians; kernel is what goes beyond {launch} a node, the most that launching one "
    "takes{by}",
    "iterations": "medians; the rest of it is not split any further",
    "samples": "by the innermost native frames of the samples",
}


def amount_text(weight: float | None, unit: str) -> str:
    """A weight in few cells: "1.2ms", "12", "4KiB", "12.3%" of shares; "" where there is none."""
    if weight is None:
        return ""
    if unit == SECONDS:
        us = abs(weight) * 1e6
        return ("-" if weight < 0 else "") + (duration(us) if us >= 0.5 or not us else "<1µs")
    if unit == BYTES:
        return ("-" if weight < 0 else "") + size(abs(weight))
    if unit == "shares":
        return f"{100 * weight:.1f}%"
    return f"{weight:,.0f}"


def place_text(frame: Frame) -> str:
    """ "model.py:16", "libtorch_cpu.so"."""
    file = frame.file or frame.module
    name = _short(file)
    return f"{name}:{frame.line}" if frame.line and name else name


def _short(file: str) -> str:
    """The file's name with its folder's, where that tells more: "optim/adam.py"."""
    if not file or file.startswith(("<", "[")) or "/" not in file:
        return file
    return "/".join(file.split("/")[-2:])


# ------------------------------------------------------------------ the head


def head_lines(profile: Profile, name: str) -> list[str]:
    """What it is, in one or two lines."""
    meta = profile.meta
    words = [str(meta.get("profiler") or meta.get("format") or "profile")]
    rank = meta.get("rank")
    if isinstance(rank, int):
        words.append(f"rank {rank}")
    if profile.samples and not profile.calls:
        words.append(_count(len(profile.samples), "stack"))
    if profile.calls:
        words.append(f"{sum(call.calls for call in profile.calls):,} calls of {_count(len(profile.calls), 'function')}")
    if profile.nodes:
        words.append(_count(len(profile.nodes), "node"))
    if profile.iterations:
        words.append(_count(len(profile.iterations), "iteration"))
    if profile.samples or profile.calls:
        words.append(amount_text(profile.total, profile.unit) + ("" if profile.unit == SECONDS else f" {profile.unit}"))
    threads = {sample.thread for sample in profile.samples if sample.thread}
    if len(threads) > 1:
        words.append(_count(len(threads), "thread"))
    lines = [f"{name}: {', '.join(words)}"]
    if note := meta.get("note"):
        lines.append(f"note: {note}")
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ------------------------------------------------------------------ tables


def table_lines(table: Table, rows: Sequence[Row], width: int, limit: int, what: str = "function") -> list[str]:
    """The first ``limit`` of ``rows`` (0: all) in columns; the name gives way."""
    shown = rows[:limit] if limit else rows
    counted = any(row.calls is not None for row in shown)
    narrow = width < _NARROW
    forward = any(row.forward is not None for row in rows)
    heads = ["self", "%", "cumulative"] + ["%"] * (not narrow) + (["calls", "per call"] if counted else [])
    heads += ["forward"] * forward
    body = []
    for row in shown:
        cells = [
            amount_text(row.own, table.unit),
            _share(row.own, table.total),
            amount_text(row.cumulative, table.unit),
        ]
        if not narrow:
            cells.append(_share(row.cumulative, table.total))
        if counted:
            cells += [_calls(row), amount_text(row.per_call, table.unit)]
        if forward:
            cells.append(amount_text(row.forward, table.unit) if row.forward is not None else "·")
        body.append((cells, row.frame.name, place_text(row.frame)))
    lines = columns(heads, body, width, what)
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown):,} rows more (--limit 0 shows all)")
    return lines


def _calls(row: Row) -> str:
    if row.calls is None:
        return ""
    return f"{row.calls:,}" if row.primitive in (None, row.calls) else f"{row.calls:,}/{row.primitive:,}"


def _share(weight: float, total: float) -> str:
    return f"{100 * weight / total:.1f}" if total else "0.0"


def columns(
    heads: Sequence[str], body: Sequence[tuple[Sequence[str], str, str]], width: int, what: str = "function"
) -> list[str]:
    """Numbers to the right, then the name, then the place."""
    widths = [max([len(head)] + [cell_len(cells[i]) for cells, _, _ in body]) for i, head in enumerate(heads)]
    left = sum(widths) + 2 * len(widths)
    place = min(max([len("where")] + [cell_len(where) for _, _, where in body]), max(width // 4, 14))
    name = max(min(width - left - place - 2, max([8] + [cell_len(text) for _, text, _ in body])), 12)
    head = "  ".join(f"{head:>{size}}" for head, size in zip(heads, widths))
    lines = [f"{head}  {_pad(what, name)}  where"]
    for cells, text, where in body:
        numbers = "  ".join(" " * (size - cell_len(cell)) + cell for cell, size in zip(cells, widths))
        if where:
            lines.append(f"{numbers}  {_pad(elide(text, name), name)}  {_tail(where, place)}")
        else:
            lines.append(f"{numbers}  {elide(text, name + 2 + place)}")
    return lines


def _pad(text: str, width: int) -> str:
    return text + " " * max(width - cell_len(text), 0)


def _tail(text: str, width: int) -> str:
    """The end of a place tells most: first its folder goes."""
    if cell_len(text) > width and "/" in text and " " not in text:
        text = text.rpartition("/")[2]
    return text if cell_len(text) <= width else "…" + text[len(text) - width + 1 :]


# ------------------------------------------------------------------ nodes


def node_rows(profile: Profile, single: bool, order: Order, pattern: re.Pattern[str] | None = None) -> list[NodeGroup]:
    """Those whose name or place matches; by default those that usually take most first."""
    rows = node_groups(profile, single)
    if pattern is not None:
        rows = [row for row in rows if pattern.search(row.name) or pattern.search(_whole_place(row.heaviest))]
    keys: dict[Order, Callable[[NodeGroup], float | str]] = {
        Order.CALLS: lambda row: -row.calls,
        Order.PER_CALL: lambda row: -row.usual / (row.calls or 1),
        Order.NAME: lambda row: row.name.lower(),
    }
    return sorted(rows, key=keys[order]) if order in keys else rows


def _whole_place(node: NodeTime) -> str:
    return f"{node.file}:{node.line} {node.module}"


def node_lines(
    profile: Profile, width: int, limit: int, single: bool = False, rows: Sequence[NodeGroup] | None = None
) -> list[str]:
    """The node timer's rows, or ``rows`` of them: nodes of one kind that one line made together, or each by itself."""
    groups = node_groups(profile, single) if rows is None else rows
    shown = groups[:limit] if limit else groups
    heads = ["total", "median", "kernel", "launch", "gap", "calls", "nodes", "phase"]
    forward = any(node.forward is not None for node in profile.nodes)
    if forward:  # then all are of the backward
        heads[-1:] = ["forward", "median"]
    body = [(_node_cells(group, forward), group.name, _node_place(group)) for group in shown]
    lines = columns(heads, body, width, "node")
    lines += _folded(_node_note(profile), width)
    if len(shown) < len(groups):
        lines.append(f"{len(groups) - len(shown):,} rows more (--limit 0 shows all)")
    return lines


def _node_note(profile: Profile) -> str:
    """By what the columns kernel and launch are told apart, and what there is no column for."""
    if all(node.kernel is not None for node in profile.nodes):
        basis = "kernel: measured"
    elif profile.launch_cost is not None:
        most = amount_text(profile.launch_cost, SECONDS)
        by = _LAUNCHED[profile.meta.get("launch") == "small"]
        basis = f"kernel: what goes beyond {most}, the most that launching a node takes, by nodes that {by}"
    else:
        basis = "kernel: not known, no node of this graph computes nothing, or next to nothing (a sum of few numbers)"
    forward = "; " + _forward_note(profile)
    return (_table_of(profile) + "; " if profile.meta.get("measured") else "") + basis + forward


def _forward_note(profile: Profile) -> str:
    if not any(node.phase == "forward" or node.forward is not None for node in profile.nodes):
        why = str(profile.meta.get("forward") or "").removeprefix("not measured: ")
        return "forward: not measured per node" + (f" ({why})" if why else "")
    timed = profile.meta.get("forwards")
    of = f" in {_count(timed, 'forward')}, as much for as many calls" if isinstance(timed, int) and timed else ""
    return f"forward: the operator that made the node{of}; · not measured"


def _table_of(profile: Profile) -> str:
    """What the sums in the table are of."""
    measured, backwards = profile.meta.get("measured"), profile.meta.get("backwards")
    of = f"of the {measured:,} backwards (of {backwards:,}) that were measured"
    return f"by total and gap; total: median times calls, {of}"


def _node_cells(group: NodeGroup, forward: bool) -> list[str]:
    made = group.forward
    least = ">" if group.untimed else ""  # some of the nodes are not measured
    ends = [group.heaviest.phase]
    if forward:
        each = made / group.calls if made is not None and group.calls and not group.untimed else None
        ends = [
            least + amount_text(made, SECONDS) if made is not None else "·",
            amount_text(each, SECONDS) if each is not None else "·",
        ]
    return [
        amount_text(group.usual, SECONDS),
        amount_text(group.usual / group.calls if group.calls else 0.0, SECONDS),
        amount_text(group.kernel, SECONDS) if group.kernel is not None else "·",
        amount_text(group.launch, SECONDS) if group.launch is not None else "·",
        amount_text(group.gap, SECONDS),
        f"{group.calls:,}",
        f"{group.count:,}",
        *ends,
    ]


def _node_place(group: NodeGroup) -> str:
    node = group.heaviest
    place = f"{_short(node.file)}:{node.line}" if node.file else ""
    return " ".join(filter(None, (group.module, place)))


def iteration_lines(profile: Profile, width: int) -> list[str]:
    """The usual iteration and its parts, and the slowest; of those without hooks, where there are such."""
    if not profile.iterations:
        return []
    rows = whole(profile.iterations) or profile.iterations
    slowest = max(rows, key=lambda row: row.total)
    total, each = medians(rows)
    told = {name: value for name, value in each.items() if name != "other" or any(row.other for row in rows)}
    parts = [f"{name} {amount_text(value, SECONDS)}" for name, value in told.items()]
    text = f"iterations: median {amount_text(total, SECONDS)}"
    text += f" ({', '.join(parts)})" if parts else ""
    lines = [f"{text}, slowest {amount_text(slowest.total, SECONDS)} (iteration {slowest.index})"]
    unseen = profile.meta.get("unseen")
    if isinstance(unseen, tuple) and unseen:
        framework = str(profile.meta.get("framework") or "")
        lines.append("  not seen: " + "; ".join(_unseen(name, framework) for name in unseen))
    return [part for line in lines for part in _folded(line, width)]


def _unseen(phase: str, framework: str) -> str:
    """What would have been seen."""
    return {
        "forward": f"forward (no {'Layer' if framework == 'paddle' else 'Module'} was called)",
        "optimizer": "optimizer (no optimizer made a step)",
        "data": f"data (no DataLoader of {framework or 'the framework'}'s was used)",
    }[phase]


def verdict_lines(profile: Profile, width: int) -> list[str]:
    """Empty where the profile cannot say."""
    verdict = judge(profile)
    if verdict is None:
        return _folded(why, width) if (why := _no_verdict(profile)) else []
    parts = ", ".join(f"{name} {amount_text(seconds, SECONDS)}" for name, seconds in verdict.parts)
    if verdict.per:
        parts += f" of the usual {verdict.per}{_measured(profile) if verdict.per == 'backward' else ''}"
    by = f" by those that {_LAUNCHED[1]}" if profile.meta.get("launch") == "small" else ""
    basis = _BASES[verdict.basis].format(launch=amount_text(profile.launch_cost, SECONDS), by=by)
    lines = [f"{verdict.bound.value}: {100 * verdict.share:.0f}% ({parts}; {basis})", f"  {_WAYS[verdict.bound]}"]
    lines = [part for line in lines for part in _folded(line, width)]
    lines += [_won(verdict, place) for place in range(len(verdict.lines))]
    if verdict.basis == "iterations":
        lines += _folded("  " + _LOADERS.get(str(profile.meta.get("framework") or ""), _WORKERS), width)
    return lines


def _measured(profile: Profile) -> str:
    measured, backwards = profile.meta.get("measured"), profile.meta.get("backwards")
    return f", measured in {measured:,} of {backwards:,}" if measured and backwards else ""


def _no_verdict(profile: Profile) -> str:
    if profile.meta.get("part"):
        return "no verdict: these nodes are a part of one backward; from some iterations there is one"
    if not too_few(profile):
        return _READ_AHEAD if data_uncertain(profile, 1.0) else ""
    return (
        f"no verdict by nodes{_measured(profile)} backwards: another run might say another thing; from "
        f"{FEWEST_BACKWARDS} on there is one (`--iterations {2 * FEWEST_BACKWARDS + 1}`)"
    )


def _folded(line: str, width: int) -> list[str]:
    indent = "  " if line.startswith(" ") else ""
    return wrap(line.strip(), width, initial_indent=indent, subsequent_indent="  ")


def _won(verdict: Verdict, place: int) -> str:
    line = verdict.lines[place]
    what = {"samples": "samples", "iterations": "batches"}.get(verdict.basis, "nodes")
    seconds = amount_text(line.seconds, SECONDS)
    if line.calls == 1:
        what = {"batches": "batch"}.get(what, what[:-1])
    forward = f", {amount_text(line.forward, SECONDS)} in their forward" if line.forward is not None else ""
    mean = ", on average" if verdict.basis == "iterations" else ""  # of waits the sum is known
    return f"  {place + 1}. {_short(line.file)}:{line.line}  {seconds} in {line.calls:,} {what}{mean}{forward}"


# ------------------------------------------------------------------ the flame graph


def flame_lines(tree: Tree, unit: str, width: int, depth: int, zoom: int = ROOT) -> Iterator[str]:
    """An icicle of names between bars: each frame as wide as its share."""
    for row in layout(tree, width, zoom, depth):
        line, at = "", 0
        for node, column, across in row:
            line += " " * (column - at) + _box(tree, node, across, unit)
            at = column + across
        yield line.rstrip()


def _box(tree: Tree, node: int, width: int, unit: str) -> str:
    frame = tree.frame_of(node)
    name = frame.name if frame else "all"
    told = f"{name} {amount_text(tree.weight[node], unit)}"
    text = told if cell_len(told) <= width - 1 else name
    inside = elide(text, width - 1) if width > 2 else ""
    return "▏" + inside + " " * (width - 1 - cell_len(inside))


def find_node(tree: Tree, pattern: re.Pattern[str]) -> int | None:
    """The widest node that matches."""
    return max(tree.find(pattern), key=lambda node: tree.weight[node], default=None)


# ------------------------------------------------------------------ of a run


def list_lines(name: str, profiles: Sequence[Saved]) -> list[str]:
    """The profiles of a run, to choose from."""
    widest = max(len(each.name) for each in profiles)
    lines = [f"{name}: {_count(len(profiles), 'profile')}; to see one: adbg profile {profiles[0].path}"]
    return lines + [f"  {each.name:<{widest}}  {each.what}".rstrip() for each in profiles]
