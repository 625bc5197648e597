"""Collectives read from the frames of the threads that are in them: for a process that was found hanging, with no
ledger. On "adbg-reader"; of the tensors only their shape and dtype are read, which do not change."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base.collectives import short_dtype, short_reduce
from adbg.engine.backends.common.taps import in_engine, of_gradients, outwards, user_place
from adbg.engine.frames import locals_of
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine

_FILE = "distributed_c10d.py"
_OPS = frozenset((
    "all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "all_gather_single",
    "all_gather_into_tensor", "all_gather_coalesced", "gather", "scatter", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "send", "recv", "isend",
    "irecv",
))  # fmt: skip
_TENSORS = ("tensor", "input_tensor", "input", "output", "object_tensor")


_ENGINE = frozenset((("graph.py", "_engine_run_backward"),))


def calls_in_frames(
    user_file: Callable[[str], str | None], facts: Callable[[Any], ProcessGroup], world: ProcessGroup | None
) -> list[Collective]:
    """The innermost of each thread, with its sequence number not known (0). ``world``: the group of the whole job,
    where it has several ranks and nothing else tells of what C++ calls."""
    found = []
    for thread, innermost in sys._current_frames().items():
        place = in_engine(innermost, _ENGINE, user_file) if world is not None else None
        if place is not None and world is not None:
            found.append(of_gradients(world, thread, place))
            continue
        for frame in outwards(innermost):
            code = frame.f_code
            if code.co_name in _OPS and code.co_filename.endswith(_FILE):
                try:
                    found.append(_row(frame, thread, user_file, facts))
                except own(Exception):  # the thread went on meanwhile
                    pass
                break
    return found


def _row(
    frame: types.FrameType,
    thread: int,
    user_file: Callable[[str], str | None],
    facts: Callable[[Any], ProcessGroup],
) -> Collective:
    names = locals_of(frame)
    group = names.get("group")
    if group is None:
        group = sys.modules[frame.f_globals["__name__"]]._get_default_group()
    known = facts(group)
    tensor = next((names[name] for name in _TENSORS if hasattr(names.get(name), "shape")), None)
    peer = next((names[name] for name in ("src", "dst", "group_src", "group_dst") if names.get(name) is not None), None)
    file, line, function = user_place(frame, user_file)
    op = frame.f_code.co_name
    return Collective(
        id=0,
        group=known.name,
        seq=0,
        op={"isend": "send", "irecv": "recv"}.get(op, op),
        shape=None if tensor is None else tuple(int(size) for size in tensor.shape),
        dtype="" if tensor is None else short_dtype(tensor.dtype),
        reduce=short_reduce(names.get("op")),
        peer=peer if isinstance(peer, int) else None,
        asynchronous=bool(names.get("async_op")),
        state="waiting",
        place=SourceLine(file, line, function) if file else None,
        thread=thread,
        source="frames",
    )
