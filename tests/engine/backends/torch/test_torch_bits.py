"""The bytes of a torch tensor, against numpy's, whatever its dtype and layout; and the digests made of them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from adbg.engine.errors import Unsupported

torch = pytest.importorskip("torch")

from adbg.engine.backends.torch.collectives import bits  # noqa: E402
from adbg.engine.inspect.digest import _Hashed, _Window  # noqa: E402


def bits_of(value: Any) -> bytes:
    pieces: list[bytes] = []
    bits.feed_bits(value, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)


def witness(value: Any) -> bytes:
    return bytes(value.detach().contiguous().numpy().tobytes())


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"]
)
def test_dtypes(dtype: str) -> None:
    value = torch.arange(-3, 9).reshape(3, 4).to(getattr(torch, dtype))
    assert bits_of(value) == witness(value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_that_numpy_has_not(dtype: str) -> None:
    value = torch.tensor([1.5, -0.0, float("nan"), 3.0]).to(getattr(torch, dtype))
    assert bits_of(value) == witness(value.view(torch.int16 if value.element_size() == 2 else torch.uint8))


def test_layouts_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not contiguous and larger than a piece: cut along any dimension, down to a single row."""
    monkeypatch.setattr(bits, "PIECE", 64)
    base = torch.randn(5, 7, 6, 4)
    views = [base, base.permute(3, 1, 0, 2), base[:, ::2], base[1:2].transpose(1, 3), base.expand(2, 5, 7, 6, 4)]
    for view in [
        *views,
        base.to(memory_format=torch.channels_last),
        base[:, 0, 0, 0],
        torch.empty(0, 3),
        base[0, 0, 0, 0],
    ]:
        assert bits_of(view) == witness(view)


def test_lazy_and_special_tensors() -> None:
    value = torch.randn(3, dtype=torch.complex64)
    assert bits_of(value.conj()) == witness(value.conj().resolve_conj())
    assert bits_of(value.conj().imag) == witness(value.conj().imag.resolve_neg())
    assert bits_of(torch._efficientzerotensor((4,))) == bytes(16)
    sparse = torch.eye(3).to_sparse()
    assert bits_of(sparse) == witness(sparse._indices()) + witness(sparse._values())
    parameter = torch.nn.Parameter(torch.randn(2, 2).t())
    assert bits_of(parameter) == witness(parameter)
    with pytest.raises(Unsupported, match="no data"):
        bits_of(torch.empty(3, device="meta"))


def test_nothing_is_recorded_and_no_mode_of_the_script_sees_it() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    value = torch.randn(4, 4, requires_grad=True).t()
    with Watching():
        bits_of(value)
    assert not seen and torch.is_grad_enabled()


@pytest.mark.parametrize("pieces", [[100], [1, 99], [10] * 10, [7, 50, 43], [0, 64, 36]])
@pytest.mark.parametrize("block", [1, 7, 50, 100, 1000])
def test_blocks_do_not_depend_on_the_pieces(pieces: list[int], block: int) -> None:
    data = bytes(range(100))
    hashed, window, at = _Hashed(block), _Window(30, 75), 0
    for size in pieces:
        hashed.put(memoryview(data[at : at + size]))
        window.put(memoryview(data[at : at + size]))
        at += size
    assert hashed.whole.hexdigest() == hashlib.sha256(data).hexdigest() and hashed.size == 100
    assert hashed.blocks() == [hashlib.sha256(data[n : n + block]).hexdigest()[:16] for n in range(0, 100, block)]
    assert window.data == data[30:75]
