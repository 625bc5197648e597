"""The process groups of torch.distributed, and how long their collectives wait. Any thread.

Measured on 2.13 with gloo: a collective waits as long as its group's time-out was when it was called (3 s, raised to
600 s while it waits: fails after 3 s all the same), on the rank that waits; one that is called after that, also by
DistributedDataParallel's reducer, waits as long as is set then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from adbg.engine.backends.torch import private
from adbg.engine.errors import Unsupported
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import GroupTimeout


def timeouts() -> list[GroupTimeout]:
    """Of every group that this process is in."""
    found = []
    for group, backend in _backends():
        with suppress(Exception):
            seconds = backend.options._timeout.total_seconds()
            adjustable = hasattr(backend, "_set_default_timeout")
            found.append(GroupTimeout("torch", group, backend.name(), seconds, seconds, adjustable))
    return found


def set_timeout(group: str, name: str, seconds: float) -> None:
    """For the collectives that are called from now on.

    Raises:
        Unsupported: that backend has no such setting.
    """
    for known, backend in _backends():
        if known == group and backend.name() == name:
            if not hasattr(backend, "_set_default_timeout"):
                raise Unsupported(f"{name} has no time-out that can be set", "")
            backend._set_default_timeout(timedelta(seconds=seconds))


def _backends() -> Iterator[tuple[str, Any]]:
    """(name of the group, its backend), each once: a backend may serve several devices."""
    for group in list(getattr(private.process_groups, "pg_map", ())):
        seen: list[Any] = []
        for device in list(group._device_types):
            backend = None
            with suppress(Exception):
                backend = group._get_backend(device)
            if backend is not None and all(backend is not other for other in seen):
                seen.append(backend)
                yield str(group.group_name), backend


def reduced_by(wrapper: Any) -> int | None:
    """Of a DistributedDataParallel, by what it logs of itself: its reducer keeps the parameters that took gradients as
    it was made, and shows them to nobody. None where the program has it leave some out."""
    with suppress(Exception):
        if wrapper.parameters_to_ignore:
            return None
        count = wrapper._get_ddp_logging_data().get("num_parameter_tensors")
        return count if isinstance(count, int) else None
    return None


def met_by(wrapper: Any) -> Sequence[Any]:
    """Of a DistributedDataParallel, those that took no gradient as it was made included."""
    found = getattr(wrapper, "_module_parameters", None)
    return tuple(found) if isinstance(found, list) else ()
