"""The bytes of a tensor as they lie in memory, for digests that ranks compare. Runs on the thread that asks.

Of a tensor on the CPU nothing is copied; of one that is not contiguous, or on a device, a piece at a time. Nothing is
converted. A distributed tensor gives this rank's part: a collective here would hang the job.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from adbg.engine.backends.torch import private
from adbg.engine.errors import Unsupported
from adbg.engine.outside import own

PIECE = 16 << 20  # bytes: 10 ms of hashing at 1.6 GB/s

Put = Callable[[memoryview], object]


def feed_bits(value: Any, put: Put) -> None:
    """See ``Backend.feed_bits``. Of a sparse tensor the indices, then the values; of a nested one its parts."""
    with private.undisturbed():
        for part in list(_parts(private.unwrapped(value))):
            _feed(part, put)


def part_of(value: Any) -> str:
    """A DTensor's placements, a flattened parameter of FSDP; "" for what every rank should have whole."""
    if getattr(value, "to_local", None) is not None:
        placements = getattr(value, "placements", ())
        whole = all(type(place).__name__ == "Replicate" for place in placements)
        return "" if whole else ", ".join(map(str, placements))
    if getattr(value, "_fsdp_flattened", False) or type(value).__name__ == "FlatParameter":
        return "flattened by FSDP"
    return ""


def _parts(value: Any) -> Iterator[Any]:
    """Dense tensors that hold all elements of ``value``."""
    if private.traced_value(value) or value.is_meta:
        raise Unsupported("the tensor has no data (meta, fake or of a trace)")
    if private.is_silent(value):
        parts = private.parts_of(value)
        if not parts:
            raise Unsupported(f"a {type(value).__name__} does not give its memory")
        for each in parts:
            yield from _parts(each)
        return
    local = getattr(value, "to_local", None)
    inner = getattr(value, "__tensor_flatten__", None)
    if local is not None:
        yield from _parts(local())
    elif inner is not None:
        for name in inner()[0]:
            yield from _parts(getattr(value, name))
    elif value.is_nested:
        for each in value.unbind():
            yield from _parts(each)
    elif value.layout is torch.sparse_coo:
        yield from (value._indices(), value._values())
    elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (value.crow_indices(), value.col_indices(), value.values())
    elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (value.ccol_indices(), value.row_indices(), value.values())
    elif value.layout is not torch.strided:
        yield value.detach().to_dense()
    elif value.is_quantized:
        yield value.detach().int_repr()
    else:
        value = value.detach()
        lazy = value.is_conj() or value.is_neg() or (value.numel() and not _address(value))
        yield value.resolve_conj().resolve_neg().clone() if lazy else value


def _address(value: Any) -> int:
    """0 where it has no memory (a tensor of zeros that was never written, a wrapper without a way in)."""
    try:
        return int(value.data_ptr())
    except own(RuntimeError):
        return 0


def _feed(value: Any, put: Put) -> None:
    size = value.numel() * value.element_size()
    if not size:
        return
    if value.device.type == "cpu" and value.is_contiguous():
        _put_memory(value, size, put)
    elif size <= PIECE or value.dim() == 0:
        _put_memory(value.contiguous().cpu(), size, put)
    elif value.shape[0] == 1:
        _feed(value[0], put)
    else:
        rows = max(1, PIECE // (size // value.shape[0]))
        for start in range(0, value.shape[0], rows):
            _feed(value[start : start + rows], put)


def _put_memory(value: Any, size: int, put: Put) -> None:
    """``value`` is held by the caller while its memory is read."""
    address = _address(value)
    if not address:
        raise Unsupported(f"a {type(value).__name__} does not give its memory")
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    for start in range(0, size, PIECE):
        put(memory[start : start + PIECE])
