"""What short programs of either framework begin with: one name for what both have."""

from __future__ import annotations

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
Module, noise, Sgd = nn.Module, fw.randn, lambda parts, rate=0.1: fw.optim.SGD(list(parts), rate)
Conv, clear = nn.Conv2d, "zero_grad"
def fill(weight, value):
    with fw.no_grad():
        weight.fill_(value)
def parameter(value):
    return nn.Parameter(value)
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
Module, noise, Conv, clear = nn.Layer, lambda *shape: fw.randn(shape), nn.Conv2D, "clear_grad"
def Sgd(parts, rate=0.1):
    return fw.optimizer.SGD(rate, parameters=list(parts))
def fill(weight, value):
    with fw.no_grad():
        weight.fill_(value)
def parameter(value):
    made = fw.create_parameter(value.shape, "float32")
    made.set_value(value)
    return made
""",
}
