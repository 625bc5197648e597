"""Backwards in which a gradient stops being finite, each in its own way, one after the other. With ``--witness``,
Paddle's own check says which operators of each gave something that is not finite, in order of execution."""

import ctypes
import sys

import paddle
from paddle.nn import functional as F


def leaf(*values, dtype="float32"):
    return paddle.to_tensor(values, dtype=dtype, stop_gradient=False)


def rows(*values):
    return paddle.to_tensor(values, dtype="float32", stop_gradient=False)


class Spoils(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * float("nan")


def sqrt_of_zero():
    return (paddle.sqrt(leaf(0.0, 1.0) * 2) * 0).sum()


def sqrt_in_one_branch_of_two():
    x = leaf(0.0, 4.0) * 1
    return (paddle.sqrt(x) * 0).sum() + (x * 3).exp().sum()


def log_of_zero():
    x = leaf(0.0, 1.0) * 1
    return (paddle.log(x) * 0).sum() + (x * 2).sum()


def zero_by_zero():
    return ((leaf(0.0, 1.0) * 2) / (leaf(0.0, 1.0) * 3)).sum()


def exp_overflows():
    return (paddle.exp(leaf(100.0, 1.0) * 2) * 0).sum()


def relu_in_place():
    x = leaf(-1.0, 1.0) * 1
    return (paddle.log(F.relu_(x)) * 0).sum()


def batch_norm():
    norm = paddle.nn.BatchNorm1D(2)
    with paddle.no_grad():
        norm.weight.set_value(paddle.full([2], 3e38))
    return (norm(rows([0.0, 1.0], [2.0, 5.0]) * 1) * paddle.to_tensor([[1e10, 0.0], [0.0, 0.0]])).sum()


def layer_norm_without_variance():
    return F.layer_norm(rows([1.0] * 3, [1.0] * 3) * 1, [3], epsilon=0.0).nan_to_num().sum()


def all_masked():
    x = rows([1.0] * 3, [1.0] * 3)
    mask = paddle.to_tensor([[0.0, 0.0, 0.0], [-float("inf")] * 3])
    return F.softmax(x * 1 + mask, -1).nan_to_num().sum()


def custom():
    return Spoils.apply(leaf(1.0, 2.0) * 1).sum()


def where_masks():
    x = leaf(-1.0, 4.0) * 1
    return paddle.where(x > 0, paddle.sqrt(x), paddle.zeros([2])).sum()


def half_overflows():
    return ((leaf(1.0, 2.0, dtype="float16") * 1) * 60000 * 1e-3).sum() * 60000


def power_of_zero():
    return ((leaf(0.0, 4.0) * 1) ** 0.5 * 0).sum()


def hook_of_a_tensor():
    h = leaf(1.0, 2.0) * 2
    h.register_hook(lambda g: g * float("nan"))
    return (h.exp() + 1).sum()


def hook_of_a_leaf():
    x = leaf(1.0, 2.0)
    x.register_hook(lambda g: g * float("nan"))
    return (x * 3).sum()


def a_sum_overflows():
    x = leaf(1.0) * 1
    return (x * 3e38 + x * 3e38).sum()


def given():
    return leaf(1.0, 2.0).exp()


def through_a_list():
    x = leaf(0.0, 1.0) * 1
    return (paddle.sqrt(paddle.concat([paddle.tanh(x), x * 2])) * 0).sum()


def below_a_list():
    x = leaf(0.0, 1.0) * 1
    return (paddle.concat([paddle.sqrt(x), x * 2]) * 0).sum()


def einsum_overflows():
    return paddle.einsum("i,i->", leaf(1.0, 2.0) * 1, leaf(3e38, 3e38) * 1) * 1e10


def finite():
    x = leaf(0.5, 1.0) * 1
    return (paddle.sqrt(paddle.concat([paddle.tanh(x), x * 2])) * 0).sum()


KINDS = [
    sqrt_of_zero, sqrt_in_one_branch_of_two, log_of_zero, zero_by_zero, exp_overflows, relu_in_place, batch_norm,
    layer_norm_without_variance, all_masked, custom, where_masks, half_overflows, power_of_zero, hook_of_a_tensor,
    hook_of_a_leaf, a_sum_overflows, given, through_a_list, below_a_list,
    einsum_overflows, finite,
]  # fmt: skip


say = ctypes.CDLL(None).puts  # Paddle's check prints by C's own stdout, too
for make in KINDS:
    loss = make()
    given_gradient = paddle.full_like(loss, float("nan")) if loss.ndim else None
    if "--witness" in sys.argv:
        paddle.set_flags({"FLAGS_check_nan_inf": True, "FLAGS_check_nan_inf_level": 1, "FLAGS_call_stack_level": 3})
        say(b"backward " + make.__name__.encode())
    loss.backward(given_gradient)
    paddle.set_flags({"FLAGS_check_nan_inf": False})
