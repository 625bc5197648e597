"""Parameters of memory as it was. Witness: the same line with zeros_like in its place is no finding."""

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


def net(made: str, then: str = "") -> str:
    return (
        f"""
def wants(value):
    if fw.__name__ == "torch":
        return nn.Parameter(value)
    value.stop_gradient = False
    return value
class Net(Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)
        {made}
        {then}
    def forward(self, x):
        return self.last(x * self.scale)
net = Net()
"""
        + TRAIN
    )


BUGGY = {
    "a scale": net("self.scale = wants(fw.empty([6]))  # CAUSE"),
    "like another": net("self.scale = wants(fw.empty_like(fw.ones([6])))  # CAUSE"),
    "a row": net("self.scale = wants(fw.empty([1, 6]))  # CAUSE", "self.count = 0"),
}
HEALTHY = {
    "zeros": net("self.scale = wants(fw.zeros([6]))"),
    "filled": net("self.scale = wants(fw.empty([6]))", "fill(self.scale, 1.0)"),
    "filled before": net("value = fw.empty([6])", "value[:] = 1.0; self.scale = wants(value)"),
    "drawn": net("self.scale = wants(fw.empty([6]))", "fw.no_grad()(self.scale.uniform_)(0.5, 1.5)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"unwritten-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_memory_that_nothing_was_written_to(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("uninitialised")
    assert first["severity"] == "error" and "nothing ever gave it values" in first["message"], first


@each
@named(HEALTHY, {})
def test_memory_that_has_values(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[name].every if found["kind"] == "uninitialised"], runs[name]
