"""Right programs on Paddle that look like those with a bug: no finding above a note, and the same output."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("paddle")

from support.diagnosing import check_healthy

HEAD = """
import copy
import paddle
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])

def net(*extra):
    return nn.Sequential(nn.Linear(6, 8), *extra, nn.Tanh(), nn.Linear(8, 1))

def show(model):
    print(sum(p.abs().sum().item() for p in model.parameters()))
"""

STEPS = """
def accumulation():
    model = net()
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    for number, batch in enumerate(x.split(8) * 2):
        (model(batch).pow(2).mean() / 4).backward()
        if number % 4 == 3:
            norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
            optimizer.clear_grad()
    show(model)

def adversaries():
    g, d = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1D(6)), net()
    og = paddle.optimizer.Adam(0.001, parameters=g.parameters())
    od = paddle.optimizer.Adam(0.001, parameters=d.parameters())
    for _ in range(4):
        with paddle.no_grad():
            fake = g(x)
        od.clear_grad()
        (d(fake).mean() - d(x).mean()).backward()
        od.step()
        og.clear_grad()
        (-d(g(x)).mean()).backward()
        og.step()
    show(g)

def by_hand():
    w = paddle.create_parameter([6, 1], 'float32')
    for _ in range(4):
        ((x @ w - y) ** 2).mean().backward()
        with paddle.no_grad():
            w.set_value(w - 0.1 * w.grad)
        w.clear_grad()
    print(w.sum().item())

def cleared_by_hand():
    model = net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for _ in range(4):
        for p in model.parameters():
            p.clear_gradient(False)
        model(x).pow(2).mean().backward()
        optimizer.step()
        for p in model.parameters():
            p.clear_gradient()
    show(model)

def closure():
    model = net()
    optimizer = paddle.optimizer.LBFGS(max_iter=3, parameters=model.parameters())
    def evaluate():
        optimizer.clear_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(evaluate)
    show(model)

def physics():
    model = net()
    inputs = x.clone()
    inputs.stop_gradient = False
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    for _ in range(4):
        u = model(inputs)
        slope, = paddle.grad(u.sum(), inputs, create_graph=True)
        optimizer.clear_grad()
        (slope.pow(2).mean() + (u - y).pow(2).mean()).backward()
        optimizer.step()
    show(model)

def skipped_batches():
    model = net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for number, batch in enumerate(x.split(8)):
        optimizer.clear_grad()
        model(batch).pow(2).mean().backward()
        if number % 2:
            optimizer.clear_grad()
            continue
        optimizer.step()
    show(model)

def sharpness():
    model = net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for _ in range(4):
        optimizer.clear_grad()
        model(x).pow(2).mean().backward()
        old = [p.detach().clone() for p in model.parameters()]
        with paddle.no_grad():
            for p in model.parameters():
                p.set_value(p + 0.05 * p.grad)
        optimizer.clear_grad()
        model(x).pow(2).mean().backward()
        with paddle.no_grad():
            for p, value in zip(model.parameters(), old):
                p.set_value(value)
        optimizer.step()
    show(model)

def two_losses():
    body, policy, value = nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(4, 1)
    optimizer = paddle.optimizer.Adam(0.001, parameters=[*body.parameters(), *policy.parameters(), *value.parameters()])
    for _ in range(4):
        optimizer.clear_grad()
        hidden = paddle.tanh(body(x))
        nn.functional.log_softmax(policy(hidden))[:, 0].mean().backward(retain_graph=True)
        (value(hidden) - y).pow(2).mean().backward()
        optimizer.step()
    show(body)

def clipped_behind_another_step():
    body, head = net(), net()
    ob = paddle.optimizer.Adam(0.01, parameters=body.parameters())
    oh = paddle.optimizer.SGD(0.01, parameters=head.parameters())
    for _ in range(4):
        ob.clear_grad()
        oh.clear_grad()
        (body(x) + head(x) - y).pow(2).mean().backward()
        ob.step()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        oh.step()
    show(head)

