"""The three Paddle models that are measured, from plain layers; each gives a function that does one training step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import paddle
from paddle import nn
from paddle.nn import functional as F
from workload import Workload


class SmallOps(nn.Layer):
    """Forty small operators in a row on 4x4: what they cost is almost all Paddle's own overhead."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.create_parameter([4, 4])

    def forward(self, x: Any) -> Any:
        for _ in range(10):
            x = paddle.tanh(x @ self.weight) * 0.9 + x
        return x.mean()


class Transformer(nn.Layer):
    """Two encoder layers, width 64, on 4 sequences of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.layers = nn.LayerList([nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0) for _ in range(2)])
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class Residual(nn.Layer):
    """A basic block of ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(inputs, outputs, 3, stride, 1, bias_attr=False)
        self.conv2 = nn.Conv2D(outputs, outputs, 3, 1, 1, bias_attr=False)
        self.norm1, self.norm2 = nn.BatchNorm2D(outputs), nn.BatchNorm2D(outputs)
        same = inputs == outputs and stride == 1
        short = nn.Sequential(nn.Conv2D(inputs, outputs, 1, stride, bias_attr=False), nn.BatchNorm2D(outputs))
        self.short = nn.Identity() if same else short

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet18(nn.Layer):
    """ResNet-18's layers, on 4 images of 64x64."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, 64, 7, 2, 3, bias_attr=False), nn.BatchNorm2D(64), nn.ReLU())
        widths = (64, 64, 128, 256, 512)
        blocks = []
        for before, width in pairwise(widths):
            blocks += [Residual(before, width, 1 if before == width else 2), Residual(width, width, 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, 10)

    def forward(self, images: Any) -> Any:
        x = F.max_pool2d(self.stem(images), 3, 2, 1)
        return self.head(self.blocks(x).mean([2, 3])).square().mean()


MODELS: dict[str, Callable[[], tuple[nn.Layer, Any]]] = {
    "small operators": lambda: (SmallOps(), paddle.randn([4, 4])),
    "transformer": lambda: (Transformer(), paddle.randint(0, 100, [4, 32])),
    "resnet18": lambda: (ResNet18(), paddle.randn([4, 3, 64, 64])),
}


def graph_size(root: Any) -> int:
    """Nodes under ``root``, those that accumulate into leaves too."""
    seen, waiting = {root.node_ptr()}, [root]
    while waiting:
        for node in waiting.pop().next_functions:
            if node is not None and node.node_ptr() not in seen:
                seen.add(node.node_ptr())
                waiting.append(node)
    return len(seen)


def make(name: str) -> Workload:
    """The workload called ``name``, one of ``MODELS``; the same weights and data every time."""
    paddle.seed(0)
    model, batch = MODELS[name]()
    optimizer = paddle.optimizer.SGD(1e-4, parameters=model.parameters())

    def step() -> None:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return Workload(step, graph_size(model(batch).grad_fn))
