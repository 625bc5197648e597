"""One running backward call of torch's engine: a graph, its hooks, and what was passed to the engine."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Container, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from adbg.engine.backends.base import BackwardCall, HookPlan, HookSink, Part
from adbg.engine.backends.common.hooking import HAS_POST, Parts
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.failures import flowed_in, suspects
from adbg.engine.backends.torch.graph import TorchGraph
from adbg.engine.backends.torch.hooks import TorchHooks
from adbg.engine.backends.torch.native import events
from adbg.engine.backends.torch.native.brief import Facts, Passed
from adbg.engine.backends.torch.native.core import Core
from adbg.engine.backends.torch.services import Services, node_name
from adbg.engine.frames import local
from adbg.engine.node_batch import NodeBatch
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.torch.entry import EngineEntry
    from adbg.engine.backends.torch.native.survey import Survey


Run = Callable[..., Any]
Recorded = tuple[int, Any]  # since and events of a ``Passed``, which itself would keep its tensors


class TorchCall(TorchGraph, BackwardCall):
    """See ``BackwardCall``. ``task``: torch's id of the running graph task, known once a hook fired or a nested call
    began. ``written``: its nodes are written down."""

    def __init__(
        self,
        entry_point: EngineEntry,
        sink: HookSink,
        services: Services,
        roots: Sequence[Any],
        *,
        number: int,
        parent: TorchCall | None,
        parent_key: int | None,
        depth: int,
        arguments: Arguments,
        location: SourceLine | None,
        thread: int,
    ) -> None:
        super().__init__(roots, services)
        self.number = number
        self.thread = thread
        self.parent = parent
        self.parent_key = parent_key
        self.depth = depth
        self.entry = "backward" if arguments.accumulate else "grad"
        self.create_graph = arguments.create_graph
        self.location = location
        self.task: int | None = None
        self.wanted = arguments.inputs
        self._wanted_run = arguments.accumulate
        self._outputs = arguments.outputs
        self._entry_point = entry_point
        self._sink = sink
        self._hooks: TorchHooks | None = None  # made with the first plan, dropped at the end: it holds this call
        self.written: events.Written | None = None
        self._root_names = root_names(roots)

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._root_names

    @property
    def core(self) -> Core:
        return self.services.core

    @property
    def root_outputs(self) -> tuple[Any, ...]:
        """What backward was called on."""
        return self._outputs

    def hook(self, plan: HookPlan) -> int:
        hooks = self._hooks
        if hooks is None:
            hooks = self._hooks = TorchHooks(self, self._sink, self._entry_point, self.task)
        hooked = hooks.hook(plan)
        self.only_screened = hooks.only_screened
        return hooked

    def collect(self, norms: bool = True) -> bool:
        far = self.far
        if self.written is None and far is not None:
            self.written = events.begin(self.core, far, self._outputs, norms)
        return self.written is not None

    def collected(self, start: int | None = None) -> NodeBatch | None:
        written = self.written
        if written is None:
            return None
        return written.take(self.order, bool(self.wanted)) if start is None else written.so_far(start)

    def stood(self, ns: int) -> None:
        if self.core.module is not None:
            self.core.module.stood(ns)

    def twin(self, shapes: bool) -> Hashable:
        if self.written is None or self.wanted:
            return None
        return self.written.twin if shapes else self.written.kin

    def finish(self) -> None:
        """The call is over: no hook, no node, no tensor is kept."""
        written, self.written = self.written, None
        if written is not None:
            written.end()
        hooks = self._hooks
        if hooks is not None:
            hooks.unhook()
            hooks.flags = bytearray()
        self._hooks = None
        self._outputs = ()
        self.release()

    def learn_task(self, task: int) -> None:
        self.task = task
        if self._hooks is not None:
            self._hooks.task = task
        if task != -1:  # compiled autograd runs outside a graph task
            self._entry_point.tasks[task] = self

    # ---- answers

    def root_values(self) -> Sequence[Any]:
        return [output for output in self._outputs if isinstance(output, torch.Tensor)]

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        parts = self._hooks.parts if self._hooks is not None else Parts()
        return parts.of(key, self.consumers(key), key in self.roots())

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        self.walk()
        far, hooks = self.far, self._hooks
        running = self.core.left_by_exception(far) if far is not None else None
        if running is None and hooks is not None and (last := hooks.running) is not None:
            running = last if hooks.flags[last] & HAS_POST else None  # without a post-hook it may well have run
        return suspects(self, error, running)

    def flowed_in(self, key: int, error: BaseException) -> Sequence[Any] | None:
        return flowed_in(self, key, error)


class Begun:
    """A call of the engine between its begin and its end, held by the frame that runs it alone. ``call`` is None while
    nobody needed one. ``task`` and ``node``: the graph task that it is nested in, and the node that began it there.
    ``recorded``: it began without a word, although every node of it is written down."""

    __slots__ = (
        "age", "args", "brief", "call", "ended", "grad_mode", "kwargs", "node", "number", "recorded", "survey",
        "task", "thread",
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
        self.brief: tuple[int, Facts] | None = None  # perf_counter_ns of its begin, where it was reported in short
        self.age = 0  # ``Calls.age`` then
        self.recorded: Recorded | None = None

    def spend(self, services: Services) -> None:
        """What a whole backward did not retain cannot be run again: remember how old it was."""
        args, kwargs = self.args, self.kwargs
        keep = args[2] if len(args) > 2 else kwargs.get("keep_graph", False)
        if self.task != -1 or keep:
            return
        if self.survey is not None:
            services.note_number(self.survey.last)
        elif args:
            with suppress(Exception):  # knowing less about old graphs is no reason to hurt the program
                services.note_root(args[0])

    @classmethod
    def looked_at(cls, passed: Passed, frame: types.FrameType, tell: Callable[[Passed], None]) -> Begun:
        """One that was passed over, in this frame of ours, and is looked at after all: the first time it is told."""
        if passed.begun is None:
            begun = passed.begun = cls(local(frame, "args"), local(frame, "kwargs"), passed.number, -1)
            begun.thread = passed.thread
            begun.grad_mode = passed.grad_mode
            if passed.facts is not None and passed.facts.source:
                begun.recorded = passed.since, passed.events
                begun.age = passed.age
                return begun
            if passed.facts is not None:
                begun.brief = passed.since, passed.facts
            tell(passed)
        found: Begun = passed.begun
        return found


def under_way(
    codes: Container[types.CodeType],
    kinds: tuple[type, ...],
    looked_at: Callable[[Any, types.FrameType], Begun | None],
) -> list[tuple[Begun, types.FrameType]]:
    """Calls under way on any thread (a node may run on another than the one that called), the latest first. ``codes``:
    of functions that have one of ``kinds`` in their local ``call``."""
    found = []
    for innermost in sys._current_frames().values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            held = local(frame, "call") if frame.f_code in codes else None
            if isinstance(held, kinds) and (begun := looked_at(held, frame)) is not None:
                found.append((begun, frame))
            frame = frame.f_back
    return sorted(found, key=lambda entry: -entry[0].number)


def on_stack(
    frame: types.FrameType | None, codes: Container[types.CodeType], at_work: Container[types.CodeType]
) -> list[TorchCall]:
    """Calls that ``frame`` or one around it runs (``codes``: see ``under_way``), begins or ends (``at_work``: one is in
    their local ``begun``): a finalizer of the program's may run a backward in the midst of that."""
    found = []
    while frame is not None:
        held = local(frame, "call") if frame.f_code in codes else None
        held = local(frame, "begun") if frame.f_code in at_work else held
        call = getattr(getattr(held, "begun", held), "call", None)  # a call without Python has what Python made of it
        if call is not None:
            found.append(call)
        frame = frame.f_back
    return found


