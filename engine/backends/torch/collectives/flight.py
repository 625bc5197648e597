"""torch's flight recorder, read where it is on: torch 2.13 records the last 2000 collectives by default, gloo's too,
those of DDP's reducer included, with the Python stack that called them. Nothing of it needs adbg to have been there.

On "adbg-reader". The whole of it takes 20 ms at 700 entries, 3 ms more to unpickle (it is torch's own text, made in
this process); what each group issued last, without the entries, 0.1 ms.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

from adbg.engine.backends.torch import private
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Collective, ProcessGroup
from adbg.engine.types import SourceLine

_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Int": "int32",
    "Long": "int64", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip


def _dump(**what: bool) -> dict[str, Any]:
    module = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(module, "_dump_fr_trace", None)
    if dump is None:
        return {}
    try:
        with private.no_inductor():
            found = pickle.loads(dump(**what))
    except own(Exception):  # another version's form
        return {}
    return found if isinstance(found, dict) else {}


#: The recorder's own number of each group that was ever made in this process, to the group's name; "" where none of its
#: collectives is in the recorder any more. A name may come again: the highest number is the group that exists.
_names: dict[str, str] = {}


def is_on() -> bool:
    return bool(issued())


def issued() -> dict[str, int]:
    """Number of the last collective that each group issued, as far as the recorder is on."""
    status = dict(_dump(includeCollectives=False, includeStackTraces=False).get("pg_status") or {})
    if any(number not in _names for number in status):
        _names.update(dict.fromkeys(map(str, status), ""))
        for entry in _dump(includeStackTraces=False).get("entries") or ():
            _names[str(entry["pg_id"])] = str(entry["process_group"][0])
    found: dict[str, int] = {}
    for number in sorted(status, key=int):
        last = status[number].get("last_enqueued_collective")
        if _names.get(number) and isinstance(last, int) and last >= 0:
            found[_names[number]] = last
    return found


def history(user_file: Callable[[str], str | None], groups: Mapping[str, ProcessGroup]) -> list[Collective]:
    """Everything that is still in it of the groups that exist, in order."""
    entries = [entry for entry in _dump().get("entries") or () if str(entry["process_group"][0]) in groups]
    newest = {str(entry["process_group"][0]): entry["pg_id"] for entry in entries}
    rows = []
    for entry in entries:
        if entry["pg_id"] == newest[str(entry["process_group"][0])]:
            try:
                rows.append(_row(entry, user_file, groups))
            except own(Exception):  # one entry of another form
                continue
    return rows


def _row(
    entry: Mapping[str, Any], user_file: Callable[[str], str | None], groups: Mapping[str, ProcessGroup]
) -> Collective:
    op = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    op, _, peer = op.partition(" ")  # "nccl:send 0->1"
    alone = bool(entry.get("is_p2p"))
    name = str(entry["process_group"][0])
    shapes, dtypes = entry.get("input_sizes") or (), entry.get("input_dtypes") or ()
    lines = [(frame, user_file(str(frame["filename"]))) for frame in entry.get("frames") or ()]
    user = next(((frame, file) for frame, file in lines if file), None)
    ended = entry.get("time_discovered_completed_ns")
    state = "done" if entry.get("retired") or entry.get("state") == "completed" else "waiting"
    thread = str(entry.get("thread_id") or "")
    target = peer.rpartition(">")[2] if op == "send" else peer.partition("-")[0]
    group = groups.get(name)
    member = int(target) if target.isdigit() else None
    if member is not None and group is not None and member < len(group.ranks):
        member = group.ranks[member]
    return Collective(
        id=0,
        group=name,
        seq=0 if alone else int(entry["collective_seq_id"]),
        op=op,
        shape=tuple(int(size) for size in shapes[0]) if shapes else None,
        dtype=_DTYPES.get(str(dtypes[0]), str(dtypes[0])) if dtypes else "",
        peer=member,
        state=state,
        place=SourceLine(user[1], int(user[0]["line"]), str(user[0]["name"])) if user and user[1] else None,
        thread=int(thread) if thread.isdigit() else 0,
        begun=int(entry["time_created_ns"]) / 1e9,
        ended=None if ended is None else int(ended) / 1e9,
        source="flight recorder",
    )
