"""What becomes of gradients between a backward and a step, on Paddle: three programs with a bug of each kind."""

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

ZERO_GRAD = {
    "no zero_grad": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for epoch in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()  # CAUSE
    print(loss.item())
""",
    "of one of two optimizers": """
class Trainer:
    def __init__(self):
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.slow = paddle.optimizer.SGD(0.001, parameters=self.body.parameters())
        self.fast = paddle.optimizer.Adam(0.01, parameters=self.head.parameters())

    def update(self):
        self.fast.step()
        self.slow.step()  # CAUSE

    def run(self, steps):
        for _ in range(steps):
            self.fast.clear_grad()
            loss = nn.functional.mse_loss(self.head(nn.functional.relu(self.body(x))), y)
            loss.backward()
            self.update()

Trainer().run(4)
""",
    "a closure": """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.LBFGS(0.1, parameters=model.parameters(), max_iter=2)

def closure():
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

for _ in range(4):
    optimizer.step(closure)  # CAUSE
""",
    "a method that hands it on to one": """
class Both:
    def __init__(self, *all):
        self.all = all
    def clear_grad(self):
        self.all[0].clear_grad()  # CAUSE
    def step(self):
        for each in self.all:
            each.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
slow = paddle.optimizer.SGD(0.01, parameters=body.parameters())
both = Both(slow, paddle.optimizer.Adam(0.01, parameters=head.parameters()))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.clear_grad()
    loss.backward()
    both.step()
""",
    "an object that has the methods of one": """
class Both:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def __getattr__(self, name):
        return getattr(self.first, name)
    def step(self):
        self.first.step()
        self.second.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
slow = paddle.optimizer.SGD(0.01, parameters=body.parameters())
both = Both(slow, paddle.optimizer.Adam(0.01, parameters=head.parameters()))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.clear_grad()  # CAUSE
    loss.backward()
    both.step()
""",
}

HEALTHY = """
class Both:
    def __init__(self, first, second):
        self.first, self.second = first, second
    def __getattr__(self, name):
        return getattr(self.first, name)
    def clear_grad(self):
        self.first.clear_grad()
        self.second.clear_grad()
    def step(self):
        self.first.step()
        self.second.step()

body, head = nn.Linear(6, 8), nn.Linear(8, 1)
slow = paddle.optimizer.SGD(0.01, parameters=body.parameters())
both = Both(slow, paddle.optimizer.Adam(0.01, parameters=head.parameters()))
for _ in range(4):
    loss = nn.functional.mse_loss(head(nn.functional.relu(body(x))), y)
    both.clear_grad()
    loss.backward()
    both.step()
"""

LOST = {
    "zero_grad behind backward": (
        "cleared-gradients",
        """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = paddle.optimizer.Adam(0.001, parameters=model.parameters())
for epoch in range(4):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.clear_grad()  # CAUSE
    optimizer.step()
""",
    ),
    "in a helper, to zeros": (
        "cleared-gradients",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.Momentum(0.1, 0.9, parameters=model.parameters())

def reset(model):
    model.clear_gradients()  # CAUSE

for batch in x.split(4):
    model(batch).pow(2).mean().backward()
    reset(model)
    optimizer.step()
""",
    ),
    "assigned": (
        "dropped-gradients",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch in x.split(4):
    model(batch).pow(2).mean().backward()
    for parameter in model.parameters():
        parameter.clear_gradient(False)  # CAUSE
    optimizer.step()
""",
    ),
    "step above backward": (
        "step-order",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for batch in x.split(4):
    optimizer.clear_grad()
    loss = model(batch).pow(2).mean()
    optimizer.step()  # CAUSE
    loss.backward()
""",
    ),
    "step above backward, in another function": (
        "step-order",
        """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())

def update():
    optimizer.step()  # CAUSE

for batch in x.split(4):
    optimizer.clear_grad()
    loss = model(batch).pow(2).mean()
    update()
    loss.backward()
""",
    ),
}

TWICE = {
    "two lines": """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for _ in range(3):
    optimizer.clear_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    print(loss.item())
    loss.backward()  # CAUSE
    optimizer.step()
""",
    "in a method that a subclass extends": """
class Base:
    def fit(self, model, optimizer, loss):
        loss.backward(retain_graph=True)

class Trainer(Base):
    def fit(self, model, optimizer, loss):
        optimizer.clear_grad()
        super().fit(model, optimizer, loss)
        loss.backward()  # CAUSE
        optimizer.step()

model = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 1))
optimizer = paddle.optimizer.AdamW(0.001, parameters=model.parameters())
for batch, target in zip(x.split(4), y.split(4)):
    Trainer().fit(model, optimizer, nn.functional.l1_loss(model(batch), target))
""",
    "tensors without a module": """
w = paddle.create_parameter([6, 1], 'float32')
optimizer = paddle.optimizer.SGD(0.1, parameters=[w])
for step in range(3):
    loss = ((x @ w - y) ** 2).mean()
    for _ in range(2):
        loss.backward(retain_graph=True)  # CAUSE
    optimizer.step()
    optimizer.clear_grad()
""",
}


UNDIVIDED = """
model = nn.Linear(6, 1)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
for epoch in range(3):
    for number, (batch, target) in enumerate(zip(x.split(8), y.split(8)), 1):
        nn.functional.mse_loss(model(batch), target).backward()  # CAUSE
        if number % 4 == 0:
            optimizer.step()
            optimizer.clear_grad()
"""

PROGRAMS = (
    ZERO_GRAD
    | TWICE
    | {name: program for name, (_, program) in LOST.items()}
    | {"undivided": UNDIVIDED, "healthy": HEALTHY}
)


@pytest.mark.parametrize("name", ZERO_GRAD)
def test_gradients_that_are_not_cleared(runs: dict[str, Run], name: str) -> None:
    finding = runs[name].check_first("zero-grad")
    assert finding["severity"] == "error" and finding["confidence"] >= 0.9


@pytest.mark.parametrize("name", LOST)
def test_gradients_that_are_gone_at_the_step(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(LOST[name][0])


@pytest.mark.parametrize("name", TWICE)
def test_a_loss_run_backward_twice(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first("twice-backward")


def test_losses_that_are_not_divided_are_a_note(runs: dict[str, Run]) -> None:
    finding = runs["undivided"].check_first("undivided")
    assert finding["severity"] == "note" and finding["confidence"] < 0.5


def test_one_object_that_clears_the_gradients_of_both(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
