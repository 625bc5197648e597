"""Stops without a session: a HookSink that hands an ``Answers`` to the test, on the thread of the backward."""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan
from adbg.engine.inspect.dispatch import Answers
from adbg.engine.inspect.value_text import norm_of, tensor_text
from adbg.engine.session.stop_point import CallState, PausedPoint, Ran
from adbg.engine.types import NodeStop, Phase, StopReason

Visit = Callable[[Answers], None]


class Stops:
    """Calls ``at[phase, unique name]`` (or ``at[phase, "*"]``) with the answers of that stop; edits reach the engine.

    ``frame`` is the live frame that the stops show: by default the innermost one outside this file.
    """

    def __init__(self, backend: Backend, plan: HookPlan | None = None, **answers: Any) -> None:
        self.backend = backend
        self.plan = plan or HookPlan(every=True)
        self.at: dict[tuple[Phase, str], Visit] = {}
        self.calls: list[CallState] = []
        self.visited: list[str] = []
        self.answers = answers
        self.failure: BaseException | None = None

    def on(self, phase: Phase, node: str, visit: Visit) -> None:
        self.at[phase, node] = visit

    # ---- HookSink

    def backward_begin(self, call: BackwardCall) -> None:
        self.calls.append(CallState(call, started_ns=time.perf_counter_ns()))
        call.hook(self.plan)
        self._stop(Phase.BEGIN, None, None, None)

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        state = self.calls[-1]
        state.position = state.index_of(key)
        point = self._stop(Phase.BEFORE, key, list(grad_outputs), None)
        return tuple(point.grad_outputs or ()) if point is not None and point.edited else None

    def node_end(
        self, call: BackwardCall, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        state = self.calls[-1]
        state.position = state.index_of(key)
        ran = Ran(us=1.5)
        if grad_outputs and grad_outputs[0] is not None:
            ran.norm = self.backend.norm(grad_outputs[0])
        ran.grad_inputs = tuple(self._text(g) for g in grad_inputs)
        state.ran[key] = ran
        point = self._stop(Phase.AFTER, key, list(grad_outputs), list(grad_inputs))
        return tuple(point.grad_inputs or ()) if point is not None and point.edited else None

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        if error is not None:
            found = list(call.failed_nodes(error))
            self._stop(Phase.ERROR, found[0][0] if found else None, None, None, error)
        else:
            self._stop(Phase.END, None, None, None)
        self.calls.pop()

    # ---- stopping

    def _text(self, value: Any) -> str:
        if value is None:
            return "undefined"
        meta = self.backend.meta(value)
        return tensor_text(meta, norm_of(self.backend, value, meta))

    def _stop(
        self,
        phase: Phase,
        key: int | None,
        grad_outputs: list[Any] | None,
        grad_inputs: list[Any] | None,
        error: BaseException | None = None,
    ) -> PausedPoint | None:
        state = self.calls[-1]
        name = state.call.describe(key).unique_name if key is not None else ""
        visit = self.at.get((phase, name)) or (self.at.get((phase, "*")))
        if visit is None:
            return None
        stop = NodeStop(
            reason=StopReason.STEP,
            phase=phase,
            thread=1,
            backward=state.call.number,
            index=state.index_of(key) if key is not None else 0,
            total=state.call.count(),
            depth=state.call.depth,
            rank=0,
            node=state.call.describe(key) if key is not None else None,
            iteration=self.backend.iteration,
        )
        point = PausedPoint(
            stop=stop,
            thread=state.call.thread,
            backend=self.backend,
            graph=state.call,
            calls=list(self.calls),
            key=key,
            grad_outputs=grad_outputs,
            grad_inputs=grad_inputs,
            frame=_caller(),
            error=error,
        )
        self.visited.append(f"{phase.value} {name}".strip())
        try:
            visit(Answers(point, session_of(self.backend), **self.answers))
        except (
            BaseException
        ) as failed:  # a backend may keep a sink's errors away from the engine: the test must see them
            self.failure = self.failure or failed
            raise
        return point


def _caller() -> types.FrameType | None:
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def python_stop(
    backend: Backend | None, graph: Any = None, frame: types.FrameType | None = None, **more: Any
) -> Answers:
    """A stop at a Python line, as ``adbg.breakpoint()`` makes it."""
    stop = NodeStop(StopReason.BREAKPOINT, Phase.PYTHON, 1, 0, 0, graph.count() if graph is not None else 0, 0, 0)
    return Answers(PausedPoint(stop, 1, backend, graph, frame=frame or sys._getframe(1)), session_of(backend), **more)


def session_of(backend: Backend | None) -> Any:
    """What the tables of ``adbg/info`` read of a session."""
    parked = types.SimpleNamespace(thread=threading.get_ident())
    table = types.SimpleNamespace(names_seen=set(), states=list)
    turn = types.SimpleNamespace(waiting=())
    return types.SimpleNamespace(backends=[backend] if backend else [], parked=parked, table=table, turn=turn)
