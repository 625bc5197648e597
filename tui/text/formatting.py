"""Values as lines of text: stops, slots, statistics, windows of tensors, tables, source lines. Pure; any thread."""

from __future__ import annotations

import linecache
import math
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.errors import CommandError
from adbg.engine.protocol.messages import EvaluateBody, NodeBody, RunningLocals
from adbg.engine.types import (
    ExitStatus,
    NodeInfo,
    NodeStop,
    Phase,
    SlotView,
    SourceLine,
    StopReason,
    TensorMeta,
    TensorStats,
    TensorView,
    TensorWindow,
)
from adbg.tui.text.evidence import stop_words
from adbg.tui.text.quantities import duration, size

FORMATS = ("meta", "stats", "exact", "window", "text")
BLOCKS = " ▁▂▃▄▅▆▇█"
MOST_LINES = 40  # of numbers, in the answer to ``print``


# ------------------------------------------------------------------ small things


def number_text(value: float | None) -> str:
    """Four significant digits: "0.022", "1.234e-05", "nan"."""
    if value is None:
        return "·"
    if math.isnan(value):
        return "nan"
    return f"{value:.4g}"


def shape_text(meta: TensorMeta | None) -> str:
    """ "f32[2, 4, 4]", with the device when it is not the CPU and the note when there is one; "undefined"."""
    if meta is None:
        return ""
    if meta.shape is None:
        return meta.remark
    text = f"{meta.dtype}[{', '.join(map(str, meta.shape))}]"
    if meta.device and meta.device != "cpu":
        text += f" {meta.device}"
    if meta.layout and meta.layout != "strided":
        text += f" {meta.layout}"
    return f"{text} ({meta.remark})" if meta.remark else text


def file_text(path: str) -> str:
    """As short as it can be said from here: relative below the working directory, else the last two parts."""
    if not os.path.isabs(path):
        return path
    relative = os.path.relpath(path)
    if not relative.startswith(".."):
        return relative
    return path if path.count("/") <= 2 else "…/" + "/".join(path.split("/")[-2:])


def place_text(line: SourceLine | None) -> str:
    """ "model.py:16 in forward"."""
    if line is None:
        return ""
    where = f"{file_text(line.file)}:{line.line}"
    return f"{where} in {line.function}" if line.function else where


def source_text(file: str, line: int, before: int = 0, after: int = 0, mark: bool = True) -> str:
    """Numbered lines of a file around ``line``; "" when it cannot be read."""
    linecache.checkcache(file)
    lines = []
    width = len(str(line + after))
    for number in range(max(1, line - before), line + after + 1):
        text = linecache.getline(file, number)
        if not text:
            continue
        sign = "▶" if mark and number == line else " "
        lines.append(f"{sign} {number:>{width}}  {text.rstrip()}")
    return "\n".join(lines)


def cells(text: str) -> int:
    """Width in terminal cells."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Left-aligned text, right-aligned numbers, two blanks between."""
    body = [[_cell(value) for value in row] for row in rows]
    heads = [str(head) for head in columns]
    count = max([len(heads), *(len(row) for row in body)])
    heads += [""] * (count - len(heads))
    for row in body:
        row += [""] * (count - len(row))
    numeric = [bool(rows) and all(_is_number(row[i]) if i < len(row) else True for row in rows) for i in range(count)]
    widths = [max(cells(line[i]) for line in [heads, *body]) for i in range(count)]

    def line(values: list[str]) -> str:
        parts = [
            " " * (widths[i] - cells(value)) + value if numeric[i] else pad(value, widths[i])
            for i, value in enumerate(values)
        ]
        return "  ".join(parts).rstrip()

    out = [line(heads)] if any(heads) else []
    return "\n".join(out + [line(row) for row in body])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def exit_text(status: ExitStatus) -> str:
    """ "exited with status 0", "killed by SIGTERM"."""
    if status.code is not None:
        return f"exited with status {status.code}"
    if status.signal is not None:
        return f"killed by {status.signal_name}"
    return status.reason or "ended, its status is unknown: its keeper process was killed"


def exit_sentence(status: ExitStatus) -> str:
    """ "The program exited with status 0.", "The program was killed by SIGTERM."."""
    if status.reason:
        return f"{status.reason[0].upper()}{status.reason[1:]}."
    return f"The program {'was ' if status.signal is not None else ''}{exit_text(status)}."


# ------------------------------------------------------------------ tensors


