"""Calls that are told in short: nothing in them is of interest, and nothing is made for them.

Where gradients that are not finite are looked for, the extension alone looks.

At the first gradient that is not finite (or cannot be read there) the call is looked into after all: it is made, told
of, and goes on as one that ``screen`` watched from its begin. Runs on the thread of the call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.common.shield import aborting
from adbg.engine.backends.paddle.graph import COMPILED, root_addresses, root_tensors, surveyed
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.open import given
from adbg.engine.outside import own
from adbg.engine.types import BriefCall

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.entry import EngineEntry
    from adbg.engine.backends.paddle.open import Open


def passes_over(entry: EngineEntry, opened: Open) -> bool:
    """Whether nothing in an outermost call is of interest: then it is reported in short, and nothing is made for it
    (half the cost of one that is looked into and has no node of interest)."""
    sink = entry.sink
    if sink is None or opened.partial:
        return False
    age = entry.quick.age  # first: a breakpoint that another thread sets from here on counts
    try:
        roots = root_addresses(root_tensors(given(opened, 0, "tensors", "outputs")))
        survey = opened.survey = surveyed(roots)
        if survey is None or survey.kinds is None or survey.roots is None:
            return False
        looking = not sink.passes_over(survey.kinds, survey.alike)
        if looking and not watched(entry, sink, opened, roots):
            return False
        file, line = entry.services.stacks.frames.live_place(opened.frame)
        ident, iteration = threading.get_ident(), entry.iteration
        sink.brief_begin(BriefCall(opened.number, survey.count, survey.roots, "backward", iteration, ident, file, line))
        entry.quick.learn(age, survey, looking, file, line)
    except own(Exception):
        return False
    opened.brief = perf_counter_ns()
    return True


def watched(entry: EngineEntry, sink: HookSink, opened: Open, roots: Sequence[int]) -> bool:
    """Whether nothing but gradients that are not finite is of interest in a call, and the extension looks for them from
    now on, until ``opened.watch`` is ended. ``roots``: addresses of the nodes that it begins at."""
    noted, survey = core(), opened.survey
    watch = noted.watch if noted is not None else None
    if watch is None or survey is None or survey.kinds is None or not survey.kinds.isdisjoint(COMPILED):
        return False
    if not sink.passes_over(survey.kinds, survey.alike, watched=True):
        return False
    if not watch.start(roots, functools.partial(aborting, entry.abort, found, entry, sink, opened)):
        return False
    opened.watch = watch
    return True


def found(
    entry: EngineEntry, sink: HookSink, opened: Open, address: int, outgoing: list[Any] | None, incoming: list[Any]
) -> list[Any] | None:
    """See ``NativeWatch.start``."""
    if entry.innermost() is not opened or opened.watch is None:
        return None
    try:
        call = entry.realize(opened)
    except own(Exception):
        call = None
    watch, opened.watch = opened.watch, None
    if call is None:
        watch.end()
        return None
    opened.begun = True
    call.hooks.screen.adopt(watch)
    sink.backward_begin(call)
    return call.hooks.screen.found(call.hooks, address, outgoing, incoming)