class Arguments:
    """What was passed to ``run_backward`` (torch/csrc/autograd/python_engine.cpp, THPEngine_run_backward)."""

    __slots__ = ("accumulate", "create_graph", "inputs", "outputs")

    _NAMES = ("tensors", "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) == 5:  # as torch itself calls it
            outputs, _, _, create_graph, inputs = args
            accumulate = kwargs.get("accumulate_grad", False)
        else:
            given = dict(zip(self._NAMES, args, strict=False))
            given.update(kwargs)
            outputs, create_graph, inputs = given.get("tensors"), given.get("create_graph", False), given.get("inputs")
            accumulate = given.get("accumulate_grad", False)
        self.outputs = _sequence(outputs)
        self.create_graph = bool(create_graph)
        self.inputs = _sequence(inputs)
        self.accumulate = bool(accumulate)


def root_names(roots: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node_name(root) for root in roots))


def _sequence(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def entry_function(begin: Run, end: Run, failed: Run, run: Run, codes: Container[types.CodeType]) -> Any:
    """The function that stands in for the engine's ``run_backward``.

    It calls C++ from a frame that carries the module, file and line of torch's own call: C++ warnings are attributed to
    the calling frame, and a script's warning filters and its stderr stay as they are. (So it has no name of this module
    at hand, only closures.) An exception leaves it without adbg's frames in its traceback.
    """
    strip = strip_own
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
