"""Optimizers, schedulers and clipping on Paddle: programs with one bug each."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run

HEAD = """

import paddle
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
"""

LOOP = """
for _ in range(5):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""

HELD = {
    "step without parentheses": (
        "no-step",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for _ in range(4):
    optimizer.clear_grad()
    model(x).pow(2).mean().backward()
    optimizer.step  # CAUSE
""",
    ),
    "the scheduler alone steps": (
        "no-step",
        """
model = nn.Linear(6, 1)
scheduler = paddle.optimizer.lr.StepDecay(0.1, 2)
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())

def train(batch):
    loss = model(batch).pow(2).mean()
    optimizer.clear_grad()
    loss.backward()  # CAUSE
    scheduler.step()

for batch in x.split(4):
    train(batch)
""",
    ),
    "one of two": (
        "no-step",
        """
encoder, decoder = nn.Linear(6, 3), nn.Linear(3, 6)
first = paddle.optimizer.Adam(0.001, parameters=encoder.parameters())
second = paddle.optimizer.Adam(0.001, parameters=decoder.parameters())
for _ in range(4):
    first.clear_grad(), second.clear_grad()
    nn.functional.mse_loss(decoder(encoder(x)), x).backward()  # CAUSE
    second.step()
""",
    ),
    "the head was forgotten": (
        "not-optimized",
        """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(paddle.tanh(self.body(x)))

model = Net()
optimizer = paddle.optimizer.SGD(0.01, parameters=model.body.parameters())  # CAUSE
for _ in range(5):
    model.clear_gradients()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    ),
    "layers in a plain dict that the base class keeps": (
        "not-optimized",
        """
class Trunk(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.heads = self.build_heads()  # CAUSE

    def forward(self, x):
        x = nn.functional.relu(self.body(x))
        return sum(head(x) for head in self.heads.values())

class Net(Trunk):
    def build_heads(self):
        return {name: nn.Linear(6, 1) for name in ("one", "other")}

model = Net()
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
"""
        + LOOP,
    ),
    "layers in a plain list": (
        "not-optimized",
        """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = [nn.Linear(6, 6) for _ in range(2)]  # CAUSE
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = nn.functional.relu(block(x))
        return self.last(x)

model = Net()
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
"""
        + LOOP,
    ),
    "a copy is trained": (
        "stale-parameters",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())  # CAUSE
extra = nn.Linear(6, 1)
other = paddle.optimizer.SGD(0.01, parameters=extra.parameters())
kept = model.state_dict()
model = nn.Linear(6, 1)
model.set_state_dict(kept)
for _ in range(5):
    nn.functional.mse_loss(model(x) + extra(x), y).backward()
    optimizer.step(), other.step()
    model.clear_gradients(), extra.clear_gradients()
""",
    ),
    "frozen by a rule": (
        "frozen-in-optimizer",
        """
def freeze(module, keep):
    for name, parameter in module.named_parameters():
        parameter.stop_gradient = not name.startswith(keep)  # CAUSE
    return module
model = freeze(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)), "1")
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
"""
        + LOOP,
    ),
    # In its own step alone: the gradients of the generator's backward stay.
    "switched the wrong way round": (
        "frozen-in-optimizer",
        """
def set_requires_grad(net, requires_grad=False):
    for parameter in net.parameters():
        parameter.stop_gradient = requires_grad  # CAUSE
generator, critic = nn.Linear(6, 6), nn.Linear(6, 1)
optimizer = paddle.optimizer.Adam(0.01, parameters=generator.parameters())
other = paddle.optimizer.Adam(0.01, parameters=critic.parameters())
for _ in range(6):
    fake = generator(x)
    set_requires_grad(critic, True)
    other.clear_grad()
    (critic(fake) - critic(x)).mean().backward()
    other.step()
    set_requires_grad(critic, False)
    optimizer.clear_grad()
    nn.functional.mse_loss(critic(generator(x)), y).backward()
    optimizer.step()
""",
    ),
    "a tensor that takes no gradient": (
        "frozen-in-optimizer",
        """
model = nn.Linear(6, 1)
scale = paddle.to_tensor([1.0])  # CAUSE
optimizer = paddle.optimizer.SGD(0.01, parameters=[*model.parameters(), scale])
for _ in range(4):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x) * scale, y).backward()
    optimizer.step()
