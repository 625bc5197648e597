"""Tensors of several ranks, compared by their digests and told in words. Pure: values in, values and text out."""

from __future__ import annotations

import array
import math
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.protocol.messages import DigestBody, TensorDigest
from adbg.engine.types import NodeInfo, ValueState
from adbg.tui.text.formatting import place_text, table_text

ABSENT = "none"  # in place of a digest: no gradient flows there
ROWS = 40  # differing tensors that the table shows
_SHOWN = 12  # hex digits of a digest in the table
_REASONS = 4  # tensors that were not compared, named one by one


@dataclass(frozen=True, slots=True)
class Differing:
    """A tensor that is not the same on all ranks. ``groups``: the ranks that have the same bits, the largest group
    first."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    digests: Mapping[int, str]
    groups: tuple[tuple[int, ...], ...]
    made_by: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """``differing`` in forward order. ``unlike``: (tensor, why its digests say nothing)."""

    what: str
    ranks: tuple[int, ...]
    compared: int
    differing: tuple[Differing, ...]
    unlike: tuple[tuple[str, str], ...] = ()
    undefined: int = 0  # gradients that no rank has


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of one tensor on two ranks. ``where``: of the largest difference; None where no number differs.
    ``looked_at``: elements compared one by one, all others being equal or, with ``cut``, not looked at."""

    ranks: tuple[int, int]
    differ: int
    zeros: int = 0  # +0.0 against -0.0
    nans: int = 0  # NaN on both, of other bits
    largest: float | None = None
    where: tuple[int, ...] | None = None
    values: tuple[Any, Any] = (None, None)
    looked_at: int = 0
    cut: bool = False


def compare(what: str, bodies: Mapping[int, DigestBody]) -> Comparison:
    """Digests of the same kind of tensors, by rank."""
    ranks = tuple(sorted(bodies))
    rows = {rank: {row.name: row for row in bodies[rank].tensors} for rank in ranks}
    names = dict.fromkeys(row.name for rank in ranks for row in bodies[rank].tensors)
    differing, unlike, compared, undefined = [], [], 0, 0
    for name in names:
        have = {rank: rows[rank][name] for rank in ranks if name in rows[rank]}
        if len(have) == len(ranks) and all(row.state is ValueState.UNDEFINED for row in have.values()):
            undefined += 1
            continue
        reason = _unlike(ranks, have)
        if reason:
            unlike.append((name, reason))
            continue
        compared += 1
        found = _differing(name, have)
        if found is not None:
            differing.append(found)
    return Comparison(what, ranks, compared, tuple(differing), tuple(unlike), undefined)


def _unlike(ranks: Sequence[int], have: Mapping[int, TensorDigest]) -> str:
    """Why different digests of a tensor would say nothing; "" where they do."""
    missing = [rank for rank in ranks if rank not in have]
    if missing:
        return f"{ranks_text(missing)} {'has' if len(missing) == 1 else 'have'} no tensor of that name"
    parts = sorted({row.part for row in have.values()} - {""})
    if parts:
        return f"each rank holds its own part ({'; '.join(parts)})"
    there = {rank: row for rank, row in have.items() if row.state is not ValueState.UNDEFINED}
    for fact in ("shape", "dtype"):
        facts = {rank: getattr(row, fact) for rank, row in sorted(there.items())}
        if len(set(map(str, facts.values()))) > 1:
            told = ", ".join(f"{each} on rank {rank}" for rank, each in facts.items())
            return f"the {fact}s differ: {told}"
    unread = {rank: row for rank, row in there.items() if row.state is not ValueState.OK}
    if unread:
        rank, row = min(unread.items())
        return f"rank {rank} cannot read it: {row.note or 'it has no data'}"
    return ""


def _differing(name: str, have: Mapping[int, TensorDigest]) -> Differing | None:
    digests = {rank: row.digest or ABSENT for rank, row in sorted(have.items())}
    groups: dict[str, list[int]] = {}
    for rank, digest in digests.items():
        groups.setdefault(digest, []).append(rank)
    if len(groups) == 1:
        return None
    row = next(row for row in have.values() if row.state is not ValueState.UNDEFINED)
    made_by = next((row.made_by for row in have.values() if row.made_by), [])
    ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
    return Differing(
        name, tuple(row.shape or ()), row.dtype, row.nbytes, digests, tuple(map(tuple, ordered)), tuple(made_by)
    )


