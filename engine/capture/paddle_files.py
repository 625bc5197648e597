"""Dump files in Paddle's formats: ``.dot`` graphs, call stacks, gradients. Runs on the thread that asks.

The formats are those of Paddle 3.3.1's files ``<time>_backward_graph.dot``, ``<time>_ref_forward_graph.dot``,
``<time>_call_stack.log`` and ``<time>_grad_tensors.log`` (samples in tests/data/paddle_dumps), so that scripts that
read them go on working. Time is "2026-11-21_00:01:11.278063". What Paddle has no word for is a comment in a graph
and a parenthesis in a log.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import linecache
import os
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from adbg.engine.backends.base import Backend, DumpDialect, Graph
from adbg.engine.capture.drawing import COLOURS, STRAY, Drawing, DrawnNode, long_dtype, place_text
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.graph.region import LEAF
from adbg.engine.types import SourceLine, TensorMeta, ValueState

SUFFIXES = ("backward_graph.dot", "ref_forward_graph.dot", "call_stack.log", "grad_tensors.log")
_ROWS, _COLS = 512, 2048  # of one piece of a tensor: 8 MB of doubles


class Folder:
    """The files of one capture: one folder, one time stamp. Existing files are never touched."""

    def __init__(self, directory: str) -> None:
        """Make ``directory`` where it is missing.

        Raises:
            CommandError: it cannot be made or written to.
        """
        self.directory = os.path.abspath(os.path.expanduser(directory))
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as error:
            raise self._refused(self.directory, error) from None
        self.stamp = self._free_stamp()
        self.files: list[str] = []

    def _free_stamp(self) -> str:
        while True:
            stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H:%M:%S.%f")
            if not os.path.exists(os.path.join(self.directory, f"{stamp}_{SUFFIXES[0]}")):
                return stamp

    def open(self, suffix: str) -> TextIO:
        """A new file ``<stamp>_<suffix>``. Raises CommandError."""
        path = os.path.join(self.directory, f"{self.stamp}_{suffix}")
        try:
            file = open(path, "x", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        except OSError as error:
            raise self._refused(path, error) from None
        self.files.append(path)
        return file

    def write(self, suffix: str, text: str) -> None:
        """A whole file. Raises CommandError."""
        with self.writing(suffix) as file:
            file.write(text)

    @contextlib.contextmanager
    def writing(self, suffix: str) -> Iterator[TextIO]:
        """A new file for the time of the block. Raises CommandError."""
        file = self.open(suffix)
        try:
            with file:
                yield file
        except OSError as error:
            raise self._refused(self.files[-1], error) from None

    @staticmethod
    def _refused(path: str, error: OSError) -> CommandError:
        return CommandError(f"cannot write {path}: {error.strerror or error}", "name a folder that you may write to")


# ------------------------------------------------------------------ graphs


def dot_text(drawing: Drawing) -> str:
    """A graph as Paddle writes it: nodes from the highest number down, then the edges, no line end behind the last."""
    lines = ["digraph G {"]
    lines += [f"\t// {note}" for note in drawing.notes]
    lines += [f"\tnode_{node.number}[{_attributes(node)}]" for node in reversed(drawing.nodes)]
    lines += [f"\tnode_{edge.start}->node_{edge.end}[label={_quoted(edge.label)}]" for edge in drawing.edges]
    return "\n".join([*lines, "} // end G"])


def _attributes(node: DrawnNode) -> str:
    label, colour = _quoted(node.label), COLOURS[node.mark]
    if node.mark == LEAF:
        return (
            f'label={label} shape="box" style="rounded,filled,bold" fontname="Arial" color="{colour}" '
            'fontcolor="#ffffff"'
        )
    style, font = ("rounded,dashed", "#999999") if node.mark == STRAY else ("rounded,filled,bold", "#ffffff")
    border = ' peripheries="2"' if node.double else ""
    return (
        f'label={label} style="{style}" shape="box" color="{colour}" fontcolor="{font}" width="1.3" height="0.84" '
        f'fontname="Arial"{border}'
    )


def _quoted(text: str) -> str:
    """A Graphviz string: quotes and backslashes escaped, line ends as \\n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ------------------------------------------------------------------ call stacks


def stack_text(graph: Graph, keys: Iterable[int], dialect: DumpDialect) -> str:
    """The nodes ``keys`` with the Python lines that made them, outermost first."""
    parts = [dialect.stack_note]
    for key in keys:
        parts.append(dialect.stack_title.format(name=graph.dumped_name(key), address=graph.address(key)))
        stack, note = graph.forward_stack(key)
        parts += [traceback_line(line) for line in reversed(stack)]
        if not stack and note:
            parts.append(f"  ({note})\n")
        parts.append("\n")
    return "".join(parts)


