"""The last step of padded sequences. Witness: in how many rows of what is taken every number is 0."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
fw.manual_seed(0)
randn, long, no_grad, arange = fw.randn, fw.tensor, fw.no_grad, fw.arange
lengths = long([6, 3, 2, 5])
def lstm(batch_first=True, **more):
    return nn.LSTM(3, 5, batch_first=batch_first, **more)
def gru():
    return nn.GRU(3, 5, batch_first=True)
def outputs(net, x, lengths):
    packed = pack_padded_sequence(x, lengths, net.batch_first, enforce_sorted=False)
    made, state = net(packed)
    return pad_packed_sequence(made, net.batch_first)[0], state[0]
def sgd(nets):
    optimizer = fw.optim.SGD(nets.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import paddle as fw
from paddle import nn
fw.seed(0)
def randn(*shape):
    return fw.randn(shape)
long, no_grad, arange = fw.to_tensor, fw.no_grad, fw.arange
lengths = long([6, 3, 2, 5])
def lstm(batch_first=True, bidirectional=False):
    return nn.LSTM(3, 5, time_major=not batch_first, direction="bidirect" if bidirectional else "forward")
def gru():
    return nn.GRU(3, 5)
def outputs(net, x, lengths):
    made, state = net(x, None, lengths)
    return made, state[0]
def sgd(nets):
    optimizer = fw.optimizer.SGD(0.1, parameters=nets.parameters())
    return optimizer, optimizer.clear_grad
""",
}
FIT = """
optimizer, clear = sgd(nn.LayerList([net, head]) if fw.__name__ == "paddle" else nn.ModuleList([net, head]))
for at in range(6):
    last = last_of(x)
    loss = (head(last) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
print("padding:", sum(not any(row) for row in last.tolist()))
"""


def taken(*lines: str, net: str = "lstm()", head: int = 5, shape: str = "4, 6, 3") -> str:
    body = "".join(f"\n    {line}" for line in lines)
    return f"net, head, x = {net}, nn.Linear({head}, 1), randn({shape})\ndef last_of(x):{body}\n"


MADE = "out, state = outputs(net, x, lengths)"
BUGGY = {
    "[:, -1]": taken(MADE, "return out[:, -1]  # CAUSE"),
    "[:, -1, :]": taken(MADE, "return out[:, -1, :]  # CAUSE"),
    "[:, 5]": taken(MADE, "return out[:, out.shape[1] - 1]  # CAUSE"),
    "[-1]": taken(MADE, "return out[-1]  # CAUSE", net="lstm(batch_first=False)", shape="6, 4, 3"),
    "[-1, :, :]": taken(MADE, "return out[-1, :, :]  # CAUSE", net="lstm(batch_first=False)", shape="6, 4, 3"),
    "of both directions": taken(MADE, "return out[:, -1, :5]  # CAUSE", net="lstm(bidirectional=True)"),
    "a GRU": taken("out, state = outputs(net, x, lengths)", "return out[:, -1]  # CAUSE", net="gru()"),
    "a layer behind it": taken(MADE, "out = fw.tanh(out)", "return out[:, -1]  # CAUSE"),
}
HEALTHY = {
    "at its length": taken(MADE, "return out[arange(4), lengths - 1]"),
    "the state": taken(MADE, "return state[-1]"),
    "all of a length": taken("out, state = outputs(net, x, long([6, 6, 6, 6]))", "return out[:, -1]"),
    "no lengths": taken("out, state = net(x)", "return out[:, -1]"),
    "padding at the left": taken("x = x * long([[[float(at > 5 - n)] for at in range(6)] for n in (6, 3, 2, 5)])",
                                 "return net(x)[0][:, -1]"),
    "the mean": taken(MADE, "return out.sum(1) / long([[6.0], [3.0], [2.0], [5.0]])"),
    "looked at": taken(MADE, "with no_grad():", "    shown = out[:, -1]", "return state[-1]"),
    "the first": taken(MADE, "return out[:, 0]"),
    "an empty one": taken("x = x * fw.ones_like(x[:, :1, :1])",
                          "x = x * long([1.0, 1.0, 1.0, 0.0])[:, None, None]",
                          "return fw.tanh(net(x))[:, -1]", net="nn.Linear(3, 5)").replace(
                              "nn.Linear(3, 5)", "nn.Sequential(nn.Linear(3, 5), nn.ReLU())"),
}  # fmt: skip
OFF = {
    # No padding: of few units of a ReLU all are off now and then
    "few units": taken("return net(x)[:, -1]", net="nn.Sequential(nn.Linear(3, 4), nn.ReLU())", head=4,
                       shape="8, 6, 3") + """
with no_grad():
    drawn = randn(200, 3)
    x[0, 5] = drawn[int(net(drawn).sum(-1).argmin())]
""",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + part + FIT for name, part in (BUGGY | HEALTHY | OFF).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"padding-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_step_behind_the_end(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("padding-taken")
    assert "3 of 4 sequences ended before" in first["message"] and "2 to 6 steps" in first["evidence"][0], first
    assert name in ("of both directions", "a layer behind it") or "padding: 3\n" in runs[name].plain, runs[name]


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_a_step_of_each_sequence(runs: dict[str, Run], name: str) -> None:
    assert "padding: 0\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", OFF)
def test_steps_that_are_no_padding(runs: dict[str, Run], name: str) -> None:
    assert "padding: " in runs[name].plain, runs[name]
    runs[name].check_healthy()
