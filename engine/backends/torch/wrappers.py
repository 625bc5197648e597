"""Tensors of the program's classes with a ``__torch_dispatch__`` of their own, read without it: their code would see,
and could refuse, every operator of adbg's.

While diagnosis watches, what such a tensor holds stands for its values: its own memory, or the tensors that it keeps.
Whether all of them are zero, finite, or the same as before is what can be told of it so; elsewhere a person has asked
for its values, and its class gives them. Called with torch functions disabled; on any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_DEEP = 3
_silent: Any = getattr(torch._C, "_DisableTorchDispatch", None)
_no_dispatch: Any = getattr(torch._C, "_disabled_torch_dispatch_impl", None)


class _Reading:
    quietly = False


_reading = _Reading()


def read_quietly(on: bool) -> None:
    """See ``Backend.read_unseen``."""
    _reading.quietly = on and _silent is not None


def is_wrapper(value: Any) -> bool:
    """Whether a class of the program's handles what is done to it. torch's own kinds are known to adbg."""
    kind = type(value)
    if getattr(kind, "__torch_dispatch__", _no_dispatch) is _no_dispatch:
        return False
    home = getattr(kind, "__module__", "")
    return not (isinstance(home, str) and home.partition(".")[0] == "torch")


def is_silent(value: Any) -> bool:
    """To be read as ``parts_of`` says."""
    return _reading.quietly and is_wrapper(value)


def parts_of(value: Any) -> list[Any]:
    """Plain tensors that hold its numbers; those of its own shape where there are any."""
    with _silent():
        if _has_memory(value):
            return [value.detach()]
        found = list(_kept(vars(value).values(), _DEEP))
        shape = value.shape
        return [each for each in found if each.shape == shape] or found


def dense_of(value: Any) -> Any:
    """The same as one dense tensor; None where there is none."""
    parts = [each for each in parts_of(value) if each.layout is torch.strided and not each.is_quantized]
    if len(parts) > 1:
        return torch.cat([each.reshape(-1).to(torch.float64) for each in parts if not each.is_complex()])
    return parts[0] if parts else None


def _kept(values: Iterable[Any], deep: int) -> Iterator[Any]:
    for value in values:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            if is_wrapper(value) and not _has_memory(value):
                if deep:
                    yield from _kept(vars(value).values(), deep - 1)
            elif not value.is_meta:
                yield value.detach()
        elif deep and kind in (list, tuple, dict):
            yield from _kept(value.values() if kind is dict else value, deep - 1)


def _has_memory(value: Any) -> bool:
    try:
        return bool(value.data_ptr())
    except RuntimeError:
        return False
