"""Chains of told operators on real Paddle: from a tensor to what is computed of it no link may be missing.

Detectors follow values from tensor to tensor by identity: what an operator gives must be told as its result. A function
of Paddle that makes a tensor by something that is not told (the adaptive pools did, by ``Tensor._use_gpudnn``) breaks
the chain, and what lies behind it seems to come from nowhere. Each case here computes something of one leaf, as
programs do; its results must be reached from the leaf.
"""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle")

import paddle.distribution as dist  # noqa: E402
import paddle.incubate.nn.functional as fused  # noqa: E402
import paddle.nn.functional as F  # noqa: E402
from paddle import nn  # noqa: E402
from paddle.autograd import PyLayer  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from adbg.engine.backends.base import OperatorCall, Watcher  # noqa: E402
from adbg.engine.backends.paddle.observing.operators import OperatorTap  # noqa: E402


class Told(Watcher):
    """Holds all calls, and with them their tensors: no other tensor gets the id of one of them."""

    def __init__(self, hidden: str = "") -> None:
        self.calls: list[OperatorCall] = []
        self.hidden = hidden

    def operator(self, call: OperatorCall) -> None:
        if call.name != self.hidden:
            self.calls.append(call)


def unreached(make, x, hidden=""):
    """Places of those results of ``make(x)`` that require a gradient and that no chain of told operators joins to
    ``x``; an operator called ``hidden`` is taken for one that is not told."""
    tap, told = OperatorTap(), Told(hidden)
    tap.put_in(told)
    try:
        made = make(x)
    finally:
        tap.take_out()
    results = made if isinstance(made, (tuple, list)) else [made]
    wanted = {
        place: each
        for place, each in enumerate(results)
        if isinstance(each, paddle.Tensor) and not each.stop_gradient
    }  # fmt: skip
    if not wanted:
        raise ValueError("no result requires a gradient: the case shows nothing")
    reached = {id(x)}
    for call in told.calls:
        if not reached.isdisjoint(map(id, call.operands)):
            reached.update(map(id, call.results))
            if call.name == "__setitem__":  # it has no result
                reached.add(id(call.operands[0]))
    return [place for place, each in wanted.items() if id(each) not in reached]


def leaf(*shape):
    paddle.seed(0)
    x = paddle.randn(shape)
    x.stop_gradient = False
    return x


def of(shape, group, cases):
    return [pytest.param(make, shape, id=f"{group}-{name}") for name, make in cases.items()]


def broken(shape, group, cases):
    fault = pytest.mark.xfail(strict=True, raises=AssertionError, reason="the chain is broken there")
    return [pytest.param(*each.values, id=each.id, marks=fault) for each in of(shape, group, cases)]


def written(write):
    """A case whose result is a buffer without a graph that ``write`` wrote into."""

    def make(x):
        buffer = paddle.zeros([4, 6])
        write(buffer, x)
        return buffer

    return make


