"""Rates, schedulers, clipping, modes and updates on torch: programs as people write them, with one bug each."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run, kind_of

HEAD = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
pairs = list(zip(x.split(4), y.split(4)))

def net(*extra):
    return nn.Sequential(nn.Linear(6, 8), *extra, nn.Tanh(), nn.Linear(8, 1))

def fit(model, optimizer, after=lambda: None, epochs=3):
    for epoch in range(epochs):
        for batch, target in pairs:
            optimizer.zero_grad()
            F.mse_loss(model(batch), target).backward()
            optimizer.step()
        after()
"""

BUGS = {
    "zero-learning-rate: a warm-up of integers": """
def warm(step):
    return min(1, step // 1000)  # CAUSE
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda=warm)
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: a partial of a function that divides integers": """
from functools import partial
def ramp(step, *, warm, floor=0.1):
    up = (step + 1) // warm  # CAUSE
    return up if step < warm else floor
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(partial(ramp, floor=0.2), warm=50))
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: an object that cuts its factor off": """
class Schedule:
    def __init__(self, warm):
        self.warm = warm
    def __call__(self, step):
        if step > self.warm:
            return 1.0
        share = step / self.warm
        return int(share)  # CAUSE
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, Schedule(50))
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: a method of two returns": """
class Trainer:
    def __init__(self):
        self.total = 100
    def factor(self, step):  # CAUSE
        if step < self.total:
            return 0.5 * (step > self.total)
        return round(0.1 * step / self.total)
trainer, model = Trainer(), net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, trainer.factor)
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: a rate that integer division made": """
epochs, warm = 3, 10
model = net()
rate = epochs // warm
optimizer = torch.optim.SGD(model.parameters(), lr=rate)  # CAUSE
fit(model, optimizer)
""",
    "schedule-order: in a trainer": """
class Trainer:
    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=8)

    def optimise(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.scheduler.step()  # CAUSE
        self.optimizer.step()

trainer = Trainer()
for batch, target in pairs:
    trainer.optimise(F.mse_loss(trainer.model(batch), target))
""",
    "schedule-unused: of an optimizer that was replaced": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)  # CAUSE
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
fit(model, optimizer, scheduler.step)
""",
    "schedule-unused: never stepped": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)  # CAUSE

    def run(self):
        fit(self.model, self.optimizer)
        print(self.schedule.get_last_lr())

Trainer(net()).run()
""",
    "schedule-unused: named but not called": """
generator, critic = nn.Linear(6, 6), net()
opt_g, opt_c = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
sched_g = torch.optim.lr_scheduler.ExponentialLR(opt_g, 0.99)
sched_c = torch.optim.lr_scheduler.ExponentialLR(opt_c, 0.99)
for batch, _ in pairs * 3:
    opt_c.zero_grad()
    critic(generator(batch).detach()).mean().backward()
    opt_c.step()
    opt_g.zero_grad()
    critic(generator(batch)).mean().backward()
    opt_g.step()
    sched_c.step()
    sched_g.step  # CAUSE
""",
    "clipping-order: while the loss is scaled": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for batch, target in pairs:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(batch), target)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # CAUSE
    scaler.step(optimizer)
    scaler.update()
""",
    "clipping-order: a loss that is scaled by hand": """
class Trainer:
    scale = 1024.0

    def __init__(self):
        self.model = net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self, batch, target):
        self.optimizer.zero_grad()
        (F.mse_loss(self.model(batch), target) * self.scale).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 0.5)  # CAUSE
        for parameter in self.model.parameters():
            parameter.grad /= self.scale
        self.optimizer.step()

trainer = Trainer()
for pair in pairs:
    trainer.step(*pair)
""",
    "large-update: a rate for another optimizer": """
model = net(nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=300.0)  # CAUSE
fit(model, optimizer, epochs=20)
""",
    "large-update: in a trainer with two groups": """
class Trainer:
    def __init__(self):
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 1)
        self.optimizer = torch.optim.SGD([  # CAUSE
            {"params": self.body.parameters(), "lr": 50.0}, {"params": self.head.parameters(), "lr": 50.0},
        ], momentum=0.9)

    def step(self, batch, target):
        self.optimizer.zero_grad()
        loss = (self.head(F.relu(self.body(batch))) - target).pow(2).mean()
        loss.backward()
        self.optimizer.step()

trainer = Trainer()
for pair in pairs * 6:
    trainer.step(*pair)
""",
    "large-update: without a module": """
w = torch.randn(6, 8, requires_grad=True)
v = torch.randn(8, 1, requires_grad=True)
optimizer = torch.optim.SGD([w, v], lr=20.0)  # CAUSE
for batch, target in pairs * 6:
    loss = F.mse_loss(batch @ w @ v, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "undivided: parts of a batch": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for number, (batch, target) in enumerate(pairs, 1):
        F.mse_loss(model(batch), target).backward()  # CAUSE
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "undivided: in a trainer that accumulates": """
class Trainer:
    def __init__(self, every):
        self.model, self.every, self.seen = net(), every, 0
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def backward(self, loss):
        loss.backward()  # CAUSE
        self.seen += 1
        if self.seen == self.every:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.seen = 0