# ------------------------------------------------------------------ elements

_BITS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_CODES = {"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "u64": "Q", "u32": "I",
          "u16": "H", "u8": "B", "b1": "?"}  # fmt: skip
_COMPLEX = {"c64": "ff", "c128": "dd"}


def element_size(dtype: str) -> int:
    """Bytes an element; 1 for a dtype that is only compared byte by byte."""
    if dtype == "bf16":
        return 2
    return struct.calcsize(_COMPLEX.get(dtype) or _CODES.get(dtype, "B"))


def decoded(dtype: str, data: bytes) -> Any:
    """The number of one element."""
    if dtype == "bf16":
        return struct.unpack("f", b"\0\0" + data if sys.byteorder == "little" else data + b"\0\0")[0]
    if dtype in _COMPLEX:
        return complex(*struct.unpack(_COMPLEX[dtype], data))
    return struct.unpack(_CODES.get(dtype, "B"), data)[0]


@dataclass(slots=True)
class ElementCount:
    """Adds up the elements that differ, piece by piece."""

    dtype: str
    shape: tuple[int, ...]
    differ: int = 0
    zeros: int = 0
    nans: int = 0
    looked_at: int = 0
    largest: float = -1.0
    at: int | None = None
    values: tuple[Any, Any] = field(default=(None, None))

    def add(self, start: int, one: bytes, other: bytes) -> None:
        """Bytes from byte ``start`` on, of either rank."""
        size = element_size(self.dtype)
        first, whole = start // size, min(len(one), len(other)) // size
        self.looked_at += whole
        for place in _unequal(one, other, size, whole):
            self.differ += 1
            cut = slice(place * size, (place + 1) * size)
            self._judge(first + place, decoded(self.dtype, one[cut]), decoded(self.dtype, other[cut]))

    def _judge(self, place: int, a: Any, b: Any) -> None:
        if a == b:
            self.zeros += 1
            gap = 0.0
        elif a != a and b != b:
            self.nans += 1
            gap = 0.0
        else:
            gap = abs(a - b)
            if gap != gap:  # a NaN against a number, or infinities of one sign
                gap = math.inf
        if gap > self.largest:
            self.largest, self.at, self.values = gap, place, (a, b)

    def result(self, ranks: tuple[int, int], cut: bool) -> Elements:
        where = None if self.at is None else unravelled(self.at, self.shape)
        largest = None if self.at is None else self.largest
        return Elements(ranks, self.differ, self.zeros, self.nans, largest, where, self.values, self.looked_at, cut)


def _unequal(one: bytes, other: bytes, size: int, count: int) -> Iterable[int]:
    """Places at which elements of ``size`` bytes differ in any bit."""
    if size not in _BITS:  # complex128
        return (n for n in range(count) if one[n * size : n * size + size] != other[n * size : n * size + size])
    left, right = array.array(_BITS[size], one[: count * size]), array.array(_BITS[size], other[: count * size])
    return (n for n, (a, b) in enumerate(zip(left, right)) if a != b)


def unravelled(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of element ``place`` in C order."""
    index = []
    for size in reversed(shape):
        place, inner = divmod(place, size)
        index.append(inner)
    return tuple(reversed(index))


# ------------------------------------------------------------------ words


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 2", "ranks 0, 1, 3", "ranks 0-7"."""
    numbers = sorted(ranks)
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"ranks {numbers[0]}-{numbers[-1]}"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, numbers))


def tensor_text(name: str, dtype: str, shape: Sequence[int]) -> str:
    return f"{name} {dtype}[{', '.join(map(str, shape))}]"


def number_text(value: Any, dtype: str) -> str:
    """As many digits as tell two numbers of that dtype apart."""
    if not isinstance(value, float):
        return str(value)
    return format(value, {"f64": ".17g", "f32": ".9g"}.get(dtype, ".5g"))


