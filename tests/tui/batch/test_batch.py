"""Batch mode on scripted agents: the order of lines, the JSON contract, what ends a run and with which status."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.scripted_agent import ScriptedAgent, ScriptedProgram

from adbg.tui.batch.batch import TIMED_OUT, USAGE, Batch
from adbg.tui.batch.writers import JsonWriter, TextWriter
from adbg.tui.debugger.debugger import Debugger


class Run:
    """One batch run to its end, on this thread."""

    def __init__(
        self,
        *lines: str,
        json_lines: bool = True,
        timeout: float | None = 20,
        required: frozenset[int] = frozenset(),
        prepare: Callable[[ScriptedAgent], None] | None = None,
        ranks: int = 1,
        code: int = 0,
    ) -> None:
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.program = ScriptedProgram(ranks, prepare)
        self.program.code = code
        writer = (JsonWriter if json_lines else TextWriter)(self.out, self.err)
        self.debugger = Debugger(self.program, lines, "train.py")
        self.status = Batch(self.debugger, writer, timeout, required).run()

    @property
    def text(self) -> str:
        return self.out.getvalue().decode()

    @property
    def complaints(self) -> str:
        return self.err.getvalue().decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == kind]


def test_the_json_contract() -> None:
    run = Run("break Relu", "c", "p 1 + 1", "p nope", "s")
    # The program's output comes another way than the agent's events: only its place before the end is certain.
    assert [line["type"] for line in run.lines if line["type"] != "output"] == [
        "result", "backward", "stopped", "result", "error", "stopped", "backward", "exited",
    ]  # fmt: skip
    begin = run.lines[1]
    assert {k: begin[k] for k in ("phase", "backward", "nodes", "roots", "line")} == {
        "phase": "begin", "backward": 1, "nodes": 5, "roots": ["SumBackward0"], "line": 3,
    }  # fmt: skip
    stop = run.lines[2]
    order = ["type", "reason", "breakpoints", "phase", "backward", "index", "total", "depth", "rank", "node"]
    order += ["forward", "enclosing"]
    assert list(stop)[: len(order)] == order
    assert (stop["reason"], stop["breakpoints"], stop["phase"], stop["index"], stop["total"]) == (
        "breakpoint",
        [1],
        "before",
        3,
        5,
    )
    assert stop["node"] == {
        "name": "ReluBackward0",
        "unique_name": "ReluBackward0#1",
        "module": "layers.0",
        "parameter": None,
    }
    assert stop["forward"]["function"] == "forward" and os.path.isabs(stop["forward"]["file"])
    assert run.lines[3] == {"type": "result", "command": "p 1 + 1", "value": 2, "text": "2"}
    assert run.lines[4] == {"type": "error", "command": "p nope", "message": "name 'nope' is not defined"}
    assert run.of("output") == [{"type": "output", "stream": "stdout", "text": "done\n"}]
    assert run.lines[-1] == {"type": "exited", "code": 0}
    assert run.status == 0


def test_floats_that_json_cannot_write() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.values.update({"a": float("nan"), "b": [float("-inf"), 1.5]})

    run = Run("b Relu", "c", "p a", "p b", prepare=prepare)
    assert [line["value"] for line in run.of("result")[1:]] == ["nan", ["-inf", 1.5]]


def test_the_status_is_the_programs() -> None:
    run = Run(code=3)
    assert run.status == 3 and run.lines[-1] == {"type": "exited", "code": 3}


def test_commands_before_a_running_one_act_before_the_start() -> None:
    agents: list[ScriptedAgent] = []
    run = Run("b Relu", "vlog 5", "p 1 + 1", prepare=agents.append)
    kinds = [type(r).__name__ for r in agents[0].requests]
    assert kinds.index("Vlog") < kinds.index("ConfigurationDone")
    assert len(run.of("stopped")) == 1, "the breakpoint is reported though no command waits for it"
    assert run.status == 0


def test_each_breakpoint_is_reported_once_when_commands_are_used_up() -> None:
    run = Run("b Mm", "b Relu")
    assert [line["breakpoints"] for line in run.of("stopped")] == [[1], [2]]
    assert run.of("exited")


def test_a_count_shows_only_where_it_ends() -> None:
    run = Run("b Sum", "c", "s 3")
    assert [line["index"] for line in run.of("stopped")] == [1, 4]


def test_commands_of_a_breakpoint_run_at_every_hit() -> None:
    run = Run("b Mm", "commands 1 p index; c", "b Accum", "c", "p index")
    assert [(line["command"], line["value"]) for line in run.of("result") if line["command"].startswith("p")] == [
        ("p index", 2), ("p index", 4), ("p index", 5),
    ]  # fmt: skip
    assert [line["index"] for line in run.of("stopped")] == [2, 4, 5]


def test_displays_come_with_every_stop() -> None:
    run = Run("watch index", "b Sum", "c", "s")
    shown = [(line["text"], line["changed"]) for line in run.of("display")]
    assert shown == [("1", None), ("2", True)]


def test_a_refused_breakpoint_of_the_command_line_is_a_usage_error() -> None:
    run = Run("break ???", "c", required=frozenset({0}))
    assert run.status == USAGE
    assert run.complaints.count("adbg: ") == 1 and "???" in run.complaints
    assert not run.of("exited") and run.of("error")
    assert 9 in run.program.signals, "the program is not left behind"


def test_a_refused_breakpoint_among_commands_is_not() -> None:
    run = Run("break ???", "c")
    assert run.status == 0 and run.of("error") and run.of("exited")


def test_the_time_limit() -> None:
    run = Run(timeout=0.3, prepare=lambda agent: setattr(agent, "on_begin", lambda: None))
    assert run.status == TIMED_OUT
    assert "--timeout" in run.complaints
    assert run.lines[-1] == {"type": "exited", "code": 137}


def test_quit_ends_it() -> None:
    run = Run("b Mm", "c", "q", "p 1 + 1")
    assert run.status == 0 and not any(line.get("command") == "p 1 + 1" for line in run.lines)
    assert 9 in run.program.signals


def test_kill_gives_the_programs_status() -> None:
    run = Run("b Mm", "c", "kill")
    assert run.status == 137


def test_detach_lets_it_run_to_its_end() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.do_disconnect = lambda arguments: (threading.Timer(0.2, agent.finished).start(), None)[1]  # type: ignore[attr-defined]

    run = Run("b Mm", "c", "detach", prepare=prepare)
    assert run.status == 0 and run.lines[-1] == {"type": "exited", "code": 0}
    assert len(run.of("stopped")) == 1


def test_a_program_that_dies_while_it_stands() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.do_evaluate = lambda arguments: agent.finished()  # type: ignore[method-assign, assignment]

    run = Run("b Mm", "c", "p 1 + 1", "p 1 + 1", prepare=prepare, code=139)
    assert run.status == 139 and run.lines[-1] == {"type": "exited", "code": 139}
    assert len(run.of("error")) == 2


def test_every_rank_is_told_apart() -> None:
    run = Run("b Relu", "c", "c", ranks=2)
    stops = run.of("stopped")
    assert sorted(line["rank"] for line in stops) == [0, 1]
    assert sorted(line.get("process", 1) for line in stops) == [1, 2]


def test_tracepoints() -> None:
    from adbg.engine.protocol import messages as protocol
    from adbg.engine.types import NodeStop, Phase, StopReason

    def prepare(agent: ScriptedAgent) -> None:
        def begin() -> None:
            stop = NodeStop(StopReason.BREAKPOINT, Phase.BEFORE, 1, 1, 2, 5, 0, 0, (7,), agent.node(2))
            agent.event(protocol.Trace(7, "before MmBackward0#2", stop))
            agent.backward()

        agent.on_begin = begin

    run = Run(prepare=prepare)
    (line,) = run.of("trace")
    assert (line["breakpoint"], line["index"], line["text"]) == (7, 2, "before MmBackward0#2")
    assert "trace 7: bwd#1 before MmBackward0#2  module layers.0" in Run(prepare=prepare, json_lines=False).text


# ------------------------------------------------------------------ text


def test_text_is_readable_and_adbgs_lines_can_be_told_from_the_programs() -> None:
    run = Run("b Relu", "c", "p 1 + 1", "p nope", json_lines=False)
    lines = run.text.splitlines()
    assert "adbg: Breakpoint 1, before ReluBackward0#1, node 3 of 5 of backward 1" in lines
    assert any("norm 0.022" in line and "f32[2, 3]" in line for line in lines)
    assert any("scripted_agent.py:43 in forward" in line for line in lines)
    assert "adbg: p nope: name 'nope' is not defined" in lines
    assert lines.index("adbg: 2") == lines.index("adbg: (adbg) p 1 + 1") + 1
    assert [line for line in lines if not line.startswith("adbg: ")] == ["done"]


def test_the_programs_bytes_go_through_unchanged() -> None:
    program_bytes = b"\xff\x00caf\xc3\xa9 50%\r100%"

    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = lambda: (run_output(), agent.finished())  # type: ignore[assignment, return-value]

    outputs: list[Callable[[str, bytes], None]] = []

    def run_output() -> None:
        for stream in ("stdout", "stderr"):
            outputs[0](stream, program_bytes)

    class Early(ScriptedProgram):
        def start(self, on_agent: Any, on_output: Any, on_exit: Any, on_note: Any) -> None:
            outputs.append(on_output)
            super().start(on_agent, on_output, on_exit, on_note)

    out, err = io.BytesIO(), io.BytesIO()
    status = Batch(Debugger(Early(1, prepare), (), "x"), TextWriter(out, err), 20).run()
    assert status == 0
    assert out.getvalue() == program_bytes + b"done\n"
    assert err.getvalue() == program_bytes


def test_a_line_left_open_is_ended_before_adbg_speaks() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = agent.backward

    class Open(ScriptedProgram):
        def start(self, on_agent: Any, on_output: Any, on_exit: Any, on_note: Any) -> None:
            super().start(on_agent, on_output, on_exit, on_note)
            on_output("stdout", b"epoch 1 ")

    out = io.BytesIO()
    Batch(Debugger(Open(1, prepare), ("b Mm", "c"), "x"), TextWriter(out, io.BytesIO()), 20).run()
    assert "epoch 1 \nadbg: " in out.getvalue().decode()


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stream:
        status = Batch(
            Debugger(ScriptedProgram(), ("b Mm", "c", "p 1 + 1"), "x"), JsonWriter(stream, io.BytesIO()), 20
        ).run()
    assert status == 0


# ------------------------------------------------------------------ notes at the end


@pytest.mark.parametrize(
    ("frameworks", "backward", "spec", "wanted"),
    [
        ([], False, "Mm", "never imported a framework"),
        (["torch"], False, "Mm", "no backward was ever called"),
        (["torch"], True, "Convolution", "breakpoint 1 (Convolution) was never hit"),
        (["torch"], True, "#77", "the largest backward had 5 nodes"),
        (["torch"], True, "nan", "no nan was seen"),
        (["torch"], True, "Mm", ""),
    ],
)
def test_what_a_person_is_told_when_nothing_stopped(
    frameworks: list[str], backward: bool, spec: str, wanted: str
) -> None:
    from adbg.engine.protocol import messages as protocol

    def prepare(agent: ScriptedAgent) -> None:
        def begin() -> None:
            for name in frameworks:
                agent.event(protocol.FrameworkLoaded(protocol.Framework(name, "2.13")))
            if not backward:
                agent.event(protocol.ProgramEnds(0))
            agent.backward() if backward else agent.finished()

        agent.on_begin = begin

    run = Run(f"b {spec}", prepare=prepare)
    notes = [line["text"] for line in run.of("notice")]
    assert len(notes) == bool(wanted)
    assert all(wanted in note for note in notes)


def test_a_missing_framework_is_named() -> None:
    def prepare(agent: ScriptedAgent) -> None:
        agent.on_begin = agent.finished

    class Failing(ScriptedProgram):
        def start(self, on_agent: Any, on_output: Any, on_exit: Any, on_note: Any) -> None:
            super().start(on_agent, on_output, on_exit, on_note)
            on_output("stderr", b"ModuleNotFoundError: No module named 'torch'\n")

    program = Failing(1, prepare)
    program.code = 1
    out, err = io.BytesIO(), io.BytesIO()
    assert Batch(Debugger(program, (), "x"), TextWriter(out, err), 20).run() == 1
    assert err.getvalue().decode().count("adbg: ") == 1 and b"adbg doctor" in err.getvalue()
