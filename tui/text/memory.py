"""Memory in words: ``info memory``, ``why alive``, and the app's memory screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from adbg.engine.protocol.messages import (
    AliveBody,
    Allocator,
    Course,
    DeviceMemory,
    Growth,
    MemoryBody,
    MemorySample,
    NodeMemory,
    NodesMemory,
    Owner,
    ProcessMemory,
    Retained,
    RetainedRow,
    Saver,
)
from adbg.engine.types import SourceLine
from adbg.tui.text.formatting import file_text
from adbg.tui.text.quantities import size

_BARS = "▁▂▃▄▅▆▇█"
_OTHERS = 3  # further lines that may fill a variable
_SHOWN = 8  # owners of one kind that are listed
Row = tuple[str, int | None]


def bytes_text(nbytes: float | None) -> str:
    return "not known" if nbytes is None else size(nbytes, spaced=True)


def place(line: SourceLine | None) -> str:
    return f"{file_text(line.file)}:{line.line}" if line is not None else ""


# ------------------------------------------------------------------ process, allocators, devices


def process_rows(process: ProcessMemory) -> list[Row]:
    """(name, bytes) of what the system tells."""
    rows = [
        ("rss", process.rss), ("peak_rss", process.peak_rss), ("uss", process.uss), ("pss", process.pss),
        ("swap", process.swap),
    ]  # fmt: skip
    return [row for row in rows if row[1] is not None]


def allocator_rows(each: Allocator) -> list[Row]:
    """With the fragmentation: what is reserved and not allocated."""
    if each.allocated is None or each.reserved is None:
        return []
    figures = {
        "allocated": each.allocated, "reserved": each.reserved, "fragmentation": each.reserved - each.allocated,
        "peak_allocated": each.peak_allocated, "peak_reserved": each.peak_reserved,
    }  # fmt: skip
    return [(f"{each.framework} {each.device} {name}", value) for name, value in figures.items()]


def device_rows(each: DeviceMemory) -> list[Row]:
    rows: list[Row] = [(f"device {each.device} used", each.used), (f"device {each.device} total", each.total)]
    return rows if each.own is None else [*rows, (f"device {each.device} this process", each.own)]


def figures(body: MemoryBody) -> list[Row]:
    """Everything with a number."""
    rows = process_rows(body.process)
    for allocator in body.allocators:
        rows += allocator_rows(allocator)
    for device in body.devices:
        rows += device_rows(device)
    return rows


def notes(body: MemoryBody) -> list[str]:
    return list(
        dict.fromkeys([*(each.note for each in body.allocators if each.note), *filter(None, [body.no_devices])])
    )


# ------------------------------------------------------------------ the graph


def retained_head(found: Retained) -> str:
    """ "the graph retains 37.8 KiB until its 11 nodes have run, and 200 B of parameters that stay"."""
    count = f"{found.nodes:,} node{'s' * (found.nodes != 1)}"
    if found.hidden and not found.bytes and not found.held:
        return f"what the graph of {count} retains is not known"
    least = "at least " if found.hidden or found.unread else ""
    text = f"the graph of {count} retains {least}{bytes_text(found.bytes)} for its backward"
    if found.held:
        text += f", beside {bytes_text(found.held)} of parameters and other leaves"
    if found.freed:
        text += f"; {found.freed} ran and let go of theirs"
    return text


def retained_notes(found: Retained) -> list[str]:
    lines = []
    if found.unread:
        lines.append(
            f"{found.unread} of them not counted: reading what they saved would unpack it (checkpoint, offload)"
        )
    if found.hidden:
        lines.append(f"{found.hidden} of them not counted: {found.why_hidden}")
    for each in found.contexts:
        many = f"{each.count} contexts" if each.count > 1 else "1 context"
        lines.append(f"{many} of {each.name}, of this graph or another, saved {bytes_text(each.bytes)}")
    return [*lines, *([found.note] if found.note else [])]


RETAINED_COLUMNS = ("#", "node", "bytes", "share", "of leaves", "saved", "module", "made at")


def retained_cells(found: Retained, row: RetainedRow) -> tuple[str, ...]:
    share = f"{row.bytes / found.bytes:.0%}" if found.bytes else ""
    where = place(row.forward)
    return (
        f"#{row.index}", row.name, size(row.bytes), share, size(row.held) if row.held else "", " ".join(row.tensors),
        row.module or "", where,
    )  # fmt: skip


# ------------------------------------------------------------------ the course


def spark(values: Sequence[float], width: int) -> str:
    """A line of bars, the newest at the right."""
    if not values:
        return ""
    per = -(-len(values) // width)
    tops = [max(values[at : at + per]) for at in range(0, len(values), per)]
    low, high = min(tops), max(tops)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((value - low) * scale)] for value in tops)


def course_head(course: Course) -> str:
    """What the samples come to."""
    count = len(course.samples)
    if not count:
        return (
            "not watched: `info memory iterations on` samples the end of each backward"
            if not course.on
            else ("watched: no backward has ended since")
        )
    first, last = course.samples[0], course.samples[-1]
    text = f"{count} iteration{'s' * (count != 1)}, RSS {bytes_text(first.rss)} to {bytes_text(last.rss)}"
    if course.free_heap:
        text += ", free in the heap {} to {}".format(*map(bytes_text, course.free_heap))
    if course.slope is None:
        text += "; too few for a trend"
    elif course.grows:
        text += f"; grows by {bytes_text(course.slope)} an iteration"
        if course.stacks:
            text += ", more than without adbg: forward stacks of kept nodes, and the holes that they leave in the heap"
            text += " (`stacks off` for the script's own)"
    else:
        text += "; no trend"
    return text if course.on else f"{text} (no longer watched)"


def course_lines(course: Course, width: int = 60) -> list[str]:
    lines = [course_head(course)]
    if len(course.samples) > 1:
        lines += _drawn("RSS", course.samples, [float(each.rss) for each in course.samples], width)
        allocated = [float(each.allocated) for each in course.samples if each.allocated is not None]
        if allocated:
            lines += _drawn("allocated", course.samples, allocated, width)
    for growth in course.growths:
        lines += growth_lines(growth)
    return lines


def _drawn(name: str, samples: Sequence[MemorySample], values: list[float], width: int) -> list[str]:
    ends = f"{bytes_text(min(values))} to {bytes_text(max(values))}"
    return [f"{name:<9} {spark(values, width)}  {ends}, iterations {samples[0].iteration}-{samples[-1].iteration}"]


def growth_lines(growth: Growth) -> list[str]:
    """The finding: who grows, and the line that feeds it."""
    owner = growth.owner
    (began, few), *later = growth.counts
    what = ("node" if growth.nodes or (owner.graphs and not owner.bytes) else "tensor") + "s" * (few != 1)
    what += " of earlier iterations" if growth.nodes else ""
    counts = ", ".join([f"{few} {what} at iteration {began}", *(f"{count} at {when}" for when, count in later)])
    keeps = ", each of which keeps its graph" if owner.graphs == owner.count and not growth.nodes else ""
    grows = f"grew until iteration {growth.ended}" if growth.ended else "grows" if growth.sure else "may grow"
    lines = [f"{owner.path} {grows}: its graph had {counts}" if growth.nodes else
             f"{owner.path} {grows}: it led to {counts}{keeps}"]  # fmt: skip
    lines += [f"    {text}" for text in _lines_of(owner)]
    if not growth.sure and not growth.ended:
        lines.append("    it may be a window or a cache that is not full yet: this is looked at again")
    elif (keeps or growth.nodes) and not growth.ended:
        lines.append("    keep its number alone (`.item()`, `float(…)`) or a tensor without graph (`.detach()`)")
    return lines


# ------------------------------------------------------------------ node by node

NODE_COLUMNS = ("#", "node", "took", "before", "highest", "after", "module", "made at")


def node_cells(each: NodeMemory) -> tuple[str, ...]:
    took = size(max(each.highest, each.after) - each.before)
    where = place(each.forward)
    sizes = [size(each.before), size(each.highest), size(each.after)]
    return f"#{each.index}", each.name, took, *sizes, each.module or "", where


def nodes_head(found: NodesMemory) -> list[str]:
    """Where the peak was, and what is not seen of it."""
    peak = found.peak
    if peak is None:
        if found.on:
            return ["watched node by node: no backward has ended since"]
        return ["not watched: `info memory nodes on` looks before and after every node"]
    course = f"from {bytes_text(found.begun)} up to {bytes_text(peak.highest)}"
    lines = [f"iteration {found.iteration}: {course}, at #{peak.index} {peak.name} {place(peak.forward)}".rstrip()]
    top = found.highest
    if top is not None and top != peak:
        lines.append(f"highest so far: {bytes_text(top.highest)}, at #{top.index} {top.name}")
    if found.measure == "rss" and not found.within:
        lines.append("by the RSS at both ends of each node: what a node takes and gives back within itself is not seen")
    return lines


# ------------------------------------------------------------------ why alive


def alive_lines(body: AliveBody) -> list[str]:
    head = body.what + (f", {bytes_text(body.bytes)} of memory" if body.bytes else "")
    lines = [head]
    lines += _owners("kept by", body.owners)
    lines += _owners("its memory is shared by", body.shared)
    lines += _owners("kept, with its graph, by" if not body.owners else "its graph is kept by", body.graphs)
    lines += [_saver(each) for each in body.savers]
    lines += body.notes
    if not body.owners and not body.shared and not body.graphs and not body.savers:
        lines.append(
            "no variable of the program leads to one"
            if body.what.startswith("graph")
            else ("no variable of the program leads to it: only the engine, a library or this expression has it")
        )
    cut = ", and gave up there" if body.cut else ""
    lines.append(f"(looked at {body.objects:,} objects in {body.ms:.0f} ms{cut})")
    return lines


def _owners(head: str, owners: Sequence[Owner]) -> list[str]:
    lines = []
    for owner in owners[:_SHOWN]:
        lines.append(f"  {head} {owner_text(owner)}")
        lines += [f"      {text}" for text in _lines_of(owner)]
    if len(owners) > _SHOWN:
        lines.append(f"  and {len(owners) - _SHOWN} more variables")
    return lines


def _lines_of(owner: Owner) -> list[str]:
    """The line that fills it, else where the function that carries it was made, else where its variable is."""
    if owner.filled_text:
        numbers = [str(number) for number in owner.others[:_OTHERS]]
        more = f"  (or line {' or '.join(numbers)})" if numbers else ""
        return [f"{place(owner.filled)}: {owner.filled_text}{more}"]
    if owner.made is not None:
        return [f"{place(owner.made)}: {owner.made_text}"]
    return [f"its variable is at {place(owner.where)}"] if owner.where is not None else []


def owner_text(owner: Owner) -> str:
    """ "losses[*] (global): 42 tensors, 42 with their graphs, 168 B"."""
    facts = [owner.kind, *([owner.note] if owner.note else []), *([f"thread {owner.thread}"] if owner.thread else [])]
    text = f"{owner.path} ({', '.join(facts)})"
    if owner.count > 1 or owner.graphs:
        nodes = owner.graphs and not owner.bytes
        text += f": {owner.count} {'node' if nodes else 'tensor'}{'s' * (owner.count != 1)}"
        if owner.graphs:
            each = "with its graph" if owner.count == 1 else f"{owner.graphs} with their graphs"
            text += f", {each}"
        text += f", {bytes_text(owner.bytes)}"
    return text


def _saver(each: Saver) -> str:
    graph = f" in the graph that {each.root} keeps" if each.root else ""
    made = f", made at {place(each.forward)}" if each.forward is not None else ""
    return f"  saved by #{each.index} {each.node} as {each.name!r}{graph}, until that node has run{made}"


# ------------------------------------------------------------------ the app's screen


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of the screen, with its style there and the source line that enter shows."""

    text: str = ""
    style: str = ""
    place: SourceLine | None = None


