"""Gradients of the last stops: copies of what was there, within a budget, gone with their backward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.dialled import Dialled
from support.frameworks import on_frameworks
from support.front_end import Refused

# Prints what tensor hooks see of the gradients that flow into the nodes of exp, sin and tanh (the witness), then
# whether what they saw is gone and how much adbg still has when the backward is over.
SCRIPT = """
import gc, json, sys, weakref
gc.disable()
{make}
from adbg.engine.agent import agent
kept = agent.current().session.kept
kept.limit = {limit}
seen, refs = {{}}, []
def watch(tensor, name):
    def hook(gradient):
        seen[name] = gradient.tolist()
        refs.append(weakref.ref(gradient))
    tensor.register_hook(hook)
y = (w * 2).exp(); watch(y, "exp")
z = y.sin(); watch(z, "sin")
t = z.tanh(); watch(t, "tanh")
(t * t).sum().backward()
print(json.dumps([seen, [ref() is None for ref in refs], len(kept), kept.bytes]))
"""
MAKE = {
    "torch": "import torch\nw = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)",
    "paddle": "import paddle\nw = paddle.to_tensor([0.1, 0.2, 0.3])\nw.stop_gradient = False",
}


class Steps:
    """The program stepped through to its last node; what stood at each, by the node's short name."""

    def __init__(self, framework: str, folder: Path, limit: int = 1 << 20) -> None:
        self.dialled = Dialled(folder, SCRIPT.format(make=MAKE[framework], limit=limit))
        self.live: dict[str, Any] = {}
        self.index: dict[str, int] = {}

    def __enter__(self) -> Steps:
        self.dialled.__enter__()
        peer = self.dialled.peer
        peer.begin(entry=True)
        body = peer.stopped()
        for _ in range(100):
            if body["node"] is not None and body["index"]:
                name = body["node"]["name"].lower()
                self.index.update({each: body["index"] for each in ("exp", "sin", "tanh") if name.startswith(each)})
                if body["index"] == body["total"]:
                    break
            peer.request("stepIn")
            body = peer.stopped()
        return self

    def __exit__(self, *error: Any) -> None:
        self.dialled.__exit__(*error)

    def at(self, name: str, expression: str = "grad_outputs[0].tolist()") -> Any:
        return self.dialled.peer.request("evaluate", expression=expression, node=self.index[name])["value"]

    def end(self) -> tuple[dict[str, Any], list[bool], int, int]:
        self.dialled.peer.request("continue")
        status, out, err = self.dialled.end()
        assert status == 0, err
        seen, gone, count, nbytes = json.loads(out)
        return seen, gone, count, nbytes


@on_frameworks()
def test_a_passed_node_has_its_gradient_as_it_was(framework: str, tmp_path: Path) -> None:
    with Steps(framework, tmp_path) as steps:
        kept = {name: steps.at(name) for name in ("exp", "sin", "tanh")}
        steps.at("sin", "grad_outputs[0].zero_()")
        assert steps.at("sin") == kept["sin"], "an expression gets a copy of the copy"
        body = steps.dialled.peer.request("adbg/node", index=steps.index["tanh"])
        (slot,) = body["grad_outputs"]
        assert (slot["meta"]["state"], slot["meta"]["shape"]) == ("kept", [3])
        view = steps.dialled.peer.request("adbg/tensor", expression="grad_outputs[0]", node=steps.index["tanh"])
        assert view["stats"]["norm"] == pytest.approx(sum(v * v for v in kept["tanh"]) ** 0.5, rel=1e-5)
        seen, gone, count, nbytes = steps.end()
    assert kept == seen
    assert all(gone) and len(gone) == 3, "nothing of the program's is kept alive"
    assert (count, nbytes) == (0, 0), "the copies go with their backward"


@on_frameworks()
def test_without_a_budget_nothing_is_kept(framework: str, tmp_path: Path) -> None:
    with Steps(framework, tmp_path, 0) as steps:
        with pytest.raises(Refused, match="the program did not stop there"):
            steps.at("sin")
        body = steps.dialled.peer.request("adbg/node", index=steps.index["sin"])
        assert body["grad_outputs"][0]["meta"]["state"] == "not_kept"
        _, gone, count, _ = steps.end()
    assert all(gone) and count == 0


@on_frameworks()
def test_the_oldest_go_first(framework: str, tmp_path: Path) -> None:
    with Steps(framework, tmp_path, 2 * 3 * 4) as steps:  # two gradients of three floats
        with pytest.raises(Refused, match="the program did not stop there"):
            steps.at("tanh")
        kept = steps.at("exp")
        seen, *_ = steps.end()
    assert kept == seen["exp"]


@on_frameworks()
def test_a_node_that_has_not_run_says_so(framework: str, tmp_path: Path) -> None:
    with Dialled(tmp_path, SCRIPT.format(make=MAKE[framework], limit=0)) as run:
        run.peer.begin(entry=True)
        body = run.peer.stopped()
        total = run.peer.request("adbg/graph")["total"]
        node = run.peer.request("adbg/node", index=total - 1)
        assert body["index"] < total - 1 and node["state"] == "todo"
        assert {slot["meta"]["state"] for slot in node["grad_outputs"]} == {"not_yet"}
        run.peer.request("continue")
        assert run.end()[0] == 0
