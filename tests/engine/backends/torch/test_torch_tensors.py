"""Figures about tensors of every kind, windows on them, and what an edit may be."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adbg.engine.backends.torch.backend import TorchBackend
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.types import ValueState

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def backend():
    return TorchBackend()


# ---- meta


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.float32, "f32"),
        (torch.bfloat16, "bf16"),
        (torch.float16, "f16"),
        (torch.float64, "f64"),
        (torch.int64, "i64"),
        (torch.uint8, "u8"),
        (torch.bool, "b1"),
        (torch.complex64, "c64"),
        (torch.float8_e4m3fn, "f8_e4m3fn"),
    ],
)
def test_meta_has_short_dtypes(backend, dtype, word):
    meta = backend.meta(torch.zeros(2, 3).to(dtype))
    assert (meta.shape, meta.dtype, meta.device, meta.numel, meta.layout) == ((2, 3), word, "cpu", 6, "strided")
    assert meta.nbytes == 6 * torch.empty(0, dtype=dtype).element_size()


def test_meta_of_odd_things(backend):
    assert backend.meta(None).shape is None and backend.meta(None).state is ValueState.UNDEFINED
    assert backend.meta(torch.empty(3, device="meta")).state is ValueState.NO_DATA
    assert backend.meta(torch.eye(3).to_sparse()).layout == "sparse_coo"
    assert backend.meta(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])).note == "nested"
    with pytest.raises(CommandError):
        backend.meta("text")


# ---- norm and nonfinite


def test_norm_shows_nonfinite_and_survives_overflow(backend):
    assert backend.norm(torch.tensor([3.0, 4.0])) == 5.0
    assert math.isnan(backend.norm(torch.tensor([3.0, NAN])))
    assert backend.norm(torch.tensor([3.0, INF])) == INF
    assert backend.norm(torch.full((4,), 3e38)) == pytest.approx(6e38, rel=1e-6)
    assert backend.norm(torch.full((100,), 6e4, dtype=torch.float16)) == pytest.approx(6e5, rel=1e-2)
    assert backend.norm(torch.full((2,), 1e300, dtype=torch.float64)) == pytest.approx(math.sqrt(2) * 1e300)
    assert backend.norm(torch.tensor([3, 4])) == 5.0
    assert backend.norm(torch.tensor([True, False])) == 1.0
    assert backend.norm(torch.tensor([complex(3, 4)])) == 5.0
    assert backend.norm(torch.empty(0)) == backend.norm(None) == backend.norm(torch.empty(3, device="meta")) == 0.0
    assert backend.norm(torch.eye(3).to_sparse()) == pytest.approx(math.sqrt(3))
    assert backend.norm(torch.tensor([3.0, 4.0]).to(torch.float8_e5m2)) == 5.0
    assert backend.norm(torch.quantize_per_tensor(torch.tensor([3.0, 4.0]), 1.0, 0, torch.qint8)) == 5.0
    assert backend.norm(torch.nested.nested_tensor([torch.tensor([3.0]), torch.tensor([4.0, 0.0])])) == 5.0


def test_nonfinite_counts(backend):
    assert backend.nonfinite(torch.tensor([NAN, INF, -INF, 1.0])) == (1, 2)
    assert backend.nonfinite(torch.full((100,), 6e4, dtype=torch.float16)) == (0, 0)
    assert backend.nonfinite(torch.tensor([complex(NAN, INF), complex(0, INF), 1])) == (1, 1)
    assert backend.nonfinite(torch.tensor([1, 2])) == backend.nonfinite(None) == (0, 0)
    assert backend.nonfinite(torch.empty(2, device="meta")) == (0, 0)
    assert backend.nonfinite(torch.tensor([[0.0, NAN]]).to_sparse()) == (1, 0)
    assert backend.nonfinite(torch.tensor([NAN, 1.0]).to(torch.float8_e5m2)) == (1, 0)


def test_values_behind_transforms_are_read(backend):
    seen = []

    def look(x):
        seen.append((backend.norm(x), backend.nonfinite(x)))
        return x.sum()

    torch.func.grad(look)(torch.tensor([3.0, 4.0]))
    torch.func.vmap(look)(torch.tensor([[3.0], [4.0]]))
    assert seen == [(5.0, (0, 0))] * 2


def test_own_operators_are_hidden_from_the_scripts_modes_and_subclasses(backend):
    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.count += 1
            return func(*args, **(kwargs or {}))

    class Noisy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(f"asked for {func}")

    noisy = torch.tensor([3.0, 4.0]).as_subclass(Noisy)
    with Counting():
        assert backend.norm(torch.tensor([3.0, 4.0])) == 5.0
        created = Counting.count
        assert backend.nonfinite(torch.tensor([3.0, NAN])) == (1, 0)
        backend.norm(torch.ones(3)) and backend.stats(torch.ones(3))
        assert backend.norm(noisy) == 5.0
    assert created == 1 and Counting.count <= 4  # only the script's own torch.tensor and torch.ones
    graph_free = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        assert backend.stats(graph_free).max == 1.0


# ---- statistics


def test_stats_are_exact(backend):
    value = torch.tensor([-2.0, 0.0, 1.0, 3.0, NAN, INF, -INF])
    stats = backend.stats(value)
    finite = torch.tensor([-2.0, 0.0, 1.0, 3.0])
    assert (stats.numel, stats.sampled) == (7, None)
    assert (stats.neg_inf, stats.negative, stats.zero, stats.positive, stats.pos_inf, stats.nan) == (1, 1, 1, 2, 1, 1)
    assert (stats.min, stats.max) == (-2.0, 3.0)
    assert stats.mean == pytest.approx(finite.mean().item())
    assert stats.std == pytest.approx(finite.std().item())
    assert stats.norm == pytest.approx(finite.norm().item())
    assert sum(stats.histogram) == 4 and len(stats.histogram) == 16
    assert stats.histogram[0] == 1 and stats.histogram[-1] == 1


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.float8_e4m3fn]
)
def test_stats_of_every_dtype(backend, dtype):
    stats = backend.stats(torch.tensor([1.0, 2.0, 4.0]).to(dtype), bins=4)
    assert (stats.min, stats.max, stats.positive) == (1.0, 4.0, 3)
    assert stats.mean == pytest.approx(7 / 3) and sum(stats.histogram) == 3


def test_stats_of_odd_tensors(backend):
    assert backend.stats(torch.empty(0)).numel == 0 and backend.stats(torch.empty(0)).mean == 0.0
    lonely = backend.stats(torch.tensor(3.0))
    assert (lonely.min, lonely.max, lonely.std, lonely.histogram[0]) == (3.0, 3.0, 0.0, 1)
    hopeless = backend.stats(torch.tensor([NAN, INF]))
    assert math.isnan(hopeless.mean) and hopeless.norm == 0.0 and hopeless.histogram == ()
    assert backend.stats(torch.tensor([True, False])).positive == 1
    assert backend.stats(torch.tensor([complex(3, 4)])).max == 5.0
    assert backend.stats(torch.eye(4).to_sparse()).numel == 4
    assert backend.stats(torch.eye(4).to_sparse_csr()).numel == 4
    assert sum(backend.stats(torch.tensor([-1.7e308, 1.7e308], dtype=torch.float64)).histogram) == 2
    with pytest.raises(Unsupported, match="no data"):
        backend.stats(torch.empty(3, device="meta"))
    with pytest.raises(CommandError):
        backend.stats(3)


def test_stats_sample_above_a_million(backend):
    torch.manual_seed(0)
    value = torch.randn(1500, 1024)
    value[:, 1::4] = 100.0  # a stride of 4 would see all or nothing of this
    stats = backend.stats(value)
    assert stats.numel == value.numel() and 500_000 < stats.sampled <= 1_000_000
    exact = backend.stats(value, exact=True)
    assert exact.sampled is None
    assert stats.mean == pytest.approx(exact.mean, rel=0.01) and stats.std == pytest.approx(exact.std, rel=0.01)
    assert exact.mean == pytest.approx(value.double().mean().item(), rel=1e-9)
    turned = backend.stats(value.t())
    assert turned.mean == pytest.approx(exact.mean, rel=0.01)
    wide = backend.stats(torch.ones(1, 1).expand(2000, 1000))
    assert (wide.min, wide.max, wide.mean) == (1.0, 1.0, 1.0)


# ---- windows


def test_window_of_a_slice(backend):
    value = torch.arange(24.0).view(2, 3, 4)
    window = backend.window(value, "[1, 0:2, ::2]", 10, 10)
    assert window.values == ((12.0, 14.0), (16.0, 18.0))
    assert (window.slice, window.shape, window.reduced) == ("[1, 0:2, 0:4:2]", (2, 2), "exact")
    assert (window.row_range, window.col_range) == ((0, 2), (0, 4))
    assert backend.window(value, "", 10, 10).slice == "[0, 0:3, 0:4]"
    assert backend.window(value, "[-1, ..., 3]", 10, 10).values == ((15.0, 19.0, 23.0),)
    assert backend.window(value, "1,2", 10, 10).values == ((20.0, 21.0, 22.0, 23.0),)
    assert backend.window(value, "[1,2,3]", 10, 10).values == ((23.0,),)
    assert backend.window(torch.tensor(7), "[]", 5, 5).values == ((7.0,),)
    assert backend.window(torch.tensor([True, False]), "", 5, 5).values == ((1.0, 0.0),)
    assert backend.window(value, "[0, 5:9, :]", 5, 5).values == ()
    assert backend.window(torch.eye(2).to_sparse(), "", 5, 5).values == ((1.0, 0.0), (0.0, 1.0))


def test_window_shrinks_to_block_maxima(backend):
    value = torch.zeros(10, 7)
    value[9, 6] = -5.0
    value[0, 0] = NAN
    value[5, 3] = INF
    window = backend.window(value, "[:, :]", 4, 3)
    assert window.reduced == "max|x| per block of 3x3"
    assert len(window.values) == 4 and all(len(row) == 3 for row in window.values)
    assert math.isnan(window.values[0][0]) and window.values[1][1] == INF and window.values[3][2] == 5.0
    line = backend.window(torch.arange(-10.0, 0.0), "", 4, 5)
    assert line.values == ((10.0, 8.0, 6.0, 4.0, 2.0),)
    assert backend.window(torch.tensor([complex(3, 4)]), "", 2, 2).reduced == "|x|"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[0, 0, 9]", "dimension 2 has 4 elements"),
        ("[2]", "dimension 0 has 2 elements"),
        ("[0,0,0,0]", "4 indices and the tensor has 3"),
        ("[::-1]", "backwards"),
        ("[a]", "not an index"),
        ("[0, , 1]", "empty place"),
        ("[0", "unbalanced"),
        ("[..., ...]", "one '...'"),
        ("[0:1:2:3]", "two colons"),
        ("[__import__('os')]", "not an index"),
    ],
)
def test_bad_slices_say_why(backend, text, message):
    with pytest.raises(CommandError, match=message.replace("'...'", r"'\.\.\.'")):
        backend.window(torch.zeros(2, 3, 4), text, 5, 5)


def test_window_without_data(backend):
    with pytest.raises(Unsupported):
        backend.window(torch.empty(3, 3, device="meta"), "", 5, 5)


# ---- edits


def test_adopt_checks_and_clones(backend):
    old = torch.ones(2, 3)
    new = torch.zeros(2, 3)
    adopted = backend.adopt(old, new, "grad_outputs[0]")
    assert torch.equal(adopted, new) and adopted.data_ptr() != new.data_ptr()
    same = backend.adopt(old, old, "grad_outputs[0]")
    assert same is not old and same.data_ptr() != old.data_ptr()
    assert backend.adopt(old, 2, "x").tolist() == [[2.0] * 3] * 2
    assert backend.adopt(old.expand(2, 3).half(), float("nan"), "x").dtype == torch.float16
    assert backend.adopt(old, None, "x") is None and backend.adopt(None, None, "x") is None
    leaf = torch.zeros(2, 3, requires_grad=True)
    with torch.no_grad():  # as in the hooks of an ordinary backward
        assert not backend.adopt(old, leaf, "x").requires_grad


def test_adopt_keeps_the_graph_of_a_differentiable_backward(backend):
    leaf = torch.zeros(2, requires_grad=True)
    with torch.enable_grad(), backend.user_mode():
        assert backend.adopt(torch.ones(2), leaf * 2, "x").requires_grad
    with torch.no_grad(), backend.user_mode():
        assert torch.is_grad_enabled()
        assert not backend.adopt(torch.ones(2), leaf * 2, "x").requires_grad
    with torch.no_grad():
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (torch.zeros(3, 2), r"shape \[2, 3\] and the new value has \[3, 2\]"),
        (torch.zeros(2, 3, dtype=torch.float64), "dtype f32 and the new value has f64"),
        (torch.zeros(2, 3, device="meta"), "device cpu and the new value has meta"),
        (torch.zeros(2, 3).to_sparse(), "layout"),
        ("text", "cannot become a str"),
        (1j, "complex"),
    ],
)
def test_adopt_explains_what_torch_would_refuse(backend, new, message):
    with pytest.raises(CommandError, match=message) as caught:
        backend.adopt(torch.ones(2, 3), new, "grad_outputs[0]")
    assert "grad_outputs[0]" in caught.value.message and caught.value.hint


def test_adopt_refuses_a_gradient_where_there_is_none(backend):
    with pytest.raises(CommandError, match="undefined here"):
        backend.adopt(None, torch.ones(2), "grad_outputs[1]")


# ---- the rest


def test_text_memory_helpers_and_doctor(backend):
    assert backend.text(torch.ones(2)) == "tensor([1., 1.])"
    assert len(backend.text(list(range(10_000)))) == 2000
    assert backend.memory()["rss"] > 10 << 20
    assert not any(name.startswith("cuda") for name in backend.memory()) or torch.cuda.is_initialized()
    helpers = backend.helpers()
    assert helpers["torch"] is torch and helpers["norm"](torch.tensor([3.0, 4.0])) == 5.0
    lines = backend.doctor()
    assert {line.status for line in lines} <= {"ok", "off", "missing", "limit"}
    assert not [line for line in lines if line.status == "missing"]
    text = " ".join(f"{line.what} {line.detail}" for line in lines)
    assert "C++" in text and "forward-mode" in text and "_current_graph_task_id" in text


def test_whether_all_are_finite_by_one_sum(backend):
    """What is not finite never passes, whatever lies beside it."""
    finite = backend.keeping.finite
    plain = [torch.randn(5, 7), torch.zeros(0), torch.ones(3), None]
    assert finite(plain) and finite([]) and finite([None])
    others = [torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int64)]
    assert finite([*plain, *others]), "of several types, each for itself"
    for value in (NAN, INF, -INF):
        for kind in (torch.float32, torch.float64, torch.float16):
            bad = torch.tensor([1.0, value], dtype=kind)
            assert not finite([*plain, bad]) and not finite([bad, *plain, *others]), (value, kind)