def elements_text(found: Elements, shape: Sequence[int], dtype: str) -> str:
    """ "max |a - b| = 0.5 at [0, 3]: rank 0 has 1.5, rank 1 has 2; 3 of 64 elements differ"."""
    total = math.prod(shape)
    at = "[" + ", ".join(map(str, found.where or ())) + "]"
    a, b = (number_text(value, dtype) for value in found.values)
    count = f"{found.differ} of {total} elements differ" + (
        f" ({found.looked_at} were compared one by one)" if found.cut else ""
    )
    only = found.zeros + found.nans
    bits = [f"{found.zeros} only in the sign of zero" if found.zeros else ""]
    bits.append(f"{found.nans} only in the bits of a NaN" if found.nans else "")
    if only:
        count += ": " + ", ".join(filter(None, bits)) + (", these are different bits too")
    if found.largest is None:
        return count
    one, other = found.ranks
    largest = number_text(found.largest, dtype)
    return f"max |a - b| = {largest} at {at}: rank {one} has {a}, rank {other} has {b}; {count}"


def comparison_text(found: Comparison, place: str, elements: Elements | None, notes: Sequence[str]) -> str:
    """All of it: the verdict, the first tensor that differs, a table of the others, what was not compared."""
    lines = [_verdict(found, place)]
    if found.differing:
        lines += _first_lines(found.differing[0], elements)
    lines += [f"note: {note}" for note in notes]
    if len(found.differing) > 1:
        apart = any(odd_ranks(each) for each in found.differing[:ROWS])
        heads = ["tensor", "shape", *(["odd"] if apart else []), *(f"rank {rank}" for rank in found.ranks)]
        lines.append(table_text(heads, [_cells(each, found.ranks, apart) for each in found.differing[:ROWS]]))
        if len(found.differing) > ROWS:
            lines.append(f"... and {len(found.differing) - ROWS} more")
    lines += [f"not compared: {name}: {why}" for name, why in found.unlike[:_REASONS]]
    if len(found.unlike) > _REASONS:
        lines.append(f"not compared: {len(found.unlike) - _REASONS} more tensors")
    return "\n".join(lines)


_NOUN = {"params": "parameter", "grads": "gradient", "buffers": "buffer"}


def _verdict(found: Comparison, place: str) -> str:
    noun = _NOUN[found.what]
    of = f"{found.compared} {noun}{'s' * (found.compared != 1)} of {ranks_text(found.ranks)}, {place}"
    if not found.compared:
        return f"no {noun}s to compare on {ranks_text(found.ranks)}, {place}"
    if not found.differing:
        return f"the same bits on all ranks: {of}"
    return f"{len(found.differing)} of {of} differ"


def _first_lines(first: Differing, elements: Elements | None) -> list[str]:
    lines = [f"first in forward order: {tensor_text(first.name, first.dtype, first.shape)}"]
    told = (f"{ranks_text(group)}: {_digest_text(first.digests[group[0]])}" for group in first.groups)
    lines.append("  " + "   ".join(told) + odd_text(first))
    if elements is not None:
        lines.append("  " + elements_text(elements, first.shape, first.dtype))
    for node in first.made_by:
        where = f", made at {place_text(node.forward)}" if node.forward is not None else ""
        lines.append(f"  its gradient comes from {node.unique_name}{where}")
    return lines


def odd_text(each: Differing) -> str:
    """Who stands alone, where a majority agrees."""
    odd = odd_ranks(each)
    return f"   ({ranks_text(odd)} stand{'s' * (len(odd) == 1)} apart)" if odd else ""


def odd_ranks(each: Differing) -> tuple[int, ...]:
    """The ranks outside the majority; () where there is none."""
    most = each.groups[0]
    if 2 * len(most) <= len(each.digests):
        return ()
    return tuple(sorted(rank for group in each.groups[1:] for rank in group))


def _digest_text(digest: str) -> str:
    return "no gradient" if digest == ABSENT else digest[:_SHOWN]


def _cells(each: Differing, ranks: Sequence[int], apart: bool) -> list[str]:
    odd = [",".join(map(str, odd_ranks(each)))] if apart else []
    digests = [_digest_text(each.digests[rank]) for rank in ranks]
    return [each.name, f"{each.dtype}[{', '.join(map(str, each.shape))}]", *odd, *digests]
