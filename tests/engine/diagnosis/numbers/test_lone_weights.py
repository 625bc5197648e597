"""A softmax over an axis of one element: its weights are all 1, whatever the scores are. Witness: the framework's own
gradient of what makes the scores is exactly 0, which the programs print."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.nn import functional as F
fw.manual_seed(0)
noise, Module, bmm = fw.randn, nn.Module, fw.bmm
softmax = F.softmax
def turned(x):
    return x.transpose(1, 2)
def made(net):
    return fw.optim.Adam(net.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.nn import functional as F
fw.seed(0)
noise, Module, bmm = lambda *shape: fw.randn(shape), nn.Layer, fw.bmm
softmax = F.softmax
def turned(x):
    return x.transpose([0, 2, 1])
def made(net):
    return fw.optimizer.Adam(0.01, parameters=net.parameters()), "clear_grad"
""",
}
POOL = """
class Pool(Module):
    def __init__(self):
        super().__init__()
        self.inner, self.score, self.out = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x):
        h = fw.tanh(self.inner(x))
        BODY
        return self.out(pooled)
net = Pool()
optimizer, clear = made(net)
for step in range(6):
    x = noise(6, 5, 4)
    loss = (net(x) - x.mean([1, 2]).unsqueeze(-1)).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("zero", float(net.score.weight.grad.abs().max()) == 0)
"""


def pool(*lines: str) -> str:
    return POOL.replace("BODY", "\n        ".join(lines))


MEAN = "weights = softmax(self.score(h), -1)  # CAUSE"
BUGGY = {
    "summed": pool(MEAN, "pooled = (weights * h).sum(1)"),
    "multiplied": pool(MEAN, "pooled = bmm(turned(weights), h).squeeze(1)"),
    "by way of a line": pool(MEAN, "kept = weights.squeeze(-1).unsqueeze(-1)", "pooled = (h * kept).sum(1)"),
}
# Over the batch, in the layout with the batch in front; torch does so by itself where no axis is given.
BATCH = "weights = softmax(self.score(h), 0)  # CAUSE"
OVER_BATCH = {
    "summed over the batch": pool(BATCH, "pooled = (weights * h).sum(1)"),
    "multiplied over the batch": pool(BATCH, "pooled = bmm(turned(weights), h).squeeze(1)"),
    "no axis": pool("weights = IMPLICIT(self.score(h))  # CAUSE", "pooled = (weights * h).sum(1)"),
}
# The steps in front, and samples that are assigned to groups, each of which has a mean of them.
IN_FRONT = pool(
    "steps = h.transpose(ORDER)", "weights = softmax(self.score(steps), 0)", "pooled = (weights * steps).sum(0)"
)  # fmt: skip
GROUPS = pool(
    "first = h[:, 0]", "shares = softmax(first, 0)", "means = (shares.unsqueeze(-1) * first.unsqueeze(1)).sum(0)",
    "pooled = self.score(h).mean(1) * (first @ means)",
)  # fmt: skip
# Clusters in front, and heads that are summed before the instances of a bag; a view between.
CLUSTERS = pool(
    "first = h[:, 0]", "assign = softmax(first[:4] @ first.TURN, 0)",
    "centers = (assign @ first) / assign.sum(1).unsqueeze(-1)",
    "pooled = self.score(h).mean(1) * (first @ centers.TURN)[:, :1] + first",
)  # fmt: skip
HEADS = pool(
    "bag = h[0]", "weights = softmax(bag, 0).unsqueeze(-1)",
    "pooled = (weights * bag.unsqueeze(1)).sum(1).sum(0).unsqueeze(0) + self.score(h).mean(1)",
)  # fmt: skip
VIEWED = pool(
    "first = h[:, 0]", "weights = softmax(first, 0).reshape([6, 2, 4])",
    "used = (weights * first.reshape([6, 2, 4])).sum(2)",
    "pooled = self.score(h).mean(1) + used.sum(1).unsqueeze(-1) + first",
)  # fmt: skip
# One expert, whose load is counted.
EXPERT = pool(
    "first = h[:, 0]", "chosen = softmax(self.score(first), -1)", "load = (chosen * (chosen > 0.5).FLOAT).sum(0)",
    "pooled = chosen * first * load",
)  # fmt: skip
HEALTHY = {
    "clusters": CLUSTERS,
    "heads": HEADS,
    "viewed": VIEWED,
    "in front": IN_FRONT,
    "groups": GROUPS,
    "over the steps": pool("weights = softmax(self.score(h), 1)", "pooled = (weights * h).sum(1)"),
}
# One key to look at, as the first step of a decoder has it: the weights are 1 as they have to be.
ONE_KEY = pool(
    "keys = h[:, :1]", "query = self.score(h) * h", "weights = softmax(bmm(query, turned(keys)), -1)",
    "pooled = bmm(weights, keys).mean(1) + h.mean(1)",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {
        name: HEAD[request.param] + text
        for name, text in {**BUGGY, **OVER_BATCH, **HEALTHY, "one key": ONE_KEY}.items()
    }
    texts["one expert"] = HEAD[request.param] + EXPERT
    turn, real = ("T", "float()") if request.param == "torch" else ("transpose([1, 0])", 'astype("float32")')
    texts = {name: text.replace(".TURN", f".{turn}").replace(".FLOAT", f".{real}") for name, text in texts.items()}
    order, implicit = ("1, 0", "F.softmax") if request.param == "torch" else ("[1, 0, 2]", "IMPLICITLY")
    implicit = implicit.replace("IMPLICITLY", "(lambda scores: softmax(scores, 0))")
    texts = {name: text.replace("ORDER", order).replace("IMPLICIT", implicit) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-lone-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_softmax_is_told_with_the_sum(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("zero-gradient")
    assert first["severity"] == "warning" and "zero True" in runs[name].plain, str(runs[name])
    assert "axis 2 of [6, 5, 1]" in first["message"] and "adds up 5 elements" in first["message"], first["message"]


@each
@pytest.mark.parametrize("name", OVER_BATCH)
def test_weights_over_the_batch(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert "axis 0 of [6, 5, 1], the batch" in first["message"] and "5 positions" in first["message"], first["message"]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_over_the_steps(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", ["one key", "one expert"])
def test_one_element_to_choose_from_is_a_note(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy("zero-gradient")
    assert "right if there is but one element" in " ".join(runs[name].told[0]["evidence"])
