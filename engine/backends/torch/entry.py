"""The entry into torch's engine: one object in place of ``Variable._execution_engine`` that sees every backward started
in Python.

Runs on the threads that call backward; ``armed`` is switched from the reader thread. While it is off a call is counted
and passed on.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

from adbg.engine import own_threads
from adbg.engine.backends.base import HookSink, ended_well
from adbg.engine.backends.common.shield import surely
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.call import Arguments, Begun, TorchCall, entry_function, on_stack, under_way
from adbg.engine.backends.torch.failures import mark_told, unexpected, unmark_told
from adbg.engine.backends.torch.hooking import HookRegistration
from adbg.engine.backends.torch.native.alone import adopt, pass_alone, record_alone, take_over
from adbg.engine.backends.torch.native.brief import Calls, Facts, Passed
from adbg.engine.backends.torch.native.survey import Surveyor
from adbg.engine.backends.torch.services import Services, root_nodes
from adbg.engine.backends.torch.stacks import FrameFilter
from adbg.engine.outside import DISGUISED, own, suppress


class _Passing(threading.local):
    """Set on a thread while adbg itself runs a backward there (an expression of the user's): it is not reported."""

    depth = 0


class EngineEntry:
    """Counts and reports backward calls."""

    def __init__(self, services: Services, frames: FrameFilter) -> None:
        self._armed = False
        self._tick: Callable[[bool], None] | None = None
        self.tasks: dict[int, TorchCall] = {}
        self.open: list[TorchCall] = []
        self._passing = _Passing()
        self._services = services
        self._frames = frames
        self._sink: HookSink | None = None
        self._original: Any = None
        self._ours: Any = None
        self.codes: set[types.CodeType] = set()  # of the functions that stand in for torch's
        self._registration = HookRegistration()
        self._surveyor = Surveyor(services, frames, self._hand_over)
        self.calls = Calls(services.core.module, self.begin, self.end, self._ended_late)
        services.calls = self.calls

    # ---- in and out

    @property
    def armed(self) -> bool:
        """Calls are reported."""
        return self._armed

    @armed.setter
    def armed(self, armed: bool) -> None:
        self._armed = armed
        self._decide()

    @property
    def tick(self) -> Callable[[bool], None] | None:
        """Told of each outermost call, armed or not."""
        return self._tick

    @tick.setter
    def tick(self, tick: Callable[[bool], None] | None) -> None:
        self._tick = tick
        self._decide()

    @property
    def count(self) -> int:
        return self.calls.count

    @property
    def iteration(self) -> int:
        return self.calls.iteration

    def _decide(self) -> None:
        """Which calls the extension may pass over, from now on."""
        self.calls.forbid()
        sink, core = self._sink, self._services.core
        if sink is not None:
            core.tell_failures(True)
        if sink is not None and self._tick is None and not core.layout():
            self.calls.listen(sink) if self._armed else self.calls.allow_all()

    def install(self, sink: HookSink) -> None:
        """Put our engine in. Its type is a subclass of torch's own, so that everything else of it is inherited."""
        self._sink = sink
        if private.engine_type is None or self._in_chain():
            return
        self._original = torch.autograd.Variable._execution_engine
        run = entry_function(self.calls.begin, self.calls.end, self.failed, self._original.run_backward, self.codes)
        self.codes.add(run.__code__)
        DISGUISED.add(run.__code__)
        engine = type("_ObservedEngine", (private.engine_type,), {"run_backward": staticmethod(run)})
        self._ours = engine()
        torch.autograd.Variable._execution_engine = self._ours
        self._registration.install()
        self._decide()

    def uninstall(self) -> None:
        """Put torch's engine back; if another tool wrapped ours meanwhile, ours stays below it and only passes on."""
        self._sink = None
        self.armed = False
        if self._ours is not None and torch.autograd.Variable._execution_engine is self._ours:
            torch.autograd.Variable._execution_engine = self._original
            self._ours = None
            DISGUISED.difference_update(self.codes)  # ``codes`` stays: calls that began before are under way
        self._registration.uninstall()

    def _in_chain(self) -> bool:
        """Whether an engine of ours is in place: on top, or below the engine of a tool that wrapped it since. A second
        one above that would count every call twice."""
        if self._ours is None:
            return False
        if torch.autograd.Variable._execution_engine is self._original:  # the tool took ours out with its own
            self._ours = None
            return False
        self._registration.install()
        return True

    # ---- on the thread that calls backward

    def passing(self) -> bool:
        return self._passing.depth > 0

    def enter_passing(self) -> None:
        self.calls.aside(1)
        self._passing.depth += 1

    def leave_passing(self) -> None:
        self._passing.depth -= 1
        self.calls.aside(-1)

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun | None:
        """Count a call, and report it when armed. None: it is adbg's own. Raises the user's kill, nothing else."""
        sink = self._sink  # once: a detach on another thread takes it away at any moment
        if self._passing.depth or sink is None or (self._armed and own_threads.is_own()):
            return None
        if private.tracing():
            return None
        task = private.task_id()
        begun = Begun(args, kwargs, self.calls.next(task == -1), task)
        if task == -1 and self._tick is not None:
            self._tick(True)
        if task != -1 and self._services.stacks.by_anomaly:
            self._services.forget_parents(Arguments(args, kwargs).outputs)
        if not self._armed:
            return begun
        try:
            self._report(sink, begun, sys._getframe(1))
        except BaseException:
            surely(self._close, begun)
            raise
        return begun

    def _report(self, sink: HookSink, begun: Begun, frame: types.FrameType) -> None:
        if self.open and begun.task == -1:
            self._prune(frame)
        outermost, iteration = begun.task == -1, self.calls.iteration
        if outermost:
            begun.age = self.calls.age
            if self._in_short(sink, begun, self._surveyor.passed(sink, begun, frame), iteration):
                return
        parent, key = self._parent(begun.task) if not outermost else (None, None)
        call = begun.call = self._make(sink, begun, parent, key, frame)
        if call is None:
            return
        if outermost and (facts := self._surveyor.passed_by_walk(sink, begun, call)) is not None:
            begun.call = None
            call.finish()
            self._in_short(sink, begun, facts, iteration)
            return
        self.calls.gather(sink)
        self.open.append(call)
        sink.backward_begin(call)

    def _in_short(self, sink: HookSink, begun: Begun, facts: Facts | None, iteration: int) -> bool:
        """Report a call that is passed over; False where it is not."""
        if facts is None:
            return False
        self.calls.gather(sink)
        sink.brief_begin(facts.call(begun.number, iteration, begun.thread))
        begun.brief = perf_counter_ns(), facts
        return True

    def _prune(self, frame: types.FrameType | None) -> None:
        """Close what an interrupt left open on this thread, where it came while a call was being closed."""
        here, running = threading.get_ident(), on_stack(frame, self.codes, _AT_WORK)
        for call in [call for call in self.open if call.thread == here and call not in running]:
            self._drop(call)

    def end(self, begun: Begun | None, result: Any, frame: types.FrameType | None = None) -> None:
        if begun is None:
            return
        frame = frame or sys._getframe(1)
        if begun.recorded is not None and begun.call is None:
            self._in_full(begun, frame)
        call, sink = begun.call, self._sink
        begun.ended = True
        try:
            begun.spend(self._services)
            if self._services.stacks.by_anomaly and isinstance(result, tuple):
                self._services.forget_parents(result)
            if call is not None and sink is not None:
                ended_well(sink, call, result)
                if begun.survey is not None and self._tick is None:
                    record_alone(self.calls, self._frames, begun.age, begun.survey, sink, call, frame)
        finally:
            if call is not None:
                surely(self._close, begun)
            if begun.brief is not None:
                self._end_brief(begun, None, frame)
            self._ticked(begun)

    def _ended_late(self, passed: Passed, us: float) -> None:
        """One was passed over, and somebody wants to hear of each now."""
        if passed.facts is not None and passed.facts.source:
            frame = sys._getframe(1)
            self.end(self._looked_at(passed, frame), None, frame)
            return
        self._tell_passed(passed)
        if self._sink is not None:
            self._sink.brief_end(passed.number, us, None)

    def _tell_passed(self, passed: Passed) -> None:
        sink, facts = self._sink, passed.facts
        if sink is not None and facts is not None:
            self.calls.gather(sink)
            sink.brief_begin(facts.call(passed.number, passed.iteration, passed.thread))

    def _looked_at(self, held: Any, frame: types.FrameType) -> Begun | None:
        """The call that this frame of ours runs, reported from here on where it was passed over."""
        return held if held is None or isinstance(held, Begun) else Begun.looked_at(held, frame, self._tell_passed)

    def _ticked(self, begun: Begun) -> None:
        if self._tick is not None and begun.task == -1:
            self._tick(False)

    def _end_brief(self, begun: Begun, error: BaseException | None, frame: types.FrameType | None = None) -> None:
        sink, brief, survey = self._sink, begun.brief, begun.survey
        begun.brief = None
        if sink is None or brief is None:
            return
        us = (perf_counter_ns() - brief[0]) / 1000
        sink.brief_end(begun.number, us, error)
        if error is None and survey is not None and self._tick is None:
            pass_alone(self.calls, self._frames, begun.age, survey, brief[1], frame)

    # ---- a call that began without a word, although its nodes are recorded

    def _in_full(self, begun: Begun, frame: types.FrameType) -> None:
        sink = self._sink
        call = begun.call = self._make(sink, begun, None, None, frame) if sink is not None else None
        if sink is not None and call is not None:
            self._adopt(sink, begun, call)

    def _adopt(self, sink: HookSink, begun: Begun, call: TorchCall) -> None:
        self.open.append(call)
        if begun.recorded is not None:
            with suppress(Exception):
                adopt(call, *begun.recorded)
                begun.survey = self._surveyor.survey(list(call.root_nodes))
            self.calls.gather(sink)
            sink.backward_begin(call)

    def failed(self, held: Any, error: BaseException) -> None:
        """An exception is leaving the engine: report it (post-mortem), once however many nested calls it crosses
        unarmed."""
        begun = self._looked_at(held, sys._getframe(1))
        if begun is not None and begun.recorded is not None and begun.call is None and not begun.ended:
            self._in_full(begun, sys._getframe(1))
        self._services.stacks.as_without(error)
        self._services.stacks.unmute()
        sink = self._sink
        call = begun.call if begun is not None else None
        try:
            if begun is not None and begun.ended:
                return
            if call is not None:
                mark_told(error)
                if sink is not None:
                    sink.backward_end(call, error)
            elif sink is not None and begun is not None and not self._passing.depth and unexpected(error):
                parent, key = self._parent(begun.task) if begun.task != -1 else (None, None)
                call = begun.call = self._make(sink, begun, parent, key, sys._getframe(1))
                if call is not None:
                    mark_told(error)
                    sink.backward_end(call, error)
        finally:
            if begun is not None:
                surely(self._close, begun)
                if begun.task == -1:
                    unmark_told(error)
                if begun.brief is not None:
                    self._end_brief(begun, error)
                self._ticked(begun)

    def _close(self, begun: Begun) -> None:
        if begun.call is not None:
            self._drop(begun.call)
        begun.call = None
        if private.grad_mode() is not begun.grad_mode:  # an interrupt came while an expression had it its own way
            private.set_grad_mode(begun.grad_mode)
        if self._passing.depth:
            self.calls.aside(-self._passing.depth)
            self._passing.depth = 0

    def _drop(self, call: TorchCall) -> None:
        if call in self.open:
            self.open.remove(call)
        if call.task is not None and self.tasks.get(call.task) is call:
            del self.tasks[call.task]
        call.finish()

    # ---- making a call

    def _make(
        self, sink: HookSink, begun: Begun, parent: TorchCall | None, parent_key: int | None, frame: types.FrameType
    ) -> TorchCall | None:
        """None when the graph is one of a trace, or when anything goes wrong: a backward is never lost to its
        debugger."""
        try:
            arguments = Arguments(begun.args, begun.kwargs)
            if any(private.traced_value(output) for output in arguments.outputs):
                return None
            return TorchCall(
                self,
                sink,
                self._services,
                root_nodes(arguments.outputs),
                number=begun.number,
                parent=parent,
                parent_key=parent_key,
                depth=parent.depth + 1 if parent is not None else int(begun.task != -1),
                arguments=arguments,
                location=self._frames.live_line(frame),
                thread=begun.thread,
            )
        except own(Exception):
            return None

    def _parent(self, task: int) -> tuple[TorchCall | None, int | None]:
        """The call that runs ``task``, and the node in it that started a nested one.

        By task id, which holds across threads (past 60 levels torch continues in another one). A call that no hook has
        fired for yet is recognised by its graph: it contains the running node, and it learns its task id that way.
        """
        node, sink = private.current_node(), self._sink
        parent = self.tasks.get(task)
        if parent is None:
            for call in reversed(self.open):
                if call.task is None and call.key_of(node) is not None:
                    parent = call
                    parent.learn_task(task)
                    break
        if parent is None and self.calls.records and sink is not None:  # it may have begun without a word
            parent = (self._around(sink, node, task, self._running()) or (None, None))[0]
        return parent, parent.key_of(node) if parent is not None else None

    # ---- a call that was passed over is looked at after all

    def _hand_over(self, written: Any) -> None:
        """The node that runs on this thread was given, or gave, a gradient that is not finite or cannot be read in C++,
        in a call that was passed over. From here on it is hooked. ``written``: what its nodes did so far."""
        with suppress(Exception):
            sink, found = self._sink, self.at_hand()
            if sink is not None and found is not None:
                take_over(found[0], written)
                self._surveyor.handed_over(found[0].root_nodes)
                self._decide()
                sink.backward_begin(found[0])

    def at_hand(self) -> tuple[TorchCall, int] | None:
        """The node that runs on the calling thread, and its call, made now if it was not needed before: it is
        reported from here on. None outside of a backward."""
        sink, task, node = self._sink, private.task_id(), private.current_node()
        if sink is None or self._passing.depth or task == -1 or node is None:
            return None
        try:
            return self._around(sink, node, task, self._running())
        except own(Exception):
            return None

    def _running(self) -> list[tuple[Begun, types.FrameType]]:
        return under_way(self.codes, (Begun, self.calls.kind), self._looked_at)

    def _around(
        self, sink: HookSink, node: Any, task: int, running: list[tuple[Begun, types.FrameType]]
    ) -> tuple[TorchCall, int] | None:
        """The call among ``running`` that runs ``node`` in graph task ``task``, those around it made first."""
        for place, (begun, frame) in enumerate(running):
            call = begun.call
            if call is not None and call.task not in (None, task):
                continue
            if call is None:
                outer = self._around(sink, begun.node, begun.task, running[place + 1 :]) if begun.task != -1 else None
                parent, parent_key = outer or (None, None)
                call = self._make(sink, begun, parent, parent_key, frame)
                if call is None:
                    continue
                if call.key_of(node) is None:
                    call.finish()
                    continue
                begun.call = call
                self._adopt(sink, begun, call)
            key = call.key_of(node)
            if key is not None:
                call.learn_task(task)
                return call, key
        return None


_AT_WORK = {
    getattr(EngineEntry, name).__code__ for name in ("_report", "_in_full", "_adopt", "_end_brief", "failed", "end")
}
