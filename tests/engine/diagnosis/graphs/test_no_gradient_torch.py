"""Programs on torch whose parameters get no gradient, or zeros, and others that cut as they should."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run

DETACHED = """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

        def forward(self, x):
            h = torch.tanh(self.encoder(x))
            codes = h.detach().numpy() * 2  # CAUSE
            return self.head(torch.from_numpy(codes))

    def main():
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(4):
            loss = F.cross_entropy(net(torch.randn(3, 4)), torch.tensor([0, 1, 1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    main()
"""

NUMBERS = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def penalty(out):
        total = sum(value.item() for value in out)  # CAUSE
        return torch.tensor(total, requires_grad=True)

    for step in range(3):
        optimizer.zero_grad()
        loss = penalty(net(torch.randn(5, 4)).abs())
        loss.backward()
        optimizer.step()
        print(step, loss.item())
"""

VARIABLE = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        out = net(torch.randn(5, 4)).square().mean()
        loss = torch.autograd.Variable(out.data, requires_grad=True)  # CAUSE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

NO_GRAD = """
    import torch
    import torch.nn as nn

    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(2, 3, 3)

        @torch.no_grad()  # CAUSE
        def forward(self, x):
            return self.conv(x).mean(-1)

    torch.manual_seed(0)
    backbone, head = Backbone(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for _ in range(3):
        loss = head(backbone(torch.randn(4, 2, 8))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

ARGMAX = """
    import torch
    import torch.nn as nn

    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wanted = torch.tensor([0, 1, 2, 1])
    for _ in range(3):
        scores = net(torch.randn(4, 4))
        guess = scores.argmax(dim=1)  # CAUSE
        loss = (guess.float() - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

UNUSED = """
    import torch
    import torch.nn as nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)  # CAUSE
            self.last = nn.Linear(4, 1)

        def forward(self, x):
            h = self.first(x).relu()
            h = self.first(h).relu()
            return self.last(h)

    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        loss = net(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

ROUNDED = """
    import torch
    import torch.nn as nn

    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x):
            levels = torch.round(self.before(x) * 8)  # CAUSE
            return self.after(levels / 8)

    torch.manual_seed(0)
    net = Quantised()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4):
        loss = (net(torch.randn(8, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

NON_LEAF = """
    import torch

    torch.manual_seed(0)

    def start(size):
        return torch.randn(size, requires_grad=True) * 0.1  # CAUSE

    weight = start(3)
    for _ in range(2):
        loss = (weight * torch.ones(3) - 1).square().sum()
        loss.backward(retain_graph=True)
        if weight.grad is not None:
            weight.data -= 0.1 * weight.grad
"""

GIVEN_NON_LEAF = """
    import torch
    import torch.nn as nn

    class Table:
        def __init__(self):
            self.rows = nn.Parameter(torch.randn(4, 2)).to(torch.float64)  # CAUSE

    table = Table()
    optimizer = torch.optim.SGD([table.rows], lr=0.1)
"""

HEALTHY = """
    import copy
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.manual_seed(0)

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)
            self.book = nn.Parameter(torch.randn(8, 3))

        def forward(self, x):
            z = self.encoder(x)
            index = torch.cdist(z, self.book).argmin(1)
            code = self.book[index]
            rounded = z + (z.round() - z).detach()
            through = z + (code - z).detach()
            aside = F.mse_loss(code, z.detach()) + 0.1 * F.mse_loss(z, code.detach())
            return self.decoder(through + 0 * rounded), aside

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.detach().sign() + 0

        @staticmethod
        def backward(ctx, grad):
            return grad * (ctx.saved_tensors[0].abs() < 1)

    def accuracy(out, wanted):
        return (out.argmax(1) == wanted).float().mean().item()

    def train():
        codes = Codes()
        optimizer = torch.optim.Adam(codes.parameters())
        policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        target = copy.deepcopy(policy)
        binary = nn.Linear(4, 4)
        other = torch.optim.SGD([*policy.parameters(), *binary.parameters()], lr=0.1)
        frozen = nn.Linear(4, 4).requires_grad_(False)
        for step in range(9):
            x = torch.randn(6, 4)
            out, aside = codes(frozen(x))
            loss = F.mse_loss(out, x) + aside
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            wanted = torch.randint(0, 2, (6,))
            with torch.no_grad():
                best = target(x).max(1).values
                values = target(x).argmax(1)
            scores = policy(Sign.apply(binary(x)))
            chosen = scores.gather(1, values[:, None])[:, 0]
            loss = F.smooth_l1_loss(chosen, 0.9 * best + 1) + F.cross_entropy(scores, wanted)
            other.zero_grad()
            loss.backward()
            other.step()
            target.load_state_dict(policy.state_dict())
            print(step, accuracy(scores, wanted), loss.item(), scores.detach().numpy().sum().round(3))

    def gan():
        maker, judge = nn.Linear(2, 3), nn.Linear(3, 1)
        for_maker = torch.optim.Adam(maker.parameters())
        for_judge = torch.optim.Adam(judge.parameters())
        for step in range(4):
            fake = maker(torch.randn(5, 2))
            loss = judge(fake.detach()).mean() - judge(torch.randn(5, 3)).mean()
            for_judge.zero_grad()
            loss.backward()
            for_judge.step()
            for_maker.zero_grad()
            (-judge(fake).mean()).backward()
            for_maker.step()

    train()
    gan()
"""


SELDOM = """
    import torch, torch.nn as nn
    torch.manual_seed(0)
    seldom, later, judge = nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3)), nn.Linear(3, 1)
    for_seldom, for_later, for_judge = (torch.optim.Adam(each.parameters()) for each in (seldom, later, judge))
    for step in range(12):
        with torch.no_grad():
            fake = seldom(torch.randn(5, 2)) + later(torch.randn(5, 2))
        for_judge.zero_grad()
        (judge(fake).tanh().mean() - judge(torch.randn(5, 3)).tanh().mean()).backward()
        for_judge.step()
        if step % 5 == 4:
            (-judge(seldom(torch.randn(5, 2))).mean()).backward()
            for_seldom.step()
            for_seldom.zero_grad()
        if step >= 100:
            (-judge(later(torch.randn(5, 2))).mean()).backward()
            for_later.step()
            for_later.zero_grad()
    print(sum(each.weight.abs().sum().item() for each in (seldom, later[0], judge)))
"""

PROGRAMS = {
    "detached": DETACHED, "numbers": NUMBERS, "variable": VARIABLE, "no grad": NO_GRAD, "argmax": ARGMAX,
    "unused": UNUSED, "rounded": ROUNDED, "non leaf": NON_LEAF, "given non leaf": GIVEN_NON_LEAF, "healthy": HEALTHY,
    "seldom": SELDOM,
}  # fmt: skip


def test_values_go_through_numpy(runs: dict[str, Run]) -> None:
    found = runs["detached"].check_first("no-gradient")
    assert found["severity"] == "error"
    assert "encoder.weight" in found["message"]
    assert "head.weight" not in found["message"]


def test_a_loss_is_made_of_numbers(runs: dict[str, Run]) -> None:
    runs["numbers"].check_first("no-gradient")


def test_a_loss_is_made_anew(runs: dict[str, Run]) -> None:
    runs["variable"].check_first("no-gradient")


def test_a_decorator_switches_gradients_off(runs: dict[str, Run]) -> None:
    runs["no grad"].check_first("no-gradient")


def test_backward_of_what_has_no_graph(runs: dict[str, Run]) -> None:
    runs["argmax"].check_first("no-gradient")


def test_a_layer_that_no_operator_uses(runs: dict[str, Run]) -> None:
    found = runs["unused"].check_first("no-gradient")
    assert found["severity"] == "note"  # a head for another stage of the training is none the worse for it


def test_rounding_gives_zeros(runs: dict[str, Run]) -> None:
    found = runs["rounded"].check_first("rounded-gradient")
    assert "before.weight" in found["message"]


def test_the_gradient_of_what_is_no_leaf_is_read(runs: dict[str, Run]) -> None:
    runs["non leaf"].check_first("non-leaf-gradient")


def test_an_optimizer_is_given_what_is_no_leaf(runs: dict[str, Run]) -> None:
    runs["given non leaf"].check_first("non-leaf-gradient")


def test_cuts_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("wrong-derivative")
    told = runs["healthy"].told
    assert "Sign passes a gradient" in told[0]["message"] and "straight-through" in told[0]["message"]


def test_parts_that_are_trained_seldom_or_later(runs: dict[str, Run]) -> None:
    """A generator that is trained each fifth time, and one whose optimizer has not stepped yet: a note at the end."""
    runs["seldom"].check_healthy("no-gradient")
    told = runs["seldom"].told
    message, evidence = told[0]["message"], told[0]["evidence"][-1]
    assert message.startswith("later.0.weight and later.0.bias") and "not stepped yet" in evidence, told
