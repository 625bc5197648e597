"""Training loops on torch as people write them, with one bug each: classes, several optimizers, groups, a scaler."""

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
"""

BUGS = {
    "zero-grad: of the critic of two networks": """
generator, critic = nn.Linear(6, 6), net()
opt_g, opt_c = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
for _ in range(20):
    critic(generator(x).detach()).mean().backward()
    opt_c.step()  # CAUSE
    opt_g.zero_grad()
    critic(generator(x)).mean().backward()
    opt_g.step()
""",
    "zero-grad: named but not called": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(20):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad  # CAUSE
    loss.backward()
    optimizer.step()
""",
    "cleared-gradients: by the trainer's own method": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def reset(self):
        self.optimizer.zero_grad(set_to_none=True)  # CAUSE

    def fit(self, batches):
        for batch, target in batches:
            F.mse_loss(self.model(batch), target).backward()
            self.reset()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1e6)
            self.optimizer.step()

Trainer(net()).fit(pairs)
""",
    "dropped-gradients: of what was detached": """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

def regularise(parameters):
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)  # CAUSE

def update(batch, target):
    F.mse_loss(model(batch), target).backward()
    regularise(model.parameters())
    optimizer.step()
    optimizer.zero_grad()

for batch, target in pairs:
    update(batch, target)
""",
    "dropped-gradients: multiplied by nothing": """
class Loop:
    warmup = 0

    def __init__(self):
        self.model = net(nn.LayerNorm(8))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def __call__(self, batch, target):
        self.optimizer.zero_grad()
        loss = F.smooth_l1_loss(self.model(batch), target)
        loss.backward()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.warmup)  # CAUSE
        self.optimizer.step()

loop = Loop()
for batch, target in pairs:
    loop(batch, target)
""",
    "step-order: zero_grad, step, backward in a method": """
class Trainer:
    def __init__(self):
        self.model = net()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 100)

    def train_step(self, batch, target):
        loss = F.mse_loss(self.model(batch), target)
        self.opt.zero_grad()
        self.opt.step()  # CAUSE
        loss.backward()
        return loss.item()

trainer = Trainer()
for batch, target in pairs:
    trainer.train_step(batch, target)
trainer.sched.step()
""",
    "step-order: with two parameter groups": """
model = net()
optimizer = torch.optim.SGD([
    {"params": model[0].parameters(), "lr": 1e-3},
    {"params": model[2].parameters()},
], lr=1e-2)
losses = []
for epoch in range(2):
    for batch, target in pairs:
        model.zero_grad()
        out = model(batch)
        optimizer.step()  # CAUSE
        loss = F.l1_loss(out, target)
        loss.backward()
        losses.append(loss.item())
""",
    "not-optimized: the same model twice": """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
first = torch.optim.Adam(encoder.parameters(), lr=1e-3)
second = torch.optim.Adam(encoder.parameters(), lr=1e-3)  # CAUSE
for batch, _ in pairs * 2:
    first.zero_grad()
    second.zero_grad()
    decoder.zero_grad()
    F.mse_loss(decoder(torch.tanh(encoder(batch))), batch).backward()
    first.step()
    second.step()
""",
    "no-backward: named but not called": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, target in pairs:
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch), target)
    loss.backward  # CAUSE
    optimizer.step()
""",
    "no-backward: forgotten in a trainer": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(self, batch, target):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(batch), target)
        self.optimizer.step()  # CAUSE
        return loss.item()

trainer = Trainer(net())
print(sum(trainer.step(*pair) for pair in pairs))
""",
    "no-backward: both networks": """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
optimizer = torch.optim.RMSprop([{"params": encoder.parameters()}, {"params": decoder.parameters(), "lr": 1e-4}])
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for epoch in range(2):
    for batch, _ in pairs:
        loss = F.mse_loss(decoder(encoder(batch)), batch)
        optimizer.zero_grad()
        optimizer.step()  # CAUSE
    scheduler.step()
""",
    "stale-parameters: a head that is replaced by a function": """
def prepare(model, classes):
    model.head = nn.Linear(8, classes)
    return model

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # CAUSE
prepare(model, 1)
for epoch in range(2):
    for batch, target in pairs:
        optimizer.zero_grad()
        model.zero_grad()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "frozen-in-optimizer: a plain tensor": """
model = nn.Linear(6, 1)
scale = torch.ones(1)  # CAUSE
optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.01)
for batch, target in pairs:
    optimizer.zero_grad()
    F.mse_loss(model(batch) * scale, target).backward()
    optimizer.step()
""",
    "frozen-in-optimizer: an encoder that stays frozen": """
class Trainer:
    def __init__(self):
        self.encoder, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.opt_encoder = torch.optim.Adam(self.encoder.parameters(), lr=1e-3)
        self.opt_head = torch.optim.Adam(self.head.parameters(), lr=1e-3)
        self.warm_up()

    def warm_up(self):
        for parameter in self.encoder.parameters():
            parameter.requires_grad = False  # CAUSE

    def step(self, batch, target):
        self.opt_encoder.zero_grad()
        self.opt_head.zero_grad()
        F.mse_loss(self.head(torch.relu(self.encoder(batch))), target).backward()
        self.opt_encoder.step()
        self.opt_head.step()

trainer = Trainer()
for batch, target in pairs:
    trainer.step(batch, target)
""",
    "frozen-in-optimizer: an attribute that is no parameter": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
        self.temperature = torch.tensor(2.0)  # CAUSE

    def forward(self, x):
        return self.fc(x) / self.temperature

