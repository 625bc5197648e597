"""The bytes of a Paddle tensor, against numpy's, whatever its dtype and layout."""

from __future__ import annotations

from typing import Any

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

import numpy as np  # noqa: E402

from adbg.engine.backends.paddle.collectives import bits  # noqa: E402


def bits_of(value: Any) -> bytes:
    pieces: list[bytes] = []
    bits.feed_bits(value, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64"]
)
def test_dtypes(dtype: str) -> None:
    array = np.arange(-3, 9).reshape(3, 4).astype(dtype)
    value = paddle.to_tensor(array)
    assert bits_of(value) == array.tobytes()
    assert bits_of(value.t()) == array.T.tobytes(), "not contiguous"


def test_bfloat16_and_float8() -> None:
    value = paddle.to_tensor([1.5, -0.0, float("inf"), 3.0])
    wide = np.array([1.5, -0.0, float("inf"), 3.0], dtype=np.float32)
    assert bits_of(value.astype("bfloat16")) == (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    assert bits_of(paddle.to_tensor([1.5, 0.0, 3.0]).astype("float8_e4m3fn")) == bytes([0x3C, 0x00, 0x44])


def test_pieces_empty_and_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "PIECE", 64)
    array = np.random.default_rng(0).standard_normal((5, 7, 3)).astype("float32")
    assert bits_of(paddle.to_tensor(array)) == array.tobytes()
    assert bits_of(paddle.to_tensor(array)[1:4]) == array[1:4].tobytes()
    assert bits_of(paddle.empty([0, 3])) == b""
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [1, 0]], [1.5, 2.5], (2, 2))
    stored = np.array([[0, 1], [1, 0]], dtype=np.int64).tobytes() + np.array([1.5, 2.5], dtype=np.float32).tobytes()
    assert bits_of(sparse) == stored