class Square(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad


def with_autocast(x):
    with paddle.amp.auto_cast(dtype="bfloat16"):
        return nn.Linear(6, 3)(x)


def with_hook(x):
    layer = nn.Linear(6, 6)
    layer.register_forward_post_hook(lambda module, args, result: result * 2)
    return layer(x)


def with_operators_in_place(x):
    z = paddle.zeros([4, 6])
    z += x
    z *= 2
    z -= x
    return z


ROWS, STEPS, IMAGE, VOLUME, HEADS = [4, 6], [2, 3, 8], [2, 3, 8, 8], [1, 2, 4, 4, 4], [2, 4, 2, 8]
LABELS, FIRST, COLUMN = paddle.to_tensor([0, 3, 1, 2]), paddle.to_tensor([0, 1]), paddle.zeros([4, 1], dtype="int64")
OTHER, UNIT = paddle.rand([4, 6]), paddle.eye(4)
MASK = OTHER > 0.5

CASES = [
    *of(ROWS, "layer", {
        "linear": lambda x: nn.Linear(6, 3)(x),
        "embedding": lambda x: F.embedding(LABELS, x, padding_idx=0),
        "dropout": lambda x: nn.Dropout()(x),
        "weight norm": lambda x: nn.utils.weight_norm(nn.Linear(6, 3))(x),
        "spectral norm": lambda x: nn.utils.spectral_norm(nn.Linear(6, 3))(x),
        "autocast": with_autocast,
        "forward hook": with_hook,
        "function of one's own": lambda x: Square.apply(x),
        "recompute": lambda x: recompute(nn.Linear(6, 6), x, use_reentrant=False),
        "recompute reentrant": lambda x: recompute(nn.Linear(6, 6), x),
        "fused linear": lambda x: fused.fused_linear(x, paddle.ones([6, 2])),
        "swiglu": lambda x: fused.swiglu(x),
    }),
    *of(ROWS, "activation", {
        name: lambda x, name=name: getattr(nn, name)()(x)
        for name in (
            "ReLU", "GELU", "LeakyReLU", "PReLU", "RReLU", "Silu", "Sigmoid", "Softplus", "Hardswish", "Softmax",
            "LogSoftmax", "GLU",
        )
    }),
    *of(ROWS, "activation", {
        "gumbel softmax, hard": lambda x: F.gumbel_softmax(x, hard=True),
        "relu in place": lambda x: F.relu_(x * 1),
    }),
    *of(IMAGE, "image", {
        "conv": lambda x: nn.Conv2D(3, 4, 3)(x),
        "conv, reflected": lambda x: nn.Conv2D(3, 4, 3, padding=1, padding_mode="reflect")(x),
        "conv, channels last": lambda x: nn.Conv2D(8, 4, 2, data_format="NHWC")(x),
        "pixel unshuffle": lambda x: nn.PixelUnshuffle(2)(x),
        "upsample": lambda x: nn.Upsample(scale_factor=2, mode="bilinear")(x),
        "pad": lambda x: nn.Pad2D(1, mode="reflect")(x),
        "unfold, fold": lambda x: F.fold(F.unfold(x, 2), [8, 8], 2),
        "grid sample": lambda x: F.grid_sample(x, paddle.rand([2, 4, 4, 2])),
    }),
    *of(IMAGE, "pool", {
        "average": lambda x: nn.AvgPool2D(2)(x),
        "max": lambda x: nn.MaxPool2D(2)(x),
        "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_mask=True), 2),
        "fractional": lambda x: F.fractional_max_pool2d(x, 3),
        "adaptive average": lambda x: nn.AdaptiveAvgPool2D(2)(x),
        "adaptive average, one": lambda x: nn.AdaptiveAvgPool2D(1)(x),
        "adaptive average, as it is": lambda x: nn.AdaptiveAvgPool2D(8)(x),
        "adaptive average, channels last": lambda x: nn.AdaptiveAvgPool2D(2, data_format="NHWC")(x),
        "adaptive max": lambda x: nn.AdaptiveMaxPool2D(2)(x),
        "adaptive max, with places": lambda x: nn.AdaptiveMaxPool2D(2, return_mask=True)(x)[0],
    }),
    *of(STEPS, "pool 1d", {
        "max": lambda x: nn.MaxPool1D(2)(x),
        "adaptive average": lambda x: nn.AdaptiveAvgPool1D(2)(x),
        "adaptive max": lambda x: nn.AdaptiveMaxPool1D(2)(x),
    }),
    *of(VOLUME, "pool 3d", {
        "max": lambda x: nn.MaxPool3D(2)(x),
        "adaptive average": lambda x: nn.AdaptiveAvgPool3D(2)(x),
        "adaptive max": lambda x: nn.AdaptiveMaxPool3D(2)(x),
    }),
    *of(IMAGE, "norm", {
        "batch": lambda x: nn.BatchNorm2D(3)(x),
        "instance": lambda x: nn.InstanceNorm2D(3)(x),
        "group": lambda x: nn.GroupNorm(3, 3)(x),
        "layer": lambda x: nn.LayerNorm(8)(x),
        "normalize": lambda x: F.normalize(x),
    }),
    *of(STEPS, "recurrent", {
        "gru": lambda x: nn.GRU(8, 5)(x),
        "lstm": lambda x: nn.LSTM(8, 5)(x)[0],
        "lstm's state, two ways": lambda x: nn.LSTM(8, 5, 2, direction="bidirect")(x)[1],
        "lstm, with lengths": lambda x: nn.LSTM(8, 5)(x, sequence_length=paddle.to_tensor([3, 2]))[0],
        "of cells": lambda x: nn.RNN(nn.GRUCell(8, 5))(x),
        "of cells, two ways": lambda x: nn.BiRNN(nn.GRUCell(8, 5), nn.GRUCell(8, 5))(x)[0],
    }),
    *of(STEPS, "attention", {
        "heads": lambda x: nn.MultiHeadAttention(8, 2)(x),
        "heads, with weights": lambda x: nn.MultiHeadAttention(8, 2, need_weights=True)(x, x, x),
        "encoder": lambda x: nn.TransformerEncoderLayer(8, 2, 16)(x),
        "decoder": lambda x: nn.TransformerDecoderLayer(8, 2, 16)(x, x),
        "transformer": lambda x: nn.Transformer(8, 2, 1, 1, 16)(x, x),
    }),
    *of(HEADS, "attention", {
        "scaled dot product": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        "flash": lambda x: F.flash_attention.flash_attention(x, x, x)[0],
    }),
    *of(ROWS, "loss", {
        "cross entropy": lambda x: F.cross_entropy(x, LABELS),
        "cross entropy, soft": lambda x: F.cross_entropy(x, F.softmax(OTHER), soft_label=True),
        "nll": lambda x: F.nll_loss(F.log_softmax(x), LABELS),
        "mse": lambda x: nn.MSELoss()(x, OTHER),
        "bce of logits": lambda x: F.binary_cross_entropy_with_logits(x, OTHER),
        "kl": lambda x: F.kl_div(F.log_softmax(x), F.softmax(OTHER)),
        "cosine": lambda x: F.cosine_embedding_loss(x, OTHER, paddle.ones([4], dtype="int64")),
        "triplet": lambda x: F.triplet_margin_loss(x, OTHER, OTHER),
        "multi margin": lambda x: F.multi_margin_loss(x, LABELS),
        "dice": lambda x: F.dice_loss(F.softmax(x), LABELS[:, None]),
        "adaptive": lambda x: nn.AdaptiveLogSoftmaxWithLoss(6, 8, [3])(x, LABELS),
        "ctc": lambda x: F.ctc_loss(
            x.reshape([4, 1, 6]), paddle.to_tensor([[1, 2]], "int32"), paddle.to_tensor([4]), paddle.to_tensor([2])
        ),
    }),
    *of(ROWS, "sign", {
        "@": lambda x: x @ OTHER.T,
        "1 -": lambda x: 1 - x,
        "1 /": lambda x: 1 / x,
        "2 **": lambda x: 2**x,
        "in place": with_operators_in_place,
    }),
    *of(ROWS, "method", {
        "T": lambda x: x.T,
        "to": lambda x: x.to("float64"),
        "cpu": lambda x: x.cpu() * 1,
        "assign": lambda x: paddle.assign(x, paddle.zeros([4, 6])),
        "contiguous": lambda x: x.t().contiguous(),
        "reshape": lambda x: x.reshape([6, 4]).view([3, 8]),
        "reshape_": lambda x: (x * 1).reshape_([6, 4]).unsqueeze_(0).flatten_(),
        "as strided": lambda x: x.as_strided([2, 2], [1, 2]),
        "expand": lambda x: x[None].expand([2, 4, 6]),
        "max": lambda x: x.max(1),
        "topk": lambda x: x.topk(2)[0],
        "split": lambda x: x.split(2),
        "unbind": lambda x: x.unbind(0),
        "quantile": lambda x: x.quantile(0.5),
        "tanh_": lambda x: (x * 1).tanh_(),
        "concat": lambda x: paddle.concat([x, OTHER]),
        "add_n": lambda x: paddle.add_n([x, OTHER]),
        "where": lambda x: paddle.where(MASK, x, OTHER),
        "einsum": lambda x: paddle.einsum("ij,kj->ik", x, OTHER),
        "real": lambda x: paddle.complex(x, x).real(),
        "fft": lambda x: paddle.fft.rfft(x).abs(),
        "values of a sparse one": lambda x: x.to_sparse_coo(2).values(),
        "graph": lambda x: paddle.geometric.send_u_recv(x, FIRST, FIRST + 1),
        "cond": lambda x: paddle.static.nn.cond(x.sum() > 0, lambda: x * 2, lambda: x * 3),
    }),
    *of(ROWS, "index", {
        "slice": lambda x: x[1:3],
        "list": lambda x: x[:, LABELS],
        "mask": lambda x: x[MASK],
        "none": lambda x: x[None, ..., 0],
        "rows": lambda x: list(x),
        "sum of rows": lambda x: sum(x),
        "gather": lambda x: (x.gather(LABELS), paddle.gather_nd(x, LABELS[:, None])),
        "take along": lambda x: x.take_along_axis(COLUMN, 1),
        "masked fill": lambda x: x.masked_fill(MASK, 0.0),
    }),
    *of(ROWS, "write", {
        "a number": lambda x: (z := x * 1, z.__setitem__(0, 0.0))[:1],
        "a row": written(lambda z, x: z.__setitem__(0, x[0])),
        "by mask": written(lambda z, x: z.__setitem__(MASK, x[MASK])),
        "scatter_": written(lambda z, x: z.scatter_(FIRST, x[:2])),
        "scatter": lambda x: paddle.scatter_nd_add(paddle.zeros([4, 6]), FIRST[:, None], x[:2]),
        "index_put_": written(lambda z, x: z.index_put_((FIRST,), x[:2])),
        "index_add": lambda x: paddle.zeros([4, 6]).index_add(FIRST, 0, x[:2]),
        "put along": lambda x: paddle.zeros([4, 6]).put_along_axis(COLUMN, x[:, :1], 1),
        "masked scatter": lambda x: paddle.masked_scatter(paddle.zeros([4, 6]), MASK, x),
    }),
    *of(ROWS, "linear algebra", {
        "svd": lambda x: paddle.linalg.svd(x),
        "qr": lambda x: paddle.linalg.qr(x),
        "eigh": lambda x: paddle.linalg.eigh(x @ x.T),
        "solve": lambda x: paddle.linalg.solve(x[:, :4], UNIT),
    }),
    *of(ROWS, "distribution", {
        "normal": lambda x: dist.Normal(x, OTHER + 0.1).log_prob(OTHER),
        "normal's sample": lambda x: dist.Normal(x, OTHER + 0.1).rsample(),
        "categorical": lambda x: dist.Categorical(x).log_prob(LABELS),
        "categorical's entropy": lambda x: dist.Categorical(x).entropy(),
        "multivariate": lambda x: dist.MultivariateNormal(x, paddle.eye(6)).log_prob(OTHER),
        "squashed": lambda x: dist.TransformedDistribution(
            dist.Normal(x, OTHER + 0.1), [dist.TanhTransform()]
        ).rsample(),
        "divergence": lambda x: dist.kl_divergence(dist.Normal(x, OTHER + 0.1), dist.Normal(OTHER, OTHER + 0.1)),
    }),
    # FAULT: what backward makes is told by nobody, and ``paddle.grad`` and what is made of it give just that.
    *broken(ROWS, "backward", {
        "grad of a grad": lambda x: paddle.grad((x**2).sum(), x, create_graph=True)[0],
        "vjp": lambda x: paddle.incubate.autograd.vjp(lambda z: z**2, x)[1],
    }),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make, shape", CASES)
def test_what_is_computed_is_reached_by_told_operators(make, shape):
    assert unreached(make, leaf(*shape)) == []


@pytest.mark.parametrize("hidden, make, shape", [
    ("relu", lambda x: F.relu(nn.Linear(6, 3)(x)).sum(), ROWS),
    ("pool2d", lambda x: nn.AdaptiveAvgPool2D(2)(x).sum(), IMAGE),
    ("assign", lambda x: nn.AdaptiveAvgPool2D(2)(x).sum(), IMAGE),
    ("__setitem__", written(lambda z, x: z.__setitem__(0, x[0])), ROWS),
])  # fmt: skip
def test_an_operator_that_is_not_told_breaks_the_chain(hidden, make, shape):
    assert unreached(make, leaf(*shape)) == []
    assert unreached(make, leaf(*shape), hidden) == [0]


def test_only_what_lies_behind_it_is_not_reached():
    assert unreached(lambda x: (x * 2, F.relu(x) * 2), leaf(*ROWS), "relu") == [1]
