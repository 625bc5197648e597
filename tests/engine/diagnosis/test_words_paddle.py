"""What findings say beside kind and line: which module, which name, which numbers. On Paddle, in one process."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("paddle")

# One line runs all layers. The first bad number is made by the second, in an iteration that is not looked at closely.
SHARED_LINE = """
import paddle
from paddle import nn
class Scaled(nn.Layer):
    def __init__(self):
        super().__init__()
        self.w = self.create_parameter([4], default_initializer=nn.initializer.Constant(2.0))
    def forward(self, x):
        return paddle.log(x * self.w)  # CAUSE
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layers = nn.LayerList([Scaled() for _ in range(4)])
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x.abs() + 1.5)
            if not bool(paddle.isfinite(x).all()):
                print(f"layers.{number}")
        return x
paddle.seed(0)
net = Net()
optimizer = paddle.optimizer.SGD(1e-3, parameters=net.parameters())
for step in range(12):
    if step == 10:
        net.layers[1].w.set_value(paddle.zeros([4]))
    loss = net(paddle.rand([8, 4]) + 1).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

PROGRAMS = {"shared line": SHARED_LINE}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("paddle", tmp_path_factory.mktemp("programs"), PROGRAMS)


def test_layers_that_share_a_line_are_told_apart(runs: dict[str, Run]) -> None:
    run = runs["shared line"]
    first = run.first("nonfinite")
    assert first["node"]["module"] == run.plain.split()[0] == "layers.1"
    assert first["iteration"] == 11
