"""train() once before a loop whose evaluation calls eval(). Witness: in which steps the model trained, by its own
flag."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
Module, randn = nn.Module, fw.randn
def adam(net):
    optimizer = fw.optim.Adam(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
Module = nn.Layer
def randn(*shape):
    return fw.randn(shape)
def adam(net):
    optimizer = fw.optimizer.Adam(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
EVALUATE = """
def evaluate(model):
    model.eval()
    with fw.no_grad():
        loss = F.mse_loss(model(held), wanted)
    return float(loss)
"""
START = """
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 1))
optimizer, clear = adam(model)
held, wanted = randn(8, 6), randn(8, 1)
modes = []

def step():
    modes.append(model.training)
    x = randn(8, 6)
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    clear()
    loss.backward()
    optimizer.step()
"""
SEEN = """
print("trained:", *[int(mode) for mode in modes])
"""


STEP = """
modes.append(model.training)
x = randn(8, 6)
loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
clear()
loss.backward()
optimizer.step()
"""
LOOP = """
model.train()  # CAUSE
for epoch in range(5):
    for _ in range(3):
        STEP
    evaluate(model)
"""
TRAINER = """
class Trainer:
    def __init__(self, model):
        self.model = model

    def evaluate(self):
        self.model.eval()
        with fw.no_grad():
            F.mse_loss(self.model(held), wanted)

    def fit(self):
        self.model.train()  # CAUSE
        for epoch in range(5):
            for _ in range(3):
                STEP
            self.evaluate()

Trainer(model).fit()
"""
OFTEN = """
def fit():
    model.train()  # CAUSE
    for at in range(15):
        STEP
        if at % 4 == 2:
            evaluate(model)

fit()
"""


def indented(text: str) -> str:
    """The lines of a step where STEP stands, as far in as it does."""
    lines = []
    for line in text.splitlines():
        far = line[: len(line) - len(line.lstrip())]
        owner = "self.model" if "class Trainer" in text else "model"
        lines += [far + each.replace("model", owner) for each in STEP.split("\n")[1:-1]] if "STEP" in line else [line]
    return "\n".join(lines) + "\n"


def changed(text: str, *parts: tuple[str, str]) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


def program(loop: str, evaluate: str = EVALUATE) -> str:
    return START + evaluate + indented(loop) + SEEN


MAIN = "\ndef main():" + LOOP.replace("\n", "\n    ").rstrip() + "\n\nmain()\n"
NONE = changed(LOOP, ("model.train()  # CAUSE\n", ""))
MARKED = changed(EVALUATE, ("model.eval()", "model.eval()  # CAUSE"))
AT_END = changed(EVALUATE, ("    return float", "    model.train()\n    return float"))
BUGGY = {
    "before the epochs": program(LOOP),
    "in a function": program(MAIN),
    "every few steps": program(OFTEN),
    "a trainer": program(TRAINER),
    "eval in the loop": program(changed(LOOP, ("    evaluate(model)", """    model.eval()
    with fw.no_grad():
        F.mse_loss(model(held), wanted)"""))),
    "while": program(changed(LOOP, ("for epoch in range(5):", "epoch = 0\nwhile epoch < 5:\n    epoch += 1"))),
    "its mode as an argument": {
        "torch": program(changed(LOOP, ("train()", "train(True)"))),
        "paddle": program(LOOP),  # Paddle's train() takes none
    },
    "no train at all": program(NONE, MARKED),
    "evaluated first": program("\nmodel.train()\nevaluate(model)\n" + NONE.replace("    evaluate(model)\n", ""),
                               MARKED),
    "steps of a function": program(changed(LOOP, ("        STEP", "        step()"))),
    "a function that is named train": program("\ndef train():\n    for _ in range(3):\n        step()\n" + changed(
        LOOP, ("    for _ in range(3):\n        STEP", "    train()"))),
    "a trainer whose method is train": program(changed(TRAINER, ("fit(", "train("))),
    "the best one evaluated, too": program(changed(LOOP, ("model.train()", "best = nn.Linear(6, 1)\nbest.eval()\n"
                                                          "model.train()"))),
}  # fmt: skip
HEALTHY = {
    "in the loop": program(changed(NONE, ("range(5):", "range(5):\n    model.train()"))),
    "before and in the loop": program(changed(LOOP, ("  # CAUSE", ""), ("range(5):", "range(5):\n    model.train()"))),
    "in each step": program(changed(NONE, ("        STEP", "        model.train()\n        STEP"))),
    "at the end of evaluate": program(changed(LOOP, ("  # CAUSE", "")), AT_END),
    "at the end of evaluate alone": program(NONE, AT_END),
    "of the mode as it was": program(changed(LOOP, ("  # CAUSE", "")), changed(
        EVALUATE, ("    model.eval()", "    before = model.training\n    model.eval()"),
        ("    return float", "    model.train() if before else model.eval()\n    return float"))),
    "behind evaluate": program(changed(LOOP, ("  # CAUSE", ""), ("    evaluate(model)", "    evaluate(model)\n"
                                                                 "    model.train()"))),
    "in a function of each epoch": program("""
def epoch_of():
    model.train()
    for _ in range(3):
        step()
""" + changed(NONE, ("    for _ in range(3):\n        STEP", "    epoch_of()"))),
    "a copy is evaluated": program(changed(LOOP, ("  # CAUSE", "\nimport copy"), ("evaluate(model)", "evaluate("
                                           "copy.deepcopy(model))"))),
    "no eval at all": program(changed(LOOP, ("  # CAUSE", "")), changed(EVALUATE, ("    model.eval()\n", ""), (
        "F.mse_loss(model(held), wanted)", "fw.zeros([])"))),
    "no Dropout": changed(program(LOOP), ("  # CAUSE", ""), ("nn.Dropout(0.5), ", "")),
}  # fmt: skip
FAULTS = {
    # FAULT: `model.train()` before `for epoch …: train_epoch(); evaluate()`: eval() is named, which is right.
    "steps of a function": "of steps in a function of their own, the loop around the call of it is not looked at",
    "a function that is named train": "as above",
}


def texts(framework: str) -> dict[str, str]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    return {name: HEAD[framework] + (part if isinstance(part, str) else part[framework])
            for name, part in parts.items()}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts(request.param))


cases = {name: case(name, name, group=f"training-train-once-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def modes_of(run: Run) -> list[str]:
    (line,) = (line for line in run.plain.splitlines() if line.startswith("trained: "))
    return line.split()[1:]


@each
@named(BUGGY, FAULTS)
def test_trained_in_evaluation_mode(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    modes = modes_of(run)
    assert modes[-1] == "0" and len(modes) == 15, run
    first = run.check_first("wrong-mode")
    assert first["severity"] == "warning" and "is trained in evaluation mode" in first["message"], first
    if run.program.count("model.train(") and name != "evaluated first":
        assert "train() is called once, before the loop" in first["message"], first
    assert len(run.told) == 1, run


@each
@named(HEALTHY, FAULTS)
def test_trained_in_training_mode(runs: dict[str, Run], name: str) -> None:
    assert set(modes_of(runs[name])) == ({"0", "1"} if "no Dropout" in name else {"1"}), runs[name]
    runs[name].check_healthy()
