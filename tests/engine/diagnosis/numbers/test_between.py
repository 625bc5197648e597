"""Gradients that are made not finite between backward and the step, in ways that end elsewhere than where they began:
through NumPy's memory, through a buffer."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
noise, joined, taken, log = torch.randn, torch.cat, torch.from_numpy, torch.log
quiet = torch.no_grad
def made(net):
    return torch.optim.Adam(net.parameters(), 0.01), "zero_grad"
def put(p, value):
    p.grad.copy_(value.reshape(p.grad.shape))
""",
    "paddle": """
import numpy as np
import paddle
from paddle import nn
paddle.seed(0)
noise, joined, taken, log = lambda *shape: paddle.randn(shape), paddle.concat, paddle.to_tensor, paddle.log
quiet = paddle.no_grad
def made(net):
    return paddle.optimizer.Adam(0.01, parameters=net.parameters()), "clear_grad"
def put(p, value):
    p.grad.set_value(value.reshape(p.grad.shape))
""",
}
TRAIN = """
SCALE = 2.0 ** 16
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer, clear = made(net)
for _ in range(6):
    loss = (net(noise(12, 4)) - 9).square().mean()
    getattr(optimizer, clear)()
    (loss * SCALE).backward()
    exchange(list(net.parameters()))
    for p in net.parameters():
        put(p, p.grad / SCALE)
    optimizer.step()
print(float(loss))
"""
WIRE = """
def pack(grad):
    return CAST
def exchange(params):
    for p in params:
        LOOK
        wire = pack(p.grad)
        mean = sum(each / 2 for each in (wire, wire))
        put(p, taken(mean.astype(np.float32)))
"""
PACKED = "grad.HALF.numpy()  # CAUSE"
BUCKET = """
def exchange(params):
    flat = joined([p.grad.reshape([-1]) for p in params])
    wire = flat.HALF  # CAUSE
    whole, at = np.array(wire.numpy(), dtype=np.float32), 0
    for p in params:
        size = int(np.prod(p.grad.shape))
        put(p, taken(whole[at : at + size].copy()))
        at += size
"""
NORM = """
def exchange(params):
    for p in params:
        own = p.grad * 0 if len(p.shape) == 1 else p.grad
        put(p, own / own.norm())  # CAUSE
"""
# Of a few elements that are 0: a gradient by the logarithm of its size.
LOG = """
def exchange(params):
    for p in params:
        own = p.grad * (p.grad > 0).astype(p.grad.dtype)
        size = log(own.abs())  # CAUSE
        put(p, taken(np.array(size.numpy())))
"""
FIGURES = "with quiet(): shown, best = log((p.grad * 0).abs()).max(), float('inf')"
WRONG = {
    "wire": WIRE.replace("CAST", PACKED).replace("LOOK", "pass"),
    "wire, beside figures": WIRE.replace("CAST", PACKED).replace("LOOK", FIGURES),
    "numpy": WIRE.replace("CAST", "grad.numpy().astype(np.float16)  # CAUSE").replace("LOOK", "pass"),
    "bucket": BUCKET, "norm": NORM, "log": LOG,
}  # fmt: skip
RIGHT = {
    "wire": WIRE.replace("CAST", "(grad / SCALE).HALF.numpy() * np.float32(SCALE)").replace("LOOK", FIGURES),
    "bucket": BUCKET.replace("flat.HALF  # CAUSE", "(flat / 1024).HALF").replace(
        "np.array(wire.numpy(), dtype=np.float32)", "1024 * np.array(wire.numpy(), dtype=np.float32)"
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    every = {**{f"{name}, wrong": text for name, text in WRONG.items()}, **RIGHT}
    texts = {name: HEAD[request.param] + text + TRAIN for name, text in every.items()}
    half = "half()" if request.param == "torch" else 'astype("float16")'
    texts = {name: text.replace("HALF", half) for name, text in texts.items()}
    if request.param == "torch":
        texts = {name: text.replace(".astype(p.grad.dtype)", ".to(p.grad.dtype)") for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"numbers-between-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_the_operator_that_made_it(runs: dict[str, Run], name: str) -> None:
    first = runs[f"{name}, wrong"].check_first("nonfinite")
    assert "nan" in runs[f"{name}, wrong"].plain and "between backward and step" in first["message"], first
    if name in ("wire", "bucket"):
        assert "the largest float16, 65504" in first["message"], first["message"]


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_fits(runs: dict[str, Run], name: str) -> None:
    assert "nan" not in runs[name].plain
    runs[name].check_healthy()