def screen_lines(body: MemoryBody, width: int) -> list[MemoryLine]:
    """Everything, in at most ``width`` cells where numbers are concerned."""
    lines = [MemoryLine("Process and devices", "title")]
    cells = [f"{name} {bytes_text(value)}" for name, value in figures(body)]
    lines += [MemoryLine(f"  {text}") for text in _flowed(cells, width - 4)]
    lines += [MemoryLine(f"  {note}", "dim") for note in notes(body)]
    lines += [MemoryLine(), MemoryLine("Iterations", "title")]
    lines += [MemoryLine(f"  {text}") for text in course_lines(replace(body.course, growths=[]), max(width - 56, 10))]
    for growth in body.course.growths:
        at = growth.owner.filled or growth.owner.where
        texts = growth_lines(growth)
        lines += [MemoryLine(f"  {text}", "" if row else "warn", at) for row, text in enumerate(texts)]
    if body.nodes.peak is not None:
        lines += [MemoryLine(), MemoryLine("Node by node", "title")]
        lines += [MemoryLine(f"  {text}", "", body.nodes.peak.forward) for text in nodes_head(body.nodes)]
        lines += [
            MemoryLine(f"  {took:>8} {index:<6} {each.name}  {place(each.forward)}", "", each.forward)
            for each in body.nodes.takers
            for index, _, took, *_ in (node_cells(each),)
        ]
    lines += [MemoryLine(), MemoryLine("Graph", "title")]
    if body.retained is None:
        return [*lines, MemoryLine(f"  {body.why_none}", "dim")]
    found = body.retained
    lines.append(MemoryLine(f"  {retained_head(found)}"))
    lines += [MemoryLine(f"  {note}", "dim") for note in retained_notes(found)]
    most = max([row.bytes for row in found.rows], default=0)
    for row in found.rows:
        bar = _BARS[-1] * round(8 * row.bytes / most) if most else ""
        held = f" (and {size(row.held)} of leaves)" if row.held else ""
        where = "  ".join(filter(None, (place(row.forward), row.module)))
        text = f"  {size(row.bytes):>8} {bar:<8} #{row.index:<5} {row.name}  {where}  {' '.join(row.tensors)}{held}"
        lines.append(MemoryLine(text, "", row.forward))
    return lines


def _flowed(cells: Sequence[str], width: int) -> list[str]:
    """Cells in columns, as many as fit."""
    wide = max(map(len, cells), default=1) + 2
    per = max(width // wide, 1)
    return ["".join(f"{cell:<{wide}}" for cell in cells[at : at + per]).rstrip() for at in range(0, len(cells), per)]