def stats_text(stats: TensorStats) -> str:
    """Two or three lines: range and moments, counts of every kind of value, histogram."""
    how = "" if stats.sampled is None else f"   (sampled: {stats.sampled:,} of {stats.numel:,} elements)"
    norm = "norm" if stats.all_finite else "of the finite: norm"
    lines = [
        f"{norm} {number_text(stats.norm)}   min {number_text(stats.min)}   max {number_text(stats.max)}"
        f"   mean {number_text(stats.mean)}   std {number_text(stats.std)}{how}",
        f"-inf {stats.neg_inf}   negative {stats.negative}   zero {stats.zero}   positive {stats.positive}"
        f"   +inf {stats.pos_inf}   nan {stats.nan}",
    ]
    if stats.none_finite:
        lines[0] = f"no finite element: no norm, range or mean{how}"
    if any(stats.histogram):
        top = max(stats.histogram)
        bars = "".join(BLOCKS[0 if not n else max(1, round(8 * n / top))] for n in stats.histogram)
        lines.append(f"{number_text(stats.min)} ▕{bars}▏ {number_text(stats.max)}")
    return "\n".join(lines)


def window_text(window: TensorWindow) -> str:
    """Rows of numbers under one line that says what they are."""
    shape = ", ".join(map(str, window.shape))
    head = f"{window.slice} of shape [{shape}], {window.reduced}"
    rows = [[_grid_number(value) for value in row] for row in window.values]
    width = max((len(value) for row in rows for value in row), default=0)
    return "\n".join([head, *(" ".join(value.rjust(width) for value in row) for row in rows)])


def _grid_number(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value:.3g}"


def tensor_text(view: TensorView) -> str:
    """All that a TensorView has."""
    if view.meta is None:
        return view.text
    parts = [f"{shape_text(view.meta)}  {size(view.meta.nbytes, spaced=True)}"]
    if view.text:
        parts.append(view.text)
    if view.stats is not None:
        parts.append(stats_text(view.stats))
    if view.window is not None:
        parts.append(window_text(view.window))
    return "\n".join(parts)


def printed_text(body: EvaluateBody, expression: str) -> str:
    """What ``print`` shows: of a tensor shape and statistics before its numbers, of which some lines are enough."""
    if body.locals is not None:
        return f"{printed_text(replace(body, locals=None), expression)}\n{running_locals_text(body.locals)}"
    if body.tensor is None or body.tensor.numel < 2:
        return body.result
    parts = [f"{shape_text(body.tensor)}  {size(body.tensor.nbytes, spaced=True)}"]
    if body.stats is not None:
        parts.append(stats_text(body.stats))
    lines = body.result.splitlines()
    if len(lines) > MOST_LINES:
        parts += lines[:MOST_LINES]
        more = len(lines) - MOST_LINES
        these = f"p/w {expression}[…] shows a part, p/t {expression} these"
        parts.append(f"… {more} more line{'s' * (more > 1)}: {these}")
    else:
        parts += lines
    return "\n".join(parts)


def running_locals_text(found: RunningLocals) -> str:
    """ "(x of frame 2, train at t.py:40: forward, which made this node, has ended; what it saved is in `saved`)"."""
    running = found.running
    return (
        f"({', '.join(found.names)} of frame {found.frame}, {running.function} at {os.path.basename(running.file)}:"
        f"{running.line}: {found.forward.function}, which made this node, has ended; what it saved is in `saved`)"
    )


def format_of(text: str) -> str:
    """A format word or a unique prefix of one ("s", "/stats" without the slash). Raises CommandError."""
    found = [word for word in FORMATS if text and word.startswith(text)]
    if len(found) != 1:
        raise CommandError(f"unknown format /{text}", "formats: " + ", ".join("/" + word for word in FORMATS))
    return found[0]


def slot_text(slot: SlotView, width: int = 0) -> str:
    """ "grad_outputs[0]  f32[2, 4, 4]  norm 0.022  from #112 ViewBackward0"."""
    if slot.meta is None:
        return f"{slot.name:<{width}}  {slot.text}".rstrip()
    parts = [f"{slot.name:<{width}}", shape_text(slot.meta)]
    if slot.norm is not None:
        parts.append(f"norm {number_text(slot.norm)}")
    if slot.text:
        parts.append(slot.text)
    if slot.edge:
        parts.append(("from " if slot.name.startswith("grad_outputs") else "to ") + slot.edge)
    return "  ".join(parts)


def slots_text(slots: Sequence[SlotView], indent: str = "  ") -> list[str]:
    width = max((len(slot.name) for slot in slots), default=0)
    return [indent + slot_text(slot, width) for slot in slots]


# ------------------------------------------------------------------ stops


def stop_title(stop: NodeStop) -> str:
    """One line: why, where in the run, which node.

    "Breakpoint 1, before BmmBackward0#3, node 113 of 1045 of backward 1"
    """
    why = {
        StopReason.BREAKPOINT: _breakpoint_words(stop),
        StopReason.STEP: "Stopped",
        StopReason.PAUSE: "Paused",
        StopReason.NAN: f"NaN{_numbers(stop)}",
        StopReason.INF: f"Inf{_numbers(stop)}",
        StopReason.ERROR: "Uncaught exception" if stop.phase is Phase.PYTHON else "Error in backward",
        StopReason.BACKWARD: _breakpoint_words(stop),
        StopReason.ENTRY: "Stopped",
    }[stop.reason]
    rank = f" (rank {stop.rank})" if stop.rank else ""
    return f"{why}{rank}, {place_in_run(stop)}"


