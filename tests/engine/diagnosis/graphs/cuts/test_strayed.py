"""One statement that strayed into a ``no_grad`` block of others is named; where the block itself is wrong, that is."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

FIT = """
teacher, adapter, head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
for weight in teacher.parameters():
    weight.stop_gradient = True
    weight.requires_grad = False
every = [*net.parameters(), *adapter.parameters(), *head.parameters()]
GIVEN
STEP
for _ in range(8):
    x = noise(6, 4)
    loss = step(x)
    loss.backward()
    optimizer.step()
    clear()
"""
GIVEN = {
    "torch": "optimizer = framework.optim.SGD(every, 0.05)\nclear = optimizer.zero_grad",
    "paddle": "optimizer = framework.optimizer.SGD(0.05, parameters=every)\nclear = optimizer.clear_grad",
}
STRAYED = """
def step(x):
    found = net(x)
    with framework.no_grad():
        target = teacher(x)
        mapped = adapter(found)  # CAUSE
    return (mapped - target).square().mean() + head(found).square().mean()
"""
# The same, ahead of what the block is there for.
FIRST = """
def step(x):
    found = net(x)
    with framework.no_grad():
        mapped = adapter(found)  # CAUSE
        target = teacher(x)
    return (mapped - target).square().mean() + head(found).square().mean()
"""
# One takes what the other gives: they belong together.
CHAIN = """
def step(x):
    found = net(x)
    with framework.no_grad():  # CAUSE
        mapped = adapter(found)
        score = head(mapped)
    return (score - 1).square().mean() + found.square().mean()
"""
# Both lose what is trained.
BOTH = """
def step(x):
    found = net(x)
    with framework.no_grad():  # CAUSE
        mapped = adapter(found)
        score = head(found)
    return mapped.square().mean() + (score - 1).square().mean() + found.square().mean()
"""
# Both are modules of one class of the program's: what it calls is one line for both.
CLASS = """
class Part(type(net)):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.inner = adapter
    def forward(self, x):
        return framework.tanh(self.inner(x))
first, second = Part(), Part()
second.inner = head
def step(x):
    found = net(x)
    with framework.no_grad():  # CAUSE
        mapped = first(found)
        score = second(found)
    return mapped.square().mean() + (score - 1).square().mean() + found.square().mean()
"""
# The other one is deep below the block.
DEEP = """
class Deep(type(net)):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x)
deep = head
for _ in range(8):
    deep = Deep(deep)
def step(x):
    found = net(x)
    with framework.no_grad():  # CAUSE
        mapped = adapter(found)
        score = deep(found)
    return mapped.square().mean() + (score - 1).square().mean() + found.square().mean()
"""
# Nothing else is done there.
ALONE = """
def step(x):
    found = net(x)
    with framework.no_grad():  # CAUSE
        mapped = adapter(found)
    return mapped.square().mean() + head(found).square().mean()
"""
BUGGY = {"strayed": STRAYED, "first": FIRST, "chain": CHAIN, "both": BOTH, "class": CLASS, "deep": DEEP, "alone": ALONE}
HEALTHY = {
    "meant": """
def step(x):
    found = net(x)
    with framework.no_grad():
        target = teacher(x)
        size = float(adapter(found).square().mean())
    return (adapter(found) - target).square().mean() + head(found).square().mean() + 0 * size
"""
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    start = small_net(request.param, outputs=8) + FIT.replace("GIVEN", GIVEN[request.param])
    texts = {name: start.replace("STEP", text) for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"cuts-strayed-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_to_move_out(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("no-gradient")["message"]
    assert ("move it out" in message) == (name in ("strayed", "first")), message


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_to_be_there(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
