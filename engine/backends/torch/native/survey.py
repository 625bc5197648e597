"""Which backward calls are passed over by what the extension says of their graphs: no call is made for them, no list of
nodes, and no Python object for any. On the threads that call backward.

Two graphs are alike whose nodes have the same types, were made by the same stacks in the same modules, and end in the
same accumulate nodes: where breakpoints by line, module or parameter took nothing in one, they take nothing in the
other. Most steps of a training script are alike.
"""

from __future__ import annotations

import types
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.call import Arguments, TorchCall, root_names
from adbg.engine.backends.torch.services import Services, root_nodes
from adbg.engine.backends.torch.stacks import FrameFilter
from adbg.engine.outside import own
from adbg.engine.own_files import SHOWN
from adbg.engine.types import BriefCall, SourceLine

_MOST = 256  # sets of types that are remembered


class Survey(NamedTuple):
    """``number`` stands for the set of types, ``names`` for what they are called: None where that is not known yet, or
    cannot be told by the types. ``last``: the highest number of a root; -1: all are accumulate nodes."""

    nodes: int
    number: int
    names: frozenset[str] | None
    alike: Hashable
    last: int


class Begin(Protocol):
    """A call of the engine that begins. ``survey``: what was said of its graph."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    number: int
    thread: int
    survey: Survey | None


class Surveyor:
    """Decides which calls that are nested in no other one are passed over."""

    def __init__(self, services: Services, frames: FrameFilter) -> None:
        self._services = services
        self._frames = frames
        self._names: dict[int, frozenset[str]] = {}

    def passed(self, sink: HookSink, begin: Begin, frame: types.FrameType, iteration: int) -> BriefCall | None:
        """How to report a call that is passed over, 12 us; None: it must be looked into, or the extension is not
        there."""
        try:
            arguments = Arguments(begin.args, begin.kwargs)
            if arguments.create_graph or arguments.inputs or any(map(private.traced_value, arguments.outputs)):
                return None
            roots = root_nodes(arguments.outputs)
            survey = begin.survey = self._survey(roots)
            if survey is None or survey.names is None or not sink.passes_over(survey.names, survey.alike):
                return None
            entry = "backward" if arguments.accumulate else "grad"
            line = self._frames.live_line(frame)
            return _brief(begin, survey.nodes, root_names(roots), entry, iteration, line)
        except own(Exception):  # the whole way, which says what is wrong
            return None

    def passed_by_walk(self, sink: HookSink, begin: Begin, call: TorchCall, iteration: int) -> BriefCall | None:
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
            return _brief(begin, call.count(), call.root_names, call.entry, iteration, call.location)
        except own(Exception):
            return None

    def _survey(self, roots: list[Any]) -> Survey | None:
        """None without the extension, and where a node must be asked for its type."""
        services = self._services
        found = services.core.survey(roots) if roots else None
        if found is None:
            return None
        count, number, one, other, last = found
        # Nodes that anomaly mode gave a stack have one that the extension does not know of.
        alike = (count, number, one, other, SHOWN.version) if not services.stacks.ever_by_anomaly else None
        return Survey(count, number, self._names.get(number), alike, last)

    def _learn(self, survey: Survey, names: frozenset[str] | None) -> None:
        """What the types of such a graph are called."""
        if names is not None and survey.names is None:
            if len(self._names) >= _MOST:
                self._names.clear()
            self._names[survey.number] = names


def _brief(
    begin: Begin, nodes: int, roots: tuple[str, ...], entry: str, iteration: int, line: SourceLine | None
) -> BriefCall:
    place = (line.file, line.line) if line is not None else ("", 0)
    return BriefCall(begin.number, nodes, roots, entry, iteration, begin.thread, *place)
