"""A small GPT: RMS norm, rotary positions, causal attention, tied to nothing. What nan_at_sqrt.py trains."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Scales every position to a root mean square of 1 (Zhang & Sennrich 2019)."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        rms = mean_square.sqrt()
        return self.gain * x / (rms + self.eps)


def rotary(x, base=100.0):
    """Turn the pairs of the last dimension of ``x`` (batch, heads, length, width) by an angle that grows along the
    length.
    """
    half = x.shape[-1] // 2
    speed = base ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    even, odd = x[..., :half], x[..., half:]
    return torch.cat([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, blocked):
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = rotary(q) @ rotary(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(blocked, -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x, blocked):
        x = x + self.attention(self.norm1(x), blocked)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary, width=32, heads=2, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, padding):
        """Logits (batch, length, vocabulary) of the tokens (batch, length).

        ``padding`` is true where there is no text.
        """
        length = tokens.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        blocked = future | padding[:, None, None, :]
        x = self.embed(tokens) * ~padding[..., None]  # padding is silence
        for layer in self.layers:
            x = layer(x, blocked)
        return self.head(self.norm(x))
