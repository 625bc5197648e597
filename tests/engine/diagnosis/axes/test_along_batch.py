"""A recurrent layer or an attention that is given the batch where it takes the steps; and what looks like it."""

from __future__ import annotations

import re

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
noise = torch.randn
def sgd(*modules):
    return torch.optim.SGD([each for module in modules for each in module.parameters()], 0.05)
def clear(opt):
    opt.zero_grad()
def aligned(scores):
    steps, rows = scores.shape[:2]
    labels = torch.ones(rows, 2, dtype=torch.long)
    return F.ctc_loss(scores.log_softmax(-1), labels, (steps,) * rows, (1,) * rows, zero_infinity=True)
""",
    "paddle": """
import paddle
from paddle import nn
from paddle.nn import functional as F
paddle.seed(0)
noise = lambda *shape: paddle.randn(shape)
def sgd(*modules):
    return paddle.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()])
def clear(opt):
    opt.clear_grad()
def aligned(scores):
    steps, rows = scores.shape[:2]
    labels = paddle.ones([rows, 2], dtype="int32")
    return F.ctc_loss(scores, labels, paddle.full([rows], steps, "int64"), paddle.full([rows], 1, "int64"))
""",
}
# "front" has the steps in front, the others the rows.
LAYERS = {
    "torch": {
        "front": "nn.LSTM(4, 8)", "behind": "nn.GRU(4, 8, batch_first=True)",
        "both": "nn.RNN(4, 4, batch_first=True, bidirectional=True)", "block": "nn.TransformerEncoderLayer(8, 2, 16)",
        "attention": "nn.MultiheadAttention(8, 2, batch_first=True)",
    },
    "paddle": {
        "front": "nn.LSTM(4, 8, time_major=True)", "behind": "nn.GRU(4, 8)",
        "both": 'nn.SimpleRNN(4, 4, direction="bidirect")',
    },
}  # fmt: skip
EITHER = {"wide": "nn.Linear(4, 8)", "small": "nn.Linear(4, 4)", "out": "nn.Linear(8, 4)"}
LOOP = """
LAYERS
for step in range(5):
    x = noise(ROWS, STEPS, 4)
    y, tags = x.mean(1).argmax(-1), x.argmax(-1)
BODY
    loss.backward()
    opt.step()
    clear(opt)
"""


def program(body: str, rows: int = 6, steps: int = 5) -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return LOOP.replace("BODY", lines).replace("ROWS", str(rows)).replace("STEPS", str(steps))


# The line that makes the layer is the one to change where nothing was transposed.
MADE = "  # MADE"
BUGGY = {
    "the rows in front": program("""
seen = front(x)[0]
loss = F.cross_entropy(out(F.relu(seen[:, -1])), y)
""")
    + "# front"
    + MADE,
    "turned": program("""
seen = F.relu(small(x))
seen = seen.TURNED  # CAUSE
loss = F.cross_entropy(out(behind(seen)[0][-1]), y)
"""),
    "an alignment": program(
        """
seen = x.TURNED
loss = aligned(out(behind(seen)[0]))
""",
        6,
        8,
    )
    + "# behind"
    + MADE,
    "both ways": program("""
steps_first = x.TURNED  # CAUSE
last = both(steps_first)[0][4]
loss = (out(F.dropout(last, 0.1))[:, 0] - x.mean([1, 2])).square().mean()
"""),
}
ATTENTION = {
    "the first of a block": program("""
seen = block(wide(x))
loss = F.cross_entropy(out(seen[:, 0]), y)
""")
    + "# block"
    + MADE,
    "attention of what was turned": program("""
seen = wide(x).TURNED  # CAUSE
loss = F.cross_entropy(out(attention(seen, seen, seen)[0][0]), y)
"""),
}
HEALTHY = {
    "each as it is made": program("""
loss = F.cross_entropy(out(behind(x)[0][:, -1]) + out(front(x.TURNED)[0][-1]), y)
"""),
    "as many rows as steps": program(
        """
loss = F.cross_entropy(out(behind(x)[0][:, -1]) + out(front(x.TURNED)[0][-1]), y)
""",
        5,
        5,
    ),
    "both ways, and a mean": program("""
loss = F.cross_entropy(out(both(x)[0].mean(1)) + out(front(x.TURNED)[0].mean(0)), y)
"""),
    "a target each step": program("""
seen = out(front(x.TURNED)[0])
loss = F.cross_entropy(seen.reshape([-1, 4]), tags.T.flatten())
loss = loss + F.cross_entropy(out(behind(x)[0]).reshape([-1, 4]), tags.flatten())
"""),
    "one long sequence": program(
        """
seen = front(x.TURNED)[0]
loss = F.cross_entropy(out(seen[:, 0]), tags[0])
""",
        1,
        12,
    ),
    "alignments": program(
        """
loss = aligned(out(front(x.TURNED)[0])) + aligned(out(behind(x)[0]).TURNED)
""",
        6,
        8,
    ),
    "the last state": program("""
state = front(x.TURNED)[1][0][-1]
loss = F.cross_entropy(out(state), y)
"""),
}
ATTENDED = {
    # Between samples, and between steps.
    "both axes": program("""
seen = attention(*[wide(x)] * 3)[0].TURNED
seen = attention(seen, seen, seen)[0].TURNED
loss = F.cross_entropy(out(seen[:, 0]), y)
"""),
    "blocks": program("""
seen = block(block(wide(x).TURNED))
loss = F.cross_entropy(out(seen[0]) + out(seen.mean(0)), y)
"""),
}


def _text(framework: str, body: str) -> str:
    known = LAYERS[framework] | EITHER
    used = [name for name in known if re.search(rf"\b{name}\(", body)]
    body, _, marked = body.removesuffix(MADE).rpartition("# ") if body.endswith(MADE) else (body, "", "")
    layers = [f"{name} = {known[name]}" + ("  # CAUSE" if name == marked else "") for name in used]
    body = body.replace("TURNED", "transpose(0, 1)" if framework == "torch" else "transpose([1, 0, 2])")
    return HEAD[framework] + body.replace("LAYERS", "\n".join([*layers, f"opt = sgd({', '.join(used)})"]))


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    every = BUGGY | HEALTHY | (ATTENTION | ATTENDED if request.param == "torch" else {})
    texts = {name: _text(request.param, text) for name, text in every.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-along-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", [*BUGGY, *ATTENTION])
def test_steps_that_are_the_batch(runs: dict[str, Run], name: str) -> None:
    if name in runs:
        first = runs[name].check_first("wrong-axis")
        assert "goes along the batch" in first["message"], first


@each
@pytest.mark.parametrize("name", [*HEALTHY, *ATTENDED])
def test_layouts_that_are_right(runs: dict[str, Run], name: str) -> None:
    if name in runs:
        runs[name].check_healthy()
