"""Figures about Paddle tensors, windows on them, what an edit may be; and that none of it leaves a trace."""

from __future__ import annotations

import math

import pytest

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

import numpy as np  # noqa: E402

from adbg.engine.backends.paddle.backend import PaddleBackend  # noqa: E402
from adbg.engine.errors import CommandError, Unsupported  # noqa: E402
from adbg.engine.types import ValueState  # noqa: E402

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def backend():
    return PaddleBackend()


@pytest.mark.parametrize(
    ("dtype", "word", "size"),
    [
        ("float32", "f32", 4), ("bfloat16", "bf16", 2), ("float16", "f16", 2), ("float64", "f64", 8),
        ("int64", "i64", 8), ("uint8", "u8", 1), ("bool", "b1", 1), ("complex64", "c64", 8),
    ],
)  # fmt: skip
def test_meta_has_short_dtypes(backend, dtype, word, size):
    meta = backend.meta(paddle.zeros([2, 3]).astype(dtype))
    assert (meta.shape, meta.dtype, meta.device, meta.numel, meta.layout) == ((2, 3), word, "cpu", 6, "strided")
    assert meta.nbytes == 6 * size


def test_meta_of_odd_things(backend):
    assert backend.meta(None).shape is None and backend.meta(None).state is ValueState.UNDEFINED
    assert backend.meta(paddle.zeros([0, 3])).shape == (0, 3)
    assert backend.meta(paddle.sparse.sparse_coo_tensor([[0], [1]], [2.0], [2, 2])).layout == "sparse_coo"
    with pytest.raises(CommandError):
        backend.meta("text")


