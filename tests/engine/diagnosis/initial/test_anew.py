"""Weights that a forward makes anew. Witness: the framework's own word on what the optimizer holds."""

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


def net(body: str, init: str = "") -> str:
    return (
        f"""
class Net(Module):
    def __init__(self):
        super().__init__()
        self.one, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
{init}
    def forward(self, x):
{body}
net = Net()
held = len(list(net.parameters()))
"""
        + TRAIN
        + "print('held', held)\n"
    )


BUGGY = {
    "a layer": net("        return self.last(fw.tanh(nn.Linear(8, 8)(self.one(x))))  # CAUSE"),
    "a parameter": net(
        "        scale = parameter(fw.ones([8]))  # CAUSE\n        return self.last(self.one(x) * scale)"
    ),
    "in a branch": net(
        "        h = fw.tanh(self.one(x))\n        if h.ndim == 2:\n            mix = nn.Linear(8, 8)  # CAUSE\n"
        "            h = h + mix(h)\n        return self.last(h)"
    ),
}
HEALTHY = {
    "made once": net("        return self.last(self.mix(self.one(x)))", "        self.mix = nn.Linear(8, 8)"),
    "made at the first": net(
        "        if self.mix is None:\n            self.mix = nn.Linear(8, 8)\n"
        "        return self.last(self.mix(self.one(x)))",
        "        self.mix = None",
    ),
    "random numbers": net("        return self.last(self.one(x) + 0.1 * noise(64, 8))"),
    "updated by hand": net(
        "        code = parameter(fw.zeros([8]))\n        for _ in range(2):\n"
        "            step = fw.grad(code.square().sum() + code.sum(), [code])[0] if fw.__name__ == 'paddle' else "
        "fw.autograd.grad(code.square().sum() + code.sum(), [code])[0]\n"
        "            with fw.no_grad():\n                code.subtract_(0.1 * step) if fw.__name__ == 'paddle' else "
        "code.sub_(0.1 * step)\n        return self.last(self.one(x) + code.detach())"
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | HEALTHY
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"anew-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_weights_that_begin_anew(runs: dict[str, Run], name: str) -> None:
    assert "held 4" in runs[name].plain, runs[name]
    first = runs[name].check_first("not-optimized")
    assert first["severity"] == "error" and "anew in every forward" in first["message"], first
    assert len(runs[name].above_notes()) == 1, runs[name]


@each
@named(HEALTHY, {})
def test_weights_that_stay(runs: dict[str, Run], name: str) -> None:
    assert not [found for found in runs[name].above_notes() if "anew" in found["message"]], runs[name]
