"""Backwards in which a gradient stops being finite, each in its own way, one after the other. With ``--witness``,
torch's own hooks around every node say which made the first such gradient from finite ones, a line a backward."""

import sys

import torch
from torch.nn import functional as F


def leaf(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


class Spoils(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * float("nan")


def sqrt_of_zero():
    return (torch.sqrt(leaf(0.0, 1.0) * 2) * 0).sum()


def sqrt_in_one_branch_of_two():
    x = leaf(0.0, 4.0) * 1
    return (torch.sqrt(x) * 0).sum() + (x * 3).exp().sum()


def log_of_zero():
    x = leaf(0.0, 1.0) * 1
    return (torch.log(x) * 0).sum() + (x * 2).sum()


def zero_by_zero():
    return ((leaf(0.0, 1.0) * 2) / (leaf(0.0, 1.0) * 3)).sum()


def exp_overflows():
    return (torch.exp(leaf(100.0, 1.0) * 2) * 0).sum()


def relu_in_place():
    x = leaf(-1.0, 1.0) * 1
    return (torch.log(x.relu_()) * 0).sum()


def batch_norm():
    norm = torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        norm.weight.fill_(3e38)
    x = torch.tensor([[0.0, 1.0], [2.0, 5.0]], requires_grad=True)
    return (norm(x * 1) * torch.tensor([[1e10, 0.0], [0.0, 0.0]])).sum()


def layer_norm_without_variance():
    x = torch.ones(2, 3, requires_grad=True)
    return F.layer_norm(x * 1, [3], eps=0.0).nan_to_num().sum()


def all_masked():
    x = torch.ones(2, 3, requires_grad=True)
    mask = torch.tensor([[0.0, 0.0, 0.0], [-float("inf")] * 3])
    return F.softmax(x * 1 + mask, -1).nan_to_num().sum()


def custom():
    return Spoils.apply(leaf(1.0, 2.0) * 1).sum()


def where_masks():
    x = leaf(-1.0, 4.0) * 1
    return torch.where(x > 0, torch.sqrt(x), torch.zeros(2)).sum()


def half_overflows():
    return ((leaf(1.0, 2.0, dtype=torch.float16) * 1) * 60000 * 1e-3).sum() * 60000


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
    return (torch.sqrt(torch.cat([torch.tanh(x), x * 2])) * 0).sum()


def below_a_list():
    x = leaf(0.0, 1.0) * 1
    return (torch.cat([torch.sqrt(x), x * 2]) * 0).sum()


def finite():
    x = leaf(0.5, 1.0) * 1
    return (torch.sqrt(torch.cat([torch.tanh(x), x * 2])) * 0).sum()


KINDS = [
    sqrt_of_zero, sqrt_in_one_branch_of_two, log_of_zero, zero_by_zero, exp_overflows, relu_in_place, batch_norm,
    layer_norm_without_variance, all_masked, custom, where_masks, half_overflows, power_of_zero, hook_of_a_tensor,
    hook_of_a_leaf, a_sum_overflows, given, through_a_list, below_a_list, finite,
]  # fmt: skip


def witnessed(root):
    """The nodes that got finite gradients and gave others, in order of execution."""
    makers, seen, nodes = [], set(), [root.grad_fn]

    def finite(values):
        return all(value is None or bool(torch.isfinite(value).all()) for value in values)

    def look(node):
        def behind(given, got):
            if finite(got) and not finite(given):
                makers.append(node.name())

        node.register_hook(behind)

    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            look(node)
            nodes.extend(below for below, _ in node.next_functions)
    root.backward(torch.full_like(root, float("nan")) if root.dim() else None)
    return makers


for make in KINDS:
    loss = make()
    if "--witness" in sys.argv:
        print(make.__name__, *witnessed(loss))
    else:
        loss.backward(torch.full_like(loss, float("nan")) if loss.dim() else None)
