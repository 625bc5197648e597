"""Weights of an attention that are normalised along another axis than the one that is summed over; and what looks like
it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise, einsum, exclude = torch.randn, torch.einsum, lambda x, mask: x.masked_fill(mask, -1e9)
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def turned(x):
    return x.transpose(1, 2)
def clear(opt):
    opt.zero_grad()
def total(x, axis):
    return x.sum(axis, keepdim=True)
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise, einsum = lambda *shape: paddle.randn(shape), paddle.einsum
def exclude(x, mask):
    return paddle.where(mask, paddle.full_like(x, -1e9), x)
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def turned(x):
    return x.transpose([0, 2, 1])
def clear(opt):
    opt.clear_grad()
def total(x, axis):
    return x.sum(axis, keepdim=True)
""",
}
LOOP = """
query, key, value, last = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 4)
first, second = nn.SOFTMAX1, nn.SOFTMAX2
opt = sgd(query, key, value, last)
for step in range(3):
    asked, given = noise(6, 3, 4), noise(6, 5, 4)
    q, k, v = query(asked), key(given), value(given)
BODY
    loss = loss + (last(q).mean() + last(v).mean() + last(k).mean()).square()
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str) -> str:
    return LOOP.replace("BODY", "\n".join("    " + line for line in body.strip().splitlines()))


BUGGY = {
    "product": program("""
scores = exclude(q @ turned(k) / 8 ** 0.5, noise(6, 3, 5) > 1)
weights = first(scores)  # CAUSE
loss = (last(F.dropout(weights, 0.1) @ v) - asked).square().mean()
"""),
    "letters": program("""
scores = einsum("bqd,bkd->bqk", q, k) * 0.3
weights = first(scores)  # CAUSE
loss = (last(einsum("bqk,bkd->bqd", weights, v)) - asked).square().mean()
"""),
}
# Over the heads.
BUGGY["heads"] = program("""
heads, keys = q.reshape([6, 3, 2, 4]), k.reshape([6, 5, 2, 4])
scores = einsum("bqhd,bkhd->bhqk", heads, keys)
weights = first(scores)  # CAUSE
loss = (weights @ noise(6, 2, 5, 4)).square().mean()
""")
HEALTHY = {
    "right": program("""
scores = q @ turned(k) / 8 ** 0.5
loss = (last(second(scores) @ v) - asked).square().mean()
loss = loss + (last(turned(first(scores)) @ q) - given).square().mean()
loss = loss + (last(einsum("bqk,bqd->bkd", first(scores), q)) - given).square().mean()
"""),
    # Slots compete for what is given, and are divided by what they got.
    "slots": program("""
weights = first(q @ turned(k))
even = (weights + 1e-6) / total(weights + 1e-6, -1)
loss = (last(even @ v) - asked).square().mean()
"""),
    "slots, divided later": program("""
weights = first(q @ turned(k))
loss = (last((weights @ v) / total(weights, -1)) - asked).square().mean()
"""),
    # Features of the queries and places of the keys, summed over both in turn.
    "linear": program("""
context = turned(first(k)) @ v
loss = (last(second(q) @ context) - asked).square().mean()
"""),
    # Soft assignments to clusters that a layer gives.
    "clusters": program("""
assigned = first(turned(k))
loss = (assigned @ v).square().mean() + (turned(second(k)) @ v).square().mean()
"""),
    "both": program("""
scores = q @ turned(k)
weights = first(scores) * second(scores)
loss = (last(weights @ v) - asked).square().mean()
"""),
    # A memory is written: each query gives to its places.
    "written": program("""
weights = second(q @ turned(k))
loss = (v + einsum("bqk,bqd->bkd", weights, q)).square().mean()
"""),
}  # fmt: skip
AS_MANY = program("""
scores = v @ turned(k)
weights = first(scores)  # CAUSE
loss = (last(weights @ v) - given).square().mean()
""")
WORDS = {
    "torch": {"SOFTMAX1": "Softmax(dim=1)", "SOFTMAX2": "Softmax(dim=-1)"},
    "paddle": {"SOFTMAX1": "Softmax(axis=1)", "SOFTMAX2": "Softmax(axis=-1)"},
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    framework = request.param
    texts = {name: HEAD[framework] + text for name, text in (BUGGY | HEALTHY | {"as many": AS_MANY}).items()}
    for word, meant in WORDS[framework].items():
        texts = {name: text.replace(word, meant) for name, text in texts.items()}
    return diagnose_each(framework, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-attention-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_weights_along_another_axis(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("wrong-axis")
    assert first["severity"] == "warning" and "add up to" in first["evidence"][1], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_weights_that_are_meant(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()


@each
def test_as_many_queries_as_keys_is_a_note(runs: dict[str, Run]) -> None:
    assert runs["as many"].check_first("wrong-axis")["severity"] == "note"