def traceback_line(line: SourceLine) -> str:
    """Two lines as in a traceback: place, and source where it can be read."""
    source = linecache.getline(line.file, line.line).strip()
    return f'  File "{line.file}", line {line.line}, in {line.function}\n' + (f"    {source}\n" if source else "")


# ------------------------------------------------------------------ gradients


class TensorFile:
    """``*_grad_tensors.log``, written as the backward goes, readable at any time in between.

    Elements are written in row-major order with six places until ``limit`` bytes of gradients have been (what comes
    behind is named with its shape and without its numbers); or the first ``most`` of each, with its statistics.
    """

    def __init__(self, file: TextIO, backend: Backend, limit: int = 0, most: int = 0) -> None:
        self.written = 0  # bytes of gradients
        self.left_out = 0  # gradients without their numbers
        self._file = file
        self._backend = backend
        self._limit = limit
        self._most = most

    def variable(self, name: str, value: Any) -> None:
        """One gradient. Raises OSError."""
        write = self._file.write
        write(f"Variable: {name}\n")
        meta = self._backend.meta(value) if value is not None else None
        if meta is None or meta.shape is None:
            hidden = meta.remark if meta is not None and meta.state is ValueState.HIDDEN else ""
            write(f"  ({hidden or 'undefined: no gradient flows here'})\n")
            return
        layout = "NCHW" if meta.layout == "strided" else meta.layout
        write(
            f"  - lod: {{}}\n  - place: {place_text(meta.device)}\n  - shape: {list(meta.shape)}\n"
            f"  - layout: {layout}\n  - dtype: {long_dtype(meta.dtype)}\n"
        )
        if self._most:
            self._first_numbers(value, meta)
        elif self.written + meta.nbytes > self._limit:
            self.left_out += 1
            write(f"  (not written: {meta.nbytes:,} bytes, and the limit of {self._limit:,} bytes is reached)\n")
        else:
            self.written += meta.nbytes
            self._numbers(value, meta)
        self._file.flush()

    def remark(self, text: str) -> None:
        self._file.write(f"({text})\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _numbers(self, value: Any, meta: TensorMeta) -> None:
        """What the framework cannot tell (sparse, no data) is said."""
        self._file.write("  - data: [")
        first = True
        try:
            for row in self._rows(value, meta):
                text = " ".join(f"{number:f}" for number in row)
                self._file.write(text if first else f" {text}")
                first = False
            self._file.write("]\n")
        except AdbgError as error:
            self._file.write(f"]\n  ({error})\n")

    def _first_numbers(self, value: Any, meta: TensorMeta) -> None:
        try:
            stats = self._backend.stats(value)
            rows = itertools.chain.from_iterable(self._rows(value, meta))
            data = " ".join(f"{number:f}" for number in itertools.islice(rows, self._most))
        except AdbgError as error:
            self._file.write(f"  ({error})\n")
            return
        how = f"sampled {stats.sampled} of {stats.numel}" if stats.sampled is not None else "exact"
        more = f" ... {meta.numel} in all" if meta.numel > self._most else ""
        self._file.write(
            f"  - stats: min {stats.min:g} max {stats.max:g} mean {stats.mean:g} std {stats.std:g} "
            f"norm {stats.norm:g} nan {stats.nan} inf {stats.neg_inf + stats.pos_inf} ({how})\n"
            f"  - data: [{data}{more}]\n"
        )

    def _rows(self, value: Any, meta: TensorMeta) -> Iterator[tuple[float, ...]]:
        cols = min(_COLS, self._most or _COLS)
        rows = -(-self._most // min(cols, meta.shape[-1] or 1)) if self._most and meta.shape else _ROWS
        for piece in pieces(meta.shape or (), min(rows, _ROWS), cols) if meta.numel else ():
            yield from self._backend.window(value, piece, _ROWS, _COLS).values


def pieces(shape: tuple[int, ...], most_rows: int = _ROWS, most_cols: int = _COLS) -> Iterator[str]:
    """Slices that together are the whole tensor in row-major order, none larger than a window shows exactly. Rows
    longer than ``most_cols`` are cut one by one."""
    if not shape:
        yield ""
        return
    cols = shape[-1]
    if len(shape) == 1:
        yield from (f"[{c}:{min(c + most_cols, cols)}]" for c in range(0, cols, most_cols))
        return
    step = most_rows if cols <= most_cols else 1
    for outer in _places(shape[:-2]):
        for row in range(0, shape[-2], step):
            for col in range(0, cols, most_cols):
                yield f"[{outer}{row}:{min(row + step, shape[-2])}, {col}:{min(col + most_cols, cols)}]"


def _places(outer: tuple[int, ...]) -> Iterator[str]:
    """ "0, 1, " for every place of the outer dimensions, in order."""
    count = 1
    for size in outer:
        count *= size
    for number in range(count):
        place, rest = [], number
        for size in reversed(outer):
            place.append(rest % size)
            rest //= size
        yield "".join(f"{index}, " for index in reversed(place))
