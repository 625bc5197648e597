"""A scripted agent that answers with what a real program answered (tests/data/app/session.json): a graph of 204 nodes,
the stops at its first nodes, their values and stacks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from adbg.engine.errors import CommandError, NotStopped
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import GraphRow, NodeStop, Phase, StopReason, TensorView
from support.scripted_agent import ScriptedAgent, ScriptedProgram

ROOT = Path(__file__).resolve().parents[2]


def recorded() -> dict[str, Any]:
    """The session, with this checkout's paths."""
    text = (ROOT / "tests" / "data" / "app" / "session.json").read_text()
    data: dict[str, Any] = json.loads(text.replace("ROOT/", f"{ROOT}/"))
    return data


class ReplayAgent(ScriptedAgent):
    """Stops at the begin of backward 1; steps go through the recorded nodes (1 .. 14), ``continue`` to a breakpoint's
    node or the end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        data = recorded()
        self.graph: protocol.GraphBody = wire.from_json(protocol.GraphBody, data["graph"])
        self.stops: list[dict[str, Any]] = data["stops"]
        self.nodes: dict[int, Any] = {int(index): body for index, body in data["nodes"].items()}
        self.nodes.update({entry["stop"]["index"]: entry["node"] for entry in self.stops if "node" in entry})
        self.edits: list[tuple[str, str]] = []
        self.tensors: list[protocol.Tensor] = []
        options["nodes"] = tuple(row.unique_name for row in self.graph.rows)
        super().__init__(*arguments, **options)

    def recorded_stop(self, index: int) -> NodeStop:
        entry = next(entry for entry in self.stops if entry["stop"]["index"] == index)
        stop: NodeStop = wire.from_json(NodeStop, entry["stop"])
        return stop

    def stop_at(
        self, index: int, reason: StopReason = StopReason.STEP, phase: Phase = Phase.BEFORE, **more: Any
    ) -> None:
        self.position = index
        self.stopped = True
        if phase is Phase.BEGIN:
            phase, index = Phase.BEGIN, 0
        stop = dataclasses.replace(self.recorded_stop(index), reason=reason, phase=phase, **more)
        self.event(protocol.Stopped(reason.value, stop.thread, hitBreakpointIds=list(stop.breakpoints), adbg=stop))

    def do_configurationDone(self, arguments: protocol.ConfigurationDone) -> protocol.Empty:
        self.begun.set()
        row = self.graph.rows[0]
        self.event(protocol.BackwardBegin(1, len(self.names), [row.name], 0, "train.py", 3, 1, 7))
        self.actions.put(lambda: self.stop_at(0, StopReason.ENTRY, Phase.BEGIN))
        return protocol.Empty()

    def do_graph(self, arguments: protocol.Graph) -> protocol.GraphBody:
        rows: list[GraphRow] = []
        page = range(arguments.start, min(arguments.start + arguments.count, len(self.graph.rows) + 1))
        for row in (self.graph.rows[index - 1] for index in arguments.indices or page):
            state = "done" if row.index < self.position else "here" if row.index == self.position else "todo"
            hit = tuple(b.id for b in self.breakpoints if row.unique_name.startswith(b.name))
            rows.append(
                dataclasses.replace(
                    row,
                    state=state,
                    breakpoints=hit,
                    us=row.us if state == "done" else None,
                    norm=row.norm if state != "todo" else None,
                )
            )
        return dataclasses.replace(self.graph, here=self.position, rows=rows)

    def do_node(self, arguments: protocol.Node) -> protocol.NodeBody:
        index = arguments.index or self.position
        if index not in self.nodes:
            raise NotStopped(f"node {index} was not recorded")
        body: protocol.NodeBody = wire.from_json(protocol.NodeBody, self.nodes[index])
        return body

    def do_tensor(self, arguments: protocol.Tensor) -> TensorView:
        self.tensors.append(arguments)
        for entry in self.stops:
            if entry["stop"]["index"] == self.position and "value" in entry and not arguments.node:
                view: TensorView = wire.from_json(TensorView, entry["value"])
                return dataclasses.replace(view, expression=arguments.expression)
        raise CommandError(f"{arguments.expression} was not recorded for this node")

    def do_stackTrace(self, arguments: protocol.StackTrace) -> protocol.StackTraceBody:
        entry = next((e for e in self.stops if e["stop"]["index"] == self.position), self.stops[0])
        frames = [wire.from_json(protocol.StackFrame, frame) for frame in entry["frames"]]
        return protocol.StackTraceBody(frames, len(frames))

    def do_scopes(self, arguments: protocol.Scopes) -> protocol.ScopesBody:
        return protocol.ScopesBody([])

    def do_setExpression(self, arguments: protocol.SetExpression) -> protocol.SetVariableBody:
        self.edits.append((arguments.expression, arguments.value))
        return protocol.SetVariableBody(arguments.value, "Tensor")


class ReplayProgram(ScriptedProgram):
    """A program whose one process is a ``ReplayAgent``. ``run_dir`` may be set before the start."""

    def start(self, on_agent: Any, on_output: Any, on_exit: Any, on_note: Any) -> None:
        from adbg.tui.debugger.client import Listener

        self.close()
        self.starts += 1
        self.on_output, self.on_exit, self.on_note = on_output, on_exit, on_note
        self._listener = Listener(lambda client, hello: on_agent(client, hello.process))
        agent = ReplayAgent(self._listener.config.socket, self._listener.token)
        agent.finished = lambda: self.end(agent)  # type: ignore[method-assign]
        self.agents, self._left = [agent], 1

    @property
    def agent(self) -> ReplayAgent:
        agent = self.agents[0]
        assert isinstance(agent, ReplayAgent)
        return agent
