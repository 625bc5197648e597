"""Collectives read from the frames of the threads that are in them: for a process that was found hanging, with no
ledger. On "adbg-reader"; of the tensors only their shape and dtype are read, which do not change."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.base.collectives import short_dtype, short_reduce
from adbg.engine.backends.common.taps import in_engine, of_gradients, outwards, user_place
from adbg.engine.frames import locals_of
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine

_FOLDER = os.path.join("paddle", "distributed", "communication") + os.sep
_OPS = {
    "_all_reduce_in_dygraph": "all_reduce",
    "_broadcast_in_dygraph": "broadcast",
    "_reduce_in_dygraph": "reduce",
    "_all_gather_in_dygraph": "all_gather",
    "_all_gather_into_tensor_in_dygraph": "all_gather",
    "_scatter_in_dygraph": "scatter",
    "_scatter_tensor_in_dygraph": "scatter",
    "_gather_in_dygraph": "gather",
    "_send_in_dygraph": "send",
    "_recv_in_dygraph": "recv",
    "barrier": "barrier",
}
_TENSORS = ("tensor", "in_tensor", "tensor_or_tensor_list")
_PEERS = ("src_rank_in_group", "dst_rank_in_group")


_ENGINE = frozenset((("tensor_patch_methods.py", "backward"), ("backward_mode.py", "backward")))


def calls_in_frames(
    user_file: Callable[[str], str | None], facts: Callable[[Any], ProcessGroup], world: ProcessGroup | None
) -> list[Collective]:
    """The innermost of each thread, with its sequence number not known (0). ``world``: the group of the whole job,
    where it has several ranks."""
    found = []
    for thread, innermost in sys._current_frames().items():
        place = in_engine(innermost, _ENGINE, user_file) if world is not None else None
        if place is not None and world is not None:
            found.append(of_gradients(world, thread, place))
            continue
        for frame in outwards(innermost):
            code = frame.f_code
            if code.co_name in _OPS and _FOLDER in code.co_filename:
                try:
                    found.append(_row(frame, thread, user_file, facts))
                except own(Exception):  # the thread went on meanwhile
                    pass
                break
    return found


def _row(
    frame: Any, thread: int, user_file: Callable[[str], str | None], facts: Callable[[Any], ProcessGroup]
) -> Collective:
    names = locals_of(frame)
    group = names.get("group")
    if group is None:
        group = sys.modules["paddle.distributed.communication.group"]._get_global_group()
    known = facts(group)
    tensor = next((names[name] for name in _TENSORS if hasattr(names.get(name), "shape")), None)
    member = next((names[name] for name in _PEERS if isinstance(names.get(name), int)), None)
    file, line, function = user_place(frame, user_file)
    return Collective(
        id=0,
        group=known.name,
        seq=0,
        op=_OPS[frame.f_code.co_name],
        shape=None if tensor is None else tuple(int(size) for size in tensor.shape),
        dtype="" if tensor is None else short_dtype(tensor.dtype),
        reduce=short_reduce(names.get("op_type") or names.get("op")),
        peer=known.ranks[member] if member is not None and member < len(known.ranks) else None,
        asynchronous=names.get("sync_op") is False,
        state="waiting",
        place=SourceLine(file, line, function) if file else None,
        thread=thread,
        source="frames",
    )
