"""Losses that no backward starts from. Witness: which gradients the framework gives."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD


def program(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"""
class Net(Module):
    def __init__(self):
        super().__init__()
        self.one, self.head, self.aux = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 3)
    def forward(self, x):
        h = fw.tanh(self.one(x))
        return self.head(h), self.aux(h)
net = Net()
optimizer = Sgd(net.parameters())
x = noise(64, 6)
labels = x[:, :3].argmax(1)
for step in range(9):
    out, more = net(x)
{body}    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("without", [name for name, each in net.named_parameters() if each.grad is None and step == 8])
"""


BUGGY = {
    "overwritten": program("loss = F.cross_entropy(more, labels)", "loss = (out - x[:, :1]).square().mean()  # CAUSE"),
    "left out": program("extra = F.cross_entropy(more, labels)  # CAUSE", "loss = (out - x[:, :1]).square().mean()"),
    "printed": program(
        "extra = F.cross_entropy(more, labels)  # CAUSE",
        "loss = (out - x[:, :1]).square().mean()",
        "print(float(extra))",
    ),
}
HEALTHY = {
    "added": program("loss = F.cross_entropy(more, labels)", "loss = loss + (out - x[:, :1]).square().mean()"),
    "in place": program("loss = F.cross_entropy(more, labels)", "loss += (out - x[:, :1]).square().mean()"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"lost-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_loss_that_is_lost(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("no-gradient")
    assert "no backward starts from that" in first["message"], first


@each
@named(HEALTHY, {})
def test_a_loss_that_counts(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
