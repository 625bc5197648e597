"""Optimizers, schedulers and clipping on torch: programs with one bug each."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from support.diagnosing_many import Run

HEAD = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(16, 6), torch.randn(16, 1)
"""

LOOP = """
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""

HELD = {
    "step without parentheses": (
        "no-step",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step  # CAUSE
""",
    ),
    "the scheduler alone steps": (
        "no-step",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

def train(batch):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
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
first = torch.optim.Adam(encoder.parameters())
second = torch.optim.Adam(decoder.parameters())
for _ in range(4):
    first.zero_grad(), second.zero_grad()
    nn.functional.mse_loss(decoder(encoder(x)), x).backward()  # CAUSE
    second.step()
""",
    ),
    "the head was forgotten": (
        "not-optimized",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

model = Net()
optimizer = torch.optim.SGD(model.body.parameters(), lr=0.01)  # CAUSE
for _ in range(5):
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    ),
    "layers in a plain dict that the base class keeps": (
        "not-optimized",
        """
class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.heads = self.build_heads()  # CAUSE

    def forward(self, x):
        x = torch.relu(self.body(x))
        return sum(head(x) for head in self.heads.values())

class Net(Trunk):
    def build_heads(self):
        return {name: nn.Linear(6, 1) for name in ("one", "other")}

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + LOOP,
    ),
    "layers in a plain list": (
        "not-optimized",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = [nn.Linear(6, 6) for _ in range(2)]  # CAUSE
        self.last = nn.Linear(6, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.last(x)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
        + LOOP,
    ),
    "a copy is trained": (
        "stale-parameters",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # CAUSE
extra = nn.Linear(6, 1)
optimizer.add_param_group({"params": extra.parameters()})
model = copy.deepcopy(model)
for _ in range(5):
    nn.functional.mse_loss(model(x) + extra(x), y).backward()
    optimizer.step()
    model.zero_grad(), extra.zero_grad()
""",
    ),
    "frozen by a rule": (
        "frozen-in-optimizer",
        """
def freeze(module, keep):
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(keep))  # CAUSE
    return module
model = freeze(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1)), "1")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + LOOP,
    ),
    "a tensor that takes no gradient": (
        "frozen-in-optimizer",
        """
model = nn.Linear(6, 1)
scale = torch.ones(1)  # CAUSE
optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # CAUSE
"""
        + LOOP,
    ),
    "by its scheduler": (
        "zero-learning-rate",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
warmup = 1000
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step // warmup)  # CAUSE
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    scheduler.step()
""",
    ),
    "scheduler at the head": (
        "schedule-order",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for epoch in range(3):
    scheduler.step()  # CAUSE
    for batch in x.split(8):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
""",
    ),
    "scheduler above step": (
        "schedule-order",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)

def update():
    scheduler.step()  # CAUSE
    optimizer.step()

for batch in x.split(4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    update()
""",
    ),
    "clipped behind the step": (
        "clipping-order",
        """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # CAUSE
""",
    ),
    "clipped before backward": (
        "clipping-order",
        """
from torch.nn.utils import clip_grad_norm_
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(4):
    loss = model(batch).pow(2).mean()
    optimizer.zero_grad()
    clip_grad_norm_(list(model.parameters()), 0.1)  # CAUSE
    loss.backward()
    optimizer.step()
""",
    ),
    "an iterator that was used up": (
        "clipping-order",
        """
model = nn.Linear(6, 1)
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.1)
for batch in x.split(4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)  # CAUSE
    optimizer.step()
""",
    ),
}

UPDATES = {
    "loaded back": (
        "lost-update",
        """
model = nn.Linear(6, 1)
best = copy.deepcopy(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in x.split(4):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    model.load_state_dict(best)  # CAUSE
""",
    ),
    "copied back": (
        "lost-update",
        """
model = nn.Linear(6, 1)
initial = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

def sync():
    for parameter, value in zip(model.parameters(), initial):
        parameter.data.copy_(value)  # CAUSE

for batch in x.split(4):
    sync()
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
""",
    ),
    "too small for bfloat16": (
        "lost-update",
        """
model = nn.Linear(6, 1).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)  # CAUSE
for _ in range(5):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
    optimizer.step()
""",
    ),
    "too large a rate": (
        "large-update",
        """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=50.0)  # CAUSE
for _ in range(12):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    ),
}

MODES = {
    "eval() for good": """
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def validate():
    model.eval()  # CAUSE
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item()

for epoch in range(3):
    for batch, target in zip(x.split(8), y.split(8)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()
    print(validate())
""",
    "eval() from the start": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x):
        return self.last(self.norm(x))

model = Net().eval()  # CAUSE
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "evaluated in training mode": """
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@torch.no_grad()
def accuracy(batches):
    return sum(model(batch).mean().item() for batch in batches)  # CAUSE

for epoch in range(3):
    for batch, target in zip(x.split(4), y.split(4)):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), target).backward()
        optimizer.step()
    print(accuracy(x.split(8)))
""",
}


REPLACED = (
    """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # CAUSE
model[2] = nn.Linear(8, 1)
"""
    + LOOP
)

DYING = """
def main():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # CAUSE
    model[2] = nn.Linear(8, 1)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

main()
"""

OF_KIND = HELD | RATES | UPDATES | {name: ("wrong-mode", program) for name, program in MODES.items()}

PROGRAMS = {name: program for name, (_, program) in OF_KIND.items()} | {"replaced": REPLACED, "dying": DYING}


@pytest.mark.parametrize("name", OF_KIND)
def test_the_bug_and_its_line(runs: dict[str, Run], name: str) -> None:
    kind = OF_KIND[name][0]
    if kind == "large-update":  # of a loss that overflows "nonfinite" is read first, with it under that: the same line
        runs[name].check_names(kind)
    else:
        runs[name].check_first(kind)


def test_a_model_that_dies_with_main_is_judged_before(runs: dict[str, Run]) -> None:
    runs["dying"].check_first("stale-parameters")


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
