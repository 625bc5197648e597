"""An optimizer that is made over several lines: the line of the argument that is wrong is named."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
from torch.optim import Adam
framework.manual_seed(0)
def rows(*shape):
    return framework.randn(*shape)
""",
    "paddle": """
import paddle as framework
from paddle import nn
from paddle.optimizer import Adam
framework.seed(0)
def rows(*shape):
    return framework.randn(shape)
""",
}
FIT = """
body, head = nn.Linear(4, 6), nn.Linear(6, 1)
MADE
clear = getattr(optimizer, "clear_grad", None) or optimizer.zero_grad
for step in range(30):
    loss = (head(body(rows(8, 4)).tanh()) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
"""
MADE = {
    "torch": {
        "zero": ("""
optimizer = Adam(
    [*body.parameters(), *head.parameters()],
    lr=0.0,  # CAUSE
)""", "zero-learning-rate"),
        "part": ("""
optimizer = Adam(
    head.parameters(),  # CAUSE
    lr=0.01,
)""", "not-optimized"),
        "named": ("""
optimizer = Adam(
    lr=0.01,
    params=head.parameters(),  # CAUSE
)""", "not-optimized"),
    },
    "paddle": {
        "zero": ("""
optimizer = Adam(
    parameters=[*body.parameters(), *head.parameters()],
    learning_rate=0.0,  # CAUSE
)""", "zero-learning-rate"),
        "part": ("""
optimizer = Adam(
    learning_rate=0.01,
    parameters=head.parameters(),  # CAUSE
)""", "not-optimized"),
        "one of two": ("""
other = Adam(parameters=[framework.create_parameter([1], "float32")])
schedule = framework.optimizer.lr.LinearWarmup(0.01, warmup_steps=4, start_lr=0.001, end_lr=0.01)
optimizer = Adam(
    parameters=[*body.parameters(), *head.parameters()],
    learning_rate=schedule.get_lr(),  # CAUSE
)
step_of, optimizer.step = optimizer.step, lambda: (step_of(), schedule.step())""", "schedule-unused"),
        "a number": ("""
schedule = framework.optimizer.lr.LinearWarmup(0.01, warmup_steps=4, start_lr=0.001, end_lr=0.01)
optimizer = Adam(
    parameters=[*body.parameters(), *head.parameters()],
    learning_rate=schedule.get_lr(),  # CAUSE
)
step_of, optimizer.step = optimizer.step, lambda: (step_of(), schedule.step())""", "schedule-unused"),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + FIT.replace("MADE", made) for name, (made, _) in MADE[request.param].items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


@pytest.mark.parametrize("name", sorted({name for made in MADE.values() for name in made}))
@pytest.mark.parametrize("runs", [case(name, name, group=f"arguments-{name}") for name in FRAMEWORKS], indirect=True)
def test_the_line_of_the_argument(runs: dict[str, Run], name: str, request: pytest.FixtureRequest) -> None:
    framework = request.node.callspec.params["runs"]
    if name not in MADE[framework]:
        pytest.skip(f"not with {framework}")
    runs[name].check_first(MADE[framework][name][1])
