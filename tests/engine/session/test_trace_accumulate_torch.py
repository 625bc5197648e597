"""Tracepoints behind nodes that give nothing on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.dialled import Dialled

pytest.importorskip("torch")


def test_a_trace_behind_an_accumulate_node_has_the_number_that_flowed_in(tmp_path: Path) -> None:
    script = (
        "import torch\nx = torch.ones(3, requires_grad=True)\n(x * 2).sum().backward()\nprint(x.grad.norm().item())"
    )
    with Dialled(tmp_path, script) as run:
        run.peer.event("adbg/hello")
        run.peer.request("initialize", token=run.peer.token, adbg=True)
        run.peer.request("setFunctionBreakpoints", breakpoints=[{"name": "Acc* after", "id": 1, "trace": True}])
        run.peer.request("configurationDone")
        text = run.peer.event("adbg/trace")["text"]
        assert text == "after AccumulateGrad#1: grad_outputs[0] [3] f32 norm 3.464"
        assert run.end()[1].startswith("3.464")
