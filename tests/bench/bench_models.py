"""The models that are measured: each gives a function that does one training step, and the size of its graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from workload import Workload

State = tuple[torch.Tensor, torch.Tensor]


class Cell(nn.Module):
    """An LSTM cell from single operations, as teaching code and research code write it."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, now: torch.Tensor, state: State) -> State:
        hidden, memory = state
        i, f, g, o = (self.x(now) + self.h(hidden)).chunk(4, 1)
        memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
        return o.sigmoid() * memory.tanh(), memory


class Unrolled(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.cell, self.readout = Cell(inputs, width), nn.Linear(width, 1)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        hidden = memory = torch.zeros(sequence.shape[1], self.cell.h.in_features)
        total = torch.zeros(())
        for now in sequence:
            hidden, memory = self.cell(now, (hidden, memory))
            total = total + self.readout(hidden).square().mean()
        return total


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.body(x))


class ConvNet(nn.Module):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3))).square().mean()


def _tiny_lstm() -> tuple[nn.Module, torch.Tensor]:
    return Unrolled(16, 32), torch.randn(30, 8, 16)


def _tiny_transformer() -> tuple[nn.Module, torch.Tensor]:
    return Transformer(50, 16, 2, 4), torch.randint(0, 50, (2, 8))


def _medium_transformer() -> tuple[nn.Module, torch.Tensor]:
    return Transformer(500, 128, 4, 4), torch.randint(0, 500, (6, 64))


def _large_gpt() -> tuple[nn.Module, torch.Tensor]:
    """103 million parameters."""
    return Transformer(12000, 768, 12, 12), torch.randint(0, 12000, (1, 64))


def _medium_conv() -> tuple[nn.Module, torch.Tensor]:
    return ConvNet(32, 5), torch.randn(16, 3, 32, 32)


MODELS = {
    "tiny LSTM": _tiny_lstm,
    "tiny transformer": _tiny_transformer,
    "medium transformer": _medium_transformer,
    "medium conv": _medium_conv,
    "GPT of 100M": _large_gpt,
}


def graph_size(root: torch.autograd.graph.Node) -> int:
    seen, waiting = {root}, [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


def make(name: str) -> Workload:
    """The workload called ``name``, one of ``MODELS``; the same weights and data every time."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        optimizer.step()

    return Workload(step, graph_size(model(batch).grad_fn))
