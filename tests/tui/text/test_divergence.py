"""Comparing ranks by digests, and two tensors element by element: pure values, checked by hand and with struct."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from adbg.engine.protocol.messages import DigestBody, TensorDigest
from adbg.engine.types import NodeInfo, SourceLine, ValueState
from adbg.tui.text.divergence import (
    ElementCount,
    compare,
    comparison_text,
    decoded,
    elements_text,
    number_text,
    odd_ranks,
    ranks_text,
    unravelled,
)


def row(name: str, digest: str, **facts: Any) -> TensorDigest:
    return TensorDigest(**{"name": name, "shape": [2], "dtype": "f32", "nbytes": 8, "digest": digest, **facts})


def body(*rows: TensorDigest) -> DigestBody:
    return DigestBody(list(rows), "stop", 3)


def test_the_first_in_forward_order_and_the_odd_one_out() -> None:
    bodies = {n: body(row("a", "1"), row("b", "9" if n == 2 else "2"), row("c", str(n))) for n in range(4)}
    found = compare("params", bodies)
    assert (found.compared, found.ranks, found.unlike) == (3, (0, 1, 2, 3), ())
    assert [each.name for each in found.differing] == ["b", "c"]
    assert found.differing[0].groups == ((0, 1, 3), (2,)) and odd_ranks(found.differing[0]) == (2,)
    assert found.differing[1].groups == ((0,), (1,), (2,), (3,)) and odd_ranks(found.differing[1]) == ()


def test_half_of_the_ranks_is_no_majority() -> None:
    (each,) = compare("params", {n: body(row("a", str(n // 2))) for n in range(4)}).differing
    assert each.groups == ((0, 1), (2, 3)) and odd_ranks(each) == ()


def test_what_digests_do_not_tell() -> None:
    undefined = row("u", "", state=ValueState.UNDEFINED, shape=None, dtype="")
    one = body(
        row("only", "1"), row("s", "1"), row("d", "1"), row("p", "1", part="Shard(dim=0)"), undefined, row("m", "1")
    )
    other = body(
        row("s", "2", shape=[3]), row("d", "2", dtype="bf16"), row("p", "2", part="Shard(dim=0)"), undefined,
        row("m", "", state=ValueState.NO_DATA, note="meta"),
    )  # fmt: skip
    found = compare("grads", {0: one, 1: other})
    why = dict(found.unlike)
    assert not found.differing and not found.compared and found.undefined == 1
    assert why["only"] == "rank 1 has no tensor of that name"
    assert why["s"] == "the shapes differ: [2] on rank 0, [3] on rank 1"
    assert why["d"] == "the dtypes differ: f32 on rank 0, bf16 on rank 1"
    assert "own part (Shard(dim=0))" in why["p"] and why["m"] == "rank 1 cannot read it: meta"


def test_a_gradient_that_only_some_ranks_have() -> None:
    undefined = row("a", "", state=ValueState.UNDEFINED, shape=None, dtype="")
    (each,) = compare("grads", {0: body(undefined), 1: body(row("a", "5"))}).differing
    assert each.digests == {0: "none", 1: "5"} and each.shape == (2,)


def count(dtype: str, one: bytes, other: bytes, shape: tuple[int, ...], start: int = 0) -> Any:
    counted = ElementCount(dtype, shape)
    counted.add(start, one, other)
    return counted.result((0, 1), False)


def test_elements() -> None:
    found = count("f32", struct.pack("4f", 1, 2, 3, 4), struct.pack("4f", 1, 2.5, 3, -4), (2, 2))
    assert (found.differ, found.largest, found.where, found.values) == (2, 8.0, (1, 1), (4.0, -4.0))
    text = elements_text(found, (2, 2), "f32")
    assert text == "max |a - b| = 8 at [1, 1]: rank 0 has 4, rank 1 has -4; 2 of 4 elements differ"
    assert count("f32", struct.pack("f", 1), struct.pack("f", 9), (4,), 8).where == (2,), "a block further on"


def test_other_bits_of_zero_and_nan_are_differences_and_named() -> None:
    one = struct.pack("2f", 0.0, 1.0) + bytes.fromhex("0000c07f")
    other = struct.pack("2f", -0.0, 1.0) + bytes.fromhex("0100c07f")
    found = count("f32", one, other, (3,))
    assert (found.differ, found.zeros, found.nans, found.largest) == (2, 1, 1, 0.0)
    text = elements_text(found, (3,), "f32")
    assert "1 only in the sign of zero, 1 only in the bits of a NaN, these are different bits too" in text


def test_nan_and_infinities_against_numbers() -> None:
    found = count("f64", struct.pack("2d", math.nan, 1), struct.pack("2d", 2, 1), (2,))
    assert (found.largest, found.where, found.nans) == (math.inf, (0,), 0)
    assert count("f64", struct.pack("d", math.inf), struct.pack("d", -math.inf), (1,)).largest == math.inf


@pytest.mark.parametrize(
    ("dtype", "data", "value"),
    [
        ("bf16", struct.pack("f", 1.5)[2:], 1.5), ("f16", struct.pack("e", -2.25), -2.25),
        ("i64", struct.pack("q", -7), -7), ("u8", b"\xff", 255), ("b1", b"\1", True),
        ("c64", struct.pack("2f", 1, -2), 1 - 2j), ("f8_e4m3fn", b"\x3c", 0x3C),
    ],
)  # fmt: skip
def test_numbers_of_all_dtypes(dtype: str, data: bytes, value: Any) -> None:
    assert decoded(dtype, data) == value
    assert count(dtype, data, data, (1,)).differ == 0 and count(dtype, data, bytes(len(data)), (1,)).differ == 1


def test_complex128_has_elements_wider_than_any_integer() -> None:
    found = count("c128", struct.pack("4d", 1, 0, 3, 4), struct.pack("4d", 1, 0, 0, 0), (2,))
    assert (found.differ, found.largest, found.where) == (1, 5.0, (1,))


def test_small_words() -> None:
    assert ranks_text([3, 0, 1]) == "ranks 0, 1, 3"
    assert (ranks_text([2]), ranks_text([0, 1]), ranks_text(range(8))) == ("rank 2", "ranks 0, 1", "ranks 0-7")
    assert unravelled(23, (2, 3, 4)) == (1, 2, 3) and unravelled(0, ()) == ()
    assert number_text(0.1, "f64") == "0.10000000000000001"


def test_the_text() -> None:
    made = NodeInfo(1, "MmBackward0", "MmBackward0#3", forward=SourceLine("/x/train.py", 16, "forward"))
    bodies = {n: body(row("a", f"{n}" * 64, made_by=[made]), row("b", f"{n}" * 64)) for n in (0, 1)}
    lines = comparison_text(compare("grads", bodies), "here", None, ["so"]).splitlines()
    assert lines[0] == "2 of 2 gradients of ranks 0, 1, here differ"
    assert lines[1] == "first in forward order: a f32[2]"
    assert "its gradient comes from MmBackward0#3, made at" in lines[3] and "train.py:16" in lines[3]
    assert lines[4] == "note: so" and lines[-1].split() == ["b", "f32[2]", "0" * 12, "1" * 12]
    same = {n: body(row("a", "1")) for n in (0, 1)}
    assert comparison_text(compare("params", same), "here", None, []).startswith(
        "the same bits on all ranks: 1 parameter"
    )
    four = {n: body(row("a", "9" if n == 2 else "1"), row("b", "9" if n == 2 else "1")) for n in range(4)}
    text = comparison_text(compare("params", four), "here", None, [])
    assert "(rank 2 stands apart)" in text and text.splitlines()[-1].split()[:3] == ["b", "f32[2]", "2"]