def one_for_each_task():
    model = net()
    def evaluate():
        optimizer.clear_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss
    for _ in range(6):
        optimizer = paddle.optimizer.LBFGS(parameters=model.parameters(), max_iter=3)
        optimizer.step(evaluate)
    show(model)

accumulation(), adversaries(), by_hand(), cleared_by_hand(), closure(), physics(), skipped_batches(), sharpness()
two_losses()
clipped_behind_another_step(), one_for_each_task()
"""

MODELS = """
def frozen_norms():
    model = net(nn.BatchNorm1D(8))
    for p in model[1].parameters():
        p.stop_gradient = True
    model.eval()
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*model[0].parameters(), *model[3].parameters()])
    for _ in range(4):
        optimizer.clear_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    show(model)

def frozen_backbone():
    backbone, head = net(nn.BatchNorm1D(8)), nn.Linear(1, 1)
    backbone.eval()
    for p in backbone.parameters():
        p.stop_gradient = True
    optimizer = paddle.optimizer.SGD(0.1, parameters=[*backbone.parameters(), *head.parameters()])
    for _ in range(4):
        optimizer.clear_grad()
        head(backbone(x)).pow(2).mean().backward()
        optimizer.step()
    show(head)

def head_alone():
    model = net()
    optimizer = paddle.optimizer.SGD(0.1, parameters=model[2].parameters())
    for _ in range(4):
        optimizer.clear_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    show(model)

def perceptual():
    model, judge = nn.Linear(6, 6), net()
    judge.eval()
    optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
    for _ in range(4):
        optimizer.clear_grad()
        (judge(model(x)) - judge(x)).pow(2).mean().backward()
        optimizer.step()
    show(model)

def averaged():
    model = net(nn.Dropout(0.2))
    average = net(nn.Dropout(0.2))
    scheduler = paddle.optimizer.lr.LambdaDecay(0.001, lambda step: min(step / 3, 1))
    optimizer = paddle.optimizer.Adam(scheduler, parameters=model.parameters())
    for epoch in range(3):
        model.train()
        for batch in x.split(2):
            optimizer.clear_grad()
            model(batch).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            with paddle.no_grad():
                for a, p in zip(average.parameters(), model.parameters()):
                    a.set_value(a + 0.1 * (p - a))
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        model.set_state_dict(average.state_dict())
        model.eval()
        with paddle.no_grad():
            print(model(x).mean().item())
        model.set_state_dict(kept)
    model.train()
    with paddle.no_grad():  # Monte-Carlo dropout
        print(paddle.stack([model(x) for _ in range(4)]).std().item())

def scaled():
    model = net()
    scheduler = paddle.optimizer.lr.StepDecay(0.1, 2)
    clip = nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters(), grad_clip=clip)
    scaler = paddle.amp.GradScaler(init_loss_scaling=2.0**60)
    for _ in range(6):
        optimizer.clear_grad()
        scaler.scale(model(x * 1e4).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    show(model)

def resumed():
    model = net()
    scheduler = paddle.optimizer.lr.StepDecay(0.1, 10)
    optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
    for _ in range(3):
        scheduler.step()
    for _ in range(4):
        optimizer.clear_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    show(model)

def learned_to_learn():
    model = net()
    for _ in range(3):
        before = {k: v.clone() for k, v in model.state_dict().items()}
        inner = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        for batch in x.split(2):
            inner.clear_grad()
            model(batch).pow(2).mean().backward()
            inner.step()
        after = model.state_dict()
        model.set_state_dict({k: before[k] + 0.5 * (after[k] - before[k]) for k in before})
    show(model)

def rows():
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = paddle.optimizer.SGD(0.1, parameters=table.parameters())
    for _ in range(4):
        optimizer.clear_grad()
        table(paddle.to_tensor([1, 2])).pow(2).sum().backward()
        optimizer.step()
    show(table)

frozen_backbone(), head_alone(), perceptual(), averaged(), scaled(), resumed(), learned_to_learn(), rows()
frozen_norms()
"""


@pytest.mark.parametrize("program", [STEPS, MODELS], ids=["steps", "models"])
def test_no_false_alarm(tmp_path: Path, program: str) -> None:
    check_healthy(tmp_path, HEAD + program, "--deep")