model = Net()
groups = [{"params": model.fc.parameters()}, {"params": [model.temperature], "lr": 0.1}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
for batch, target in pairs:
    optimizer.zero_grad(set_to_none=True)
    F.l1_loss(model(batch), target).backward()
    optimizer.step()
""",
    "optimizer-remade: in the function of a step": """
model = net()

def train_step(batch, target):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # CAUSE
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch), target)
    loss.backward()
    optimizer.step()
    return loss.item()

for _ in range(2):
    for pair in pairs:
        train_step(*pair)
""",
    "optimizer-remade: with a rate of its own": """
class Trainer:
    def __init__(self):
        self.model, self.rate = net(), 0.1

    def optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=0.9)  # CAUSE

    def fit(self):
        for batch, target in pairs * 2:
            optimizer = self.optimizer()
            self.model.zero_grad()
            F.mse_loss(self.model(batch), target).backward()
            optimizer.step()
            self.rate *= 0.95

Trainer().fit()
""",
    "optimizer-remade: of both networks": """
generator, critic = nn.Linear(6, 6), net()
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
for batch, _ in pairs * 2:
    opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)  # CAUSE
    opt_c.zero_grad()
    (critic(generator(batch).detach()).mean() - critic(batch).mean()).backward()
    opt_c.step()
    opt_g.zero_grad()
    (-critic(generator(batch)).mean()).backward()
    opt_g.step()
""",
}

SKIPPED = """
model = nn.Linear(6, 1)
nn.init.constant_(model.weight, 1e-3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**125)
for batch, target in pairs:
    optimizer.zero_grad()
    scaler.scale(F.l1_loss(model(batch * 1e3), target)).backward()
    scaler.step(optimizer)
    scaler.update()
"""

HEALTHY = {
    "evolution strategies": """
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    with torch.no_grad():
        for p in model.parameters():
            p.grad = torch.randn_like(p) * F.mse_loss(model(x), y)
    optimizer.step()
""",
    "gradients of autograd.grad": """
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for batch, target in pairs:
    grads = torch.autograd.grad(F.mse_loss(model(batch), target), list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    optimizer.step()
""",
    "an optimizer a task": """
model = net()
for task in range(4):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch, target in pairs[:3]:
        optimizer.zero_grad()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "plain SGD made anew": """
model = net()
for number, (batch, target) in enumerate(pairs * 2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (number + 1))
    optimizer.zero_grad()
    F.mse_loss(model(batch), target).backward()
    optimizer.step()
""",
    "layers frozen in stages": """
model = net()
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    if epoch == 2:
        model[0].requires_grad_(True)
    for batch, target in pairs:
        optimizer.zero_grad()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "two networks, each cleared by its own": """
class Gan:
    def __init__(self):
        self.g, self.d = nn.Linear(6, 6), net(nn.Dropout(0.1))
        self.opt = {n: torch.optim.Adam(getattr(self, n).parameters(), lr=1e-3) for n in "gd"}

    def update(self, name, loss):
        self.opt[name].zero_grad()
        loss.backward()
        self.opt[name].step()

    def fit(self):
        for batch, _ in pairs * 5:
            self.update("d", self.d(self.g(batch).detach()).mean() - self.d(batch).mean())
            self.update("g", -self.d(self.g(batch)).mean())

Gan().fit()
""",
}

PROGRAMS = BUGS | HEALTHY | {"skipped": SKIPPED}


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


def test_names_say_whose_they_are_and_iterations_are_those_of_the_loop(runs: dict[str, Run]) -> None:
    run = runs["zero-grad: of the critic of two networks"]
    (found,) = run.above_notes()
    assert "critic.0.weight" in found["message"], str(run)
    assert "b param:0.weight after" in found["next"], "a command takes the path in the module"
    assert run.iterations == 20, "each with two backwards"
    assert "add up over 20 steps" in found["message"], str(run)
    assert runs["two networks, each cleared by its own"].iterations == 20, "two backwards of one line, called from two"


def test_a_scaler_that_leaves_all_steps_out_forgets_none(runs: dict[str, Run]) -> None:
    """What is not finite is another finding."""
    assert {each["kind"] for each in runs["skipped"].above_notes()} <= {"nonfinite"}, str(runs["skipped"])
