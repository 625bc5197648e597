"""Facts about tensors for panels and expressions: meta, norm, statistics, edits. Runs on the thread that asks (a parked
one).

No function here records a gradient, and none reads a value unless it is asked for one. Complex tensors are judged by
magnitude; sparse ones by their stored values; a distributed tensor by its local part (a collective here would hang the
job).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from adbg.engine.backends.common.tensors import (
    EXACT_ELEMENTS,
    Reduced,
    blocks,
    dtype_word,
    filled,
    no_tensor,
    same,
    sample_distance,
    text_of,
    window_of,
)
from adbg.engine.backends.torch import private
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.outside import own
from adbg.engine.types import TensorMeta, TensorStats, TensorWindow, ValueState

_vector_norm = torch.linalg.vector_norm
_HALVES = (torch.float16, torch.bfloat16)
_USUAL = (torch.Tensor, torch.nn.Parameter)  # nobody's class
_WIDE = (torch.float32, torch.float64)
_NUMBERS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32})


def short_dtype(dtype: Any) -> str:
    """ "f32", "bf16", "i64", "f8_e4m3fn" for ``torch.float32`` and so on."""
    return dtype_word(str(dtype).removeprefix("torch."))


def _no_data(value: Any) -> str:
    """Why a tensor has no elements to read; "" where it has."""
    if private.traced_value(value):
        return "a tensor of a trace"
    return "a meta tensor" if value.is_meta else ""


def meta(value: Any) -> TensorMeta:
    """Shape, dtype, device, size; never a value. ``None`` gives an undefined gradient."""
    if value is None:
        return TensorMeta(None, state=ValueState.UNDEFINED)
    if not isinstance(value, torch.Tensor):
        raise no_tensor(value)
    try:
        shape = tuple(int(size) for size in value.shape)
    except own(Exception):  # a nested or symbolic tensor has no plain shape
        shape = ()
    try:
        numel, itemsize = int(value.numel()), int(value.element_size())
    except own(Exception):
        numel = itemsize = 0
    return TensorMeta(
        shape=shape,
        dtype=short_dtype(value.dtype),
        device=str(value.device),
        nbytes=numel * itemsize,
        numel=numel,
        layout=str(value.layout).removeprefix("torch."),
        requires_grad=bool(value.requires_grad),
        note="nested" if value.is_nested else "",
        state=ValueState.NO_DATA if _no_data(value) else ValueState.OK,
    )


def plain(value: Any) -> Any:
    """A dense tensor of numbers to compute on, or None where there is no data (meta, fake, of a trace)."""
    value = private.unwrapped(value)
    usual = type(value) in _USUAL and value.dtype in _NUMBERS and value.layout is torch.strided
    if usual and not (value.is_meta or value.is_nested):
        return value.detach()
    if private.is_silent(value):
        value = private.dense_of(value)
        return plain(value) if value is not None else None
    if private.traced_value(value) or value.is_meta:
        return None
    local = getattr(value, "to_local", None)
    if local is not None:
        value = local()
    if value.is_nested:
        parts = [part.reshape(-1) for part in value.unbind()]
        value = torch.cat(parts) if parts else torch.empty(0)
    if value.layout in (torch.sparse_coo,):
        value = value._values()
    elif value.layout is not torch.strided:
        value = value.to_dense() if value.layout is torch._mkldnn else value.values()  # type: ignore[attr-defined]
    if value.is_quantized:
        value = value.dequantize()
    if value.is_floating_point() and value.element_size() == 1:
        value = value.to(torch.float32)  # float8: torch has no arithmetic on it
    return value.detach()


def _quick_norm(value: Any) -> float:
    """2-norm of a dense tensor as the screen computes it: 1.4 us for 16 elements, 9 us for 100k."""
    if value.dtype in _HALVES:
        return float(_vector_norm(value, dtype=torch.float32).item())
    if not (value.is_floating_point() or value.is_complex()):
        return float(_vector_norm(value.to(torch.float64)).item())
    return float(_vector_norm(value).item())


def norm(value: Any) -> float:
    """2-norm of all elements; nan/inf when any element is. 0.0 for None and for a tensor without data. Never raises."""
    if value is None:
        return 0.0
    try:
        with private.undisturbed():
            dense = plain(value)
            if dense is None:
                return 0.0
            quick = _quick_norm(dense)
            if math.isfinite(quick) or _count_nonfinite(dense) != (0, 0):
                return quick
            # Large finite values overflow when squared in their own type (f32 from 1.8e19 on).
            dense = dense.abs().to(torch.float64)
            top = float(dense.max().item())
            return top * float(_vector_norm(dense / top).item())
    except own(Exception):
        return 0.0


def finite(values: Sequence[Any]) -> bool:
    """Whether the 2-norm of each is finite, by one sum of them: 35 gradients of 16 to 1,024 elements take 40 us, a norm
    of each 200 us. The sum of norms of float32 may overflow where none of them does: False then, too."""
    try:
        with private.undisturbed():
            dense = [each for value in values if value is not None and (each := plain(value)) is not None]
            kinds = {(each.dtype, each.device) for each in dense}
            if private.norms is None or len(kinds) > 1 or any(dtype not in _WIDE for dtype, _ in kinds):
                return all(math.isfinite(norm(each)) for each in dense)
            return not dense or math.isfinite(float(torch.stack(list(private.norms(dense))).sum().item()))
    except own(Exception):
        return False


def _count_nonfinite(dense: Any) -> tuple[int, int]:
    if not (dense.is_floating_point() or dense.is_complex()):
        return (0, 0)
    nan = torch.isnan(dense)
    return int(nan.sum().item()), int((torch.isinf(dense) & ~nan).sum().item())


def nonfinite(value: Any) -> tuple[int, int]:
    """(NaN elements, infinite elements), exact; (0, 0) where there is no data. Never raises."""
    if value is None:
        return (0, 0)
    try:
        with private.undisturbed():
            dense = plain(value)
            if dense is None or math.isfinite(_quick_norm(dense)):
                return (0, 0)
            return _count_nonfinite(dense)
    except own(Exception):
        return (0, 0)


def bad(value: Any) -> bool:
    """The hot screen of one gradient: is any element NaN or infinite? Costs one norm while all is finite.

    ``vector_norm`` is the cheapest check there is on CPU (1.4 us; ``isfinite().all()`` 5.7 us, 20 times more at 4M
    elements). It has false alarms (large finite values overflow), so its verdict is confirmed; it has no misses.
    """
    if type(value) not in _USUAL:
        return nonfinite(value) != (0, 0)
    try:
        figure = _vector_norm(value).item()
    except own(Exception):
        return nonfinite(value) != (0, 0)
    return figure - figure != 0 and nonfinite(value) != (0, 0)


# ---- statistics


def _sample(dense: Any, limit: int) -> Any:
    """At most ``limit`` elements at equal distances, as a 1-D tensor, without copying the whole tensor."""
    numel = dense.numel()
    distance = sample_distance(numel, dense.shape[-1] if dense.dim() else 1, limit)
    if dense.is_contiguous():
        return dense.view(-1)[::distance]
    flat = torch.arange(0, numel, distance, device=dense.device)
    indices: list[Any] = []
    for size in reversed(dense.shape):
        indices.append(flat % size)
        flat = torch.div(flat, size, rounding_mode="floor")
    return dense[tuple(reversed(indices))]


def _histogram(finite: Any, low: float, high: float, bins: int) -> tuple[int, ...]:
    if low == high or bins == 1:
        return (int(finite.numel()), *([0] * (bins - 1)))
    if not math.isfinite(high - low):  # float64 range: halve everything rather than overflow
        finite, low, high = finite / 4, low / 4, high / 4
    return tuple(int(count) for count in torch.histc(finite, bins=bins, min=low, max=high).tolist())


def stats(value: Any, exact: bool = False, bins: int = 16) -> TensorStats:
    """Statistics, exact up to ``EXACT_ELEMENTS`` elements or when asked; float64 throughout; ``std`` is torch's (N - 1;
    0.0 for one element). An empty tensor has zeros, one without finite elements has NaN for min, max and mean.

    Raises:
        Unsupported: the tensor has no data (meta, fake).
    """
    if not isinstance(value, torch.Tensor):
        raise no_tensor(value)
    with private.undisturbed():
        dense = plain(value)
        if dense is None:
            why = f"no data: {_no_data(value)}, so there are no statistics"
            raise Unsupported(why, "look at its shape and dtype instead")
        numel = int(dense.numel())
        sampled = None
        if numel > EXACT_ELEMENTS and not exact:
            dense = _sample(dense, EXACT_ELEMENTS)
            sampled = int(dense.numel())
        if dense.is_complex():
            dense = dense.abs()
        return _stats_of(dense.reshape(-1), numel, sampled, bins)


def _stats_of(flat: Any, numel: int, sampled: int | None, bins: int) -> TensorStats:
    wide = flat.to(torch.float32 if flat.device.type == "mps" else torch.float64)
    inf = math.inf
    counts = torch.stack(
        [
            (wide == -inf).sum(),
            (wide < 0).sum(),
            (wide == 0).sum(),
            (wide > 0).sum(),
            (wide == inf).sum(),
            wide.isnan().sum(),
        ]
    ).tolist()
    neg_inf, negative, zero, positive, pos_inf, nan = (int(count) for count in counts)
    negative, positive = negative - neg_inf, positive - pos_inf
    finite = wide if not (nan or neg_inf or pos_inf) else wide[wide.isfinite()]
    if finite.numel() == 0:
        figure = math.nan if flat.numel() else 0.0
        low = high = mean = figure
        std = size = 0.0
        histogram: tuple[int, ...] = ()
    else:
        low, high = (float(end.item()) for end in finite.aminmax())
        mean = float(finite.mean().item())
        std = float(finite.std().item()) if finite.numel() > 1 else 0.0
        size = float(_vector_norm(finite).item())
        histogram = _histogram(finite, low, high, bins)
    return TensorStats(
        numel, sampled, low, high, mean, std, size, neg_inf, negative, zero, positive, pos_inf, nan, histogram
    )


# ---- edits


def adopt(old: Any, new: Any, where: str, keep_graph: bool) -> Any:
    """``new`` ready to stand in for ``old``: checked as torch would check it, cloned so that no one shares its memory.

    ``keep_graph``: the backward runs with create_graph, so the new gradient stays differentiable.
    """
    if new is None:
        return None
    if old is None:
        raise CommandError(
            f"{where} is undefined here, and torch does not let a gradient appear where there is none",
            "undefined means zero to the node; change a gradient further on instead",
        )
    if isinstance(new, (bool, int, float, complex)):
        with private.undisturbed():
            return filled(old, new, where, short_dtype(old.dtype), torch.full_like)
    if not isinstance(new, torch.Tensor):
        raise CommandError(f"{where} cannot become a {type(new).__name__}", "give a tensor, a number or None")
    _same(where, "shape", list(old.shape), list(new.shape), "reshape or expand it")
    _same(where, "dtype", short_dtype(old.dtype), short_dtype(new.dtype), f"write (…).to({old.dtype})")
    _same(where, "device", str(old.device), str(new.device), f"write (…).to('{old.device}')")
    _same(where, "layout", str(old.layout), str(new.layout), "convert it")
    with torch.set_grad_enabled(keep_graph), private.unseen():
        return new.clone() if keep_graph and new.requires_grad else new.detach().clone()


def _same(where: str, what: str, old: Any, new: Any, remedy: str) -> None:
    same(where, what, old, new, remedy, "torch would refuse it")


def text(value: Any) -> str:
    """The framework's repr, which elides long tensors."""
    return text_of(value, _shown)


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    with private.undisturbed():
        return repr(value)


