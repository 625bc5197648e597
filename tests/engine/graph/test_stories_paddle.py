"""Where NaN came from, on real Paddle, which shows no saved tensors: the loss and the leaves tell of the forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled

from adbg.engine.protocol.codec import from_json
from adbg.engine.types import NodeStop, Origin, Role
from adbg.tui.text.evidence import verdict_text

pytest.importorskip("paddle")

SPOILT_FORWARD = """
import paddle
paddle.seed(0)
lin = paddle.nn.Linear(3, 3)
optimizer = paddle.optimizer.SGD(parameters=lin.parameters(), learning_rate=0.1)
for i in range(4):
    if i == 3:
        for parameter in lin.parameters():
            parameter.set_value(paddle.zeros(parameter.shape))
    loss = (lin(paddle.ones([2, 3])) - 100).log().square().mean()
    loss.backward()
    print(bool(loss.isnan()), bool(lin.weight.isnan().any()))
    optimizer.step()
    optimizer.clear_grad()
"""


def evidence(stop: dict[str, Any]) -> tuple[NodeStop, list[Role]]:
    at = from_json(NodeStop, stop)
    return at, [found.role for found in at.evidence if found.origin is Origin.FORWARD]


def test_a_loss_that_is_nan_says_that_the_forward_pass_was(tmp_path: Path) -> None:
    with Dialled(tmp_path, SPOILT_FORWARD) as run:
        run.peer.begin("nan")
        at, left = evidence(run.peer.stopped())
        assert at.backward == 1 and left == [Role.ROOT]
        assert verdict_text(at) == "NaN came from the forward pass (the loss is NaN already)"
        at, _ = evidence(run.peer.go())  # the parameters are NaN in the second and third: what came of the first
        assert at.backward == 4, "a new start is news"
        run.peer.request("continue")
        assert run.end()[1] == "True False\nTrue True\nTrue True\nTrue False\n"


def test_a_parameter_that_is_nan_before_the_forward_pass_is_named_once(tmp_path: Path) -> None:
    script = (
        SPOILT_FORWARD.replace("i == 3", "i < 0")
        .replace("- 100).log()", "+ 1)")
        .replace("for i in range", "lin.bias.set_value(paddle.full([3], float('nan')))\nfor i in range")
    )
    with Dialled(tmp_path, script) as run:
        run.peer.begin("nan")
        at, left = evidence(run.peer.stopped())
        assert left == [Role.LEAF]
        assert verdict_text(at) == "NaN came from parameter bias: NaN before the forward pass"
        run.peer.request("continue")
        assert run.end()[0] == 0
