"""Right programs on torch that look like those with a bug: no finding above a note, and the same output."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.diagnosing import check_healthy

HEAD = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)

def net(*extra):
    return nn.Sequential(nn.Linear(6, 8), *extra, nn.Tanh(), nn.Linear(8, 1))

def show(model):
    print(sum(p.abs().sum().item() for p in model.parameters()))
"""

STEPS = """
def accumulation():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for number, batch in enumerate(x.split(2) * 2):
        (model(batch).pow(2).mean() / 4).backward()
        if number % 4 == 3:
            norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
            optimizer.zero_grad()
    show(model)

def adversaries():
    g, d = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), net()
    og, od = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
    for _ in range(4):
        with torch.no_grad():
            fake = g(x)
        od.zero_grad()
        (d(fake).mean() - d(x).mean()).backward()
        od.step()
        og.zero_grad()
        (-d(g(x)).mean()).backward()
        og.step()
    show(g)

def by_hand():
    w = torch.randn(6, 1, requires_grad=True)
    for _ in range(4):
        ((x @ w - y) ** 2).mean().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
    print(w.sum().item())

def cleared_by_hand():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for p in model.parameters():
            p.grad = None
        model(x).pow(2).mean().backward()
        optimizer.step()
        for p in model.parameters():
            p.grad.detach_().zero_()
    show(model)

def closure():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    def evaluate():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(evaluate)
    show(model)

def physics():
    model = net()
    inputs = x.clone().requires_grad_()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        u = model(inputs)
        slope, = torch.autograd.grad(u.sum(), inputs, create_graph=True)
        optimizer.zero_grad()
        (slope.pow(2).mean() + (u - y).pow(2).mean()).backward()
        optimizer.step()
    show(model)

def skipped_batches():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(x.split(2)):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        if number % 2:
            optimizer.zero_grad()
            continue
        optimizer.step()
    show(model)

def sharpness():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        old = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.add_(p.grad, alpha=0.05)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        with torch.no_grad():
            for p, value in zip(model.parameters(), old):
                p.copy_(value)
        optimizer.step()
    show(model)

def two_losses():
    body, policy, value = nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*body.parameters(), *policy.parameters(), *value.parameters()])
    for _ in range(4):
        optimizer.zero_grad()
        hidden = torch.tanh(body(x))
        policy(hidden).log_softmax(1)[:, 0].mean().backward(retain_graph=True)
        (value(hidden) - y).pow(2).mean().backward()
        optimizer.step()
    show(body)

def clipped_behind_another_step():
    body, head = net(), net()
    ob, oh = torch.optim.Adam(body.parameters(), 0.01), torch.optim.SGD(head.parameters(), 0.01)
    for _ in range(4):
        ob.zero_grad()
        oh.zero_grad()
        (body(x) + head(x) - y).pow(2).mean().backward()
        ob.step()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        oh.step()
    show(head)

def scheduled_behind_a_closure():
    for optim in (lambda p: torch.optim.LBFGS(p, max_iter=3), lambda p: torch.optim.SGD(p, lr=0.1)):
        model = net()
        optimizer = optim(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        def evaluate():
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            return loss
        for _ in range(4):
            optimizer.step(evaluate)
            scheduler.step()
        show(model)

def one_for_each_task():
    model = net()
    def evaluate():
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss
    for _ in range(6):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        optimizer.step(evaluate)
    show(model)

accumulation(), adversaries(), by_hand(), cleared_by_hand(), closure(), physics(), skipped_batches(), sharpness()
two_losses()
clipped_behind_another_step(), scheduled_behind_a_closure(), one_for_each_task()
"""

MODELS = """
def frozen_norms():
    model = net(nn.BatchNorm1d(8))
    model[1].requires_grad_(False)
    model.eval()
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[3].parameters()], 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    show(model)

def frozen_backbone():
    backbone, head = net(nn.BatchNorm1d(8)), nn.Linear(1, 1)
    backbone.requires_grad_(False).eval()
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        head(backbone(x)).pow(2).mean().backward()
        optimizer.step()
    show(head)

def head_alone():
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    show(model)

def perceptual():
    model, judge = nn.Linear(6, 6), net().eval()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        (judge(model(x)) - judge(x)).pow(2).mean().backward()
        optimizer.step()
    show(model)

def averaged():
    model = net(nn.Dropout(0.2))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 3, 1))
    for epoch in range(3):
        model.train()
        for batch in x.split(8):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters()):
                    a.lerp_(p, 0.1)
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.state_dict())
        model.eval()
        with torch.no_grad():
            print(model(x).mean().item())
        model.load_state_dict(kept)
    model.train()
    with torch.no_grad():  # Monte-Carlo dropout
        print(torch.stack([model(x) for _ in range(4)]).std().item())

def scaled():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60 * 2.0**60)
    for _ in range(6):
        optimizer.zero_grad()
        scaler.scale(model(x * 1e4).pow(2).mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    show(model)

def resumed():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(3):
        scheduler.step()
    for _ in range(4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    show(model)

def learned_to_learn():
    model = net()
    for _ in range(3):
        before = copy.deepcopy(model.state_dict())
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in x.split(8):
            inner.zero_grad()
            model(batch).pow(2).mean().backward()
            inner.step()
        after = model.state_dict()
        model.load_state_dict({k: before[k] + 0.5 * (after[k] - before[k]) for k in before})
    show(model)

def rows():
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).pow(2).sum().backward()
        optimizer.step()
    show(table)

frozen_backbone(), head_alone(), perceptual(), averaged(), scaled(), resumed(), learned_to_learn(), rows()
frozen_norms()
"""


@pytest.mark.parametrize("program", [STEPS, MODELS], ids=["steps", "models"])
def test_no_false_alarm(tmp_path: Path, program: str) -> None:
    check_healthy(tmp_path, HEAD + program, "--deep")
