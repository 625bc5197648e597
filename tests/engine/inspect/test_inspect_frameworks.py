"""What a stop says of what is not there, on real frameworks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled
from support.frameworks import node_of, on_frameworks, only
from support.front_end import Refused

SCRIPTS = {
    "torch": """
import torch
x = torch.tensor([0.5, 1.0], requires_grad=True)
x.tanh().exp().sum().backward()
""",
    "paddle": """
import paddle
x = paddle.to_tensor([0.5, 1.0], stop_gradient=False)
paddle.exp(paddle.tanh(x)).sum().backward()
""",
}


@on_frameworks()
def test_what_is_not_kept_ran_and_what_did_not_run_is_not_there_yet(framework: str, tmp_path: Path) -> None:
    """Nodes 1 to 4: sum, exp, tanh, and the leaf."""
    with Dialled(tmp_path, SCRIPTS[framework]) as run:
        run.peer.begin(node_of(framework, "exp"))
        run.peer.stopped()
        states = [
            [slot["meta"]["state"] for slot in run.peer.request("adbg/node", index=index)["grad_outputs"]]
            for index in (1, 2, 3, 4)
        ]
        assert states == [["not_kept"], ["ok"], ["not_yet"], ["not_yet"]]
        shapes = [
            run.peer.request("adbg/node", index=index)["grad_outputs"][0]["meta"]["shape"] for index in (1, 2, 3, 4)
        ]
        assert shapes == [[], [2], [2], [2]]


@only("paddle", "torch shows what its nodes saved")
def test_what_a_node_of_paddle_saved_is_not_known(tmp_path: Path) -> None:
    """Exp saved its result: that there is nothing would be false."""
    with Dialled(tmp_path, SCRIPTS["paddle"]) as run:
        run.peer.begin("ExpGradNode", "GradNodeAccumulation")
        run.peer.stopped()
        for expression in ("saved[0]", "saved['out']", "saved.out"):
            with pytest.raises(Refused, match="what this node saved is not known: Paddle shows no saved tensors"):
                run.peer.request("evaluate", expression=expression, context="repl")
        assert run.peer.request("evaluate", expression="list(saved)", context="repl")["result"] == "[]"
        assert "not known" in run.peer.request("evaluate", expression="saved", context="repl")["result"]
        run.peer.go()
        with pytest.raises(Refused, match="a parameter of no Layer"):
            run.peer.request("evaluate", expression="saved[0]", context="repl")
