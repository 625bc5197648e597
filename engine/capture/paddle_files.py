"""Paddle's dump files, written: ``.dot`` graphs, call stacks, gradients (L2; on the thread that captures).

The formats are those of Paddle 3.3.1's files ``<time>_backward_graph.dot``, ``<time>_ref_forward_graph.dot``,
``<time>_call_stack.log`` and ``<time>_grad_tensors.log`` (samples in tests/data/paddle_dumps), so that scripts that
read them go on working. Time is "2026-11-21_00:01:11.278063". What Paddle has no word for is a comment in a graph
and a parenthesis in a log.
"""

from __future__ import annotations

import datetime
import linecache
import os
from collections.abc import Iterator
from typing import Any, TextIO

from adbg.engine.backends.base import Backend, DumpDialect, Graph
from adbg.engine.capture.drawing import COLOURS, STRAY, Capture, Drawing, DrawnNode, long_dtype, place_text
from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.graph.region import LEAF
from adbg.engine.types import SourceLine, TensorMeta

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
        file = self.open(suffix)
        try:
            with file:
                file.write(text)
        except OSError as error:
            raise self._refused(self.files[-1], error) from None

    @staticmethod
    def _refused(path: str, error: OSError) -> CommandError:
        return CommandError(
            f"cannot write {path}: {error.strerror or error}", "name a folder that you may write to: capture … in DIR"
        )


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
    return (
        f'label={label} style="{style}" shape="box" color="{colour}" fontcolor="{font}" width="1.3" height="0.84" '
        'fontname="Arial"'
    )


def _quoted(text: str) -> str:
    """A Graphviz string: quotes and backslashes escaped, line ends as \\n."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# ------------------------------------------------------------------ call stacks


def stack_text(graph: Graph, capture: Capture, dialect: DumpDialect) -> str:
    """Every node with the Python lines that made it, outermost first, the highest number first."""
    parts = [dialect.stack_note]
    for node in reversed(capture.nodes):
        parts.append(dialect.stack_title.format(name=node.printed, address=node.address))
        stack, note = graph.forward_stack(node.key)
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

    All elements are written, in row-major order with six places, until ``limit`` bytes of gradients have been: what
    comes behind is named with its shape and without its numbers.
    """

    def __init__(self, file: TextIO, backend: Backend, limit: int) -> None:
        self.written = 0  # bytes of gradients
        self.left_out = 0  # gradients without their numbers
        self._file = file
        self._backend = backend
        self._limit = limit

    def variable(self, name: str, value: Any) -> None:
        """One gradient. Raises OSError."""
        write = self._file.write
        write(f"Variable: {name}\n")
        if value is None:
            write("  (undefined: no gradient flows here)\n")
            return
        meta = self._backend.meta(value)
        layout = "NCHW" if meta.layout == "strided" else meta.layout
        write(
            f"  - lod: {{}}\n  - place: {place_text(meta.device)}\n  - shape: {list(meta.shape or ())}\n"
            f"  - layout: {layout}\n  - dtype: {long_dtype(meta.dtype)}\n"
        )
        if self.written + meta.nbytes > self._limit:
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
            for piece in pieces(meta.shape or ()) if meta.numel else ():
                window = self._backend.window(value, piece, _ROWS, _COLS)
                for row in window.values:
                    text = " ".join(f"{number:f}" for number in row)
                    self._file.write(text if first else f" {text}")
                    first = False
            self._file.write("]\n")
        except AdbgError as error:
            self._file.write(f"]\n  ({error})\n")


def pieces(shape: tuple[int, ...]) -> Iterator[str]:
    """Slices that together are the whole tensor in row-major order, none larger than a window shows exactly. Rows
    longer than ``_COLS`` are cut one by one."""
    if not shape:
        yield ""
        return
    cols = shape[-1]
    if len(shape) == 1:
        yield from (f"[{c}:{min(c + _COLS, cols)}]" for c in range(0, cols, _COLS))
        return
    step = _ROWS if cols <= _COLS else 1
    for outer in _places(shape[:-2]):
        for row in range(0, shape[-2], step):
            for col in range(0, cols, _COLS):
                yield f"[{outer}{row}:{min(row + step, shape[-2])}, {col}:{min(col + _COLS, cols)}]"


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
