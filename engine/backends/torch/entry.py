"""The entry into torch's engine: one object in place of ``Variable._execution_engine`` that sees every backward started
in Python.

Runs on the threads that call backward; ``armed`` is switched from the reader thread. While it is off a call is counted
and passed on.
"""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.common.shield import surely
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.call import Arguments, TorchCall
from adbg.engine.backends.torch.hooking import HookRegistration
from adbg.engine.backends.torch.native.survey import Survey, Surveyor
from adbg.engine.backends.torch.services import Services, root_nodes
from adbg.engine.backends.torch.stacks import FrameFilter
from adbg.engine.frames import local
from adbg.engine.outside import DISGUISED, by_handler, own, suppress
from adbg.engine.types import BriefCall

Run = Callable[..., Any]
_MARK = "__adbg_told__"


class _Passing(threading.local):
    """Set on a thread while adbg itself runs a backward there (an expression of the user's): it is not reported."""

    depth = 0


class Begun:
    """A call of the engine between its begin and its end, held by the frame that runs it alone. ``call`` is None while
    nobody needed one. ``task`` and ``node``: the graph task that it is nested in, and the node that began it there."""

    __slots__ = (
        "args", "brief", "call", "ended", "grad_mode", "kwargs", "node", "number", "survey", "task",
        "thread",
    )  # fmt: skip

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], number: int, task: int) -> None:
        self.args = args
        self.kwargs = kwargs
        self.number = number
        self.task = task
        self.node = private.current_node() if task != -1 else None
        self.thread = threading.get_ident()
        self.call: TorchCall | None = None
        self.ended = False  # its end was reported, or is being reported
        self.grad_mode = private.grad_mode()
        self.survey: Survey | None = None
        self.brief = 0  # perf_counter_ns of its begin, where it was reported in short


