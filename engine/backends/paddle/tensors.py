"""Facts about Paddle tensors for panels and expressions: meta, norm, statistics, edits. Runs on the thread that asks.

Figures are computed by numpy on the tensor's own memory (a copy only of what is not contiguous or not on the CPU): no
operator of Paddle runs, so nothing is recorded, counted (unique names) or written to the VLOG.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

from adbg.engine.backends.base import Hidden
from adbg.engine.backends.common.tensors import (
    DTYPES,
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
from adbg.engine.backends.paddle.native.own import aids_aside
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.outside import own
from adbg.engine.types import TensorMeta, TensorStats, TensorWindow, ValueState

_NUMPY = {
    name: np.dtype(name)
    for name in ("float64", "float32", "float16", "complex128", "complex64", "int64", "int32", "int16", "int8", "uint8")
}
_NUMPY["bool"] = np.dtype(np.bool_)
_NUMPY["bfloat16"] = np.dtype(np.uint16)  # its bits: numpy has no such type
_BY_DTYPE: dict[Any, tuple[str, Any, int]] = {}


def _kind(dtype: Any) -> tuple[str, Any, int]:
    """(short name, numpy's type or None, bytes an element) of a dtype of Paddle, worked out once each."""
    known = _BY_DTYPE.get(dtype)
    if known is None:
        name = str(dtype).rpartition(".")[2]
        plain = _NUMPY.get(name)
        size = plain.itemsize if plain is not None else 1
        known = _BY_DTYPE[dtype] = (dtype_word(name), plain, size)
    return known


def short_dtype(dtype: Any) -> str:
    """ "f32", "bf16", "i64" for ``paddle.float32`` and so on."""
    return _kind(dtype)[0]


def _numbers() -> dict[int, tuple[str, int]]:
    found = {}
    for name in DTYPES:
        dtype: Any = getattr(paddle, name, None)
        try:
            found[int(dtype)] = (dtype_word(name), _kind(dtype)[2])
        except own(TypeError, ValueError):
            continue
    return found


_NUMBERS = _numbers()


def meta_of(shape: tuple[int, ...] | None, number: int) -> TensorMeta:
    """Meta of a gradient that does not exist yet: its shape, and Paddle's number of its dtype; the
    device is the one that Paddle computes on now."""
    word, size = _NUMBERS.get(number, ("", 0))
    if shape is None:
        return TensorMeta((), word, note="shape not kept")
    numel = math.prod(shape)
    return TensorMeta(shape, word, str(paddle.get_device()), numel * size, numel)


def is_tensor(value: Any) -> bool:
    return isinstance(value, paddle.Tensor)


def defined(value: Any) -> bool:
    """False for the stand-in that Paddle has for an undefined gradient: without storage though it has an element."""
    return value is not None and (value._is_initialized() or 0 in value.shape)


def meta(value: Any) -> TensorMeta:
    """Shape, dtype, device, size; never a value. ``None`` and an empty stand-in give an undefined gradient."""
    if value is None:
        return TensorMeta(None, state=ValueState.UNDEFINED)
    if isinstance(value, Hidden):
        return TensorMeta(None, note=value.why, state=ValueState.HIDDEN)
    if not isinstance(value, paddle.Tensor):
        raise no_tensor(value)
    if not defined(value):
        return TensorMeta(None, state=ValueState.UNDEFINED)
    shape = tuple(value.shape)
    numel = math.prod(shape)
    word, _, size = _kind(value.dtype)
    return TensorMeta(
        shape=shape,
        dtype=word,
        device=str(value.place).removeprefix("Place(").removesuffix(")"),
        nbytes=numel * size,
        numel=numel,
        layout=_layout(value),
        requires_grad=not value.stop_gradient,
        state=ValueState.OK if value._is_initialized() or not numel else ValueState.NO_DATA,
    )


def _layout(value: Any) -> str:
    if value.is_dense():
        return "strided"
    return "sparse_coo" if value.is_sparse_coo() else "sparse_csr" if value.is_sparse_csr() else "other"


def plain(value: Any) -> Any:
    """A numpy array over the tensor's elements (of a sparse one: its stored values); None where there is no data.

    Of a contiguous CPU tensor it is a view of its memory, valid while the tensor lives.
    """
    if value.is_dist():
        value = value._local_value()
    if not value.is_dense():
        with aids_aside():
            value = value.values()
    shape = tuple(value.shape)
    _, kind, _ = _kind(value.dtype)
    if 0 in shape:
        return np.zeros(shape, kind if kind is not None else np.float32)
    if not value._is_initialized():
        return None
    if kind is None:
        return _widened(value)
    if value.place.is_cpu_place() and value.is_contiguous():
        size = math.prod(shape) * kind.itemsize
        array = np.frombuffer((ctypes.c_char * size).from_address(value.data_ptr()), kind).reshape(shape)
    else:
        array = value.numpy()
    if value.dtype == paddle.bfloat16:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return array


def _widened(value: Any) -> Any:
    """float8 and the like, by Paddle's own conversion."""
    with aids_aside(), paddle.no_grad():
        return value.astype("float32").numpy()


def _quick_norm(array: Any) -> float:
    if array.dtype.kind not in "fc" or array.dtype.itemsize == 2:
        array = array.astype(np.float64)
    flat = array.ravel()
    return math.sqrt(abs(np.vdot(flat, flat))) if flat.size else 0.0


def norm(value: Any) -> float:
    """2-norm of all elements; nan/inf when any element is. 0.0 for None and for a tensor without data. Never raises."""
    if value is None:
        return 0.0
    try:
        with np.errstate(all="ignore"):
            array = plain(value)
            if array is None:
                return 0.0
            quick = _quick_norm(array)
            if math.isfinite(quick):
                return quick
            nan, inf = _count_nonfinite(array)
            if nan:
                return math.nan
            if inf:
                return math.inf
            wide = np.abs(array).astype(np.float64)  # large finite values overflow when squared in their own type
            top = float(wide.max())
            return top * float(np.linalg.norm((wide / top).ravel()))
    except own(Exception):
        return 0.0


def _count_nonfinite(array: Any) -> tuple[int, int]:
    if array.dtype.kind not in "fc":
        return (0, 0)
    nan = np.isnan(array)
    return int(nan.sum()), int((np.isinf(array) & ~nan).sum())


def nonfinite(value: Any) -> tuple[int, int]:
    """(NaN elements, infinite elements), exact; (0, 0) where there is no data. Never raises."""
    if value is None:
        return (0, 0)
    try:
        with np.errstate(all="ignore"):
            array = plain(value)
            if array is None or math.isfinite(_quick_norm(array)):
                return (0, 0)
            return _count_nonfinite(array)
    except own(Exception):
        return (0, 0)


def bad(value: Any) -> bool:
    """Is any element NaN or infinite? One dot product while all is finite."""
    return nonfinite(value) != (0, 0)


# ---- statistics


def _sample(array: Any, limit: int) -> Any:
    """At most ``limit`` elements at equal distances."""
    distance = sample_distance(array.size, array.shape[-1] if array.ndim else 1, limit)
    return array.ravel()[::distance] if array.flags.c_contiguous else array.flat[::distance]


def stats(value: Any, exact: bool = False, bins: int = 16) -> TensorStats:
    """Statistics, exact up to ``EXACT_ELEMENTS`` elements or when asked; float64 throughout; ``std`` is over N - 1.
    An empty tensor has zeros, one without finite elements has NaN for min, max and mean.

    Raises:
        Unsupported: the tensor has no data.
    """
    if isinstance(value, Hidden):
        raise Unsupported(f"no statistics: {value.why}", "look at it where it arrives: step to the next nodes")
    if not isinstance(value, paddle.Tensor):
        raise no_tensor(value)
    with np.errstate(all="ignore"):
        array = plain(value)
        if array is None:
            raise Unsupported("the tensor has no data, so there are no statistics", "look at its shape and dtype")
        numel, sampled = int(array.size), None
        if numel > EXACT_ELEMENTS and not exact:
            array = _sample(array, EXACT_ELEMENTS)
            sampled = int(array.size)
        if array.dtype.kind == "c":
            array = np.abs(array)
        return _stats_of(array.astype(np.float64).ravel(), numel, sampled, bins)


def _stats_of(wide: Any, numel: int, sampled: int | None, bins: int) -> TensorStats:
    nan = int(np.isnan(wide).sum())
    neg_inf, pos_inf = int((wide == -np.inf).sum()), int((wide == np.inf).sum())
    negative, positive = int((wide < 0).sum()) - neg_inf, int((wide > 0).sum()) - pos_inf
    zero = int((wide == 0).sum())
    finite = wide if not (nan or neg_inf or pos_inf) else wide[np.isfinite(wide)]
    histogram: tuple[int, ...] = ()
    if finite.size == 0:
        low = high = mean = math.nan if wide.size else 0.0
        std = size = 0.0
    else:
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
        std = float(finite.std(ddof=1)) if finite.size > 1 else 0.0
        size = float(np.linalg.norm(finite))
        histogram = _histogram(finite, low, high, bins)
    return TensorStats(
        numel, sampled, low, high, mean, std, size, neg_inf, negative, zero, positive, pos_inf, nan, histogram
    )


def _histogram(finite: Any, low: float, high: float, bins: int) -> tuple[int, ...]:
    if low == high:
        return (int(finite.size), *([0] * (bins - 1)))
    if not math.isfinite(high - low):  # float64 range: shrink everything rather than overflow
        finite, low, high = finite / 4, low / 4, high / 4
    return tuple(int(count) for count in np.histogram(finite, bins=bins, range=(low, high))[0])


# ---- edits


def adopt(old: Any, new: Any, where: str, grows: bool, keep_graph: bool) -> Any:
    """``new`` ready to stand in for ``old``: checked here, for Paddle itself accepts a wrong shape silently and dies of
    what is not a tensor; cloned, so that no one shares its memory.

    Args:
        grows: a PyLayer's own result, where a tensor may stand instead of None.
        keep_graph: the backward runs with create_graph, so the new gradient stays differentiable.
    """
    if isinstance(old, Hidden):
        raise CommandError(
            f"{where} cannot be changed: {old.why}", "set grad_outputs at the node that it arrives at, before it runs"
        )
    if not (old is None and grows):
        if old is None or not defined(old):
            if new is None:
                return None
            raise CommandError(
                f"{where} is undefined here, and Paddle refuses a gradient where there is none",
                "give it where it is made: at the PyLayer that returned None, after it ran",
            )
        if new is None:
            raise CommandError(
                f"{where} cannot become None: Paddle has no way to take a gradient away in a hook",
                "set it to 0 instead",
            )
    elif new is None:
        return None
    if isinstance(new, (bool, int, float, complex, np.number)):
        return _filled(old, new, where)
    if not isinstance(new, paddle.Tensor):
        raise CommandError(f"{where} cannot become a {type(new).__name__}", "give a tensor or a number")
    if not defined(new):
        raise CommandError(f"{where} cannot become a tensor without data", "give a tensor that has its values")
    if old is not None:
        _same(where, "shape", list(old.shape), list(new.shape), "reshape or expand it")
        _same(where, "dtype", short_dtype(old.dtype), short_dtype(new.dtype), f"write (…).astype('{_plain_name(old)}')")
        _same(where, "device", str(old.place), str(new.place), "copy it there first")
        _same(where, "layout", _layout(old), _layout(new), "convert it")
    with aids_aside():
        if keep_graph and not new.stop_gradient:
            return new.clone()
        with paddle.no_grad():
            return new.clone()  # detach would use up one of the script's generated_tensor_N


def _plain_name(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def _filled(old: Any, number: Any, where: str) -> Any:
    if old is None:
        raise CommandError(f"{where} is None, so its shape is not known", "give a tensor: paddle.zeros([...])")
    with aids_aside(), paddle.no_grad():
        return filled(old, number, where, short_dtype(old.dtype), paddle.full_like)


def _same(where: str, what: str, old: Any, new: Any, remedy: str) -> None:
    same(where, what, old, new, remedy, "that breaks the backward")


def stands_in(old: Any, new: Any) -> bool:
    """Whether handing ``new`` to Paddle in place of ``old`` is safe: the last check before the engine sees it."""
    if old is None or not isinstance(new, paddle.Tensor) or not defined(new):
        return False
    return bool(list(old.shape) == list(new.shape) and old.dtype == new.dtype and str(old.place) == str(new.place))


def kept_copy(value: Any) -> Any:
    """A copy to keep: Paddle adds the other parts of a sum to the memory of the first. No operator runs; 6 us."""
    return value._copy_to(value.place, True) if value is not None and value.is_dense() else value


def text(value: Any) -> str:
    """The framework's repr, which elides long tensors."""
    return text_of(value, _shown)


def _shown(value: Any) -> str:
    if not isinstance(value, paddle.Tensor):
        return repr(value)
    with aids_aside(), paddle.no_grad():
        return repr(value)


# ---- windows


def window(value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
    """``rows`` x ``cols`` numbers at most: the slice itself when it fits, else block maxima of |x| (NaN and inf show
    through)."""
    if not value.is_dense():
        with aids_aside():
            value = value.to_dense()
    array = plain(value)
    if array is None:
        raise Unsupported("the tensor has no data, so there is nothing to show")
    magnitude = array.dtype.kind == "c"

    def shrunk(indices: list[int | slice], rows: int, cols: int) -> tuple[tuple[int, ...], Reduced]:
        part = array[tuple(indices)] if indices else array
        shape = tuple(int(size) for size in part.shape)
        part = np.atleast_2d(part)
        return shape, _shrunk(np.abs(part) if magnitude else part, rows, cols)

    with np.errstate(all="ignore"):
        return window_of(tuple(array.shape), slice_text, rows, cols, magnitude, shrunk)


def _shrunk(part: Any, rows: int, cols: int) -> Reduced:
    height, width = part.shape

    def maxima(top: int, tall: int, wide: int) -> list[float]:
        block = np.abs(part[top : top + tall].astype(np.float64)).max(axis=0)
        line: list[float] = np.maximum.reduceat(block, range(0, width, wide)).tolist()
        return line

    return blocks(height, width, rows, cols, part.tolist, maxima)


def storages(value: Any) -> Sequence[tuple[int, int]]:
    """See ``Backend.storages``. A view has its offset into the memory of the tensor that it was taken of."""
    if value.is_dist():
        value = value._local_value()
    if not value.is_dense() or not value._is_initialized():  # Paddle gives no address of a sparse tensor's parts
        return ()
    try:
        return [(value.data_ptr() - value._offset(), int(value._holder_size()))]
    except own(RuntimeError, ValueError, AttributeError):
        return ()
