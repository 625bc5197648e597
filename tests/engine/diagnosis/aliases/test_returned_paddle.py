"""PyLayers that give back the tensor they were given, which the program still reads under its old name. torch gives a
new tensor there."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("paddle")

PROGRAM = """
import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer
paddle.seed(5)
data, y, kind = paddle.randn([32, 8]), paddle.randn([32, 1]), paddle.randint(0, 3, [32])
class Reverse(PyLayer):
    @staticmethod
    def forward(ctx, x, by=1.0):
        ctx.by = by
        return RETURNED
    @staticmethod
    def backward(ctx, dy):
        return BACKWARD
class Turned(nn.Layer):
    def forward(self, x):
        return Reverse.apply(x, 0.5)
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.turned = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)), Turned()
        self.kinds, self.values = nn.Linear(8, 3), nn.Linear(8, 1)
    def forward(self, x):
        features = self.body(x)
        FORWARD
        return value, kinds
def gradient(net, reverse):
    net.clear_gradients()
    value, kinds = reverse(net, data)
    (F.mse_loss(value, y) + 0 * kinds.sum()).backward()
    found = net.body[0].weight.grad.numpy().copy()
    net.clear_gradients()
    return found
def apart(net, x):
    features = net.body(x)
    return net.values(features), net.kinds(features)
net = Net()
before = gradient(net, apart)
again = gradient(net, lambda net, x: net(x))
print("turned", not np.allclose(before, again, atol=1e-7))
optimizer = paddle.optimizer.SGD(1e-2, parameters=net.parameters())
for step in range(6):
    value, kinds = net(data)
    loss = F.mse_loss(value, y) + F.cross_entropy(kinds, kind)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
"""
BESIDE = """kinds = self.kinds(Reverse.apply(features, 0.5))
        value = self.values(features)"""
IN_A_LAYER = """turned = self.turned(features)
        value = self.values(features)
        kinds = self.kinds(turned)"""
IN_A_LIST = """kept = [features]
        kinds = self.kinds(Reverse.apply(kept[0]))
        value = self.values(kept[-1] * 1.0)"""
ALL_OF_IT = """features = Reverse.apply(features)
        kinds = self.kinds(features)
        value = self.values(features)"""
ADDED = """value = self.values(features + 0.0)
        kinds = self.kinds(Reverse.apply(features))"""


def _program(forward: str, returned: str = "x  # CAUSE", backward: str = "-ctx.by * dy") -> str:
    return PROGRAM.replace("FORWARD", forward).replace("RETURNED", returned).replace("BACKWARD", backward)


BROKEN = {"beside": _program(BESIDE), "in a layer": _program(IN_A_LAYER), "in a list": _program(IN_A_LIST)}
LOGGED = """kinds = self.kinds(Reverse.apply(features, 0.5))
        assert float(features.norm()) > 0
        value = self.values(self.body(x))"""
WRITTEN = _program(LOGGED, "x.scale_(1.0)")  # its forward writes there itself
HEALTHY = {
    "it is only looked at": _program(LOGGED),
    "read before": _program(ADDED),
    "a copy": _program(BESIDE, "x.clone()"),
    "nothing is changed": _program(BESIDE, backward="dy"),
    "nothing is changed, by a copy": _program(BESIDE, backward="dy * 1.0"),
}

MEANT = _program(ALL_OF_IT)  # the name is given the result: all that reads it is meant


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"broken {key}": text for key, text in BROKEN.items()}
    texts |= {f"healthy {key}": text for key, text in HEALTHY.items()}
    texts |= {"meant": MEANT, "written": WRITTEN}
    return diagnose_each("paddle", tmp_path_factory.mktemp("programs"), texts)


@pytest.mark.parametrize("key", BROKEN)
def test_the_line_that_returns_it_is_the_cause(runs: dict[str, Run], key: str) -> None:
    """Witness: the gradient beside that of the same network in which the function is not called."""
    run = runs[f"broken {key}"]
    found = run.check_first("function-contract")
    assert "Reverse.forward returns x itself" in found["message"], found
    assert "turned True" in run.output, run.output


@pytest.mark.parametrize("key", HEALTHY)
def test_what_changes_no_other_gradient_is_not_told(runs: dict[str, Run], key: str) -> None:
    run = runs[f"healthy {key}"]
    assert not any(found["kind"] == "function-contract" for found in run.every), run
    assert "turned False" in run.output, run.output


def test_what_forward_writes_itself_is_no_tensor_that_is_only_returned(runs: dict[str, Run]) -> None:
    assert not any(found["kind"] == "function-contract" for found in runs["written"].every), runs["written"]


def test_a_name_that_is_given_the_result_is_not_told(runs: dict[str, Run]) -> None:
    assert not any(found["kind"] == "function-contract" for found in runs["meant"].every), runs["meant"]
    assert "turned True" in runs["meant"].output
