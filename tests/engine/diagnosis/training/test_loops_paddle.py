"""Training loops on Paddle as people write them, with one bug each: classes, several optimizers, groups, a scaler."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of

HEAD = """
import copy
import paddle
import paddle.nn.functional as F
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
pairs = list(zip(x.split(4), y.split(4)))

def net(*extra):
    return nn.Sequential(nn.Linear(6, 8), *extra, nn.Tanh(), nn.Linear(8, 1))
"""

BUGS = {
    "zero-grad: of the critic of two networks": """
generator, critic = nn.Linear(6, 6), net()
opt_g = paddle.optimizer.Adam(0.001, parameters=generator.parameters())
opt_c = paddle.optimizer.Adam(0.001, parameters=critic.parameters())
for _ in range(20):
    critic(generator(x).detach()).mean().backward()
    opt_c.step()  # CAUSE
    opt_g.clear_grad()
    critic(generator(x)).mean().backward()
    opt_g.step()
""",
    "zero-grad: named but not called": """
model = net()
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for epoch in range(20):
    loss = F.mse_loss(model(x), y)
    optimizer.clear_grad  # CAUSE
    loss.backward()
    optimizer.step()
""",
    "cleared-gradients: by the trainer's own method": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, paddle.optimizer.AdamW(1e-3, parameters=model.parameters())

    def reset(self):
        self.optimizer.clear_grad()  # CAUSE

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
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())

def regularise(parameters):
    for parameter in parameters:
        parameter.grad = paddle.zeros_like(parameter)  # CAUSE

def update(batch, target):
    F.mse_loss(model(batch), target).backward()
    regularise(model.parameters())
    optimizer.step()
    optimizer.clear_grad()

for batch, target in pairs:
    update(batch, target)
""",
    "dropped-gradients: multiplied by nothing": """
class Loop:
    warmup = 0

    def __init__(self):
        self.model = net(nn.LayerNorm(8))
        self.optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=self.model.parameters())

    def __call__(self, batch, target):
        self.optimizer.clear_grad()
        loss = F.smooth_l1_loss(self.model(batch), target)
        loss.backward()
        for parameter in self.model.parameters():
            parameter.grad.set_value(parameter.grad * self.warmup)  # CAUSE
        self.optimizer.step()

loop = Loop()
for batch, target in pairs:
    loop(batch, target)
""",
    "step-order: clear_grad, step, backward in a method": """
class Trainer:
    def __init__(self):
        self.model = net()
        self.sched = paddle.optimizer.lr.StepDecay(1e-3, 100)
        self.opt = paddle.optimizer.Adam(self.sched, parameters=self.model.parameters())

    def train_step(self, batch, target):
        loss = F.mse_loss(self.model(batch), target)
        self.opt.clear_grad()
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
optimizer = paddle.optimizer.SGD(1e-2, parameters=[
    {"params": model[0].parameters(), "learning_rate": 0.1},
    {"params": model[2].parameters()},
])
losses = []
for epoch in range(2):
    for batch, target in pairs:
        model.clear_gradients()
        out = model(batch)
        optimizer.step()  # CAUSE
        loss = F.l1_loss(out, target)
        loss.backward()
        losses.append(loss.item())
""",
    "not-optimized: the same model twice": """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
first = paddle.optimizer.Adam(1e-3, parameters=encoder.parameters())
second = paddle.optimizer.Adam(1e-3, parameters=encoder.parameters())  # CAUSE
for batch, _ in pairs * 2:
    first.clear_grad()
    second.clear_grad()
    decoder.clear_gradients()
    F.mse_loss(decoder(F.tanh(encoder(batch))), batch).backward()
    first.step()
    second.step()
""",
    "no-backward: named but not called": """
model = net()
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch, target in pairs:
    optimizer.clear_grad()
    loss = F.mse_loss(model(batch), target)
    loss.backward  # CAUSE
    optimizer.step()
""",
    "no-backward: forgotten in a trainer": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, paddle.optimizer.Adam(1e-3, parameters=model.parameters())

    def step(self, batch, target):
        self.optimizer.clear_grad()
        loss = F.mse_loss(self.model(batch), target)
        self.optimizer.step()  # CAUSE
        return loss.item()

trainer = Trainer(net())
print(sum(trainer.step(*pair) for pair in pairs))
""",
    "no-backward: both networks": """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
scheduler = paddle.optimizer.lr.ExponentialDecay(0.01, 0.9)
groups = [{"params": encoder.parameters()}, {"params": decoder.parameters(), "learning_rate": 0.1}]
optimizer = paddle.optimizer.RMSProp(scheduler, parameters=groups)
for epoch in range(2):
    for batch, _ in pairs:
        loss = F.mse_loss(decoder(encoder(batch)), batch)
        optimizer.clear_grad()
        optimizer.step()  # CAUSE
    scheduler.step()
""",
    "stale-parameters: a head that is replaced by a function": """
def prepare(model, classes):
    model.head = nn.Linear(8, classes)
    return model

class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(F.relu(self.body(x)))