class EngineEntry:
    """Counts and reports backward calls."""

    def __init__(self, services: Services, frames: FrameFilter) -> None:
        self.armed = False
        self.tick: Callable[[bool], None] | None = None  # told of each outermost call, armed or not
        self.count = 0
        self.iteration = 0
        self.tasks: dict[int, TorchCall] = {}
        self.open: list[TorchCall] = []
        self._numbers = itertools.count(1)
        self._iterations = itertools.count(1)
        self._passing = _Passing()
        self._services = services
        self._frames = frames
        self._sink: HookSink | None = None
        self._original: Any = None
        self._ours: Any = None
        self.codes: set[types.CodeType] = set()  # of the functions that stand in for torch's
        self._registration = HookRegistration()
        self._surveyor = Surveyor(services, frames)

    # ---- in and out

    def install(self, sink: HookSink) -> None:
        """Put our engine in. Its type is a subclass of torch's own, so that everything else of it is inherited."""
        self._sink = sink
        if private.engine_type is None or self._in_chain():
            return
        self._original = torch.autograd.Variable._execution_engine
        run = _entry_function(self, self._original.run_backward)
        self.codes.add(run.__code__)
        DISGUISED.add(run.__code__)
        engine = type("_ObservedEngine", (private.engine_type,), {"run_backward": staticmethod(run)})
        self._ours = engine()
        torch.autograd.Variable._execution_engine = self._ours
        self._registration.install()

    def uninstall(self) -> None:
        """Put torch's engine back; if another tool wrapped ours meanwhile, ours stays below it and only passes on."""
        self.armed = False
        self._sink = None
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
        self._passing.depth += 1

    def leave_passing(self) -> None:
        self._passing.depth -= 1

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun | None:
        """Count a call, and report it when armed. None: it is adbg's own. Only the user's kill may be raised from
        here."""
        sink = self._sink  # once: a detach on another thread takes it away at any moment
        if self._passing.depth or sink is None:
            return None
        if private.tracing():
            return None
        task = private.task_id()
        number = self.count = next(self._numbers)
        if task == -1:
            self.iteration = next(self._iterations)
            if self.tick is not None:
                self.tick(True)
        begun = Begun(args, kwargs, number, task)
        if task != -1 and self._services.stacks.by_anomaly:
            self._forget_parents(Arguments(args, kwargs).outputs)
        if not self.armed:
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
        outermost = begun.task == -1
        if outermost and self._in_short(sink, begun, self._surveyor.passed(sink, begun, frame, self.iteration)):
            return
        parent, key = self._parent(begun.task) if not outermost else (None, None)
        call = begun.call = self._make(sink, begun, parent, key, frame)
        if call is None:
            return
        if outermost and (brief := self._surveyor.passed_by_walk(sink, begun, call, self.iteration)) is not None:
            begun.call = None
            call.finish()
            self._in_short(sink, begun, brief)
            return
        self.open.append(call)
        sink.backward_begin(call)

    @staticmethod
    def _in_short(sink: HookSink, begun: Begun, brief: BriefCall | None) -> bool:
        """Report a call that is passed over; False where it is not."""
        if brief is None:
            return False
        sink.brief_begin(brief)
        begun.brief = perf_counter_ns()
        return True

    def _prune(self, frame: types.FrameType | None) -> None:
        """Close what an interrupt left open on this thread, where it came while a call was being closed."""
        running = []
        while frame is not None:
            if frame.f_code in self.codes and isinstance(begun := local(frame, "call"), Begun):
                running.append(begun.call)
            frame = frame.f_back
        here = threading.get_ident()
        for call in [call for call in self.open if call.thread == here and call not in running]:
            self._drop(call)

    def end(self, begun: Begun | None, result: Any) -> None:
        if begun is None:
            return
        call, sink = begun.call, self._sink
        begun.ended = True
        try:
            self._spend(begun)
            if self._services.stacks.by_anomaly and isinstance(result, tuple):
                self._forget_parents(result)
            if call is not None and sink is not None:
                sink.backward_end(call, None)
        finally:
            if call is not None:
                surely(self._close, begun)
            if begun.brief:
                self._end_brief(begun, None)
            self._ticked(begun)

    def _ticked(self, begun: Begun) -> None:
        tick = self.tick
        if tick is not None and begun.task == -1:
            tick(False)

    def _spend(self, begun: Begun) -> None:
        """What a whole backward did not retain cannot be run again: remember how old it was."""
        args, kwargs = begun.args, begun.kwargs
        keep = args[2] if len(args) > 2 else kwargs.get("keep_graph", False)
        if begun.task != -1 or keep:
            return
        if begun.survey is not None:
            self._services.note_number(begun.survey.last)
        elif args:
            with suppress(Exception):  # knowing less about old graphs is no reason to hurt the program
                self._services.note_root(args[0])

    def _forget_parents(self, tensors: Sequence[Any]) -> None:
        """Of what was made inside a backward and now begins one, or is the result of one with ``create_graph``."""
        with suppress(Exception):
            self._services.forget_parents(tensors)

    def _end_brief(self, begun: Begun, error: BaseException | None) -> None:
        sink, since = self._sink, begun.brief
        begun.brief = 0
        if sink is not None:
            sink.brief_end(begun.number, (perf_counter_ns() - since) / 1000, error)

    def failed(self, begun: Begun | None, error: BaseException) -> None:
        """An exception is leaving the engine: report it (post-mortem), once however many nested calls it crosses
        unarmed."""
        self._services.stacks.as_without(error)
        self._services.stacks.unmute()
        sink = self._sink
        call = begun.call if begun is not None else None
        try:
            if begun is not None and begun.ended:
                return
            if call is not None:
                _mark(error)
                if sink is not None:
                    sink.backward_end(call, error)
            elif sink is not None and begun is not None and self._wants_post_mortem(error):
                parent, key = self._parent(begun.task) if begun.task != -1 else (None, None)
                call = begun.call = self._make(sink, begun, parent, key, sys._getframe(1))
                if call is not None:
                    _mark(error)
                    sink.backward_end(call, error)
        finally:
            if begun is not None:
                surely(self._close, begun)
                if begun.task == -1:
                    _unmark(error)
                if begun.brief:
                    self._end_brief(begun, error)
                self._ticked(begun)

    def _wants_post_mortem(self, error: BaseException) -> bool:
        if self._passing.depth or by_handler(error) or not isinstance(error, Exception) or private.tracing():
            return False
        return not vars(error).get(_MARK)

    def _close(self, begun: Begun) -> None:
        if begun.call is not None:
            self._drop(begun.call)
        begun.call = None
        if private.grad_mode() is not begun.grad_mode:  # an interrupt came while an expression had it its own way
            private.set_grad_mode(begun.grad_mode)
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
        node = private.current_node()
        parent = self.tasks.get(task)
        if parent is None:
            for call in reversed(self.open):
                if call.task is None and call.key_of(node) is not None:
                    parent = call
                    parent.learn_task(task)
                    break
        return parent, parent.key_of(node) if parent is not None else None

    # ---- a Python line inside a node

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
        """Calls under way on any thread (a node may run on another than the one that called), the latest first."""
        found = []
        for innermost in sys._current_frames().values():
            frame: types.FrameType | None = innermost
            while frame is not None:
                if frame.f_code in self.codes and isinstance(begun := local(frame, "call"), Begun):
                    found.append((begun, frame))
                frame = frame.f_back
        return sorted(found, key=lambda entry: -entry[0].number)

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
                self.open.append(call)
            key = call.key_of(node)
            if key is not None:
                call.learn_task(task)
                return call, key
        return None


def _mark(error: BaseException) -> None:
    """Told once, however many nested calls it crosses. On the exception itself: a list of those told would keep the
    frames and tensors of one that a custom backward catches."""
    with suppress(Exception):
        vars(error)[_MARK] = True


def _unmark(error: BaseException) -> None:
    with suppress(Exception):
        vars(error).pop(_MARK, None)


def _entry_function(entry: EngineEntry, run: Run) -> Run:
    """The function that stands in for the engine's ``run_backward``.

    It calls C++ from a frame that carries the module, file and line of torch's own call: C++ warnings are attributed to
    the calling frame, and a script's warning filters and its stderr stay as they are. (So it has no name of this module
    at hand, only closures.) An exception leaves it without adbg's frames in its traceback.
    """
    begin, end, failed, strip, codes = entry.begin, entry.end, entry.failed, strip_own, entry.codes
    unbegun: Any = object()

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        call = unbegun
        try:
            call = begin(args, kwargs)
            result = run(*args, **kwargs)  # the fourth line below "def": see ``place``
            end(call, result)
        except BaseException as error:
            if call is not unbegun:
                failed(call, error)
            strip(error, codes)
            raise
        return result

    place = private.warning_line()
    if place is None:
        return run_backward
    namespace, file, line = place  # of torch's own call
    code = run_backward.__code__
    shifted = code.replace(co_filename=file, co_firstlineno=line - 4)
    return types.FunctionType(shifted, namespace, "run_backward", None, run_backward.__closure__)
