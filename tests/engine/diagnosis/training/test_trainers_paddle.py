"""Training loops on Paddle as trainers, callbacks and contexts spread them: with one bug each, and right ones."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of

HEAD = """
import paddle
import paddle.nn.functional as F
from paddle import nn
paddle.seed(0)
x, y = paddle.randn([16, 6]), paddle.randn([16, 1])
pairs = list(zip(x.split(4), y.split(4)))

def fit(model, optimizer, after=lambda: None, epochs=4):
    for _ in range(epochs):
        for batch, target in pairs:
            optimizer.clear_grad()
            F.mse_loss(model(batch), target).backward()
            optimizer.step()
        after()
"""

# Holds a model, and says that it trains while its part was put in evaluation.
WRAPPED = """
class Task(nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)

task = Task()
optimizer = paddle.optimizer.SGD(0.01, parameters=task.parameters())
"""

# Calls what a callback has of that name.
TRAINER = """
class Hooks:
    def call(self, name, *given):
        method = getattr(self, name, None)
        if method is not None:
            method(*given)

class Rates(Hooks):
    def __init__(self, schedule):
        self.schedule = schedule

    def NAME(self, number):
        self.schedule.step()

class Trainer:
    def __init__(self, model, optimizer, hooks):
        self.model, self.optimizer, self.hooks = model, optimizer, hooks

    def run(self, epochs=3):
        for epoch in range(epochs):
            for batch, target in pairs:
                F.mse_loss(self.model(batch), target).backward()
                self.optimizer.step()  # CAUSE
                self.optimizer.clear_grad()
                self.hooks.call("step_end", epoch)
            self.hooks.call("epoch_end", epoch)

def main():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    schedule = paddle.optimizer.lr.LinearWarmup(0.01, warmup_steps=2, start_lr=0.0, end_lr=0.01)
    optimizer = paddle.optimizer.Adam(schedule, parameters=model.parameters())
    Trainer(model, optimizer, Rates(schedule)).run()

main()
"""

BUGS = {
    "zero-learning-rate: a callback that nobody calls": TRAINER.replace("NAME", "batch_end"),
    "wrong-mode: a flag that is put back": WRAPPED
    + """
class Quiet:
    def __init__(self, part):
        self.part = part

    def __enter__(self):
        self.mode = self.part.training
        self.part.eval()

    def __exit__(self, *_):
        self.part.training = self.mode  # CAUSE

def validate():
    with Quiet(task.net), paddle.no_grad():
        print(F.mse_loss(task(x), y).item())

fit(task, optimizer, validate)
""",
    "wrong-mode: a flag of the whole": WRAPPED
    + """
@paddle.no_grad()
def validate(model):
    model.eval()
    print(F.mse_loss(model(x), y).item())
    model.training = True  # CAUSE

fit(task, optimizer, lambda: validate(task))
""",
}

HEALTHY = {
    "a warm-up by steps": TRAINER.replace("NAME", "step_end").replace("# CAUSE", ""),
    "a warm-up by epochs": TRAINER.replace("NAME", "epoch_end").replace("# CAUSE", ""),
    "every flag is put back": WRAPPED
    + """
def validate():
    modes = [(part, part.training) for part in task.sublayers(include_self=True)]
    task.eval()
    with paddle.no_grad():
        print(F.mse_loss(task(x), y).item())
    for part, mode in modes:
        part.training = mode

fit(task, optimizer, validate)
""",
    "statistics that are frozen later on": WRAPPED
    + """
def validate():
    task.net.eval()
    with paddle.no_grad():
        print(F.mse_loss(task(x), y).item())
    task.train()
    task.net[1].eval()

fit(task, optimizer, validate)
""",
    "only the statistics stay": WRAPPED
    + """
def validate():
    task.eval()
    with paddle.no_grad():
        print(F.mse_loss(task(x), y).item())
    task.training = True
    task.net.training = task.net[3].training = True

fit(task, optimizer, validate)
""",
}

PROGRAMS = BUGS | HEALTHY


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarm(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


def test_code_that_would_step_the_scheduler_is_named(runs: dict[str, Run]) -> None:
    run = runs["zero-learning-rate: a callback that nobody calls"]
    line = run.program.strip().splitlines().index("        self.schedule.step()") + 1
    evidence = run.check_first("zero-learning-rate")["evidence"]
    named = [each for each in evidence if "Rates" in each and "batch_end" in each]
    assert named and named[0].endswith(f"train.py:{line}"), str(run)