def test_norm_shows_nonfinite_and_survives_overflow(backend):
    assert backend.norm(paddle.to_tensor([3.0, 4.0])) == 5.0
    assert math.isnan(backend.norm(paddle.to_tensor([3.0, NAN])))
    assert backend.norm(paddle.to_tensor([3.0, INF])) == INF
    assert backend.norm(paddle.full([4], 3e38)) == pytest.approx(6e38, rel=1e-6)
    assert backend.norm(paddle.full([100], 60000.0, "float16")) == pytest.approx(600000.0, rel=1e-3)
    assert backend.norm(paddle.zeros([0])) == 0.0 and backend.norm(None) == 0.0
    assert backend.nonfinite(paddle.to_tensor([NAN, INF, -INF, 1.0])) == (1, 2)
    assert backend.nonfinite(paddle.full([4], 3e38)) == (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_stats_agree_with_numpy(backend, dtype):
    values = np.random.default_rng(1).normal(size=(40, 50))
    tensor = paddle.to_tensor(values).astype(dtype)
    wide = tensor.astype("float64").numpy()
    stats = backend.stats(tensor)
    assert (stats.min, stats.max) == (wide.min(), wide.max()) and stats.sampled is None
    assert stats.mean == pytest.approx(wide.mean(), abs=1e-12)
    assert stats.std == pytest.approx(wide.std(ddof=1)) and stats.norm == pytest.approx(np.linalg.norm(wide))
    assert stats.negative + stats.zero + stats.positive == 2000 == sum(stats.histogram)


def test_stats_count_what_is_not_finite_and_leave_it_out(backend):
    stats = backend.stats(paddle.to_tensor([NAN, INF, -INF, 0.0, -1.0, 3.0]))
    counts = (stats.neg_inf, stats.negative, stats.zero, stats.positive, stats.pos_inf, stats.nan)
    assert counts == (1, 1, 1, 1, 1, 1) and (stats.min, stats.max) == (-1.0, 3.0)
    assert math.isnan(backend.stats(paddle.to_tensor([NAN])).mean)
    assert backend.stats(paddle.zeros([0])).mean == 0.0


def test_stats_sample_above_a_million(backend):
    tensor = paddle.arange(3_000_000, dtype="float32").reshape([3000, 1000])
    sampled, exact = backend.stats(tensor), backend.stats(tensor, exact=True)
    assert sampled.sampled <= 1_000_000 and exact.sampled is None
    assert sampled.mean == pytest.approx(exact.mean, rel=1e-3)


def test_views_are_read_where_they_are(backend):
    base = paddle.arange(24, dtype="float32").reshape([4, 6])
    for view in (base[1:3], base.transpose([1, 0]), base[:, 2], base[::2]):
        assert backend.norm(view) == pytest.approx(float(np.linalg.norm(view.numpy())))


def test_windows(backend):
    tensor = paddle.arange(24, dtype="float32").reshape([4, 6])
    window = backend.window(tensor, "[1:3, 0:2]", 8, 8)
    assert window.values == ((6.0, 7.0), (12.0, 13.0)) and window.reduced == "exact"
    assert (window.row_range, window.col_range) == ((1, 3), (0, 2))
    small = backend.window(tensor, "", 2, 3)
    assert small.values == ((7.0, 9.0, 11.0), (19.0, 21.0, 23.0)) and small.reduced == "max|x| per block of 2x2"
    with pytest.raises(CommandError, match="dimension 1 has 6"):
        backend.window(tensor, "[0, 9]", 8, 8)


def test_looking_leaves_no_trace(backend):
    """Nothing recorded, no operator counted by unique names, no version moved, no gradient needed."""
    flags = paddle.get_flags("FLAGS_enable_unique_name")
    paddle.set_flags({"FLAGS_enable_unique_name": True})
    try:
        x = paddle.ones([4, 4])
        x.stop_gradient = False
        first = paddle.tanh(x).grad_fn.name()
        y = x * 2.0
        version = y.inplace_version
        for look in (backend.norm, backend.stats, backend.meta, backend.nonfinite, backend.text):
            look(y)
        backend.window(y, "", 4, 4)
        second = paddle.tanh(x).grad_fn.name()
        assert y.inplace_version == version and y.grad_fn is not None
        number = int(first.removeprefix("tanh").removesuffix("GradNode"))
        assert second == f"tanh{number + 1}GradNode"
    finally:
        paddle.set_flags(flags)


OLD = [3]


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (lambda: paddle.ones([7]), "shape"),
        (lambda: paddle.ones([3], "float64"), "dtype"),
        (lambda: [1.0, 2.0, 3.0], "cannot become a list"),
        (lambda: "x", "cannot become a str"),
        (lambda: None, "cannot become None"),
        (lambda: 1j, "complex"),
    ],
)
def test_what_an_edit_may_not_be(backend, new, says):
    with pytest.raises(CommandError, match=says) as error:
        backend.adopt(paddle.ones(OLD), new(), "grad_outputs[0]")
    assert error.value.hint and "grad_outputs[0]" in error.value.message


def test_an_edit_is_a_copy_that_needs_no_gradient(backend):
    new = paddle.ones([3])
    new.stop_gradient = False
    taken = backend.adopt(paddle.zeros([3]), new * 2.0, "grad_outputs[0]")
    assert taken.numpy().tolist() == [2.0] * 3 and taken.stop_gradient
    source = paddle.ones([3])
    taken = backend.adopt(paddle.zeros([3]), source, "grad_outputs[0]")
    source.set_value(paddle.full([3], 9.0))
    assert taken.numpy().tolist() == [1.0] * 3
    assert backend.adopt(paddle.zeros([3], "float64"), 4, "grad_outputs[0]").numpy().tolist() == [4.0] * 3


def test_a_gradient_where_there_is_none_is_refused(backend):
    with pytest.raises(CommandError, match="undefined"):
        backend.adopt(None, paddle.ones([3]), "grad_outputs[0]")
    assert backend.adopt(None, None, "grad_outputs[0]") is None


def test_user_mode_keeps_the_grad_mode(backend):
    with paddle.no_grad():
        with backend.user_mode():
            assert paddle.is_grad_enabled()
        assert not paddle.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), backend.user_mode():
        1 / 0  # noqa: B018
    assert paddle.is_grad_enabled()


def test_stats_of_a_tensor_without_data(backend):
    with pytest.raises((CommandError, Unsupported)):
        backend.stats("no tensor")
