"""Programs that carry things from iteration to iteration as they should: nothing above a note."""

from __future__ import annotations

from pathlib import Path

from support.diagnosing import check_healthy

PROGRAM = """
    import collections, copy
    import torch, torch.nn as nn, torch.nn.functional as F

    torch.manual_seed(1)

    def gan():
        g, d = nn.Linear(4, 6), nn.Linear(6, 1)
        og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
        for step in range(8):
            fake = g(torch.randn(5, 4)).tanh()
            d_loss = F.softplus(d(fake.detach())).mean() + F.softplus(-d(torch.randn(5, 6))).mean()
            od.zero_grad(); d_loss.backward(); od.step()
            g_loss = F.softplus(-d(fake)).mean()
            og.zero_grad(); g_loss.backward(); og.step()
        print("gan", g_loss.item())

    def truncated():
        cell = nn.GRUCell(3, 5); out = nn.Linear(5, 1)
        opt = torch.optim.SGD([*cell.parameters(), *out.parameters()], 0.1)
        h = torch.zeros(2, 5)
        for step in range(8):
            h = h.detach()
            for _ in range(3):
                h = cell(torch.randn(2, 3), h)
            loss = out(h).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        print("bptt", loss.item())

    def kept():
        net = nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 0.1)
        ema = copy.deepcopy(net)
        losses, replay, window, total = [], [], collections.deque(maxlen=3), 0.0
        epoch = []
        for step in range(26):
            x = torch.randn(3, 4)
            y = net(x)
            loss = (y - x).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
            losses.append(loss.item()); replay.append(y.detach()); window.append(loss); total += loss.item()
            epoch.append(loss)
            if step % 3 == 2:
                print("epoch", torch.stack(epoch).mean().item()); epoch.clear()
            with torch.no_grad():
                for a, b in zip(ema.parameters(), net.parameters()):
                    a.mul_(0.9).add_(b, alpha=0.1)
        print("kept", total)

    def accumulate():
        net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(8):
            loss = net(torch.randn(3, 4)).pow(2).mean() / 2
            loss.backward(retain_graph=True)
            loss.backward()
            if step % 2:
                opt.step(); opt.zero_grad()
        print("accumulate", loss.item())

    def curriculum():
        net = nn.Linear(4, 4); opt = torch.optim.SGD(net.parameters(), 0.01)
        for step in range(8):
            h = torch.randn(3, 4)
            for _ in range(1 + 2 * step):
                h = net(h).tanh()
            opt.zero_grad(); h.sum().backward(); opt.step()
        print("curriculum", h.sum().item())

    def penalty():
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)); opt = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(6):
            x = torch.randn(3, 4, requires_grad=True)
            grad, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            loss = net(x).mean() + grad.pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
        print("penalty", loss.item())

    def closure():
        net = nn.Linear(4, 1); opt = torch.optim.LBFGS(net.parameters(), max_iter=4)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        def step():
            opt.zero_grad(); loss = F.mse_loss(net(x), y); loss.backward(); return loss
        for _ in range(3):
            print("closure", opt.step(step).item())

    for each in (gan, truncated, kept, accumulate, curriculum, penalty, closure):
        each()
"""


def test_what_is_carried_on_as_it_should_be(tmp_path: Path) -> None:
    check_healthy(tmp_path, PROGRAM)
