"""The taps: methods of the class ``ProcessGroup``, which every function of paddle.distributed calls, by whatever name
the script imported it. What C++ calls (the reducer of DataParallel) does not come by, and Paddle keeps no record of it.

Gloo of Paddle 3.3.1 runs a collective inside the call and lets the GIL go meanwhile, asynchronous ones too; it has no
reduce_scatter and no all_to_all (NotImplementedError).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from paddle.base import core

from adbg.engine.backends.base import KnownGroup, Method
from adbg.engine.backends.common.taps import MethodTaps
from adbg.engine.backends.paddle.collectives.frames import calls_in_frames
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Collective, ProcessGroup

_NOTHING = slice(0, 0)


def _reduces(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return detail[0] if detail else None, None


def _rooted(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return None, detail[0] if detail else None


def _reduces_to(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return (detail[1], detail[0]) if len(detail) > 1 else (None, None)


def _nothing(_detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return None, None


#: by the method's name; the name of the operation is the one that users know
_METHODS = {
    "all_reduce": Method("all_reduce", 0, slice(1, 2), _reduces),
    "allreduce": Method("all_reduce", 0, slice(1, 2), _reduces),
    "broadcast": Method("broadcast", 0, slice(1, 2), _rooted),
    "send": Method("send", 0, slice(1, 2), _rooted, alone=True),
    "recv": Method("recv", 0, slice(1, 2), _rooted, alone=True),
    "all_gather": Method("all_gather", 1, _NOTHING, _nothing),
    "all_gather_into_tensor": Method("all_gather", 1, _NOTHING, _nothing),
    "all_to_all": Method("alltoall", 1, _NOTHING, _nothing),
    "all_to_all_tensor": Method("alltoall", 1, _NOTHING, _nothing),
    "all_to_all_single": Method("alltoall_single", 1, _NOTHING, _nothing),
    "reduce": Method("reduce", 0, slice(1, 3), _reduces_to),
    "reduce_scatter": Method("reduce_scatter", 0, slice(2, 3), _reduces),
    "reduce_scatter_tensor": Method("reduce_scatter", 0, slice(2, 3), _reduces),
    "scatter": Method("scatter", 0, slice(2, 3), _rooted),
    "scatter_tensor": Method("scatter", 0, slice(2, 3), _rooted),
    "gather": Method("gather", 1, slice(2, 3), _rooted),
    "barrier": Method("barrier", -1, _NOTHING, _nothing),
}


class PaddleTaps(MethodTaps):
    """See the module."""

    def __init__(self, user_file: Callable[[str], str | None]) -> None:
        super().__init__(user_file)
        self._found: set[int] = set()  # groups that were there before the taps: their collectives have no number

    # ---- in and out

    def install(self) -> None:
        if self._patches:
            return
        there = _groups()
        if there:
            self._found = {id(group.process_group) for group in there}
            self._tap()
        elif not self._first:
            for name in dir(core):
                kind = getattr(core, name)
                if name.startswith("ProcessGroup") and isinstance(vars(kind).get("create"), staticmethod):
                    self._first.put(kind, "create", staticmethod(self._creating(kind.create)))

    def _creating(self, create: Any) -> Any:
        @functools.wraps(create)
        def first(*args: Any, **kwargs: Any) -> Any:
            if self._first and not self._patches:
                self._tap()
            return create(*args, **kwargs)

        return first

    def uninstall(self) -> None:
        super().uninstall()
        self._found.clear()

    def _tap(self) -> None:
        for name, method in _METHODS.items():
            self._put(core.ProcessGroup, name, method)
            self._put(core.ProcessGroup, f"{name}_on_calc_stream", method)
        for name in ("wait", "synchronize"):
            self._put_wait(getattr(core, "task", None), name)

    def _learn(self, group: Any) -> KnownGroup:
        facts = next((_facts(each) for each in _groups() if each.process_group is group), None)
        if facts is None:
            facts = ProcessGroup("?", list(range(group.size())), str(group.name()))
        return KnownGroup(facts.name, facts.ranks, facts.backend, counted=id(group) not in self._found)

    # ---- questions, on "adbg-reader"

    def groups(self) -> list[ProcessGroup]:
        return [_facts(group, self._known) for group in _groups()]

    def history(self) -> list[Collective]:
        return []

    def in_frames(self) -> list[Collective]:
        world = next((group for group in self.groups() if len(group.ranks) > 1), None)
        return calls_in_frames(self._user_file, _facts, world)

    @property
    def notes(self) -> list[str]:
        if not _groups():
            return []
        return [
            "Paddle does not tell of collectives that C++ calls (the gradients of DataParallel): that a rank is in"
            " one is inferred where its main thread rests in backward"
        ]


def _groups() -> list[Any]:
    module = sys.modules.get("paddle.distributed.communication.group")
    manager = getattr(module, "_GroupManager", None)
    found = list(getattr(manager, "group_map_by_id", {}).values())
    return [group for group in found if getattr(group, "process_group", None) is not None]


def _facts(group: Any, known: dict[int, KnownGroup] | None = None) -> ProcessGroup:
    """Reads attributes: none of them runs, or waits for, a collective."""
    entry = (known or {}).get(id(group.process_group))
    backend = ""
    with suppress(Exception):
        backend = str(group.process_group.name())
    name = str(group.name or f"group {group.id}")
    issued = entry.count if entry is not None and entry.counted else None
    return ProcessGroup(name, [int(rank) for rank in group.ranks], backend, "", issued)
