"""A generator that is set back in a loop while a model is trained. The witness: what the program itself drew, which it
prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
seed, noise, shuffled = fw.manual_seed, fw.randn, fw.randperm
drop = nn.functional.dropout
def sgd(net):
    return fw.optim.SGD(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle as fw
from paddle import nn
seed, noise, shuffled = fw.seed, lambda *shape: fw.randn(shape), fw.randperm
drop = nn.functional.dropout
def sgd(net):
    return fw.optimizer.SGD(0.01, parameters=net.parameters()), "clear_grad"
""",
}
START = """
SEED(0)
data = noise(12, 3)
def preview(net):
    BEFORE
    x = noise(4, 3)
    BEHIND
    return net(x).sum().item()
def train(epochs):
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer, clear = sgd(net)
    drawn = []
    for epoch in range(epochs):
        EPOCH
        for batch in fw.split(data[shuffled(12)], 4 if CHUNKS else 3):
            loss = net(drop(batch, 0.2)).square().mean()
            getattr(optimizer, clear)()
            loss.backward()
            optimizer.step()
        drawn.append(noise(1).sum().item())
        preview(net)
    return drawn
"""
ONCE = "drawn = train(6)\nprint('repeated', len(set(drawn[1:])) < 5)\n"
PLAIN = {"BEFORE": "pass", "BEHIND": "pass", "EPOCH": "pass"}


def text(framework: str, end: str = ONCE, **parts: str) -> str:
    body = START
    for name, part in {**PLAIN, **parts}.items():
        body = body.replace(name, part)
    call = {"torch": "fw.manual_seed", "paddle": "fw.seed"}[framework]
    body = body.replace("CHUNKS", str(framework == "torch"))
    return HEAD[framework] + (body + end).replace("SEED", call)


WRONG = {
    "in a preview": {"BEFORE": "SEED(7)  # CAUSE"},
    "in the loop": {"EPOCH": "SEED(3)  # CAUSE"},
    "by a function": {"EPOCH": "fixed()  # CAUSE", "end": "def fixed():\n    SEED(1)\n" + ONCE},
}
RIGHT = {
    "nothing": {},
    "set back behind it": {"BEFORE": "STATE\n    SEED(7)", "BEHIND": "BACK"},
    "another one each time": {"EPOCH": "SEED(100 + epoch)"},
    "all made before": {
        "end": """
made = [nn.Linear(3, 1) for _ in range(4)]
made = [(net, *sgd(net)) for net in made]
for net, optimizer, clear in made:
    SEED(5)
    for _ in range(3):
        loss = net(drop(data, 0.2)).square().mean()
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
print('repeated', False)
"""
    },
    "a model each": {"end": "for _ in range(4):\n    SEED(5)\n    drawn = train(2)\nprint('repeated', False)\n"},
}


def program(framework: str, parts: dict[str, str]) -> str:
    whole = text(framework, **parts)
    return whole.replace("STATE", "state = fw.get_rng_state()").replace("BACK", "fw.set_rng_state(state)")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: program(request.param, parts) for name, parts in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"random-repeated-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_line_that_sets_it_back(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("repeated-random")
    assert first["severity"] == "warning" and "begins with the state of the generator" in first["evidence"][0]
    assert "repeated True" in runs[name].output


@each
@pytest.mark.parametrize("name", RIGHT)
def test_numbers_that_go_on(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
    assert "repeated False" in runs[name].output
