"""The process groups of paddle.distributed, and how long their collectives wait. Any thread."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.paddle import private
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import GroupTimeout

# Paddle passes gloo no time-out, and has no call that sets one: 30 s is gloo's own. Measured on 3.3.1: an all_reduce
# whose partner comes 45 s later fails after 30.0 s; `new_group(timeout=...)` is of the store where ranks meet.
GLOO_SECONDS = 30.0


def timeouts() -> list[GroupTimeout]:
    """Of the gloo groups that this process is in. What the others have is not to be read."""
    found = []
    groups = getattr(private.process_groups, "group_map_by_id", {})
    for number, group in list(groups.items()):
        with suppress(Exception):
            if group.is_member() and group.process_group is not None and group.backend.lower() == "gloo":
                name = group.name or str(number)
                found.append(GroupTimeout("paddle", name, "gloo", GLOO_SECONDS, GLOO_SECONDS, False))
    return found


def reduced_by(wrapper: Any) -> int | None:
    """Of a DataParallel, by the groups that its reducer was given. None where the program has it leave some out: the
    experts of a mixture, by ``no_sync``."""
    with suppress(Exception):
        if any(getattr(each, "no_sync", False) for each in wrapper.parameters()):
            return None
        return sum(len(each) for each in wrapper.group_indices)
    return None
