"""Who keeps what alive in a real program, and what grows there. The program itself says what was true: its weak
references die with the variable that was named, and its lists have the lengths that were told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from support.dialled import Dialled
from support.frameworks import only
from support.front_end import Refused

TORCH = """
import gc, os, weakref
import torch
torch.set_num_threads(1)
losses, watching, numbers, batches = [], [], [], []
class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
        self.history = {"loss": []}
    def step(self, x):
        loss = self.model(x).pow(2).mean()
        watching.append(weakref.ref(loss))
        loss.backward()
        self.history["loss"].append({"doubled": loss * 2})
        losses.append(loss)
        numbers.append(torch.ones(10))
        batches.append(torch.ones(1 << 20))
trainer = Trainer()
batch = torch.ones(64, 100)
for _ in range(11):
    trainer.step(batch)
print("kept", sum(ref() is not None for ref in watching))
trainer.history.clear()
print("kept", sum(ref() is not None for ref in watching))
losses.clear()
gc.collect()
print("kept", sum(ref() is not None for ref in watching))
"""
PADDLE = """
import paddle
paddle.set_device("cpu")
losses = []
class Trainer:
    def __init__(self):
        self.model = paddle.nn.Linear(8, 1)
        self.history = {"loss": []}
    def step(self, x):
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.history["loss"].append(loss * 2)
        losses.append(loss)
trainer = Trainer()
for _ in range(11):
    trainer.step(paddle.ones([4, 8]))
print("kept", len(losses), len(trainer.history["loss"]))
"""


def _owners(body: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {owner["path"]: owner for owner in body[kind]}


def _tenth(run: Dialled) -> None:
    """Watched from the start, stopped at the begin of the tenth backward."""
    run.peer.begin("backward ignore 9", entry=True)
    run.peer.stopped()
    assert run.peer.request("adbg/memory", rows=0, watch=True)["course"]["on"]
    run.peer.go()


@only("torch", "weak references to tensors die at once there")
def test_what_keeps_graphs_is_named_torch(tmp_path: Path) -> None:
    with Dialled(tmp_path, TORCH) as run:
        peer = run.peer
        _tenth(run)
        fed = run.line("losses.append(loss)"), run.line('self.history["loss"].append(')
        # growth, told while it ran
        told = {body["growth"]["owner"]["path"]: body["growth"] for body in peer.bodies("adbg/memoryGrows")}
        assert told.keys() == {"losses[*]", "trainer.history['loss'][*]['doubled']", "batches[*]"}, "no small numbers"
        assert [count for _, count in told["losses[*]"]["counts"]] == [2, 5, 8], "less the one that is not yet in"
        assert told["losses[*]"]["owner"]["filled"]["line"] == fed[0]
        assert told["losses[*]"]["owner"]["filled_text"] == "losses.append(loss)"
        assert told["trainer.history['loss'][*]['doubled']"]["owner"]["filled"]["line"] == fed[1]
        assert told["batches[*]"]["owner"]["graphs"] == 0 and told["batches[*]"]["owner"]["bytes"] == 8 << 22
        # all graphs that are not of this backward
        body = peer.request("adbg/alive")
        graphs = _owners(body, "graphs")
        assert graphs.keys() == {"losses[*]", "trainer.history['loss'][*]['doubled']"} and not body["owners"]
        assert graphs["losses[*]"]["count"] == graphs["losses[*]"]["graphs"] == 9
        assert graphs["losses[*]"]["bytes"] == 36
        # one tensor, by what it is called and by what it is
        one = peer.request("adbg/alive", expression="trainer.history['loss'][4]['doubled']")
        assert _owners(one, "owners").keys() == {"trainer.history['loss'][4]['doubled']"}
        shared = peer.request("adbg/alive", expression="losses[2].detach()")
        assert not shared["owners"] and _owners(shared, "shared").keys() == {"losses[2]"}
        # a node of an earlier graph: by its loss, and by what was computed of that
        node = peer.request("adbg/alive", expression="losses[2].grad_fn")
        assert _owners(node, "graphs").keys() == {"losses[2]", "trainer.history['loss'][2]['doubled']"}
        # a node and a saved tensor of this graph
        assert _owners(peer.request("adbg/alive", node=1), "graphs").keys() == {"loss"}
        saved = peer.request("adbg/alive", expression="batch")
        assert _owners(saved, "owners").keys() >= {"batch"} and saved["bytes"] == 64 * 100 * 4
        assert [each["node"] for each in saved["savers"]] == ["AddmmBackward0#1"]
        with pytest.raises(Refused, match="Python shares such values"):
            peer.request("adbg/alive", expression="3")
        # and the figures of the process, beside psutil's
        memory = peer.request("adbg/memory")
        there = psutil.Process(run.process.pid).memory_full_info()
        assert abs(memory["process"]["rss"] - there.rss) < 2 << 20 > abs(memory["process"]["uss"] - there.uss)
        assert memory["retained"]["bytes"] > 64 * 100 * 4 and memory["why_none"] == ""
        assert len(memory["course"]["samples"]) == 9
        peer.set()
        peer.request("continue")
        assert run.end()[1].split("\n")[:3] == ["kept 11", "kept 11", "kept 0"], "losses kept them, nothing of adbg's"


@only("paddle", "its tensors are found without Python's garbage collector, which does not follow them")
def test_what_keeps_graphs_is_named_paddle(tmp_path: Path) -> None:
    with Dialled(tmp_path, PADDLE) as run:
        peer = run.peer
        _tenth(run)
        fed = run.line("losses.append(loss)")
        told = {body["growth"]["owner"]["path"]: body["growth"] for body in peer.bodies("adbg/memoryGrows")}
        assert told.keys() == {"losses[*]", "trainer.history['loss'][*]"}
        assert told["losses[*]"]["owner"]["filled"]["line"] == fed
        graphs = _owners(peer.request("adbg/alive"), "graphs")
        assert graphs.keys() == told.keys() and {each["graphs"] for each in graphs.values()} == {9}
        node = peer.request("adbg/alive", expression="losses[2].grad_fn")
        assert "losses[2]" in _owners(node, "graphs")
        memory = peer.request("adbg/memory")
        assert memory["retained"]["hidden"] and "no saved tensors" in memory["retained"]["why_hidden"]
        (cpu,) = memory["allocators"]
        assert cpu["allocated"] is None and "no allocator of its own" in cpu["note"]
        peer.set()
        peer.request("continue")
        assert run.end()[1] == "kept 11 11\n"
