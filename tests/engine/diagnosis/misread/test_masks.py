"""Masks of ones and zeros that are added to the scores of an attention. Witness: whether the first place of what comes
out changes with the last one of what goes in, by running the program's own attention twice."""

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
randn, ones, tril, no_grad, made = fw.randn, fw.ones, fw.tril, fw.no_grad, fw.tensor
def turned(k):
    return k.transpose(-1, -2)
def heads(x):
    return x.view(2, 6, 2, 4).transpose(1, 2)
def merged(x):
    return x.transpose(1, 2).reshape(2, 6, 8)
def several():
    return nn.MultiheadAttention(8, 2, batch_first=True)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
def learnt(*shape):
    return nn.Parameter(fw.zeros(*shape))
def is_bool(mask):
    return mask.bool()
""",
    "paddle": """
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
def ones(*shape):
    return fw.ones(shape)
tril, no_grad, made = fw.tril, fw.no_grad, fw.to_tensor
def turned(k):
    return k.transpose([*range(k.ndim - 2), k.ndim - 1, k.ndim - 2])
def heads(x):
    return x.reshape([2, 6, 2, 4]).transpose([0, 2, 1, 3])
def merged(x):
    return x.transpose([0, 2, 1, 3]).reshape([2, 6, 8])
def several():
    return nn.MultiHeadAttention(8, 2)
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
def learnt(*shape):
    return fw.create_parameter(shape, "float32", default_initializer=nn.initializer.Constant(0.0))
def is_bool(mask):
    return mask.astype("bool")
""",
}
START = """
x = randn(2, 6, 8)
mask = tril(ones(6, 6))
hides = (1 - mask) * -1e9
class Net(KIND):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        MORE
    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        BODY
