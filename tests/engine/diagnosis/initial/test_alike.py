"""Layers whose units begin alike. Witness: how far apart they are after training, by the numbers themselves."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD

TRAIN = """
optimizer = Sgd(net.parameters())
x = noise(64, 6)
y = (x[:, :1] * 2 - x[:, 1:2]).detach()
for step in range(6):
    out = net(x)
    loss = (out - y).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""

NET = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.last(fw.tanh(self.two(fw.tanh(self.one(x)))))
net = Net()
"""
APART = """
def apart(weight):
    rows = weight.detach().numpy()
    rows = rows if fw.__name__ == "torch" else rows.T
    return float(abs(rows - rows[:1]).max())
print("apart", apart(net.one.weight) > 1e-4, apart(net.two.weight) > 1e-4)
"""
ALL = """
for part in (net.one, net.two, net.last):
    fill(part.bias, 0.0)
    with fw.no_grad():
        part.weight.fill_(VALUE)  # CAUSE
"""
OWN = ALL.replace("fill(part.bias, 0.0)", "fw.no_grad()(part.bias.uniform_)(-0.5, 0.5)")
BUGGY = {
    "a constant": NET + ALL.replace("VALUE", "0.1") + TRAIN + APART,
    "ones": NET + ALL.replace("VALUE", "1.0") + TRAIN + APART,
    "one unit's weights for all": NET
    + """
row = noise(6, 1) if fw.__name__ == "paddle" else noise(1, 6)
rows = row.expand(net.one.weight.shape)
with fw.no_grad():
    getattr(net.one.weight, "copy_" if fw.__name__ == "torch" else "set_value")(rows)  # CAUSE
for each in (net.two.weight, net.last.weight):
    fill(each, 0.3)
for each in (net.one.bias, net.two.bias):
    fill(each, 0.0)
"""
    + TRAIN
    + APART,
}
ZEROS = {
    "zeros": NET + ALL.replace("VALUE", "0.0") + TRAIN + APART,
    "zeros of all, one by one": NET
    + """
for part in (net.one, net.two, net.last):
    fill(part.bias, 0.0)
    with fw.no_grad():
        part.weight.fill_(0.0)  # CAUSE
"""
    + TRAIN
    + APART,
}
HEALTHY = {
    "random": NET + TRAIN + APART,
    "a last layer of zeros": NET + "fill(net.last.weight, 0.0)\n" + TRAIN + APART,
    "a constant first": NET + "fill(net.one.weight, 0.1)\n" + TRAIN + APART,
    "a constant last": NET + "fill(net.last.weight, 0.1)\n" + TRAIN + APART,
    "biases of their own": NET + OWN.replace("VALUE", "0.1").replace("  # CAUSE", "") + TRAIN + APART,
    "frozen": NET + "fill(net.one.weight, 0.1)\nfill(net.two.weight, 0.1)\n" + """
for part in (net.one.weight, net.two.weight):
    part.stop_gradient = True
    if fw.__name__ == "torch":
        part.requires_grad_(False)
""" + TRAIN,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | ZEROS | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"alike-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_units_that_stay_alike(runs: dict[str, Run], name: str) -> None:
    assert "apart False False" in runs[name].plain, runs[name]
    first = runs[name].check_first("symmetric-units")
    assert first["severity"] == "error" and "units began alike" in first["message"], first


@each
@named(ZEROS, {})
def test_zeros_one_behind_the_other(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("symmetric-units")
    assert "all zeros" in first["message"], first


@each
@named(HEALTHY, {})
def test_units_that_differ(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[name].every if found["kind"] == "symmetric-units"], runs[name]