model = Net()
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())  # CAUSE
prepare(model, 1)
for epoch in range(2):
    for batch, target in pairs:
        optimizer.clear_grad()
        model.clear_gradients()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "frozen-in-optimizer: a plain tensor": """
model = nn.Linear(6, 1)
scale = paddle.ones([1])  # CAUSE
optimizer = paddle.optimizer.SGD(0.01, parameters=[*model.parameters(), scale])
for batch, target in pairs:
    optimizer.clear_grad()
    F.mse_loss(model(batch) * scale, target).backward()
    optimizer.step()
""",
    "frozen-in-optimizer: an encoder that stays frozen": """
class Trainer:
    def __init__(self):
        self.encoder, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.opt_encoder = paddle.optimizer.Adam(1e-3, parameters=self.encoder.parameters())
        self.opt_head = paddle.optimizer.Adam(1e-3, parameters=self.head.parameters())
        self.warm_up()

    def warm_up(self):
        for parameter in self.encoder.parameters():
            parameter.stop_gradient = True  # CAUSE

    def step(self, batch, target):
        self.opt_encoder.clear_grad()
        self.opt_head.clear_grad()
        F.mse_loss(self.head(F.relu(self.encoder(batch))), target).backward()
        self.opt_encoder.step()
        self.opt_head.step()

trainer = Trainer()
for batch, target in pairs:
    trainer.step(batch, target)
""",
    "frozen-in-optimizer: an attribute that is no parameter": """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 1)
        self.temperature = paddle.to_tensor([2.0])  # CAUSE

    def forward(self, x):
        return self.fc(x) / self.temperature

model = Net()
optimizer = paddle.optimizer.AdamW(1e-3, parameters=[*model.fc.parameters(), model.temperature])
for batch, target in pairs:
    optimizer.clear_grad()
    F.l1_loss(model(batch), target).backward()
    optimizer.step()
""",
    "optimizer-remade: in the function of a step": """
model = net()

def train_step(batch, target):
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())  # CAUSE
    optimizer.clear_grad()
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
        return paddle.optimizer.Momentum(self.rate, 0.9, parameters=self.model.parameters())  # CAUSE

    def fit(self):
        for batch, target in pairs * 2:
            optimizer = self.optimizer()
            self.model.clear_gradients()
            F.mse_loss(self.model(batch), target).backward()
            optimizer.step()
            self.rate *= 0.95

Trainer().fit()
""",
    "optimizer-remade: of both networks": """
generator, critic = nn.Linear(6, 6), net()
opt_g = paddle.optimizer.Adam(1e-3, parameters=generator.parameters())
for batch, _ in pairs * 2:
    opt_c = paddle.optimizer.RMSProp(1e-3, parameters=critic.parameters())  # CAUSE
    opt_c.clear_grad()
    (critic(generator(batch).detach()).mean() - critic(batch).mean()).backward()
    opt_c.step()
    opt_g.clear_grad()
    (-critic(generator(batch)).mean()).backward()
    opt_g.step()
""",
}

HEALTHY = {
    "evolution strategies": """
model = net()
optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
for _ in range(5):
    with paddle.no_grad():
        for p in model.parameters():
            p.grad = paddle.randn(p.shape) * F.mse_loss(model(x), y)
    optimizer.step()
""",
    "gradients of autograd.grad": """
model = net()
optimizer = paddle.optimizer.SGD(1e-2, parameters=model.parameters())
for batch, target in pairs:
    grads = paddle.grad(F.mse_loss(model(batch), target), list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    optimizer.step()
""",
    "an optimizer a task": """
model = net()
for task in range(4):
    optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
    for batch, target in pairs[:3]:
        optimizer.clear_grad()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "plain SGD made anew": """
model = net()
for number, (batch, target) in enumerate(pairs * 2):
    optimizer = paddle.optimizer.SGD(0.1 / (number + 1), parameters=model.parameters())
    optimizer.clear_grad()
    F.mse_loss(model(batch), target).backward()
    optimizer.step()
""",
    "layers frozen in stages": """
model = net()
for p in model[0].parameters():
    p.stop_gradient = True
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for epoch in range(4):
    if epoch == 2:
        for p in model[0].parameters():
            p.stop_gradient = False
    for batch, target in pairs:
        optimizer.clear_grad()
        F.mse_loss(model(batch), target).backward()
        optimizer.step()
""",
    "two networks, each cleared by its own": """
class Gan:
    def __init__(self):
        self.g, self.d = nn.Linear(6, 6), net(nn.Dropout(0.1))
        self.opt = {n: paddle.optimizer.Adam(1e-3, parameters=getattr(self, n).parameters()) for n in "gd"}

    def update(self, name, loss):
        self.opt[name].clear_grad()
        loss.backward()
        self.opt[name].step()

    def fit(self):
        for batch, _ in pairs * 5:
            self.update("d", self.d(self.g(batch).detach()).mean() - self.d(batch).mean())
            self.update("g", -self.d(self.g(batch)).mean())

Gan().fit()
""",
}

PROGRAMS = BUGS | HEALTHY


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
