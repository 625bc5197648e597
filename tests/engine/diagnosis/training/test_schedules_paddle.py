"""Rates, schedulers, clipping, modes and updates on Paddle: programs as people write them, with one bug each."""

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

def fit(model, optimizer, after=lambda: None, epochs=3):
    for epoch in range(epochs):
        for batch, target in pairs:
            optimizer.clear_grad()
            F.mse_loss(model(batch), target).backward()
            optimizer.step()
        after()
"""

BUGS = {
    "zero-learning-rate: a warm-up of integers": """
def warm(step):
    return min(1, step // 1000)  # CAUSE
model = net()
scheduler = paddle.optimizer.lr.LambdaDecay(0.1, lr_lambda=warm)
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: a warm-up from 0 that is never stepped": """
def schedule(peak):
    body = paddle.optimizer.lr.PolynomialDecay(peak, decay_steps=40)
    return paddle.optimizer.lr.LinearWarmup(body, warmup_steps=6, start_lr=0.0, end_lr=peak)
model = net()
rates = schedule(0.1)
optimizer = paddle.optimizer.Adam(rates, parameters=model.parameters())
for batch, target in pairs:
    F.mse_loss(model(batch), target).backward()
    optimizer.step()  # CAUSE
    optimizer.clear_grad()
""",
    "zero-learning-rate: a partial of a function that divides integers": """
from functools import partial
def ramp(step, *, warm, floor=0.1):
    up = (step + 1) // warm  # CAUSE
    return up if step < warm else floor
model = net()
scheduler = paddle.optimizer.lr.LambdaDecay(0.1, partial(partial(ramp, floor=0.2), warm=50))
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
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
scheduler = paddle.optimizer.lr.LambdaDecay(0.1, Schedule(50))
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
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
scheduler = paddle.optimizer.lr.LambdaDecay(0.1, trainer.factor)
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
fit(model, optimizer, scheduler.step)
""",
    "zero-learning-rate: a rate that integer division made": """
epochs, warm = 3, 10
model = net()
rate = float(epochs // warm)
optimizer = paddle.optimizer.SGD(rate, parameters=model.parameters())  # CAUSE
fit(model, optimizer)
""",
    "zero-learning-rate: the first rate of a warm-up as a number": """
model = net()
inner = paddle.optimizer.lr.CosineAnnealingDecay(0.1, 10)
scheduler = paddle.optimizer.lr.LinearWarmup(inner, 4, 0.0, 0.1)
optimizer = paddle.optimizer.Adam(scheduler.get_lr(), parameters=model.parameters())  # CAUSE
fit(model, optimizer, scheduler.step)
""",
    "schedule-order: in a trainer": """
class Trainer:
    def __init__(self):
        self.model = net()
        self.scheduler = paddle.optimizer.lr.LinearWarmup(1e-3, 8, 1e-4, 1e-3)
        self.optimizer = paddle.optimizer.AdamW(self.scheduler, parameters=self.model.parameters())

    def optimise(self, loss):
        self.optimizer.clear_grad()
        loss.backward()
        self.scheduler.step()  # CAUSE
        self.optimizer.step()

trainer = Trainer()
for batch, target in pairs:
    trainer.optimise(F.mse_loss(trainer.model(batch), target))
""",
    "schedule-unused: of no optimizer": """
model = net()
scheduler = paddle.optimizer.lr.StepDecay(0.1, 2)
optimizer = paddle.optimizer.Adam(scheduler.get_lr(), parameters=model.parameters())  # CAUSE
fit(model, optimizer, scheduler.step)
""",
    "schedule-unused: never stepped": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.schedule = paddle.optimizer.lr.CosineAnnealingDecay(0.1, 10)  # CAUSE
        self.optimizer = paddle.optimizer.SGD(self.schedule, parameters=model.parameters())

    def run(self):
        fit(self.model, self.optimizer)
        print(self.schedule.get_lr())

Trainer(net()).run()
""",
    "schedule-unused: named but not called": """
generator, critic = nn.Linear(6, 6), net()
sched_g = paddle.optimizer.lr.ExponentialDecay(1e-3, 0.99)
sched_c = paddle.optimizer.lr.ExponentialDecay(1e-3, 0.99)
opt_g = paddle.optimizer.Adam(sched_g, parameters=generator.parameters())
opt_c = paddle.optimizer.Adam(sched_c, parameters=critic.parameters())
for batch, _ in pairs * 3:
    opt_c.clear_grad()
    critic(generator(batch).detach()).mean().backward()
    opt_c.step()
    opt_g.clear_grad()
    critic(generator(batch)).mean().backward()
    opt_g.step()
    sched_c.step()
    sched_g.step  # CAUSE
""",
    "clipping-order: before a step that divides": """
model = net()
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())

def divide(parameters, by):
    for parameter in parameters:
        parameter.grad = parameter.grad / by

for batch, target in pairs:
    optimizer.clear_grad()
    (256 * F.mse_loss(model(batch), target)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # CAUSE
    divide(model.parameters(), 256)
    optimizer.step()
""",
    "clipping-order: a loss that is scaled by hand": """
class Trainer:
    scale = 1024.0

    def __init__(self):
        self.model = net()
        self.optimizer = paddle.optimizer.Adam(1e-3, parameters=self.model.parameters())

    def step(self, batch, target):
        self.optimizer.clear_grad()
        (F.mse_loss(self.model(batch), target) * self.scale).backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 0.5)  # CAUSE
        for parameter in self.model.parameters():
            parameter.grad.set_value(parameter.grad / self.scale)
        self.optimizer.step()

trainer = Trainer()
for pair in pairs:
    trainer.step(*pair)
""",
    "large-update: a rate for another optimizer": """
model = net(nn.ReLU())
optimizer = paddle.optimizer.SGD(300.0, parameters=model.parameters())  # CAUSE
fit(model, optimizer, epochs=20)
""",
    "large-update: in a trainer with two groups": """
class Trainer:
    def __init__(self):
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 1)
        self.optimizer = paddle.optimizer.Momentum(1.0, 0.9, parameters=[  # CAUSE
            {"params": self.body.parameters(), "learning_rate": 50.0},
            {"params": self.head.parameters(), "learning_rate": 50.0},
        ])

    def step(self, batch, target):
        self.optimizer.clear_grad()
        loss = (self.head(F.relu(self.body(batch))) - target).pow(2).mean()
        loss.backward()
        self.optimizer.step()

trainer = Trainer()
for pair in pairs * 6:
    trainer.step(*pair)
""",
    "large-update: without a module": """
w, v = paddle.create_parameter([6, 8], "float32"), paddle.create_parameter([8, 1], "float32")
optimizer = paddle.optimizer.SGD(20.0, parameters=[w, v])  # CAUSE
for batch, target in pairs * 6:
    loss = F.mse_loss(batch @ w @ v, target)
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
""",
    "undivided: parts of a batch": """
model = net()
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for epoch in range(3):
    for number, (batch, target) in enumerate(pairs, 1):
        F.mse_loss(model(batch), target).backward()  # CAUSE
        if number % 4 == 0:
            optimizer.step()
            optimizer.clear_grad()
""",
    "undivided: in a trainer that accumulates": """
class Trainer:
    def __init__(self, every):
        self.model, self.every, self.seen = net(), every, 0
        self.optimizer = paddle.optimizer.Adam(1e-3, parameters=self.model.parameters())

    def backward(self, loss):
        loss.backward()  # CAUSE
        self.seen += 1
        if self.seen == self.every:
            self.optimizer.step()
            self.optimizer.clear_grad()
            self.seen = 0

trainer = Trainer(2)
for batch, target in pairs * 2:
    trainer.backward(F.mse_loss(trainer.model(batch), target))
""",
    "undivided: views of one batch": """
model = net()
optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
for step in range(4):
    optimizer.clear_grad()
    for part in paddle.chunk(x, 4):
        loss = model(part).pow(2).mean()
        loss.backward()  # CAUSE
    optimizer.step()
""",
    "wrong-mode: dropout that knows no mode": """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.dropout(x, 0.3)  # CAUSE
        return self.last(x)

model = Net()
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())

def validate():
    model.eval()
    with paddle.no_grad():
        print(F.mse_loss(model(x), y).item())
    model.train()

fit(model, optimizer, validate, epochs=5)
""",
    "wrong-mode: attention that drops in evaluation": """
class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape([0, 0, 1, 18]).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)  # CAUSE
        return self.out(x.squeeze(2))

class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = Attention()

    def forward(self, x):
        return self.inner(x[:, None])[:, 0]

model = Model()
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())

@paddle.no_grad()
def evaluate(model):
    model.eval()
    value = F.mse_loss(model(x), y).item()
    model.train()
    print(value)

fit(model, optimizer, lambda: evaluate(model), epochs=5)
""",
    "wrong-mode: eval without parentheses": """
model = net(nn.Dropout(0.2))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())

def validate():
    model.eval  # CAUSE
    with paddle.no_grad():
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
            p.set_value(self.shadow[name])  # CAUSE

model = net()
ema = Ema(model)
optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
for batch, target in pairs * 2:
    optimizer.clear_grad()
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
scheduler = paddle.optimizer.lr.LambdaDecay(0.1, partial(ramp, every=2))
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
fit(model, optimizer, scheduler.step)
""",
    "unscaled before it is clipped": """
model = net()
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
scaler = paddle.amp.GradScaler()
for batch, target in pairs * 3:
    optimizer.clear_grad()
    scaler.scale(F.mse_loss(model(batch), target)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "noise behind clipping": """
model = net()
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch, target in pairs * 3:
    optimizer.clear_grad()
    F.mse_loss(model(batch), target).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for p in model.parameters():
        p.grad = p.grad + 0.01 * paddle.randn(p.shape)
    optimizer.step()
""",
    "schedulers in a row": """
model = net()
lr = paddle.optimizer.lr
scheduler = lr.LinearWarmup(lr.CosineAnnealingDecay(1e-2, 9), 2, 0.0, 1e-2)
optimizer = paddle.optimizer.Adam(scheduler, parameters=model.parameters())
fit(model, optimizer, scheduler.step)
""",
    "a scheduler that waits": """
model = net()
plateau = paddle.optimizer.lr.ReduceOnPlateau(1e-2, patience=1)
optimizer = paddle.optimizer.Adam(plateau, parameters=model.parameters())

def after():
    with paddle.no_grad():
        plateau.step(F.mse_loss(model(x), y).item())

fit(model, optimizer, after)
""",
    "dropout that follows the mode": """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(6, 16), nn.Linear(16, 1), nn.Dropout(0.2)

    def forward(self, x, sample=False):
        x = self.drop(F.relu(self.first(x)))
        x = F.dropout(x, 0.3, self.training)
        x = F.dropout(x, p=0.1, training=self.training)
        x = F.dropout(x, 0.1, training=self.training, mode="downscale_in_infer")
        if sample:
            x = F.dropout(x, p=0.1, training=True)
        return self.last(x)

model = Net()
optimizer = paddle.optimizer.Adam(1e-3, parameters=model.parameters())
for epoch in range(4):
    model.train()
    fit(model, optimizer, epochs=1)
    model.eval()
    with paddle.no_grad():
        print(F.mse_loss(model(x), y).item(), model(x, True).std().item())
""",
    "weights that grow from little": """
model = net()
for p in model.parameters():
    p.set_value(paddle.randn(p.shape) * 1e-4)
optimizer = paddle.optimizer.Adam(0.5, parameters=model.parameters())
fit(model, optimizer, epochs=5)
""",
    "a loss that ends in infinity by a batch": """
model = net()
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for number, (batch, target) in enumerate(pairs * 2):
    optimizer.clear_grad()
    loss = F.mse_loss(model(batch), target)
    if not paddle.isfinite(loss * (1 + number)):
        continue
    loss.backward()
    optimizer.step()
""",
}

# It acts at every step.
NOTES = {"unscaled before it is clipped": ["clipping-order"], "noise behind clipping": ["clipping-order"]}
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
