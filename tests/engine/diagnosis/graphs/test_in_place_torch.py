"""Programs on torch that overwrite what a node saved, and others that write in place as they may."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing import line_of
from support.diagnosing_many import Run

ACTIVATION = """
    import torch
    import torch.nn as nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)

        def forward(self, x):
            gate = torch.sigmoid(self.fc(x))  # SAVED
            gate *= 0.5  # CAUSE
            return self.norm(x) * gate

    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        loss = net(torch.randn(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

VIEW = """
    import torch

    def normalise(table):
        row = table[1]
        row.div_(row.detach().norm())  # CAUSE

    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    for step in range(12):
        table = weight * 2
        scores = table.exp()
        out = scores * table
        if step == 1:
            normalise(table)
        out.sum().backward()
        weight.grad = None
"""

STEP_TOO_EARLY = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    maker = nn.Linear(2, 3)
    for_critic = torch.optim.Adam(critic.parameters())
    for_maker = torch.optim.Adam(maker.parameters())

    def train(noise, real):
        fake = maker(noise)
        judged = critic(fake)
        loss = critic(fake.detach()).mean() - critic(real).mean()
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()  # CAUSE
        for_maker.zero_grad()
        (-judged.mean()).backward()
        for_maker.step()

    train(torch.randn(5, 2), torch.randn(5, 3))
"""

CARRIED = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    cell, head = nn.RNNCell(3, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    state = torch.zeros(2, 4)
    for chunk in torch.randn(6, 2, 3):
        state = cell(chunk, state)  # CAUSE
        loss = head(state).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
"""

LATE = """
    import torch

    weight = torch.nn.Parameter(torch.ones(4))
    for step in range(8):
        scores = torch.exp(weight * 0.1)
        if step == 5:
            scores += 1  # CAUSE
        scores.sum().backward()
"""

MODULE = """
    import torch
    import torch.nn as nn

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(4, 4),
                nn.Sigmoid(),
                nn.Hardtanh(0.4, 0.6, inplace=True),  # CAUSE
            )

        def forward(self, x):
            return self.body(x)

    torch.manual_seed(0)
    Mixer()(torch.randn(3, 4)).sum().backward()
"""

HEALTHY = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Dropout(0.2))
            self.head = nn.Linear(8, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            h = self.body(x)
            h += torch.ones_like(h)
            buffer = torch.zeros(x.shape[0], 2)
            buffer[:, :] = self.head(h)
            return buffer

    class Twin:
        def __init__(self, net, copy):
            self.net, self.copy = net, copy
            copy.load_state_dict(net.state_dict())

        @torch.no_grad()
        def follow(self):
            for mine, theirs in zip(self.copy.parameters(), self.net.parameters()):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
                mine.data.clamp_(-2, 2)

    net = Net()
    twin = Twin(net, Net())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    state = torch.zeros(6, 4)
    with torch.device("cpu"):
        for step in range(5):
            x = torch.randn(6, 4)
            x[0] = 0
            x.clamp_(-3, 3)
            state = (state * 0.5 + x).detach()
            out = net(state)
            with torch.no_grad():
                wanted = twin.copy(state)
            loss = F.mse_loss(out, wanted) + out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            for parameter in net.parameters():
                parameter.grad.mul_(1.0)
            optimizer.step()
            twin.follow()
            with torch.no_grad():
                net.head.weight.clamp_(-1, 1)
            print(step, loss.item())
    optimizer = torch.optim.LBFGS([net.head.weight])

    def closure():
        optimizer.zero_grad()
        loss = net.head.weight.square().sum()
        loss.backward()
        return loss

    print(optimizer.step(closure).item())
    torch.set_default_device("cpu")
    w = torch.randn(3, requires_grad=True)
    (first,) = torch.autograd.grad(w.pow(3).sum(), w, create_graph=True)
    first.square().sum().backward()
    print(w.grad)
"""

PROGRAMS = {
    "activation": ACTIVATION, "view": VIEW, "step too early": STEP_TOO_EARLY, "carried": CARRIED, "late": LATE,
    "module": MODULE, "healthy": HEALTHY,
}  # fmt: skip


def test_an_activation_is_changed_behind_the_operator_that_made_it(runs: dict[str, Run]) -> None:
    found = runs["activation"].check_first("in-place")
    assert found["severity"] == "error"
    assert found["forward"]["line"] == line_of(ACTIVATION, "# SAVED")
    assert found["node"]["name"] == "SigmoidBackward0"


def test_a_view_in_another_function(runs: dict[str, Run]) -> None:
    found = runs["view"].check_first("in-place")
    assert "view" in " ".join(found["evidence"])


def test_an_optimizer_steps_before_the_last_backward(runs: dict[str, Run]) -> None:
    runs["step too early"].check_first("in-place")


def test_a_state_that_was_not_detached_is_the_cause_and_not_the_step(runs: dict[str, Run]) -> None:
    runs["carried"].check_first("in-place")


def test_a_module_that_was_told_to_work_in_place(runs: dict[str, Run]) -> None:
    runs["module"].check_first("in-place")


def test_in_an_iteration_that_is_not_sampled(runs: dict[str, Run]) -> None:
    runs["late"].check_first("in-place")


def test_what_writes_in_place_as_it_may(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
