"""Programs on Paddle that overwrite behind autograd's back what a graph holds, and others that may write there."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of, numbered

STEP = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    judge = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    maker = nn.Linear(2, 3)
    for_judge = paddle.optimizer.Adam(parameters=judge.parameters())
    for_maker = paddle.optimizer.Adam(parameters=maker.parameters())

    def train(noise, real):
        fake = maker(noise)
        judged = judge(fake)
        loss = judge(fake.detach()).mean() - judge(real).mean()
        for_judge.clear_grad()
        loss.backward()
        for_judge.step()  # CAUSE
        for_maker.clear_grad()
        (-judged.mean()).backward()
        for_maker.step()

    for _ in range(3):
        train(paddle.randn([5, 2]), paddle.randn([5, 3]))
"""

COPY = """
    import paddle
    import paddle.nn as nn

    class Net(nn.Layer):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 1)

        def renew(self):
            self.outer.weight.copy_(paddle.zeros([4, 1]), True)  # CAUSE

        def forward(self, x):
            out = self.outer(self.inner(x))
            self.renew()
            return out.mean()

    paddle.seed(0)
    net = Net()
    for _ in range(2):
        loss = net(paddle.randn([5, 3]))
        loss.backward()
        net.clear_gradients()
"""

MIDDLE = """
    import paddle

    paddle.seed(0)
    weight = paddle.create_parameter([3], "float32")
    for step in range(3):
        x = paddle.randn([4, 3])
        score = (x * weight).sum()
        if step == 1:
            x.copy_(paddle.ones([4, 3]), True)  # CAUSE
        score.backward()
        weight.clear_gradient()
"""

HEALTHY = """
    import paddle
    import paddle.nn as nn

    paddle.seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1D(4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = paddle.optimizer.Momentum(0.01, parameters=net.parameters())
    judge, maker = nn.Linear(3, 1), nn.Linear(2, 3)
    for_judge = paddle.optimizer.RMSProp(0.01, parameters=judge.parameters())
    for_maker = paddle.optimizer.RMSProp(0.01, parameters=maker.parameters())
    twin = nn.Linear(3, 4)
    for step in range(5):
        x = paddle.randn([4, 3])
        seen = net(x).mean()
        loss = net(x).square().mean()
        optimizer.clear_grad()
        loss.backward()
        optimizer.step()
        twin.weight.copy_(net[0].weight, True)
        loss = net(x).square().mean() + (twin(x).detach() @ twin.weight.detach().T).mean()
        loss.backward()
        optimizer.step()
        fake = maker(paddle.randn([4, 2]))
        cost = judge(fake.detach()).mean() - judge(x).mean()
        for_judge.clear_grad()
        cost.backward()
        for_judge.step()
        for_maker.clear_grad()
        (-judge(fake).mean()).backward()
        for_maker.step()
        print(step, seen.item(), loss.item(), cost.item())
"""

# A state is carried on with its graph, which each backward retains: the step in between writes to what the older half
# of the next graph needs.
RETAINED = """
import paddle
from paddle import nn
paddle.seed(0)
cell, head = nn.Linear(12, 8), nn.Linear(8, 1)
optimizer = paddle.optimizer.SGD(0.01, parameters=[*cell.parameters(), *head.parameters()])
state = paddle.zeros([2, 8])
for step in range(4):
    state = paddle.tanh(cell(paddle.concat([paddle.randn([2, 4]), state], 1)))  # CAUSE
    loss = head(state).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.clear_grad()
"""
# The same, freed: the backward that would need it raises, and computes nothing of the new value.
FREED = RETAINED.replace("retain_graph=True", "")

CASES = [
    ("silent-overwrite", STEP), ("silent-overwrite", COPY), ("silent-overwrite", MIDDLE),
    ("graph-grows", RETAINED), ("second-backward", FREED),
]  # fmt: skip
PROGRAMS = numbered(CASES) | {"healthy": HEALTHY}


@pytest.mark.parametrize("name", numbered(CASES))
def test_behind_autograds_back(runs: dict[str, Run], name: str) -> None:
    severe = "warning" if kind_of(name) == "graph-grows" else "error"
    assert runs[name].check_first(kind_of(name))["severity"] == severe


def test_writes_that_no_graph_minds(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()


def test_a_backward_that_raises_computes_nothing_of_a_new_value(runs: dict[str, Run]) -> None:
    run = next(each for name, each in runs.items() if name.startswith("second-backward"))
    assert [each["kind"] for each in run.every] == ["second-backward"], str(run)