""",
    ),
}

RATES = {
    "made with 0": (
        "zero-learning-rate",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())  # CAUSE
"""
        + LOOP,
    ),
    "by its scheduler": (
        "zero-learning-rate",
        """
model = nn.Linear(6, 1)
warmup = 1000
scheduler = paddle.optimizer.lr.LambdaDecay(1e-3, lambda step: step // warmup)  # CAUSE
optimizer = paddle.optimizer.AdamW(scheduler, parameters=model.parameters())
for _ in range(5):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    scheduler.step()
""",
    ),
    "scheduler at the head": (
        "schedule-order",
        """
model = nn.Linear(6, 1)
scheduler = paddle.optimizer.lr.ExponentialDecay(0.1, 0.9)
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
for epoch in range(3):
    scheduler.step()  # CAUSE
    for batch in x.split(2):
        optimizer.clear_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
""",
    ),
    "scheduler above step": (
        "schedule-order",
        """
model = nn.Linear(6, 1)
scheduler = paddle.optimizer.lr.OneCycleLR(0.1, total_steps=100)
optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())

def update():
    scheduler.step()  # CAUSE
    optimizer.step()

for batch in x.split(4):
    optimizer.clear_grad()
    model(batch).pow(2).mean().backward()
    update()
""",
    ),
    "clipped behind the step": (
        "clipping-order",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch in x.split(4):
    optimizer.clear_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # CAUSE
""",
    ),
    "clipped before backward": (
        "clipping-order",
        """
from paddle.nn.utils import clip_grad_norm_
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch in x.split(4):
    loss = model(batch).pow(2).mean()
    optimizer.clear_grad()
    clip_grad_norm_(list(model.parameters()), 0.1)  # CAUSE
    loss.backward()
    optimizer.step()
""",
    ),
}

UPDATES = {
    "loaded back": (
        "lost-update",
        """
model = nn.Linear(6, 1)
best = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch in x.split(4):
    optimizer.clear_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    model.set_state_dict(best)  # CAUSE
""",
    ),
    "copied back": (
        "lost-update",
        """
model = nn.Linear(6, 1)
initial = [p.detach().clone() for p in model.parameters()]
optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())

def sync():
    for parameter, value in zip(model.parameters(), initial):
        parameter.set_value(value)  # CAUSE

for batch in x.split(4):
    sync()
    optimizer.clear_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
""",
    ),
    "too small for float32": (
        "lost-update",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(1e-20, parameters=model.parameters())  # CAUSE
for _ in range(5):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x) + 3, y).backward()
    optimizer.step()
""",
    ),
    "too large a rate": (
        "large-update",
        """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = paddle.optimizer.SGD(50.0, parameters=model.parameters())  # CAUSE
for _ in range(12):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    ),
}

MODES = {
    "eval() for good": """
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())

def validate():
    model.eval()  # CAUSE
    with paddle.no_grad():
        return nn.functional.mse_loss(model(x), y).item()

for epoch in range(3):
    for batch, target in zip(x.split(2), y.split(2)):
        optimizer.clear_grad()
        nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()
    print(validate())
""",
    "eval() from the start": """
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1D(6), nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.norm(x))

model = Net()
model.eval()  # CAUSE
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for _ in range(4):
    optimizer.clear_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "evaluated in training mode": """
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())

@paddle.no_grad()
def accuracy(batches):
    return sum(model(batch).mean().item() for batch in batches)  # CAUSE

for epoch in range(3):
    for batch, target in zip(x.split(4), y.split(4)):
        optimizer.clear_grad()
        nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()
    print(accuracy(x.split(2)))
""",
}


REPLACED = (
    """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())  # CAUSE
model[2] = nn.Linear(8, 1)
"""
    + LOOP
)

OF_KIND = HELD | RATES | UPDATES | {name: ("wrong-mode", program) for name, program in MODES.items()}

PROGRAMS = {name: program for name, (_, program) in OF_KIND.items()} | {"replaced": REPLACED}


@pytest.mark.parametrize("name", OF_KIND)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    kind = OF_KIND[name][0]
    if kind == "large-update":  # of a loss that overflows "nonfinite" is read first, with it under that: the same line
        runs[name].check_names(kind)
    else:
        runs[name].check_first(kind)


def test_what_follows_from_a_replaced_layer_is_not_told_beside_it(runs: dict[str, Run]) -> None:
    """The old one gets no gradient, and no optimizer holds the new one: one finding, also with another shape."""
    run = runs["replaced"]
    run.check_first("stale-parameters")
    assert len(run.above_notes()) == 1, str(run)


def test_commands_show_what_was_found(runs: dict[str, Run]) -> None:
    """What they name is there where they stop; tried at a prompt in ``test_shown``."""
    for name, (kind, _) in (RATES | UPDATES).items():
        finding = next(each for each in runs[name].every if each["kind"] == kind)
        assert finding["next"][0] == "b backward-end" and len(finding["next"]) > 1, str(runs[name])
