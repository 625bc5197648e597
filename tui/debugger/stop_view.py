"""What can be asked at a stop, as typed methods over requests. Base of ``Debugger``; each call waits for the
agent's answer, so it must not run on the dispatcher or a reader thread (in the app: a worker thread)."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import EvaluateBody, GraphBody, InfoBody, NodeBody, StackFrame, StackTraceBody
from adbg.engine.types import GraphRow, NodeStop, SourceLine, TensorView
from adbg.tui.debugger.process import Process

PAGE = 2000  # graph rows in one answer: about 0.5 MB of JSON


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry of the display or the watch list, with its value at this stop. ``changed`` is against the stop before
    (None: first value, or only displayed); ``error`` is set instead of ``text`` when it could not be evaluated here."""

    number: int
    expression: str
    watched: bool
    format: str = ""
    text: str = ""
    error: str = ""
    changed: bool | None = None
    before: str = ""


class StopView(abc.ABC):
    """Questions to the current process."""

    _graph_cache: tuple[int, int, list[GraphRow]] | None = None  # (process, version, rows)

    @property
    @abc.abstractmethod
    def current(self) -> Process | None: ...

    @abc.abstractmethod
    def request(self, arguments: Any, timeout: float = 30.0) -> Any:
        """Send to the current process and wait for the body."""

    @abc.abstractmethod
    def tell_frame(self, index: int) -> None:
        """Listeners learn that another frame was selected."""

    @property
    def stop(self) -> NodeStop | None:
        """Where the current process stands; None while it runs."""
        process = self.current
        return process.stop if process is not None else None

    def need_stop(self) -> NodeStop:
        """Raises NotStopped saying what to do."""
        stop = self.stop
        if stop is None:
            raise NotStopped(
                "the program is not stopped", "`pause` stops it at the next node, `break SPEC` at one of your choice"
            )
        return stop

    # ------------------------------------------------------------------ frames

    def frames(self) -> tuple[StackFrame, ...]:
        """Frame 0 is the node, then enclosing nodes, forward frames, live frames. Cached for the stop; works while
        the program runs too (live frames only, not cached)."""
        process = self._need_process()
        if process.frames is not None and process.stop is not None:
            return process.frames
        serial = process.stop_serial
        body: StackTraceBody = self.request(protocol.StackTrace(self._thread()))
        frames = tuple(body.stackFrames)
        if process.stop is not None and serial == process.stop_serial:
            process.frames = frames
            process.frames_note = body.note
        elif process.stop is None:
            process.frames_note = "" if frames else body.note
        return frames

    def select_frame(self, index: int) -> StackFrame:
        """Raises CommandError outside the stack."""
        frames = self.frames()
        if not frames:
            raise CommandError("there is no stack here")
        if not 0 <= index < len(frames):
            edge = "innermost" if index < 0 else "outermost"
            raise CommandError(f"already at the {edge} frame", f"frames are 0 to {len(frames) - 1}")
        self._need_process().frame = index
        self.tell_frame(index)
        return frames[index]

    def selected_frame(self) -> StackFrame | None:
        process = self.current
        frames = self.frames()
        index = process.frame if process is not None else 0
        return frames[index] if index < len(frames) else None

    def frame_id(self) -> int:
        """What expressions are evaluated in: the selected frame when it has locals, else 0 (the innermost live one)."""
        process = self.current
        if process is None or process.frame == 0 or not process.frames:
            return 0
        frame = process.frames[process.frame]
        return frame.id if frame.locals else 0

    def source_line(self) -> SourceLine | None:
        """The Python line to show: of the selected frame, else the forward line of the node, else the live line."""
        stop = self.need_stop()
        process = self._need_process()
        if process.frame and process.frames:
            frame = process.frames[process.frame]
            if frame.source is not None and frame.line:
                return SourceLine(frame.source.path, frame.line, frame.name)
        if stop.node is not None and stop.node.forward is not None:
            return stop.node.forward
        return stop.location

    # ------------------------------------------------------------------ values

    def evaluate(
        self, expression: str, context: str = "repl", timeout: float = 600.0, at_node: bool = False
    ) -> EvaluateBody:
        """``context`` "statement" executes Python statements. ``at_node``: where conditions are evaluated, whatever
        frame is selected. The long default: a person may evaluate what takes its time."""
        frame = 0 if at_node else self.frame_id()
        body: EvaluateBody = self.request(protocol.Evaluate(expression, frame, context), timeout)
        return body

    def set_value(self, target: str, value: str) -> protocol.SetVariableBody:
        """``set TARGET = EXPR``."""
        body: protocol.SetVariableBody = self.request(protocol.SetExpression(target, value, self.frame_id()), 600.0)
        return body

    def tensor(self, expression: str, **options: Any) -> TensorView:
        """Meta, statistics, window: options are the fields of ``protocol.Tensor``."""
        arguments = replace(protocol.Tensor(expression, frameId=self.frame_id()), **options)
        view: TensorView = self.request(arguments, 600.0)
        return view

    def node(self, index: int = 0, name: str = "") -> NodeBody:
        """One node in full; by default the one at hand."""
        body: NodeBody = self.request(protocol.Node(index, name))
        return body

    def info(self, what: str) -> InfoBody:
        body: InfoBody = self.request(protocol.Info(what))
        return body

    # ------------------------------------------------------------------ the graph

    def graph_page(self, start: int = 1, count: int = PAGE, backward: int = 0) -> GraphBody:
        """Rows ``start`` .. ``start + count - 1`` in execution order, with their state now."""
        body: GraphBody = self.request(protocol.Graph(start, count, backward))
        return body

    def graph_rows(self) -> list[GraphRow]:
        """All rows of the graph at hand, their state being that of now."""
        rows: list[GraphRow] = []
        total = 1
        while len(rows) < total:
            page = self.graph_page(len(rows) + 1)
            total = page.total
            if not page.rows:
                break
            rows.extend(page.rows)
        return rows

    def graph_structure(self) -> list[GraphRow]:
        """All rows, cached as long as the graph is the same one: names and edges hold, states and norms may be old."""
        process = self._need_process()
        version = self.graph_page(1, 1).version
        cache = self._graph_cache
        if cache is None or cache[:2] != (process.number, version):
            cache = (process.number, version, self.graph_rows())
            self._graph_cache = cache
        return cache[2]

    def find_node(self, text: str) -> int:
        """Index in the execution order of "#112", "112", a unique name, or a name that only one node has; "" or "." is
        the current node.

        Raises:
            CommandError: no such node, naming the closest ones; or several, naming the first few.
        """
        text = text.strip()
        if text in ("", "."):
            index = self.need_stop().nearest
            if not index:
                raise CommandError("there is no current node at this stop", "name one: #3, MmBackward0#2")
            return index
        body: protocol.FindBody = self.request(protocol.Find(text))
        return body.index

    def _need_process(self) -> Process:
        process = self.current
        if process is None:
            raise NotStopped("no process of the program is connected", "wait until it has started")
        return process

    def _thread(self) -> int:
        stop = self.stop
        return stop.thread if stop is not None else 0


def as_error(error: BaseException) -> AdbgError:
    """Any exception as something a person can be told: an AdbgError as it is, all else as a defect of adbg."""
    if isinstance(error, AdbgError):
        return error
    return AdbgError(
        f"adbg itself failed: {type(error).__name__}: {error}",
        "please report it; the program being debugged is not touched",
    )