trainer = Trainer(2)
for batch, target in pairs * 2:
    trainer.backward(F.mse_loss(trainer.model(batch), target))
""",
    "undivided: views of one batch": """
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    for part in x.chunk(4):
        loss = model(part).pow(2).mean()
        loss.backward()  # CAUSE
    optimizer.step()
""",
    "wrong-mode: dropout that knows no mode": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.dropout(x, 0.3)  # CAUSE
        return self.last(x)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

def validate():
    model.eval()
    with torch.no_grad():
        print(F.mse_loss(model(x), y).item())
    model.train()

fit(model, optimizer, validate, epochs=5)
""",
    "wrong-mode: attention that drops in evaluation": """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # CAUSE
        return self.out(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Attention()

    def forward(self, x):
        return self.inner(x[:, None])[:, 0]

model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

@torch.no_grad()
def evaluate(model):
    value = F.mse_loss(model.eval()(x), y).item()
    model.train()
    print(value)

fit(model, optimizer, lambda: evaluate(model), epochs=5)
""",
    "wrong-mode: eval without parentheses": """
model = net(nn.Dropout(0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def validate():
    model.eval  # CAUSE
    with torch.no_grad():
        print(F.mse_loss(model(x), y).item())

fit(model, optimizer, validate)
""",
    "lost-update: weights that a class puts back": """
class Ema:
    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = 1.0 * self.shadow[name] + 0.0 * p.detach()

    def apply(self, model):
        for name, p in model.named_parameters():
            p.data.copy_(self.shadow[name])  # CAUSE

model = net()
ema = Ema(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for batch, target in pairs * 2:
    optimizer.zero_grad()
    F.mse_loss(model(batch), target).backward()
    optimizer.step()
    ema.update(model)
    ema.apply(model)
""",
}

HEALTHY = {
    "a warm-up of whole epochs, which begins at 0": """
from functools import partial
def ramp(step, *, every):
    return min(1, (step + 1) // every)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(ramp, every=2))
fit(model, optimizer, scheduler.step)
""",
    "unscaled before it is clipped": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for batch, target in pairs * 3:
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(batch), target)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "noise behind clipping": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in pairs * 3:
    optimizer.zero_grad()
    F.mse_loss(model(batch), target).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for p in model.parameters():
        p.grad.add_(0.01 * torch.randn_like(p))
    optimizer.step()
""",
    "schedulers in a row": """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
lr = torch.optim.lr_scheduler
scheduler = lr.SequentialLR(optimizer, [lr.LinearLR(optimizer, total_iters=2), lr.CosineAnnealingLR(optimizer, 9)], [2])
fit(model, optimizer, scheduler.step)
""",
    "a scheduler that waits": """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

def after():
    with torch.no_grad():
        plateau.step(F.mse_loss(model(x), y).item())

fit(model, optimizer, after)
""",
    "dropout that follows the mode": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(6, 16), nn.Linear(16, 1), nn.Dropout(0.2)

    def forward(self, x, sample=False):
        x = self.drop(F.relu(self.first(x)))
        x = F.dropout(x, 0.3, self.training)
        x = F.dropout(x, p=0.1, training=self.training)
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)
        if sample:
            x = F.dropout(x, p=0.1, training=True)
        return self.last(x)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    model.train()
    fit(model, optimizer, epochs=1)
    model.eval()
    with torch.no_grad():
        print(F.mse_loss(model(x), y).item(), model(x, True).std().item())
""",
    "weights that grow from little": """
model = net()
for p in model.parameters():
    nn.init.normal_(p, std=1e-4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
fit(model, optimizer, epochs=5)
""",
    "a loss that ends in infinity by a batch": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number, (batch, target) in enumerate(pairs * 2):
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch), target)
    if not torch.isfinite(loss * (1 + number)):
        continue
    loss.backward()
    optimizer.step()
""",
}

# It acts at every step.
NOTES = {"noise behind clipping": ["clipping-order"]}
PROGRAMS = BUGS | HEALTHY


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    kind = kind_of(name)
    if kind == "large-update":  # of a loss that overflows "nonfinite" is read first, with it under that: the same line
        runs[name].check_names(kind)
    else:
        runs[name].check_first(kind)


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*NOTES.get(name, []))