net = Net()
optimizer, clear = sgd(net)
for at in range(5):
    loss = (net(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
with no_grad():
    other = x + ones(2, 6, 8) * made([0.0, 0.0, 0.0, 0.0, 0.0, 1.0]).reshape([6, 1])
    apart = (net(x) - net(other))[:, 0].abs().max().item()
print("leaks" if apart > 1e-5 else "hides")
"""


def attention(*lines: str) -> str:
    more = {"self.many": "self.many = several()", "self.bias": "self.bias = learnt(6, 6)"}
    made = [more[name] for name in more if any(name in line for line in lines)]
    return START.replace("BODY", "\n        ".join(lines)).replace("MORE", "\n        ".join(made) or "pass")


WRITTEN = "scores = q @ turned(k) / 8 ** 0.5"
BUGGY = {
    "a sum": attention(WRITTEN, "scores = scores + mask", "return F.softmax(scores, -1) @ v  # CAUSE"),
    "the other way round": attention(WRITTEN, "return F.softmax(mask + scores, -1) @ v  # CAUSE"),
    "in place": attention(WRITTEN, "scores += mask", "return F.softmax(scores, -1) @ v  # CAUSE"),
    "of bool before": attention(WRITTEN, "seen = is_bool(mask).cast('float32') if fw.__name__ == 'paddle' else \\",
                                "    is_bool(mask).float()", "return F.softmax(scores + seen, -1) @ v  # CAUSE"),
    "divided behind it": attention("scores = (q @ turned(k) + mask) / 8 ** 0.5",
                                   "return F.softmax(scores, -1) @ v  # CAUSE"),
    "with heads": attention("q, k, v = heads(q), heads(k), heads(v)", "scores = q @ turned(k) / 2",
                            "scores = scores + mask[None, None]", "weights = F.softmax(scores, -1)  # CAUSE",
                            "return merged(weights @ v)"),
    "the framework's": {
        "torch": attention("return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # CAUSE"),
        "paddle": attention("q, k, v = (each.reshape([2, 6, 2, 4]) for each in (q, k, v))",
                            "out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])  # CAUSE",
                            "return out.reshape([2, 6, 8])"),
    },
    "by its place": {
        "torch": attention("q, k, v = heads(q), heads(k), heads(v)",
                           "return merged(F.scaled_dot_product_attention(q, k, v, mask))  # CAUSE"),
        "paddle": attention("q, k, v = (each.reshape([2, 6, 2, 4]) for each in (q, k, v))",
                            "out = F.scaled_dot_product_attention(q, k, v, mask[None, None])  # CAUSE",
                            "return out.reshape([2, 6, 8])"),
    },
    "of padding": attention(WRITTEN, "kept = ones(2, 1, 6) * made([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])",
                            "return F.softmax(scores + kept, -1) @ v  # CAUSE"),
    "of two lengths": attention(
        WRITTEN, "kept = made([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]])[:, None]",
        "return F.softmax(scores + kept, -1) @ v  # CAUSE"),
}  # fmt: skip
HEALTHY = {
    "infinities": attention(WRITTEN, "return F.softmax(scores + hides, -1) @ v"),
    "infinities, filled": {
        "torch": attention(WRITTEN, "return F.softmax(scores.masked_fill(mask == 0, float('-inf')), -1) @ v"),
        "paddle": attention(WRITTEN, "return F.softmax(scores.masked_fill(mask == 0, float('-inf')), -1) @ v"),
    },
    "bool, the framework's": {
        "torch": attention("return F.scaled_dot_product_attention(q, k, v, attn_mask=is_bool(mask))"),
        "paddle": attention("q, k, v = (each.reshape([2, 6, 2, 4]) for each in (q, k, v))",
                            "out = F.scaled_dot_product_attention(q, k, v, attn_mask=is_bool(mask)[None, None])",
                            "return out.reshape([2, 6, 8])"),
    },
    "bool, the framework's module": {
        "torch": attention("return self.many(q, k, v, attn_mask=~is_bool(mask), need_weights=False)[0]"),
        "paddle": attention("return self.many(q, k, v, attn_mask=is_bool(mask))"),
    },
    "a word for it": {
        "torch": attention("return F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
        "paddle": attention("q, k, v = (each.reshape([2, 6, 2, 4]) for each in (q, k, v))",
                            "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                            "return out.reshape([2, 6, 8])"),
    },
    "learnt": attention(WRITTEN, "return F.softmax(scores + self.bias + hides, -1) @ v"),
    "by distance": attention(WRITTEN, "far = (fw.arange(6)[:, None] - fw.arange(6)[None, :]).abs()",
                             "return F.softmax(scores - 0.1 * far + hides, -1) @ v"),
    "ones beside what hides": attention(WRITTEN, "scores = scores + tril(mask, -3)",
                                        "return F.softmax(scores + hides, -1) @ v"),
    "ones behind what hides": attention(WRITTEN, "scores = scores + hides",
                                        "return F.softmax(scores + tril(mask, -3), -1) @ v"),
    "ones, filled behind": attention(WRITTEN, "scores = scores + tril(mask, -3)",
                                     "return F.softmax(scores.masked_fill(mask == 0, -1e9), -1) @ v"),
    "ones, filled before": attention(WRITTEN, "scores = scores.masked_fill(mask == 0, -1e9)",
                                     "return F.softmax(scores + tril(mask, -3), -1) @ v"),
    "a product": attention(WRITTEN, "weights = F.softmax(scores, -1) * mask",
                           "return (weights / weights.sum(-1, keepdim=True)) @ v"),
}  # fmt: skip
MODULES = {
    "torch": attention("return self.many(q, k, v, attn_mask=mask, need_weights=False)[0]  # CAUSE"),
    "paddle": attention("return self.many(q, k, v, attn_mask=mask)  # CAUSE"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    kind = {"torch": "nn.Module", "paddle": "nn.Layer"}[framework]
    return HEAD[framework] + (part if isinstance(part, str) else part[framework]).replace("KIND", kind)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: text(request.param, part) for name, part in (BUGGY | HEALTHY | {"a module": MODULES}).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"masks-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_masks_that_hide_nothing(runs: dict[str, Run], name: str) -> None:
    assert "leaks\n" in runs[name].plain, runs[name]
    first = runs[name].check_first("mask-added")
    severity = {"of padding": "note", "of two lengths": "warning"}.get(name, "error")
    assert first["severity"] == severity, first
    assert ("a triangle of ones" if severity == "error" else "ones and zeros") in first["message"], first


@each
def test_a_module(runs: dict[str, Run]) -> None:
    assert "leaks\n" in runs["a module"].plain
    runs["a module"].check_first("mask-added")


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_masks_that_hide(runs: dict[str, Run], name: str) -> None:
    assert "hides\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
