"""Heads of an attention that are taken apart, or put together, as they lie. Witness: a loop over the heads, each by
itself, whose results are put side by side."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
import torch.nn.functional as F
fw.manual_seed(0)
randn, no_grad = fw.randn, fw.no_grad
def flat(value, *sizes):
    return value.reshape(*sizes)
def turned(value):
    return value.transpose(1, 2)
def last_turned(value):
    return value.transpose(-1, -2)
def softmax(scores):
    return scores.softmax(-1)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
no_grad = fw.no_grad
def flat(value, *sizes):
    return value.reshape(sizes)
def turned(value):
    return value.transpose([0, 2, 1, 3])
def last_turned(value):
    return value.transpose([0, 1, 3, 2])
def softmax(scores):
    return F.softmax(scores, axis=-1)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
B, H, T, D = 2, 2, PLACES, 3
x = randn(B, T, H * D)
class Net(KIND):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(H * D, H * D) for _ in range(3))
    def forward(self, x):
        q, k, v = (turned(flat(each(x), B, T, H, D)) for each in (self.q, self.k, self.v))
        BODY
    def one_by_one(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        found = []
        for at in range(0, H * D, D):
            here = slice(at, at + D)
            scores = fw.einsum("bqd,bkd->bqk", q[:, :, here], k[:, :, here]) / D ** 0.5
            found.append(fw.einsum("bqk,bkd->bqd", softmax(scores), v[:, :, here]))
        return fw.concat(found, -1)
net, out = Net(), nn.Linear(H * D, 1)
optimizer, clear = sgd(nn.Sequential(net, out))
for at in range(5):
    loss = (out(net(x)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
with no_grad():
    same = (net(x) - net.one_by_one(x)).abs().max().item() < 1e-5
print("as one by one:", same)
"""


def attention(*lines: str, places: int = 4) -> str:
    return START.replace("BODY", "\n        ".join(lines)).replace("PLACES", str(places))


WEIGHTS = "weights = softmax(q @ last_turned(k) / D ** 0.5)"
BUGGY = {
    "reshape": attention(WEIGHTS, "return (weights @ v).reshape([B, T, H * D])  # CAUSE"),
    "as many places as heads": attention(WEIGHTS, "return (weights @ v).reshape([B, T, H * D])  # CAUSE", places=2),
    "one head's width at a time": attention(WEIGHTS, "made = fw.matmul(weights, v)",
                                            "return made.reshape([B, -1, H * D])  # CAUSE"),
    "einsum": attention("scores = fw.einsum('bhqd,bhkd->bhqk', q, k) / D ** 0.5",
                        "made = fw.einsum('bhqk,bhkd->bhqd', softmax(scores), v)",
                        "return made.reshape([B, T, H * D])  # CAUSE"),
    "dropout between": attention(WEIGHTS, "weights = F.dropout(weights, 0.0)",
                                 "return (weights @ v).reshape([B, T, H * D])  # CAUSE"),
    "scaled behind": attention(WEIGHTS, "made = (weights @ v) * 1.0", "return made.reshape([B, T, H * D])  # CAUSE"),
    "view": {
        "torch": attention(WEIGHTS, "made = (weights @ v).contiguous()", "return made.view(B, T, H * D)  # CAUSE"),
        "paddle": attention(WEIGHTS, "made = (weights @ v).contiguous()",
                            "return made.view([B, T, H * D])  # CAUSE"),
    },
    "the framework's": {
        "torch": attention("made = F.scaled_dot_product_attention(q, k, v)",
                           "return made.reshape(B, T, H * D)  # CAUSE"),
        "paddle": attention(WEIGHTS, "return fw.reshape(weights @ v, [B, T, H * D])  # CAUSE"),
    },
}  # fmt: skip
TURN = "q, k, v = (turned(flat(each(x), B, T, H, D)) for each in (self.q, self.k, self.v))"
MERGE = "return turned(weights @ v).reshape([B, T, H * D])"


def apart(split: str, *lines: str) -> str:
    """With another line that takes the heads apart."""
    taken = f"parts = (self.q, self.k, self.v)\n        {split}"
    return attention(*(lines or (WEIGHTS, MERGE))).replace(TURN, taken)


