"""What the answers of one stop share: the paused point, its frames, names for expressions, texts.

Runs on the parked thread; lives until the program continues. Frame ids count from 1 in the order of ``stackTrace``.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from adbg.engine.backends.base import Backend, BackwardCall, Graph
from adbg.engine.errors import CommandError
from adbg.engine.inspect.gradients import Gradients
from adbg.engine.inspect.value_text import ValueText
from adbg.engine.own_files import SHOWN
from adbg.engine.python.namespaces import GRADIENT_NAMES, Namespace, node_namespace
from adbg.engine.python.over import OverFrame
from adbg.engine.python.user_code import USER, framework_roots, live_frames, owner_of, source_line
from adbg.engine.session.kept import MISSING
from adbg.engine.session.stop_point import CallState, PausedPoint
from adbg.engine.types import Phase, SourceLine

BreakpointsOf = Callable[[Graph, Sequence[int]], Mapping[int, tuple[int, ...]]]
"""(graph, keys of one page) -> breakpoint ids by key; keys without a breakpoint may be left out."""


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One frame of the stack as it is shown. ``python`` is set for live frames, ``graph`` and ``key`` for nodes."""

    id: int
    kind: str  # "node", "enclosing", "forward", "live"
    name: str
    location: SourceLine | None = None
    python: types.FrameType | None = None
    graph: Graph | None = None
    key: int | None = None


