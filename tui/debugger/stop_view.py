"""What can be asked of one process, as typed methods over requests. Each call waits for the agent's answer, so it must
not run on the events thread or a reader thread (in the app: a worker thread)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from adbg.engine.attach.stacks_merged import Frame, Thread
from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.messages import EvaluateBody, GraphBody, InfoBody, NodeBody, StackFrame, StackTraceBody
from adbg.engine.types import GraphRow, NodeStop, SourceLine, TensorView
from adbg.tui.debugger import events

if TYPE_CHECKING:
    from adbg.tui.debugger.model import Model
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


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of a stop, innermost first (None: not read yet), and which one is selected."""

    frames: tuple[StackFrame, ...] | None = None
    note: str = ""
    selected: int = 0


class StopView:
    """Questions to one process (``process.view``), with what was read at its present stop."""

    def __init__(self, process: Process, model: Model) -> None:
        self._process = process
        self._model = model
        self.stack = Stack()
        self.chosen: Thread | None = None  # a thread that runs, which ``frames`` speak of
        self.selected = 0  # the node that panels show: its index, 0 for the one of the stop
        self._graph_cache: tuple[int, list[GraphRow]] | None = None  # (version, rows)

    @property
    def stop(self) -> NodeStop | None:
        """Where the process stands; None while it runs."""
        return self._process.stop

    def need_stop(self) -> NodeStop:
        """Raises NotStopped with what to do about it."""
        stop = self.stop
        if stop is None:
            if not self._model.alive:
                raise self._model.absent()
            if not self._model.run.begun and self._model.restartable:
                raise _not_begun()
            hint = "`pause` stops it at the next node, `break SPEC` at a node; `thread 1` looks in while it runs"
            raise NotStopped("the program is not stopped", hint)
        return stop

    def need_frames(self) -> None:
        """Raises NotStopped where neither a stop nor a chosen thread has frames to select."""
        if self.chosen is None:
            self.need_stop()

    def request(self, arguments: Any, timeout: float = 30.0) -> Any:
        """Send a request of the protocol; returns its body.

        Raises:
            AdbgError: the agent's error; NotStopped when the process is gone.
        """
        if not self._process.alive:
            raise self._model.absent()
        try:
            return self._process.client.request(arguments, timeout)
        except NotStopped:
            if self._model.run.begun or not self._model.restartable:
                raise
            raise _not_begun() from None

    # ------------------------------------------------------------------ frames

    def frames(self) -> tuple[StackFrame, ...]:
        """Frame 0 is the node, then enclosing nodes, forward frames, live frames. Cached for the stop; works while
        the program runs too (live frames only, not cached)."""
        process = self._process
        if self.stack.frames is not None and (process.stop is not None or self.chosen is not None):
            return self.stack.frames
        serial, stop = process.stop_serial, process.stop
        body: StackTraceBody = self.request(protocol.StackTrace(stop.thread if stop is not None else 0))
        frames = tuple(body.stackFrames)
        if process.stop is not None and serial == process.stop_serial:
            self.stack = replace(self.stack, frames=frames, note=body.note)
        elif process.stop is None:
            self.stack = replace(self.stack, note="" if frames else body.note)
        return frames

    def forget_frames(self) -> None:
        self.stack = Stack()
        self.chosen = None

    # ------------------------------------------------------------------ a thread that runs

    def choose_thread(self, thread: Thread | None) -> None:
        """Frames and names are those of ``thread`` from now on; None: of the stop again."""
        self.forget_frames()
        if thread is not None:
            self.chosen = thread
            self.stack = Stack(tuple(_live_frame(frame) for frame in thread.frames if frame.from_end))

    def read_thread(self) -> None:
        """Where the chosen thread is now. Raises CommandError when it ended."""
        if self.chosen is None:
            return
        body: protocol.AllThreadsBody = self.request(protocol.AllThreads())
        facts = next((each for each in body.threads if each.id == self.chosen.ident), None)
        if facts is None:
            name = self.chosen.name
            self.choose_thread(None)
            raise CommandError(f"thread {name} has ended", "`where all` lists those that run")
        now = tuple(Frame(f.function, f.file, f.line, f.owner, "", f.from_end) for f in facts.frames)
        self.choose_thread(replace(self.chosen, frames=now))

    def thread_names(self, expression: str = "") -> list[protocol.Variable]:
        """Locals of the selected frame of the chosen thread, or the value of a chain of names there.

        Raises:
            CommandError: it has returned since, or code of the program's would run.
        """
        assert self.chosen is not None
        frames = [frame for frame in self.chosen.frames if frame.from_end]
        if not frames:
            raise CommandError("that thread runs no Python", "`where all` shows what it waits in")
        frame = frames[self.stack.selected]
        arguments = protocol.ThreadNames(self.chosen.ident, frame.from_end, frame.function, frame.file, expression)
        body: protocol.ThreadNamesBody = self.request(arguments)
        return body.variables

    def local_variables(self) -> tuple[int, list[protocol.Variable]]:
        """(number of the frame, its locals): the selected frame of the stop; of a node, and of a forward call, which
        have none, the innermost live frame."""
        self.need_stop()
        frames = self.frames()
        first = self.stack.selected
        number = next((place for place, frame in enumerate(frames) if place >= first and frame.locals), None)
        if number is None:
            raise CommandError("no frame here has locals", "`where` shows the stack")
        scopes: protocol.ScopesBody = self.request(protocol.Scopes(frames[number].id))
        found = next((scope for scope in scopes.scopes if scope.name == "Locals"), None)
        if found is None:
            return number, []
        body: protocol.VariablesBody = self.request(protocol.Variables(found.variablesReference))
        return number, body.variables

    def _refuse_for_thread(self, what: str) -> None:
        if self.chosen is not None:
            raise CommandError(
                f"{what} needs a stop: thread {self.chosen.name} runs", "`pause` stops it at the next node"
            )

    @property
    def frame(self) -> int:
        """Number of the selected frame."""
        return self.stack.selected

    @property
    def frames_note(self) -> str:
        """What is missing in ``frames()``, and why."""
        return self.stack.note

    def select_frame(self, index: int) -> StackFrame:
        """Raises CommandError outside the stack."""
        frames = self.frames()
        if not frames:
            raise CommandError("there is no stack here", "it is known at a stop, and of a selected thread")
        if not 0 <= index < len(frames):
            raise CommandError(f"no frame {index} here: frames are 0 to {len(frames) - 1}", "`where` shows them")
        self.stack = replace(self.stack, selected=index)
        self._model.tell(events.FrameChanged(index))
        return frames[index]

    def frame_id(self) -> int:
        """What expressions are evaluated in: the selected frame; 0 (the node, and the innermost live frame) for frame
        0."""
        frame = self._selected()
        return frame.id if frame is not None else 0

    def source_line(self) -> SourceLine | None:
        """The Python line to show: of the selected frame, else the forward line of the node, else the live line."""
        self.need_frames()
        frames = self.stack.frames
        frame = frames[self.stack.selected] if frames else None
        if frame is not None and frame.source is not None and frame.line:
            return SourceLine(frame.source.path, frame.line, frame.name)
        stop = self.need_stop()
        if stop.node is not None and stop.node.forward is not None:
            return stop.node.forward
        return stop.location

    def _selected(self) -> StackFrame | None:
        """The selected frame, unless it is the node itself."""
        stack = self.stack
        return stack.frames[stack.selected] if stack.selected and stack.frames else None

    # ------------------------------------------------------------------ values

    def evaluate(
        self,
        expression: str,
        context: str = "repl",
        timeout: float = 600.0,
        at_node: bool = False,
        node: int = 0,
        stats: bool = False,
    ) -> EvaluateBody:
        """``context`` "statement" executes Python statements. ``at_node``: where conditions are evaluated, whatever
        frame is selected. ``node``: the number of another node. ``stats``: those of a tensor too. The long default: an
        expression may take minutes."""
        if self.chosen is not None and not at_node:
            if context == "statement" or node:
                self._refuse_for_thread("a statement" if context == "statement" else "another node")
            (found,) = self.thread_names(expression)
            return EvaluateBody(found.value, found.type)
        frame = 0 if at_node else self.frame_id()
        body: EvaluateBody = self.request(protocol.Evaluate(expression, frame, context, node, stats), timeout)
        return body

    def set_value(self, target: str, value: str) -> protocol.SetVariableBody:
        """``set TARGET = EXPR``."""
        self._refuse_for_thread("a change")
        body: protocol.SetVariableBody = self.request(protocol.SetExpression(target, value, self.frame_id()), 600.0)
        return body

    def tensor(self, expression: str, **options: Any) -> TensorView:
        """Meta, statistics, window: options are the fields of ``protocol.Tensor``."""
        self._refuse_for_thread("the numbers of a tensor")
        arguments = replace(protocol.Tensor(expression, frameId=self.frame_id()), **options)
        view: TensorView = self.request(arguments, 600.0)
        return view

    def node(self, index: int = 0, name: str = "") -> NodeBody:
        """One node in full; by default that of the stop."""
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
        """All rows of the current graph, their state being that of now."""
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
        version = self.graph_page(1, 1).version
        cache = self._graph_cache
        if cache is None or cache[0] != version:
            cache = self._graph_cache = (version, self.graph_rows())
        return cache[1]

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


def _live_frame(frame: Frame) -> StackFrame:
    source = protocol.Source(os.path.basename(frame.file), frame.file)
    return StackFrame(0, frame.function, frame.line, 0, source, "live", True)


def _not_begun() -> NotStopped:
    return NotStopped("the script has not started yet", "`continue` starts it (in batch mode: -e continue)")


def as_error(error: BaseException) -> AdbgError:
    """An exception as an error to show: an AdbgError as it is, anything else as a defect of adbg."""
    if isinstance(error, AdbgError):
        return error
    return AdbgError(
        f"adbg itself failed: {type(error).__name__}: {error}",
        "please report it; the program being debugged is not touched",
    )