# ---- windows


def window(value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
    """``rows`` x ``cols`` numbers at most: the slice itself when it fits, else block maxima of |x| (NaN and inf show
    through)."""
    with private.undisturbed():
        if value.layout is not torch.strided and not value.is_nested:
            value = value.to_dense()
        dense = plain(value)
        if dense is None:
            raise Unsupported("the tensor has no data (meta, fake or of a trace), so there is nothing to show")

        def shrunk(indices: list[int | slice], rows: int, cols: int) -> tuple[tuple[int, ...], Reduced]:
            part = dense[tuple(indices)] if indices else dense
            shape = tuple(int(size) for size in part.shape)
            while part.dim() < 2:
                part = part.unsqueeze(0)
            return shape, _shrunk(part.abs() if part.is_complex() else part, rows, cols)

        return window_of(tuple(dense.shape), slice_text, rows, cols, dense.is_complex(), shrunk)


def _shrunk(part: Any, rows: int, cols: int) -> Reduced:
    height, width = int(part.shape[0]), int(part.shape[1])

    def maxima(top: int, tall: int, wide: int) -> list[float]:
        block = part[top : top + tall].to(torch.float64).abs().amax(dim=0)
        whole = width // wide * wide
        line: list[float] = block[:whole].view(-1, wide).amax(dim=1).tolist()
        return line if whole == width else [*line, float(block[whole:].amax().item())]

    return blocks(height, width, rows, cols, part.tolist, maxima)


def storages(value: Any) -> Sequence[tuple[int, int]]:
    """See ``Backend.storages``. By address, so that two storages over one memory (``from_numpy`` twice) count once."""
    with private.out_of_sight():
        return list(dict(_storages(value)).items())


def _storages(value: Any) -> Iterator[tuple[int, int]]:
    value = private.unwrapped(value)
    if private.traced_value(value) or value.is_meta:
        return
    local = getattr(value, "_local_tensor", None)  # of a distributed tensor; ``to_local`` would make a node
    parts: Sequence[Any] = (value,)
    if isinstance(local, torch.Tensor):
        parts = (local,)
    elif value.layout is torch.sparse_coo:
        parts = (value._indices(), value._values())
    elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = (value.crow_indices(), value.col_indices(), value.values())
    elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = (value.ccol_indices(), value.row_indices(), value.values())
    for part in parts:
        try:
            storage = part.untyped_storage()
            address, nbytes = int(storage.data_ptr()), int(storage.nbytes())
        except own(RuntimeError, NotImplementedError):  # a subclass or a layout without a storage to look at
            continue
        if address and nbytes:
            yield address, nbytes
