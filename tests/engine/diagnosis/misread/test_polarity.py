"""Masks that say the opposite of what they are taken for. Witness: which places of the first sequence the fourth place
of what comes out depends on, by changing one after the other: the first four are words, the others padding."""

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
randn, made, arange, no_grad, flipped = fw.randn, fw.tensor, fw.arange, fw.no_grad, fw.logical_not
def turned(k):
    return k.transpose(-1, -2)
def several():
    return nn.MultiheadAttention(8, 2, batch_first=True)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
made, arange, no_grad, flipped = fw.to_tensor, fw.arange, fw.no_grad, fw.logical_not
def randn(*shape):
    return fw.randn(shape)
def turned(k):
    return k.transpose([0, 2, 1])
def several():
    return nn.MultiHeadAttention(8, 2)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
PAD = 0
ids = made([[3, 4, 5, 6, 0, 0], [7, 8, 0, 0, 0, 0], [9, 10, 11, 3, 4, 0]])
places = randn(6, 8)
lengths = made([4, 2, 5])
class Net(KIND):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        MORE
    def forward(self, ids, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        BODY
net = Net()
optimizer, clear = sgd(net)
for at in range(5):
    loss = (net(ids, net.words(ids) + places) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
with no_grad():
    x, sees = net.words(ids) + places, []
    for place in (0, 1, 2, 4, 5):
        other = x + made([float(at == place) for at in range(6)]).reshape([1, 6, 1])
        if (net(ids, x) - net(ids, other))[0, 3].abs().max().item() > 1e-6:
            sees.append(place)
print("sees", sees)
"""
ENDS = "return F.softmax(scores, -1) @ v"


def attention(*lines: str) -> str:
    more = "self.many = several()" if any("self.many" in line for line in lines) else "pass"
    return START.replace("BODY", "\n        ".join(lines)).replace("MORE", more)


def filled(mask: str, *before: str, low: str = "float('-inf')") -> str:
    return attention(*before, f"scores = (q @ turned(k) / 8 ** 0.5).masked_fill({mask}, {low})", ENDS)


def given(mask: str, *before: str) -> dict[str, str]:
    """The framework's function: True is seen in both."""
    return {
        "torch": attention(*before, f"return F.scaled_dot_product_attention(q, k, v, attn_mask={mask}[:, None])"),
        "paddle": attention(*before, "q, k, v = (each.reshape([3, 6, 2, 4]) for each in (q, k, v))",
                            f"seen = {mask}[:, None, None].expand([3, 1, 6, 6])",
                            "out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)",
                            "return out.reshape([3, 6, 8])"),
    }  # fmt: skip


def module(mask: str, *before: str) -> dict[str, str]:
    """Of torch's True is hidden, of Paddle's it is seen: ``mask`` is what torch's is given, its opposite Paddle's."""
    other = {"ids == PAD": "ids != PAD", "ids != PAD": "ids == PAD"}[mask]
    last = "return self.many(q, k, v, key_padding_mask=mask, need_weights=False)[0]"
    return {
        "torch": attention(f"mask = {mask}  # CAUSE", last),
        "paddle": attention(f"mask = {other}  # CAUSE", "return self.many(q, k, v, attn_mask=mask[:, None, None])"),
    }


BUGGY = {
    "padding for what is seen": given("pad", "pad = ids == PAD  # CAUSE"),
    "turned once too often": given("(~seen)", "seen = ids != PAD  # CAUSE"),
    "the other way round": given("pad", "pad = (PAD == ids)  # CAUSE"),
    "words for what is filled": filled("seen[:, None]", "seen = ids != PAD  # CAUSE"),
    "a large number, unsqueezed": filled("seen.unsqueeze(1)", "seen = (ids != PAD)  # CAUSE", low="-1e9"),
    "turned before": filled("flipped(pad).unsqueeze(1)", "pad = ids == PAD  # CAUSE", low="-1e4"),
    "compared with 0": filled("(pad == 0).unsqueeze(1)", "pad = ids == PAD  # CAUSE"),
    "length, filled": filled("seen[:, None]", "seen = arange(6)[None, :] < lengths[:, None]  # CAUSE"),
    "length, given": given("behind", "behind = arange(6)[None, :] >= lengths[:, None]  # CAUSE"),
    "length, the other side": filled("seen[:, None]", "seen = lengths.unsqueeze(1) > arange(6).unsqueeze(0)  # CAUSE"),
}  # fmt: skip
MODULE = module("ids != PAD")
HEALTHY = {
    "turned": given("(~pad)", "pad = ids == PAD"),
    "compared with 0": given("(pad == 0)", "pad = ids == PAD"),
    "unlike padding": given("seen", "seen = ids != PAD"),
    "the framework's module": module("ids == PAD"),
    "padding, filled": filled("(ids == PAD)[:, None]"),
    "padding, filled with a large number": filled("pad.unsqueeze(1)", "pad = ids == PAD", low="-1e9"),
    "length, filled": filled("behind[:, None]", "behind = arange(6)[None, :] >= lengths[:, None]"),
    "length, given": given("seen", "seen = arange(6)[None, :] < lengths[:, None]"),
    "length, turned": filled("(~seen)[:, None]", "seen = arange(6)[None, :] < lengths[:, None]"),
    "a triangle, filled": filled("later", "later = arange(6)[None, :] > arange(6)[:, None]"),
    "a triangle, turned": filled("(~sooner)[None]", "sooner = arange(6)[None, :] <= arange(6)[:, None]"),
    "a triangle by a column": filled("later", "at = arange(6)", "later = at.unsqueeze(1) < at.unsqueeze(0)"),
}  # fmt: skip
# One kind of word is meant: those that stand for a passage each, say.
MEANT = {
    "one kind of word": filled("(ids != 5)[:, None]", low="-1e9").replace("[3, 4, 5, 6, 0, 0]", "[5, 4, 5, 6, 0, 0]")
    .replace("[7, 8, 0, 0, 0, 0]", "[5, 8, 5, 7, 1, 2]").replace("[9, 10, 11, 3, 4, 0]", "[9, 10, 11, 5, 3, 5]"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    kind = {"torch": "nn.Module", "paddle": "nn.Layer"}[framework]
    return HEAD[framework] + (part if isinstance(part, str) else part[framework]).replace("KIND", kind)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY | MEANT | {"a module": MODULE}
    texts = {name: text(request.param, part) for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"polarity-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def check_shown(run: Run, name: str) -> None:
    assert "sees [4, 5]\n" in run.plain, run
    first = run.check_first("mask-added")
    seen = "what lies behind the end" if "length" in name else "the places of token 0 alone"
    assert first["severity"] == "error" and seen in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_masks_that_show_the_padding(runs: dict[str, Run], name: str) -> None:
    check_shown(runs[f"buggy, {name}"], name)


@each
def test_a_module(runs: dict[str, Run]) -> None:
    assert "sees [4, 5]\n" in runs["a module"].plain, runs["a module"]
    runs["a module"].check_first("mask-added")


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_masks_that_hide_it(runs: dict[str, Run], name: str) -> None:
    assert "sees [0, 1, 2]\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", MEANT)
def test_one_kind_of_word_is_meant(runs: dict[str, Run], name: str) -> None:
    assert "sees [0, 2]\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
