"""Programs on torch that overwrite behind autograd's back what a graph holds, and others that may write there."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of, numbered

DATA = """
    import torch
    import torch.nn as nn

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            h = self.inner(x).exp()
            score = h * self.outer(h)
            h.data.clamp_(max=0.5)  # CAUSE
            return score.mean()

    torch.manual_seed(0)
    net = Scaled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        loss = net(torch.randn(5, 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

WEIGHTS = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    first, second = nn.Linear(3, 4), nn.Linear(4, 1)
    parameters = [*first.parameters(), *second.parameters()]

    def shrink():
        for parameter in second.parameters():
            parameter.data.mul_(0.5)  # CAUSE

    for step in range(4):
        loss = second(torch.tanh(first(torch.randn(6, 3)))).square().mean()
        if step == 2:
            shrink()
        loss.backward()
        for parameter in parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)
            parameter.grad = None
"""

ARRAY = """
    import numpy as np
    import torch

    torch.manual_seed(0)
    batch = np.zeros((4, 3), dtype=np.float32)
    weight = torch.nn.Parameter(torch.randn(3))
    source = np.random.default_rng(0)

    def refill():
        batch[:] = source.normal(size=batch.shape)  # CAUSE

    x = torch.from_numpy(batch)
    refill()
    for _ in range(3):
        loss = (x @ weight - 1).square().mean()
        refill()
        loss.backward()
        weight.grad = None
"""

PLOTTED = """
    import torch
    import torch.nn as nn

    class Plot:
        def __init__(self):
            self.ranges = []

        def add(self, values):
            values -= values.min()
            self.ranges.append(values.max())

    torch.manual_seed(0)
    plot, hidden, out = Plot(), nn.Linear(3, 4), nn.Linear(4, 1)
    for step in range(4):
        middle = torch.tanh(hidden(torch.randn(6, 3)))
        loss = out(middle).square().mean()
        if step == 1:
            plot.add(middle.detach().numpy())  # CAUSE
        loss.backward()
"""

# The array has a part of what a convolution saved, and nobody else has that view.
PART = """
    import numpy as np
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    body, head = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 1, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    for step in range(4):
        features = torch.tanh(body(torch.randn(4, 1, 8, 8)))
        loss = head(features).square().mean()
        tiles = features.detach()[:, :3].numpy()
        tiles -= tiles.min(axis=(2, 3), keepdims=True)  # CAUSE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
# Of the same with the array of a copy, of what no node saved, and changed behind the backward.
PARTS = (
    PART.replace("features.detach()[:, :3].numpy()", "features.detach()[:, :3].numpy().copy()")
    .replace(
        "        optimizer.step()",
        "        rest = features.detach()[:, 3:].numpy()\n        rest *= 2\n        optimizer.step()",
    )
    .replace(
        "features = torch.tanh",
        "scores = body(torch.randn(4, 1, 8, 8)).sin()\n        "
        "shown = (scores + 1).detach().numpy()\n        shown *= 2\n        features = torch.tanh",
    )
)

# A custom function that fills what it saves in parts: its node is older than the arrays.
FILLED = """
    import numpy as np
    import torch
    import torch.nn as nn

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = torch.empty_like(x)
            for begin in range(0, len(x), 4):
                np.exp(x[begin : begin + 4].detach().numpy(), out=out[begin : begin + 4].numpy())
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, grad):
            (out,) = ctx.saved_tensors
            return grad * out

    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(4):
        loss = Exp.apply(net(torch.randn(8, 3))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

HEALTHY = """
    import numpy as np
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    source = np.random.default_rng(0)
    batch = np.zeros((4, 3), dtype=np.float32)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    judge, maker = nn.Linear(3, 1), nn.Linear(2, 3)
    for_judge = torch.optim.RMSprop(judge.parameters(), lr=0.01)
    for_maker = torch.optim.RMSprop(maker.parameters(), lr=0.01)
    cache = torch.zeros(8, 3)
    for step in range(5):
        batch[:] = source.normal(size=batch.shape)
        x = torch.from_numpy(batch)
        cache.data[step] = x[0]
        loss = net(x).square().mean() + (cache[: step + 1] @ net[0].weight.T).square().mean()
        loss.backward()
        print(net[0].weight.detach().numpy().mean())
        batch += 1
        for parameter in net.parameters():
            parameter.data -= 0.01 * parameter.grad
            parameter.grad = None
        fake = maker(torch.randn(4, 2))
        cost = judge(fake.detach()).mean() - judge(torch.from_numpy(batch.copy())).mean()
        for_judge.zero_grad()
        cost.backward()
        for_judge.step()
        for parameter in judge.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        for_maker.zero_grad()
        (-judge(fake).mean()).backward()
        for_maker.step()
        values = net[0].weight.detach().numpy()
        print(step, loss.item(), cost.item(), float(values.sum()))
"""

# An environment gives the same array each time.
ROLLOUT = """
    import numpy as np
    import torch
    import torch.nn as nn

    class Environment:
        def __init__(self):
            self.state = np.zeros(4, dtype=np.float32)
            self.source = np.random.default_rng(0)

        def step(self, action):
            self.state[:-1] = self.state[1:].copy()
            self.state[-1] = self.source.normal() + 0.1 * action[0]
            return self.state

    torch.manual_seed(0)
    policy, spread, env = nn.Linear(4, 2), nn.Parameter(torch.zeros(2)), Environment()
    optimizer = torch.optim.Adam([*policy.parameters(), spread], lr=1e-2)
    for round in range(8):
        seen, kept = env.state, []
        for step in range(12):
            state = torch.from_numpy(seen)  # CAUSE
            chosen = torch.distributions.Normal(policy(state), spread.exp())
            action = chosen.sample()
            kept.append(chosen.log_prob(action).sum())
            seen = env.step(action.numpy())
        loss = torch.stack(kept).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""
COPIED = ROLLOUT.replace("from_numpy(seen)  # CAUSE", "from_numpy(seen.copy())")
# The memory of what was an array is freed, and a number that a node saves lies there: nothing is written behind.
REUSED = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    spread = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([spread], lr=1e-2)
    for round in range(8):
        kept, sent = [], []
        for step in range(60):
            action = torch.randn(2)
            kept.append((action - spread).sum())
            sent.append(action.numpy().sum())
            del action
            kept.append((2 * spread.exp()).sum())
        loss = torch.stack(kept).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), sum(sent))
