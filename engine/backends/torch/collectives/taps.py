"""The taps: methods of the class ``ProcessGroup``, which every function of torch.distributed calls, by whatever name
the script imported it. What C++ calls (DDP's reducer, functional collectives) does not come by; it is counted by the
group's own sequence number, and known in full where torch's flight recorder is on (``flight``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from adbg.engine.backends.base import KnownGroup, Method
from adbg.engine.backends.common.taps import MethodTaps
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.collectives import flight
from adbg.engine.backends.torch.collectives.frames import calls_in_frames
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Collective, ProcessGroup

_OPTIONS, _PEER, _NOTHING = slice(-1, None), slice(1, 2), slice(0, 0)


def _reduces(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return getattr(detail[0], "reduceOp", None) if detail else None, None


def _rooted(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    options = detail[0] if detail else None
    return getattr(options, "reduceOp", None), getattr(options, "rootRank", None)


def _peer(detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return None, detail[0] if detail else None


def _nothing(_detail: tuple[Any, ...]) -> tuple[Any, int | None]:
    return None, None


#: by the method's name; the name of the operation is the one that users know
_METHODS = {
    "allreduce": Method("all_reduce", 0, _OPTIONS, _reduces),
    "allreduce_coalesced": Method("all_reduce_coalesced", 0, _OPTIONS, _reduces),
    "broadcast": Method("broadcast", 0, _OPTIONS, _rooted),
    "reduce": Method("reduce", 0, _OPTIONS, _rooted),
    "allgather": Method("all_gather", 1, _NOTHING, _nothing),
    "all_gather_single": Method("all_gather_single", 1, _NOTHING, _nothing),
    "_allgather_base": Method("all_gather_into_tensor", 1, _NOTHING, _nothing),
    "allgather_coalesced": Method("all_gather_coalesced", 1, _NOTHING, _nothing),
    "allgather_into_tensor_coalesced": Method("all_gather_into_tensor_coalesced", 1, _NOTHING, _nothing),
    "all_gather_single_coalesced": Method("all_gather_single_coalesced", 1, _NOTHING, _nothing),
    "gather": Method("gather", 1, _OPTIONS, _rooted),
    "scatter": Method("scatter", 0, _OPTIONS, _rooted),
    "reduce_scatter": Method("reduce_scatter", 0, _OPTIONS, _reduces),
    "reduce_scatter_single": Method("reduce_scatter_single", 1, _OPTIONS, _reduces),
    "_reduce_scatter_base": Method("reduce_scatter_tensor", 1, _OPTIONS, _reduces),
    "reduce_scatter_tensor_coalesced": Method("reduce_scatter_tensor_coalesced", 1, _OPTIONS, _reduces),
    "reduce_scatter_single_coalesced": Method("reduce_scatter_single_coalesced", 1, _OPTIONS, _reduces),
    "alltoall": Method("all_to_all", 1, _NOTHING, _nothing),
    "all_to_all_single": Method("all_to_all_single", 1, _NOTHING, _nothing),
    "alltoall_base": Method("all_to_all_single", 1, _NOTHING, _nothing),
    "barrier": Method("barrier", -1, _NOTHING, _nothing),
    "monitored_barrier": Method("monitored_barrier", -1, _NOTHING, _nothing, whole=True),
    "send": Method("send", 0, _PEER, _peer, alone=True),
    "recv": Method("recv", 0, _PEER, _peer, alone=True),
    "recv_anysource": Method("recv", 0, _NOTHING, _nothing, alone=True),
}


class TorchTaps(MethodTaps):
    """See the module."""

    def __init__(self, user_file: Callable[[str], str | None]) -> None:
        module = _module()
        number = getattr(module.ProcessGroup, "_get_sequence_number_for_group", None) if module is not None else None
        super().__init__(user_file, number)

    # ---- in and out

    def install(self) -> None:
        module = _module()
        if module is None or self._patches:
            return
        if module._world.pg_map:
            self._tap(module)
        elif not self._first and "_new_process_group_helper" in vars(module):
            make = module._new_process_group_helper

            @functools.wraps(make)
            def first(*args: Any, **kwargs: Any) -> Any:
                if self._first and not self._patches:
                    self._tap(module)
                return make(*args, **kwargs)

            self._first.put(module, "_new_process_group_helper", first)

    def _tap(self, module: Any) -> None:
        for name, method in _METHODS.items():
            self._put(module.ProcessGroup, name, method)
        for name in ("wait", "synchronize"):
            self._put_wait(module.Work, name)

    # ---- on the program's threads

    def _node_now(self) -> str:
        node = private.current_node()
        return "" if node is None else str(node.name())

    def _learn(self, group: Any) -> KnownGroup:
        facts = _facts(group)
        native = int(group._get_sequence_number_for_group())
        issued = flight.issued().get(facts.name) if native else 0
        return KnownGroup(facts.name, facts.ranks, facts.backend, native if issued is None else issued, native)

    # ---- questions, on "adbg-reader"

    def groups(self) -> list[ProcessGroup]:
        module = _module()
        if module is None or not module._world.pg_map:
            return []
        issued = flight.issued()
        return [_facts(group, issued, self._known) for group in list(module._world.pg_map)]

    def history(self) -> list[Collective]:
        return flight.history(self._user_file, {each.name: each for each in self.groups()})

    def in_frames(self) -> list[Collective]:
        world = None if flight.is_on() else next((each for each in self.groups() if len(each.ranks) > 1), None)
        return calls_in_frames(self._user_file, _facts, world)

    @property
    def notes(self) -> list[str]:
        if flight.is_on() or not any(group.issued for group in self.groups()):
            return []
        return ["torch's flight recorder is off: collectives that C++ calls (DDP's gradients) are counted, not shown"]


def _module() -> Any:
    """torch.distributed's, None where this torch has none."""
    if not torch.distributed.is_available():
        return None
    return sys.modules.get("torch.distributed.distributed_c10d")


def _facts(
    group: Any, issued: dict[str, int] | None = None, known: dict[int, KnownGroup] | None = None
) -> ProcessGroup:
    """Reads attributes of the group and of torch.distributed's tables: nothing of it runs or waits for a collective."""
    world = sys.modules["torch.distributed.distributed_c10d"]._world
    ranks: list[int] = []
    name, backend, count, timeout = "", "", None, None
    with suppress(Exception):
        name = str(group.group_name)
    with suppress(Exception):
        ranks = [int(rank) for rank in world.pg_group_ranks[group]]
    with suppress(Exception):
        backend = str(world.pg_map[group][0])
    entry = known.get(id(group)) if known else None
    if issued is not None:
        count = issued.get(name)
        if count is None and entry is not None:
            count = entry.count
    with suppress(Exception):
        device = torch.device("cpu") if "gloo" in backend else torch.device("cuda")
        timeout = float(group._get_backend(device).options._timeout.total_seconds())
    description = str(getattr(group, "group_desc", "") or "")
    return ProcessGroup(name, ranks, backend, description, count, timeout)