def _numbers(stop: NodeStop) -> str:
    return f", breakpoint {', '.join(map(str, stop.breakpoints))}" if stop.breakpoints else ""


def _breakpoint_words(stop: NodeStop) -> str:
    if not stop.breakpoints:
        return "Stopped"
    plural = "s" if len(stop.breakpoints) > 1 else ""
    return f"Breakpoint{plural} {', '.join(map(str, stop.breakpoints))}"


def place_in_run(stop: NodeStop) -> str:
    """ "before BmmBackward0#3, node 113 of 1045 of backward 1"."""
    level = f", nested {stop.depth} deep" if stop.depth else ""
    unseen = " (those after run unseen)" if stop.truncated else ""
    if stop.phase is Phase.BEGIN:
        return f"backward {stop.backward} begins{level}: {total_text(stop)} nodes{unseen}"
    if stop.phase is Phase.END:
        return f"backward {stop.backward} ends{level}: {total_text(stop)} nodes{unseen}"
    if stop.phase is Phase.PYTHON:
        inside = f" inside {stop.enclosing[-1]}, node {stop.index} of {total_text(stop)}" if stop.enclosing else ""
        return "at a Python line" + (f"{inside} of backward {stop.backward}{level}" if stop.backward else "")
    if stop.node is None:
        return f"backward {stop.backward}{level}"
    side = {Phase.BEFORE: "before", Phase.AFTER: "after", Phase.ERROR: "at"}[stop.phase]
    place = (
        f"{side} {stop.node.unique_name}, node {stop.index} of {total_text(stop)} of backward {stop.backward}{level}"
    )
    return place + unseen


def total_text(stop: NodeStop) -> str:
    """How many nodes the graph has: "204"; "more than 30,000" where the walk was cut."""
    return f"more than {stop.total:,}" if stop.truncated else str(stop.total)


def trace_text(id: int, text: str, stop: NodeStop) -> str:
    """A tracepoint's hit in one line: "trace 3: bwd#2 before AccumulateGrad#7: ... norm 0.0361  parameter fc.bias"."""
    node = stop.node
    place = "" if node is None else f"parameter {node.parameter}" if node.parameter else f"module {node.module or ''}"
    return f"trace {id}: bwd#{stop.backward} {text}" + (f"  {place}" if place and place != "module " else "")


def stop_lines(stop: NodeStop, body: NodeBody | None = None) -> list[str]:
    """A stop as gdb prints one: title, evidence, source line, gradients."""
    lines = [stop_title(stop)]
    lines += ["  " + line for line in stop_words(stop).splitlines()]
    facts = _node_facts(stop)
    if facts:
        lines.append("  " + facts)
    if stop.enclosing:
        lines.append("  inside " + " > ".join(stop.enclosing))
    lines += _source_lines(stop)
    if body is not None:
        lines += slots_text([*body.grad_outputs, *body.grad_inputs])
        lines += contribution_lines(body)
    return lines


def compiled_text(node: NodeInfo) -> str:
    """What a node is that stands for a region of torch.compile or to_static, and of which function it is."""
    line = node.forward
    of = f" {line.function} ({file_text(line.file)}:{line.line})" if line is not None else ""
    return f"compiled region{of}: all its operators in one node"


def _node_facts(stop: NodeStop) -> str:
    if stop.node is None:
        return ""
    facts = []
    if stop.node.module:
        facts.append(f"module {stop.node.module}")
    if stop.node.parameter:
        facts.append(f"parameter {stop.node.parameter}")
    if stop.node.compiled:
        facts.append(compiled_text(stop.node))
    if stop.elapsed_us is not None:
        facts.append(f"took {duration(stop.elapsed_us, spaced=True)}")
    return ", ".join(facts)


def _source_lines(stop: NodeStop) -> list[str]:
    """The forward line that made the node; without one the live line."""
    forward = stop.node.forward if stop.node is not None else None
    line = forward or stop.location
    if line is None:
        return []
    word = "forward" if forward else "called at" if stop.phase is not Phase.PYTHON else "at"
    out = [f"  {word} {place_text(line)}"]
    source = source_text(line.file, line.line, mark=False).strip()
    if source:
        out.append("    " + source)
    return out


def contribution_lines(body: NodeBody) -> list[str]:
    """Where several consumers feed one gradient: the parts beside their sum."""
    if not body.contributions:
        return [f"  parts: {body.contributions_note}"] if body.contributions_note else []
    return [
        f"  part of grad_outputs[{part.slot}] from {part.from_node}: {shape_text(part.meta)}"
        + (f"  norm {number_text(part.norm)}" if part.norm is not None else "")
        for part in body.contributions
    ]
