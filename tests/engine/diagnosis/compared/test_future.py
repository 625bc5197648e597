"""Language models that see their labels. Witness: the gradient of the loss of one place by the tokens behind it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD

MODEL = """
class Net(Module):
    def __init__(self):
        super().__init__()
        self.emb, self.q, self.k, self.v = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head, self.other = nn.Linear(16, 20), nn.Embedding(20, 16)
    def forward(self, ids, source=None):
        e = self.emb(ids)
        h = self.attend(e, self.other(source) if source is not None else e)
        self.seen = h
        return self.head(e + h)
    def attend(self, e, s):
        q, k, v = self.q(e), self.k(s), self.v(s)
ATTEND
net = Net()
optimizer = Sgd(net.parameters(), 0.01)
for step in range(4):
    seq = fw.randint(0, 20, [8, 11])
    ids, labels = seq[:, :-1], seq[:, 1:]
LABELS
    out = net(ids)
    loss = F.cross_entropy(out.reshape([-1, 20]), labels.reshape([-1]))
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
changed = seq[:, :-1] * 1
changed[:, -1] = (changed[:, -1] + 1) % 20
with fw.no_grad():
    moved = (net(seq[:, :-1])[:, 0] - net(changed)[:, 0]).abs().max()
print("sees", float(moved) > 1e-7)
"""


def model(*lines: str, labels: str = "pass") -> str:
    return MODEL.replace("ATTEND", "".join(f"        {each}\n" for each in lines)).replace("LABELS", f"    {labels}")


SCORES = "s = fw.matmul(q, k.transpose([0, 2, 1]) if fw.__name__ == 'paddle' else k.transpose(1, 2)) / 4.0"
MASK = "m = fw.tril(fw.ones([10, 10]))"
BUGGY = {
    "a softmax": model(SCORES, "a = F.softmax(s, -1)  # CAUSE", "return fw.matmul(a, v)"),
    "a function": model(
        "q, k, v = (each.reshape([8, 10, 1, 16]) for each in (q, k, v))",
        "if fw.__name__ == 'torch':",
        "    q, k, v = (each.transpose(1, 2) for each in (q, k, v))",
        "h = F.scaled_dot_product_attention(q, k, v)  # CAUSE",
        "return h.reshape([8, 10, 16])",
    ),
    "a mask of the wrong kind": model(
        SCORES, "s = s + fw.zeros([10, 10])", "a = F.softmax(s, -1)  # CAUSE", "return fw.matmul(a, v)"
    ),
}
HEALTHY = {
    "a mask": model(SCORES, MASK, "s = s + (m - 1.0) * 1e9", "return fw.matmul(F.softmax(s, -1), v)"),
    "causal": model(
        "q, k, v = (each.reshape([8, 10, 1, 16]) for each in (q, k, v))",
        "if fw.__name__ == 'torch':",
        "    q, k, v = (each.transpose(1, 2) for each in (q, k, v))",
        "h = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "return h.reshape([8, 10, 16])",
    ),
}
OTHERS = {
    "labels in their places": model(SCORES, "a = F.softmax(s, -1)", "return fw.matmul(a, v)", labels="labels = ids"),
    "labels of another kind": model(
        SCORES, "a = F.softmax(s, -1)", "return fw.matmul(a, v)", labels="labels = fw.randint(0, 20, [8, 10])"
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = BUGGY | HEALTHY | OTHERS
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"future-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_attention_that_sees_its_labels(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert "sees True" in run.plain, run
    first = run.check_first("mask-added")
    assert first["severity"] == "error" and "no causal mask" in first["message"], first


@each
@named(HEALTHY | OTHERS, {})
def test_attention_that_may_see_what_it_does(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert ("sees False" in run.plain) is (name in HEALTHY), run
    assert not [found for found in run.every if "no causal mask" in found["message"]], run
