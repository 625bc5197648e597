"""`info memory` and `why alive`, over an agent that answers from a script."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.scripted_agent import ScriptedAgent
from support.watched_debugger import Watched

from adbg.engine.errors import CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import SourceLine
from adbg.tui.commands.table import execute
from adbg.tui.debugger.events import MemoryGrows
from adbg.tui.text.memory import alive_lines, growth_lines, spark

LINE = SourceLine("/home/someone/train.py", 7, "step")
ROWS = [
    protocol.RetainedRow(3, "MmBackward0#2", 3 << 20, 512, ["self", "mat2"], "fc", None, LINE),
    protocol.RetainedRow(2, "ReluBackward0#1", 1 << 20, 0, ["result"]),
]
GRAPH = protocol.Retained(5, 4 << 20, 512, ROWS, freed=1, unread=2)
OWNER = protocol.Owner("losses[*]", "global", None, LINE, "losses.append(loss)", count=9, graphs=9, bytes=36)
SAMPLES = [protocol.MemorySample(i, (100 + i) << 20, (10 + i) << 20) for i in range(1, 31)]


class Remembering:
    """Answers for the agent, and what it was asked."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self.asked: list[protocol.Memory] = []
        self.alive: list[protocol.Alive] = []
        self.graph: protocol.Retained | None = GRAPH
        self.body = protocol.AliveBody("loss: f32 [] cpu", [OWNER], objects=118, ms=2.0)
        agent.do_memory = self.memory  # type: ignore[method-assign]
        agent.do_alive = self.answer  # type: ignore[attr-defined]

    def memory(self, arguments: protocol.Memory) -> protocol.MemoryBody:
        self.asked.append(arguments)
        on = arguments.watch is not False
        course = protocol.Course(on, SAMPLES, float(1 << 20), True, [protocol.Growth(OWNER, [(3, 2), (6, 5), (9, 8)])])
        process = protocol.ProcessMemory(200 << 20, 210 << 20, 150 << 20, 160 << 20, 0)
        allocators = [
            protocol.Allocator("torch", "cuda:0", 6 << 20, 10 << 20, 8 << 20, 12 << 20),
            protocol.Allocator("paddle", "cpu", note="paddle has no allocator of its own on the CPU"),
        ]
        devices = [protocol.DeviceMemory("0 GPU", 1 << 30, 1 << 29, 1 << 20)]
        node = protocol.NodeMemory(3, "MmBackward0#2", 100 << 20, 164 << 20, 164 << 20, "fc", LINE)
        nodes = protocol.NodesMemory(arguments.by_node is not False, "rss", 4, 90 << 20, node, node, [node])
        why = "" if self.graph else "no graph"
        return protocol.MemoryBody(process, allocators, devices, course, nodes, self.graph, why, "NVML is away")

    def answer(self, arguments: protocol.Alive) -> protocol.AliveBody:
        self.alive.append(arguments)
        return self.body


@pytest.fixture
def one(watched: Callable[..., Watched]) -> tuple[Watched, Remembering]:
    found = watched()
    return found, Remembering(found.stop_at("Mm"))


def test_all_of_it(one: tuple[Watched, Remembering]) -> None:
    session, _ = one
    result = session.run("info memory")
    value = {row["what"]: row["bytes"] for row in result.value}
    assert value["rss"] == 200 << 20 and value["uss"] == 150 << 20 and value["swap"] == 0
    assert value["torch cuda:0 fragmentation"] == 4 << 20 and value["device 0 GPU this process"] == 1 << 20
    assert result.value[0] == {"what": "rss", "bytes": 200 << 20, "MiB": 200.0}
    text = result.text
    assert "paddle has no allocator of its own" in text and "NVML is away" in text
    assert "the graph of 5 nodes retains at least 4 MiB for its backward, beside 512 B of parameters" in text
    assert "1 ran and let go of theirs" in text and "2 of them not counted" in text
    assert "grows by 1 MiB an iteration" in text and "…/someone/train.py:7: losses.append(loss)" in text


def test_the_graph_alone(one: tuple[Watched, Remembering]) -> None:
    session, answers = one
    result = session.run("info memory graph 7")
    assert answers.asked[-1].rows == 7
    assert [row[:5] for row in result.rows] == [
        ("#3", "MmBackward0#2", "3MiB", "75%", "512B"),
        ("#2", "ReluBackward0#1", "1MiB", "25%", ""),
    ]
    assert result.value["rows"][0]["bytes"] == 3 << 20
    answers.graph = None
    with pytest.raises(CommandError, match="no graph"):
        execute(session.debugger, "info memory graph")
    answers.graph = protocol.Retained(5, 0, 0, [], hidden=4, why_hidden="Paddle shows none")
    text = session.run("info memory graph").text
    assert "is not known" in text and "retains" in text and "0 B" not in text


