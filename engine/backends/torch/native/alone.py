"""Calls that run without Python: those like one that Python looked at, and one that Python takes over after all. On the
threads that call backward."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import HookSink
from adbg.engine.backends.torch.native.brief import Calls, Facts
from adbg.engine.backends.torch.native.events import Written
from adbg.engine.backends.torch.stacks import FrameFilter
from adbg.engine.outside import suppress

if TYPE_CHECKING:
    from adbg.engine.backends.torch.call import TorchCall
    from adbg.engine.backends.torch.native.survey import Survey


def pass_alone(
    calls: Calls, frames: FrameFilter, age: int, survey: Survey, facts: Facts, entry: types.FrameType | None
) -> None:
    """It was passed over. ``entry``: the frame of our function that runs it; ``age``: ``Calls.age`` at its begin."""
    with suppress(Exception):
        _allow(calls, frames, age, survey, facts, entry, None)


def record_alone(
    calls: Calls,
    frames: FrameFilter,
    age: int,
    survey: Survey,
    sink: HookSink,
    call: TorchCall,
    entry: types.FrameType | None,
) -> None:
    """Each of its nodes was written down by the extension, which may be all that anybody wants of it."""
    with suppress(Exception):
        nodes = call.written.graph() if call.written is not None else None
        if nodes is None or not getattr(sink, "patient", False):
            return
        late: Any = sink
        source = late.keeps_nodes(call, call.kinds())
        if source:
            place = (call.location.file, call.location.line) if call.location is not None else ("", 0)
            facts = Facts(call.count(), call.root_names, call.entry, *place, survey.alike, False, source)
            _allow(calls, frames, age, survey, facts, entry, nodes)


def adopt(call: TorchCall, since: int, events: Any) -> None:
    """It began without Python (``since``: ``perf_counter_ns``), and what its nodes do is written down since."""
    call.since = since
    take_over(call, events)


def take_over(call: TorchCall, events: Any) -> None:
    """What its nodes do is written down since its begin."""
    far = call.far
    if far is not None and call.written is None:
        call.written = Written(call.core, far, events, call.core.module.torch_alike(far.raw))


def _allow(
    calls: Calls,
    frames: FrameFilter,
    age: int,
    survey: Survey,
    facts: Facts,
    entry: types.FrameType | None,
    nodes: tuple[int, int, int, bytes] | None,
) -> None:
    user = frames.live_frame(entry)
    if survey.alike is not None and entry is not None and user is not None:
        calls.allow(age, entry.f_code, user.f_code, survey.told, facts, nodes)
