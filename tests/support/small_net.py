"""The beginning of a program that trains two layers, the same on both frameworks by the names that it gives."""

from __future__ import annotations

_TORCH = """
import copy
import torch as framework
from torch import nn
framework.manual_seed(0)
net = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, OUTPUTS))
optimizer = framework.optim.SGD(net.parameters(), RATE)
clear = optimizer.zero_grad
def noise(*shape):
    return framework.randn(*shape)
def put(weight, kept):
    weight.copy_(kept)
"""
_PADDLE = """
import copy
import paddle as framework
from paddle import nn
framework.seed(0)
net = nn.Sequential(nn.Linear(INPUTS, 8), nn.ReLU(), nn.Linear(8, OUTPUTS))
optimizer = framework.optimizer.SGD(RATE, parameters=net.parameters())
clear = optimizer.clear_grad
def noise(*shape):
    return framework.randn(shape)
def put(weight, kept):
    weight.set_value(kept)
"""


def small_net(framework: str, inputs: int = 4, outputs: int = 1, rate: float = 0.05) -> str:
    """``net``, ``optimizer``, ``clear()``, ``noise(*shape)``, ``put(weight, value)`` and ``framework``."""
    text = _TORCH if framework == "torch" else _PADDLE
    return text.replace("INPUTS", str(inputs)).replace("OUTPUTS", str(outputs)).replace("RATE", str(rate))
