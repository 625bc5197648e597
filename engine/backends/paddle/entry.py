"""The entry into Paddle's engine: ``core.eager.run_backward`` and ``run_partial_grad``, which every route goes
through and looks up at call time.

Runs on the threads that call backward; ``armed`` is switched from the reader thread. While it is off a call is counted
and passed on (its arguments are kept on the thread, for a post-mortem).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from types import FrameType, FunctionType
from typing import Any

from adbg.engine import own_threads
from adbg.engine.backends.base import HookSink, ended_well
from adbg.engine.backends.common.shield import surely
from adbg.engine.backends.common.tracebacks import clean_text, strip_own
from adbg.engine.backends.paddle import private
from adbg.engine.backends.paddle.call import PaddleCall
from adbg.engine.backends.paddle.calls.brief import passes_over
from adbg.engine.backends.paddle.calls.custom import custom_function
from adbg.engine.backends.paddle.calls.quick import Quick
from adbg.engine.backends.paddle.graph import Services
from adbg.engine.backends.paddle.native.later import LateChecks
from adbg.engine.backends.paddle.open import Open, Thread, Threads, flag, given
from adbg.engine.backends.paddle.tensors import is_tensor
from adbg.engine.outside import by_handler, own

Run = Callable[..., Any]
_INTERRUPTED = "(External) KeyboardInterrupt"  # what Paddle makes of a Ctrl-C in a hook


class EngineEntry:
    """Counts and reports backward calls."""

    def __init__(self, services: Services) -> None:
        self.checks: LateChecks | None = None  # what is to be tried out before a call is looked into
        self._armed = False
        self._tick: Callable[[bool], None] | None = None
        self._threads = Threads()
        self.services = services
        self.sink: HookSink | None = None
        self._kept: list[Any] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, ours)
        self.quick = Quick(self)

    @property
    def armed(self) -> bool:
        return self._armed

    @armed.setter
    def armed(self, on: bool) -> None:
        self._armed = on
        self.quick.settle()

    @property
    def tick(self) -> Callable[[bool], None] | None:
        """Told of each outermost call, armed or not."""
        return self._tick

    @tick.setter
    def tick(self, tell: Callable[[bool], None] | None) -> None:
        self._tick = tell
        self.quick.settle()

    @property
    def count(self) -> int:
        return self.quick.counts()[0]

    @property
    def iteration(self) -> int:
        return self.quick.counts()[1]

    # ---- in and out

    def install(self, sink: HookSink) -> None:
        self.sink = sink
        if self._replaced:
            self.quick.settle()
            return
        self._put(private.eager, "run_backward", lambda run: self._entry_function(run, False))
        self._put(private.eager, "run_partial_grad", lambda run: self._entry_function(run, True))
        if private.py_layer_backward is not None:
            self._put(private.py_layer_backward, "backward", functools.partial(custom_function, self))
        self._quicken()

    def _quicken(self) -> None:
        """The extension's function in front of ours, where it is there and has passed its checks."""
        for place, (owner, name, original, ours) in enumerate(self._replaced):
            if owner is private.eager and isinstance(ours, FunctionType) and getattr(owner, name, None) is ours:
                made = self.quick.function(ours, original, name == "run_partial_grad")
                if made is not None:
                    setattr(owner, name, made)
                    self._replaced[place] = (owner, name, original, made)
        self.quick.settle()

    def _put(self, owner: Any, name: str, make: Callable[[Run], Run]) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            ours = make(original)
            setattr(owner, name, ours)
            self._replaced.append((owner, name, original, ours))

    def uninstall(self) -> None:
        """Paddle's own functions back; if another tool wrapped ours meanwhile, ours stays below it and only passes
        on."""
        self.sink = None
        self.armed = False
        self.quick.leave()
        for owner, name, original, ours in self._replaced:
            if getattr(owner, name, None) is ours:
                setattr(owner, name, original)
        self._replaced = []

    # ---- this thread

    def top(self) -> PaddleCall | None:
        """The call whose nodes run on this thread now; None where it is none of ours."""
        opened = self.innermost()
        return opened.call if opened is not None else None

    def innermost(self) -> Open | None:
        running = self.mine().open
        return running[-1] if running else None

    def mine(self) -> Thread:
        """What runs on this thread. A call that the extension began by itself is made known here."""
        state = self._threads.mine
        opened = self.quick.opened()
        if opened is not None:
            self._prune(opened.entry)
            state.clear()
            state.open.append(opened)
            state.quick = opened
            self.quick.tell(opened)
        return state

    def roots(self) -> Sequence[Any]:
        """The tensors that the calls under way on this thread began at."""
        found = (each.args[0] if each.args else each.kwargs.get("tensors", ()) for each in self.mine().open)
        return [root for roots in found for root in (roots if isinstance(roots, (tuple, list)) else (roots,))]

    def pass_through(self, by: int) -> None:
        """1: calls on this thread only pass from now on; -1: no more."""
        self.mine().passing += by
        self.quick.passing(by)

    def answer(self, outputs: Sequence[Any]) -> list[Any]:
        """``outputs`` as a post hook returns them. Paddle 3.3.1 never gives back its reference to what a post hook
        returned: a new container each time would keep all gradients for ever. So it is one list a thread, which Paddle
        reads before anything else runs."""
        answer = self._threads.mine.answer
        answer[:] = outputs
        return answer

    def abort(self, error: BaseException) -> None:
        """The user ended it in a hook: what Paddle makes of the exception is turned back into it at the entry."""
        self._threads.mine.abort = error

    def keep(self, hooks: list[Any], earlier: Sequence[Any]) -> None:
        """Hold on to the post hooks of a failed ``paddle.grad``, and let go of ``earlier``, those that were held when
        one began that reached its nodes: nothing else holds them now.

        ``paddle.grad`` runs on copies of the nodes. After an exception the copies stay until the next call, which frees
        them without Python's lock: a hook that only they still held would be freed there, and Paddle dies of that.
        """
        gone = set(map(id, earlier))
        self._kept = [*(hook for hook in self._kept if id(hook) not in gone), *hooks]

    # ---- a call

    def _entry_function(self, run: Run, partial: bool) -> Run:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if self.sink is None:
                return run(*args, **kwargs)
            grad_mode = private.has_grad()
            opened = self._begin(args, kwargs, partial)
            earlier = self._kept
            if partial and flag(opened, 4, "create_graph"):
                self.services.stacks.tell_place()
            try:
                result = run(*args, **kwargs)
            except BaseException as error:
                aborted = self._raised(opened, error, grad_mode, earlier)
                if aborted is not None:
                    raise aborted from None
                self.services.stacks.as_without(error)
                strip_own(error)
                raise
            else:
                self._returned(opened, earlier, result if partial else None)
                return result
            finally:
                self._left(opened)

        run_backward.__name__ = run_backward.__qualname__ = getattr(run, "__name__", "run_backward")
        run_backward.__doc__ = run.__doc__
        return run_backward

    def _raised(
        self, opened: Open, error: BaseException, grad_mode: bool, earlier: Sequence[Any]
    ) -> BaseException | None:
        """``error`` leaves the engine. What is to be raised in its place."""
        clean_text(error)
        if private.has_grad() != grad_mode:  # Paddle forgets it when a post hook or a kernel raises
            private.set_has_grad(grad_mode)
        if opened.partial and opened.call is not None:
            self.keep(opened.call.hooks.placed, earlier if opened.call.reached else ())
        aborted = self._failed(opened, error)
        if opened.brief:
            self._end_brief(opened, error)
        return aborted

    def _returned(self, opened: Open, earlier: Sequence[Any], result: Any = None) -> None:
        """It ended well, for Paddle; ``result``: of ``paddle.grad``."""
        ended = self._threads.mine.abort
        if ended is not None and opened.call is not None:  # at its last node
            self._failed(opened, ended)
            raise ended
        if opened.call is not None:
            self._end(opened, result)
        if opened.brief:
            self._end_brief(opened, None)
        if opened.partial and earlier:
            self.keep([], earlier)
        if not opened.partial:
            self._spend(opened.args, opened.kwargs)

    def _left(self, opened: Open) -> None:
        self._threads.mine.open.remove(opened)
        surely(self._close, opened)
        if self._tick is not None and not opened.passing and not self._threads.mine.open:
            self._tick(False)

    def quick_ended(self, error: BaseException | None, grad_mode: bool) -> BaseException | None:
        """A call that the extension began is over; it is known here, or ``error`` makes it so. What is to be raised,
        instead of ``error`` where there is one."""
        state = self.mine()
        opened, state.quick = state.quick, None
        if opened is None:
            return None
        try:
            if error is None:
                self._returned(opened, ())
                return None
            aborted = self._raised(opened, error, grad_mode, ())
            if aborted is None:
                self.services.stacks.as_without(error)
                strip_own(error)
            else:
                aborted.__cause__, aborted.__suppress_context__ = None, True
            return aborted
        finally:
            self._left(opened)

    def _spend(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A whole backward ended well: what it did not retain cannot be run again."""
        if args[2] if len(args) > 2 else kwargs.get("retain_graph", False):
            return
        roots = args[0] if args else kwargs.get("tensors", ())
        try:
            self.services.spent.add(roots if isinstance(roots, (tuple, list)) else (roots,))
        except own(Exception):  # knowing less about old graphs is no reason to hurt the program
            return

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], partial: bool) -> Open:
        state = self.mine()
        entry = sys._getframe(1)
        if state.open:
            self._prune(entry)
        elif self.checks is not None and self.checks.try_now(entry.f_back):
            self.checks = None
            self._quicken()
        if state.passing or (self._armed and own_threads.is_own()):
            opened = Open(entry, (), {}, partial, 0, "")
            opened.passing = True
            state.open.append(opened)
            return opened
        number = self.quick.next_number()
        if not state.open:
            self.quick.next_iteration()
            if self._tick is not None:
                self._tick(True)
            state.clear()
        opened = Open(entry, args, kwargs, partial, number, state.customs[-1] if state.customs else "")
        state.open.append(opened)
        self.quick.hand_over()
        if self._armed:
            opened.frame = sys._getframe(2)
            grad_mode = private.has_grad()
            try:
                self._report(opened)
            except BaseException as error:
                self.abort(error)  # what is around this call makes another exception of it
                private.set_has_grad(grad_mode)
                state.open.remove(opened)
                surely(self._close, opened)
                raise
        return opened

    def _report(self, opened: Open) -> None:
        if len(self._threads.mine.open) == 1 and passes_over(self, opened):
            return
        call = self.realize(opened)
        sink = self.sink
        if call is not None and sink is not None:
            opened.begun = True
            sink.backward_begin(call)
            call.hooks.start()

    def _prune(self, frame: FrameType | None) -> None:
        """Calls that a Ctrl-C took out of ``run_backward`` between two instructions, and that never ended here: what
        comes later would count as nested in them. Their frames are not on this thread's stack any more."""
        running = set()
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        for opened in [opened for opened in self._threads.mine.open if id(opened.entry) not in running]:
            self._threads.mine.open.remove(opened)
            self._close(opened)

    def realize(self, opened: Open) -> PaddleCall | None:
        """The call as the sink sees it, with those around it. Never raises: a call that cannot be described runs."""
        if opened.call is not None or opened.passing or self.sink is None:
            return opened.call
        state = self._threads.mine
        place = state.open.index(opened)
        outer = state.open[place - 1] if place else None
        try:
            parent = self.realize(outer) if outer is not None else None
            roots = given(opened, 0, "tensors", "outputs")
            call = PaddleCall(
                self,
                self.sink,
                self.services,
                roots,
                number=opened.number,
                parent=parent,
                parent_key=parent.hooks.custom_key(opened.custom) if parent is not None and opened.custom else None,
                depth=place,
                entry="grad" if opened.partial else "backward",
                create_graph=bool(opened.partial and flag(opened, 4, "create_graph")),
                inputs=[value for value in given(opened, 1, "inputs") if is_tensor(value)] if opened.partial else (),
                location=self.services.stacks.frames.live_line(opened.frame or sys._getframe(1)),
            )
        except own(Exception):
            return None
        if opened.survey is not None:
            call.take_survey(opened.survey)
            call.alike = opened.survey.alike
        opened.call = call
        return call

    def _close(self, opened: Open) -> None:
        call = opened.call
        state = self._threads.mine
        if not opened.passing:
            if call is not None:
                call.finish()
            state.passing = 0
            self.quick.passing(0)
        if opened.watch is not None:
            watch, opened.watch = opened.watch, None
            watch.end()
        opened.call = None
        opened.args, opened.kwargs, opened.frame, opened.entry = (), {}, None, None
        if not state.open:
            state.origin = state.abort = None
            state.answer.clear()

    def _end(self, opened: Open, result: Any) -> None:
        call, sink = opened.call, self.sink
        if call is not None and sink is not None and not opened.passing:
            try:
                call.hooks.settle()
                ended_well(sink, call, result)
            except BaseException as error:
                self.abort(error)
                raise

    def _end_brief(self, opened: Open, error: BaseException | None) -> None:
        sink, begun = self.sink, opened.brief
        opened.brief = 0
        if sink is not None:
            sink.brief_end(opened.number, (perf_counter_ns() - begun) / 1000, error)

    def _failed(self, opened: Open, error: BaseException) -> BaseException | None:
        """An exception is leaving the engine: report it once. Returns what the user's abort was, if it was one."""
        state = self._threads.mine
        if state.abort is None and opened.begun and isinstance(error, OSError) and str(error).startswith(_INTERRUPTED):
            state.abort = KeyboardInterrupt()  # between two instructions of a hook
        last = self.services.stacks.last()
        aborted, sink = state.abort, self.sink
        if opened.passing or sink is None:
            return aborted
        if aborted is not None:
            if opened.call is not None:
                sink.backward_end(opened.call, aborted)
            return aborted
        if not opened.begun and (state.reported or by_handler(error) or not isinstance(error, Exception)):
            return None
        call = self.realize(opened)
        if call is not None:
            state.reported = True
            call.origin = state.origin
            call.last = last
            if opened.returned is not None:
                call.hooks.returned[opened.returned[0]] = opened.returned[1]
            sink.backward_end(call, error)
        return state.abort

    # ---- a Python line inside a node

    def at_hand(self) -> tuple[PaddleCall, int | None] | None:
        """The innermost call of this thread, made now if it was not needed before, and the PyLayer that runs."""
        state = self.mine()
        opened = state.open[-1] if state.open else None
        if opened is None or opened.passing:
            return None
        for around in state.open:
            around.frame = around.frame or around.entry
        call = self.realize(opened)
        if call is None:
            return None
        inside = len(state.customs) > sum(bool(around.custom) for around in state.open)  # its own, not one around it
        return call, call.hooks.custom_key(state.customs[-1]) if inside else None