AS_IT_LIES = {
    "reshape": apart("q, k, v = (each(x).reshape([B, H, T, D]) for each in parts)  # CAUSE"),
    "the size of a head at a time": apart("q, k, v = (each(x).reshape([B, H, -1, D]) for each in parts)"
                                          "  # CAUSE"),
    "put together as it lies, too": apart("q, k, v = (each(x).reshape([B, H, T, D]) for each in parts)"
                                          "  # CAUSE", WEIGHTS, "return (weights @ v).reshape([B, T, H * D])"),
    "heads in the batch": apart(
        "q, k, v = (each(x).reshape([B * H, T, D]) for each in parts)  # CAUSE",
        "made = softmax(fw.einsum('bqd,bkd->bqk', q, k) / D ** 0.5) @ v",
        "return turned(flat(made, B, H, T, D)).reshape([B, T, H * D])"),
    "the framework's": {
        "torch": apart("q, k, v = (each(x).reshape([B, H, T, D]) for each in parts)  # CAUSE",
                       "return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, H * D)"),
        "paddle": apart("q, k, v = (turned(each(x).reshape([B, H, T, D])) for each in parts)  # CAUSE",
                        "return F.scaled_dot_product_attention(q, k, v).reshape([B, T, H * D])"),
    },
}  # fmt: skip
HEALTHY = {
    "turned back": attention(WEIGHTS, "return turned(weights @ v).reshape([B, T, H * D])"),
    "turned back, as many places as heads": attention(
        WEIGHTS, "return turned(weights @ v).reshape([B, T, H * D])", places=2),
    "permuted": {
        "torch": attention(WEIGHTS, "return (weights @ v).permute(0, 2, 1, 3).contiguous().view(B, T, H * D)"),
        "paddle": attention(WEIGHTS, "return fw.transpose(weights @ v, [0, 2, 1, 3]).flatten(2)"),
    },
    "the framework's": {
        "torch": attention("return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, H * D)"),
        "paddle": attention("q, k, v = turned(q), turned(k), turned(v)",
                            "return F.scaled_dot_product_attention(q, k, v).reshape([B, T, H * D])"),
    },
    "heads behind the places": attention(WEIGHTS, "made = fw.einsum('bhqk,bkhd->bqhd', weights, turned(v))",
                                         "return made.reshape([B, T, H * D])"),
    "heads behind as many places": attention(WEIGHTS, "made = fw.einsum('bhqk,bkhd->bqhd', weights, turned(v))",
                                             "return made.reshape([B, T, H * D])", places=2),
    "side by side": attention(WEIGHTS, "made = weights @ v",
                              "return fw.concat([made[:, at] for at in range(H)], -1)"),
    "heads in the batch": attention("q, k, v = (flat(each, B * H, T, D) for each in (q, k, v))",
                                    "made = softmax(fw.einsum('bqd,bkd->bqk', q, k) / D ** 0.5) @ v",
                                    "return turned(flat(made, B, H, T, D)).reshape([B, T, H * D])"),
    "channels first": apart("first = [fw.einsum('bto->bot', each(x)) for each in parts]\n        "
                            "q, k, v = (last_turned(flat(each, B, H, D, T)) for each in first)"),
    "one head": attention(WEIGHTS, "return (weights @ v).reshape([B, T, H * D])").replace("D = 2, 2,", "D = 2, 1,"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    kind = {"torch": "nn.Module", "paddle": "nn.Layer"}[framework]
    return HEAD[framework] + (part if isinstance(part, str) else part[framework]).replace("KIND", kind)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {**{f"buggy, {name}": part for name, part in BUGGY.items()}, **HEALTHY}
    parts |= {f"apart, {name}": part for name, part in AS_IT_LIES.items()}
    texts = {name: text(request.param, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"heads-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_heads_that_are_not_turned_back(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "as one by one: False\n" in run.plain, run
    first = run.check_first("wrong-axis")
    assert first["severity"] == "error" and "of all 2 heads" in first["message"], first


@each
@pytest.mark.parametrize("name", AS_IT_LIES)
def test_heads_that_are_parts_of_the_places(runs: dict[str, Run], name: str) -> None:
    run = runs[f"apart, {name}"]
    assert "as one by one: False\n" in run.plain, run
    first = run.check_first("wrong-axis")
    assert first["severity"] == "error" and "a head has a part of the 4 places" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_heads_side_by_side(runs: dict[str, Run], name: str) -> None:
    assert "as one by one: True\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