def test_iterations(one: tuple[Watched, Remembering]) -> None:
    session, answers = one
    assert "30 iterations, RSS 101 MiB to 130 MiB; grows by 1 MiB an iteration" in session.run("i mem iter on").text
    assert answers.asked[-1] == protocol.Memory(0, True)
    text = session.run("i mem iter off").text
    assert "(no longer watched)" in text and "allocated" in text
    assert answers.asked[-1] == protocol.Memory(0, False)
    for line in ("i mem iter maybe", "i mem graph x", "i mem nothing"):
        with pytest.raises(CommandError):
            execute(session.debugger, line)


def test_nodes(one: tuple[Watched, Remembering]) -> None:
    session, answers = one
    result = session.run("i mem nodes on")
    assert answers.asked[-1] == protocol.Memory(0, None, True)
    assert "iteration 4: from 90 MiB up to 164 MiB, at #3 MmBackward0#2" in result.text
    assert "64MiB" in result.text and "…/someone/train.py:7" in result.text
    assert result.value["peak"]["highest"] == 164 << 20
    session.run("i mem nodes off")
    assert answers.asked[-1] == protocol.Memory(0, None, False)


def test_why_alive(one: tuple[Watched, Remembering]) -> None:
    session, answers = one
    text = session.run("why alive losses[3] ").text
    assert answers.alive[-1].expression == "losses[3]" and answers.alive[-1].node == 0
    assert "kept by losses[*] (global): 9 tensors, 9 with their graphs, 36 B" in text
    session.run("why alive #3")
    assert (answers.alive[-1].expression, answers.alive[-1].node) == ("", 3)
    session.run("why alive")
    assert (answers.alive[-1].expression, answers.alive[-1].node) == ("", 0)
    answers.body = protocol.AliveBody("x: f32 [] cpu", [], cut=True)
    text = session.run("why alive x").text
    assert "no variable of the program leads to it" in text and "gave up" in text
    assert "from SumBackward0#1" in session.run("why #3").text, "a node is asked as before"


def test_while_it_runs(watched: Callable[..., Watched]) -> None:
    session = watched()
    agent = session.start()
    Remembering(agent)
    assert session.run("info memory").value[0]["what"] == "rss"
    for line in ("why alive", "info memory graph"):
        with pytest.raises(NotStopped):
            execute(session.debugger, line)


def test_growth_is_told_in_values_and_worded_by_the_front_end(watched: Callable[..., Watched]) -> None:
    session = watched()
    agent = session.stop_at("Mm")
    agent.event(protocol.MemoryGrows(protocol.Growth(OWNER, [(3, 2), (6, 5), (9, 8)])))
    told = session.wait(MemoryGrows)
    text = "\n".join(growth_lines(told.growth))
    assert text.startswith("losses[*] grows: it led to 2 tensors at iteration 3, 5 at 6, 8 at 9, each of which")
    assert "train.py:7: losses.append(loss)" in text


def test_a_line_of_bars() -> None:
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark([5, 5], 8) == "▁▁" and spark([], 8) == ""
    assert spark(list(map(float, range(1000))), 50)[-1] == "█" and len(spark(list(range(1000)), 50)) == 50


def test_a_sum_of_losses_and_what_stopped_in_words() -> None:
    made = protocol.Owner("total", "global", LINE, LINE, "total += loss", count=1, graphs=1, bytes=4, others=[9, 11])
    lines = growth_lines(protocol.Growth(made, [(3, 8), (6, 24), (9, 48)], nodes=True))
    assert lines[0] == "total grows: its graph had 8 nodes of earlier iterations at iteration 3, 24 at 6, 48 at 9"
    assert lines[1].endswith("train.py:7: total += loss  (or line 9 or 11)") and ".detach()" in lines[2]
    cache = protocol.Owner("cache[*]", "global", LINE, count=50, bytes=1 << 20)
    lines = growth_lines(protocol.Growth(cache, [(9, 1), (18, 18), (36, 36)], ended=72))
    assert lines[0] == "cache[*] grew until iteration 72: it led to 1 tensor at iteration 9, 18 at 18, 36 at 36"
    hook = protocol.Owner(
        "kept of <lambda>()", "other", count=3, graphs=3, bytes=12, made=LINE, made_text="lambda g: g"
    )
    text = "\n".join(alive_lines(protocol.AliveBody("graphs", [], graphs=[hook])))
    assert "train.py:7: lambda g: g" in text
