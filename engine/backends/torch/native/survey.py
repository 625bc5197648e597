"""Which backward calls are passed over by what the extension says of their graphs: no call is made for them, no list of
nodes, and no Python object for any. On the threads that call backward.

Two graphs are alike whose nodes have the same types, were made by the same stacks in the same modules, and end in the
same accumulate nodes: where breakpoints by line, module or parameter took nothing in one, they take nothing in the
other. Most steps of a training script are alike.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.call import Arguments, TorchCall, root_names
from adbg.engine.backends.torch.native import events
from adbg.engine.backends.torch.native.brief import Facts
from adbg.engine.backends.torch.services import Services, root_nodes
from adbg.engine.backends.torch.stacks import FrameFilter
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN

_MOST = 256  # sets of types that are remembered


class Survey(NamedTuple):
    """``number`` stands for the set of types, ``names`` for what they are called: None where that is not known yet, or
    cannot be told by the types. ``last``: the highest number of a root; -1: all are accumulate nodes."""

    nodes: int
    number: int
    names: frozenset[str] | None
    alike: Hashable
    last: int
    told: tuple[int, int, int, int]  # as ``Core.survey`` said it, but ``last``


class Begin(Protocol):
    """A call of the engine that begins. ``survey``: what was said of its graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    thread: int
    survey: Survey | None


class Surveyor:
    """Decides which calls that are nested in no other one are passed over."""

    def __init__(self, services: Services, frames: FrameFilter, hand_over: Callable[[Any], None]) -> None:
        """``hand_over`` is called at a node of a watched call, with what was written down of it, and has the rest of it
        hooked."""
        self._services = services
        self._frames = frames
        self._hand_over = hand_over
        self._names: dict[int, frozenset[str]] = {}
        self._watching = False
        self._handed_over: set[tuple[int, ...]] = set()

    def passed(self, sink: HookSink, begin: Begin, frame: types.FrameType) -> Facts | None:
        """How to report a call that is passed over, 12 us; None: it must be looked into, or the extension is not
        there."""
        try:
            arguments = Arguments(begin.args, begin.kwargs)
            if arguments.create_graph or arguments.inputs or any(map(private.traced_value, arguments.outputs)):
                return None
            roots = root_nodes(arguments.outputs)
            survey = begin.survey = self.survey(roots)
            if survey is None or survey.names is None:
                return None
            watched = False
            if not sink.passes_over(survey.names, survey.alike):
                watched = sink.passes_over(survey.names, survey.alike, watched=True)
                if not watched or not self._watch(survey, arguments.outputs):
                    return None
            entry = "backward" if arguments.accumulate else "grad"
            place = self._frames.live_place(frame)
            return Facts(survey.nodes, root_names(roots), entry, *place, survey.alike, watched)
        except own(Exception):  # the whole way, which says what is wrong
            return None

    def passed_by_walk(self, sink: HookSink, begin: Begin, call: TorchCall) -> Facts | None:
        """The same by the call's own walk."""
        if call.create_graph:
            return None
        try:
            kinds, survey = call.kinds(), begin.survey
            if survey is not None:
                self._learn(survey, kinds)
                call.alike = survey.alike
            if kinds is None or call.truncated or not sink.passes_over(kinds, call.alike):
                return None
            place = (call.location.file, call.location.line) if call.location is not None else ("", 0)
            return Facts(call.count(), call.root_names, call.entry, *place)
        except own(Exception):
            return None

    def _watch(self, survey: Survey, outputs: tuple[Any, ...]) -> bool:
        """Have the gradients of this call looked at in C++, whose nodes get no hook: the first one that is not finite
        hands it over."""
        core = self._services.core
        if survey.told[:2] in self._handed_over or private.function_depth() or private.dispatch_depth():
            return False
        if private.profiling() or "watch" in core.failed or not events.ready(core, outputs):
            return False
        if not self._watching and not core.module.torch_watch(self._hand_over):
            core.failed["watch"] = "the engine's functions were not found"
            return False
        self._watching = True
        return bool(core.module.torch_watch_next(outputs[0], survey.nodes))

    def handed_over(self, roots: Sequence[Any]) -> None:
        """A call with as many nodes of the same types is not watched so again: it may well come to the same each
        time."""
        survey = self.survey(list(roots))
        if survey is None:
            return
        if len(self._handed_over) >= _MOST:
            self._handed_over.clear()
        self._handed_over.add(survey.told[:2])

    def survey(self, roots: list[Any]) -> Survey | None:
        """None without the extension, and where a node must be asked for its type."""
        services = self._services
        found = services.core.survey(roots) if roots else None
        if found is None:
            return None
        count, number, one, other, last = found
        # Nodes that anomaly mode gave a stack have one that the extension does not know of.
        alike = (count, number, one, other, SHOWN.version) if not services.stacks.ever_by_anomaly else None
        return Survey(count, number, self._names.get(number), alike, last, found[:4])

    def _learn(self, survey: Survey, names: frozenset[str] | None) -> None:
        """What the types of such a graph are called."""
        if names is not None and survey.names is None:
            if len(self._names) >= _MOST:
                self._names.clear()
            self._names[survey.number] = names