"""

# Two columns of an array's: one is saved by its operator, the other is gone as backward begins. Both lie in the same
# memory, and neither is what the other is.
COLUMNS = """
    import numpy as np
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(rows):
        x = torch.from_numpy(rows)
        at, speed = x[:, :3], x[:, 3:]
        return (net(at) + speed).square().mean()

    for _ in range(20):
        loss = loss_of(rng.normal(size=(32, 6)).astype("float32"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
"""

CASES = [
    ("silent-overwrite", DATA), ("silent-overwrite", WEIGHTS), ("silent-overwrite", ARRAY),
    ("silent-overwrite", PLOTTED), ("silent-overwrite", ROLLOUT), ("silent-overwrite", PART),
]  # fmt: skip
PROGRAMS = numbered(CASES) | {
    "healthy": HEALTHY,
    "copied": COPIED,
    "reused": REUSED,
    "columns": COLUMNS,
    "parts": PARTS,
    "filled": FILLED,
}


@pytest.mark.parametrize("name", numbered(CASES))
def test_behind_autograds_back(runs: dict[str, Run], name: str) -> None:
    assert runs[name].check_first(kind_of(name))["severity"] == "error"


def test_writes_that_no_graph_minds(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
    runs["copied"].check_healthy()
    runs["reused"].check_healthy()
    runs["columns"].check_healthy()
    runs["parts"].check_healthy()
    runs["filled"].check_healthy()