class StopContext:
    """One stop, seen by its answers."""

    def __init__(self, point: PausedPoint, breakpoints: BreakpointsOf | None = None) -> None:
        self.point = point
        self.gradients = Gradients(point)
        self.text = ValueText(point.backend)
        self.breakpoints = breakpoints
        self.forward_note = ""
        self._namespaces: dict[tuple[int, bool], Namespace] = {}
        self._shown = SHOWN.version

    @property
    def backend(self) -> Backend:
        """Raises CommandError when no framework is loaded."""
        if self.point.backend is None:
            raise CommandError("no framework is loaded yet", "`continue` until the program imports one")
        return self.point.backend

    def graph(self, backward: int = 0) -> tuple[Graph, CallState | None]:
        """The current graph, or that of the enclosing call ``backward``.

        Raises:
            CommandError: there is none.
        """
        if backward:
            for state in self.point.calls:
                if state.call.number == backward:
                    return state.call, state
            running = ", ".join(str(s.call.number) for s in self.point.calls) or "none"
            raise CommandError(f"backward {backward} is not running now", f"running: {running}")
        if self.point.graph is None:
            raise CommandError("there is no graph here", "stop in a backward, or where a local variable has a graph")
        return self.point.graph, self.point.state if isinstance(self.point.graph, BackwardCall) else None

    def kept(self, graph: Graph, key: int, kind: str) -> Sequence[object] | None:
        """Copies of the gradients of a node that the program stopped at earlier in this backward."""
        return self.point.kept.find(graph, key, kind) if self.point.kept is not None else None

    # ---- frames

    @property
    def frames(self) -> list[FrameEntry]:
        """See ``_all_frames``."""
        self._forget()
        return self._all_frames

    def _forget(self) -> None:
        """What was kept of frames, where others are to be shown now."""
        if self._shown != SHOWN.version:
            self._shown = SHOWN.version
            self._namespaces = {}
            for name in ("_all_frames", "_live_frames"):
                self.__dict__.pop(name, None)

    @cached_property
    def _all_frames(self) -> list[FrameEntry]:
        """Frame 0 (the node, or the backward), enclosing nodes, forward frames, live frames. At a Python line the live
        frames come first: frame 0 is that line."""
        found: list[FrameEntry] = []

        def live() -> None:
            for frame in self.live_frames:
                put("live", frame.f_code.co_name, source_line(frame), frame)

        def put(kind: str, name: str, location: SourceLine | None, python: types.FrameType | None = None) -> None:
            found.append(FrameEntry(len(found) + 1, kind, name, location, python))

        graph, key, stop = self.point.graph, self.point.key, self.point.stop
        if graph is not None and key is not None:
            info = graph.describe(key)
            stack, self.forward_note = graph.forward_stack(key)
            location = stack[0] if stack else info.forward
            name = f"{info.unique_name} {stop.phase.value}"
            found.append(FrameEntry(1, "node", name, location, graph=graph, key=key))
        elif stop.phase is not Phase.PYTHON:
            stack = ()
            put("node", f"backward {stop.backward} {stop.phase.value}", stop.location)
        else:
            stack = ()
            live()
        for call, parent_key in self._enclosing():
            info = call.describe(parent_key)
            name = f"{info.unique_name} (backward {call.number})"
            found.append(FrameEntry(len(found) + 1, "enclosing", name, info.forward, graph=call, key=parent_key))
        for line in stack:
            put("forward", line.function, line)
        if stop.phase is not Phase.PYTHON:
            live()
        return found

    @property
    def live_frames(self) -> list[types.FrameType]:
        """Live frames of the stopped thread, innermost first, the user's own where there are any."""
        self._forget()
        return self._live_frames

    @cached_property
    def _live_frames(self) -> list[types.FrameType]:
        return live_frames(self.point.frame)

    @property
    def innermost(self) -> types.FrameType | None:
        """The innermost live frame of the user's, whose names frame 0 sees; of any code where there is none."""
        frames = self.live_frames
        roots = framework_roots()
        return next((frame for frame in frames if owner_of(frame, roots) == USER), frames[0] if frames else None)

    def _enclosing(self) -> list[tuple[BackwardCall, int]]:
        """(call, node in it) around this place, innermost first."""
        found = []
        call = self.point.calls[-1].call if self.point.calls else None
        if call is not None and self.point.around is not None:
            found.append((call, self.point.around))
        while call is not None and call.parent is not None:
            if call.parent_key is not None:
                found.append((call.parent, call.parent_key))
            call = call.parent
        return found

    def frame(self, id: int) -> FrameEntry:
        """Raises CommandError for an id that no frame of this stop has."""
        if not 1 <= id <= len(self.frames):
            raise CommandError(
                f"no frame {id} at this stop",
                "frame ids are valid until the program continues: ask for the stack again",
            )
        return self.frames[id - 1]

    # ---- names for expressions

    def namespace(self, frame_id: int, reads: bool) -> Namespace:
        """Names at the frame (0: the innermost live one, with the node's names). ``reads``: the expression cannot
        write, and sees the engine's own gradients; else it sees clones.

        Raises:
            CommandError: an unknown frame.
        """
        self._forget()
        known = self._namespaces.get((frame_id, reads))
        if known is None:
            known = self._namespaces[frame_id, reads] = self._namespace(frame_id, reads)
        return known

    def _namespace(self, frame_id: int, reads: bool) -> Namespace:
        innermost = self.innermost
        entry = self.frame(frame_id) if frame_id else None
        if entry is not None and entry.kind == "enclosing" and entry.graph is not None and entry.key is not None:
            return self.node_names(entry.graph, entry.key, self._caller_of(entry.graph))
        frame = entry.python if entry is not None and entry.python is not None else innermost
        over = entry.location if entry is not None and entry.kind == "forward" else None
        if over is not None:
            frame = None
        point = self.point
        names = node_namespace(
            point.backend, point.graph, point.key, point.stop.index, point.grad_outputs, point.grad_inputs, frame
        )
        if over is not None:
            names.over = OverFrame(over, lambda name: self._running_with(name, over))
        if point.key is not None:
            hand = self.gradients.for_reading if reads else self.gradients.for_writing
            names.names.update({kind: _late(hand, kind) for kind in GRADIENT_NAMES})
        return names

    def _caller_of(self, graph: Graph) -> types.FrameType | None:
        """The frame that called the backward of ``graph``; None where it is not known. Those further in run inside
        that backward."""
        frames = iter(self.live_frames)
        for state in reversed(self.point.calls):  # innermost first, as the frames: a recursive one is met several times
            call = state.call
            frame = next((each for each in frames if source_line(each) == call.location), None)
            if call is graph or frame is None:
                return frame
        return None

    def _running_with(self, name: str, over: SourceLine) -> str:
        """Which running frame has ``name``, in words; "" for none. One of the same function may be the same call, which
        went on, or a later one."""
        for entry in self.frames:
            if entry.python is not None and name in entry.python.f_locals:
                at = entry.location
                if at is not None and (at.file, at.function) == (over.file, over.function):
                    return f"frame {entry.id - 1}, {entry.name}, still runs and has {name!r} as it is now"
                return f"frame {entry.id - 1}, {entry.name}, has another {name!r}: `frame {entry.id - 1}`"
        return ""

    def node_names(self, graph: Graph, key: int, frame: types.FrameType | None = None) -> Namespace:
        """Names at a node other than the current one: saved, node, index; its gradients as they were when the program
        stopped there (copies of them), else refused with the reason."""
        index = self.index_of(graph, key)
        names = node_namespace(self.point.backend, graph, key, index, None, None, frame)
        label = f"#{index} {graph.describe(key).unique_name}"

        def as_it_was(kind: str) -> object:
            kept = self.kept(graph, key, kind)
            if kept is not None and all(value is not MISSING for value in kept):
                return tuple(value if value is None else self.backend.copied(value) for value in kept)
            if self.is_ahead(graph, key):
                raise CommandError(f"{kind} of {label} are not there yet: the node has not run", f"`until #{index}`")
            raise CommandError(f"{kind} of {label} are not kept: the program did not stop there", f"`break #{index}`")

        names.names.update({kind: _late(as_it_was, kind) for kind in GRADIENT_NAMES})
        return names

    def is_ahead(self, graph: Graph, key: int) -> bool:
        """Whether node ``key`` neither ran nor runs now."""
        calls = self.point.calls
        for state, inner in itertools.zip_longest(calls, calls[1:]):
            if state.call is graph:
                around = inner.call.parent_key if inner is not None else None
                here = state.position if around is None else max(state.position, state.index_of(around))
                over = inner is None and self.point.stop.phase is Phase.END
                return not over and key not in state.ran and state.index_of(key) > here
        return True

    def index_of(self, graph: Graph, key: int) -> int:
        """Position in the execution order, from 1."""
        for state in self.point.calls:
            if state.call is graph:
                return state.index_of(key)
        order = graph.order()
        return order.index(key) + 1 if key in order else 0


def _late(function: Callable[[str], object], kind: str) -> Callable[[], object]:
    return lambda: function(kind)
