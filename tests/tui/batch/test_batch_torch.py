"""``adbg run --batch`` end to end: the real command, the real agent, real torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import DEBUGGEES, adbg, batch, commands, debuggee, marked, plain

pytest.importorskip("torch")


def test_stop_look_step_change_and_go_on() -> None:
    outcome = batch(
        "mlp",
        "-b", "Tanh",
        *commands(
            "c", "p norm(grad_outputs[0])", "p list(grad_outputs[0].shape)", "p/s grad_outputs[0]",
            "after", "info node", "where", "graph", "why", "path #1 #7", "set grad_inputs[0] = grad_inputs[0] * 0",
            "delete", "s", "p float(grad_outputs[0].abs().max())",
        ),
    )  # fmt: skip
    assert outcome.status == 0, str(outcome)
    assert not outcome.of("error"), str(outcome)
    first, after, stepped = outcome.of("stopped")
    assert first["reason"] == "breakpoint" and first["phase"] == "before" and first["breakpoints"] == [1]
    assert first["node"]["name"] == "TanhBackward0" and first["node"]["module"] == "3"
    assert first["forward"] == {"file": str(debuggee("mlp")), "line": marked("mlp", "forward"), "function": "<module>"}
    assert first["location"]["line"] == marked("mlp", "backward")
    assert after["phase"] == "after" and after["node"] == first["node"] and after["index"] == first["index"]
    assert stepped["index"] == first["index"] + 1 and stepped["reason"] == "step"
    value = {line["command"]: line["value"] for line in outcome.of("result")}
    assert value["p list(grad_outputs[0].shape)"] == [64, 32]
    stats = value["p/s grad_outputs[0]"]["stats"]
    assert stats["norm"] == pytest.approx(value["p norm(grad_outputs[0])"], rel=1e-5)
    assert stats["negative"] + stats["zero"] + stats["positive"] == 64 * 32
    assert [slot["name"] for slot in value["info node"]["saved"]] == ["result"]
    assert value["path #1 #7"][0] == 1 and value["path #1 #7"][-1] == 7
    assert value["why"]["path"][-1] == 7
    assert value["p float(grad_outputs[0].abs().max())"] == 0.0, "the edit reached the next node"
    assert outcome.digest != plain("mlp").digest


def test_the_script_is_what_it_would_be_without_adbg(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, sys\n"
        "facts = [__name__, sys.argv, sys.path[0], os.getcwd(), sys.stdin.read(), os.path.basename(__file__)]\n"
        "print(json.dumps(facts))\n"
        "print('to stderr', file=sys.stderr)\n"
        "sys.exit(7)\n"
    )
    words = [str(script), "--batch", "-b", "x", "--", "-e"]
    bare = subprocess.run([sys.executable, *words], input="typed", capture_output=True, text=True, cwd=tmp_path)
    outcome = adbg("run", "--batch", *words, input="typed", cwd=tmp_path)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (7, bare.stdout, bare.stderr), str(outcome)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["-c", "import sys; print(sys.argv)", "a", "-b"], "['-c', 'a', '-b']"),
        (["-m", "calendar", "2024", "2"], "February 2024"),
    ],
    ids=["code", "module"],
)
def test_modules_and_code(words: list[str], wanted: str) -> None:
    outcome = adbg("run", "--batch", *words)
    assert outcome.status == 0 and wanted in outcome.stdout, str(outcome)


def test_any_command_and_its_python_children() -> None:
    outcome = adbg(
        "run",
        "--batch",
        "--json",
        "-b",
        "Tanh",
        *commands("c", "p 1 + 1"),
        "--",
        "sh",
        "-c",
        f"{sys.executable} {debuggee('mlp')}",
    )
    assert outcome.status == 0, str(outcome)
    assert [line["node"]["name"] for line in outcome.of("stopped")] == ["TanhBackward0"]
    assert outcome.of("result", command="p 1 + 1")[0]["value"] == 2


def test_two_ranks() -> None:
    # Reached once in a backward, whose end waits for the other rank: one rank cannot stop twice before the other does.
    outcome = batch("ddp", "-b", "param:*2.bias", *commands("c", "p node", "c", "p node"))
    assert outcome.status == 0, str(outcome)
    stops = outcome.of("stopped")
    assert len({line["process"] for line in stops}) == 2, "both ranks stop, and each is shown"
    texts = [line["text"] for line in outcome.of("result", command="p node")]
    assert len(texts) == 2 and all("AccumulateGrad" in text for text in texts), str(outcome)


def test_an_error_in_backward_stops_without_a_breakpoint() -> None:
    outcome = batch("inplace_error", *commands("c", "info node"))
    (stop,) = outcome.of("stopped")
    assert stop["reason"] == "error" and stop["message"], str(outcome)
    assert outcome.status == plain("inplace_error").status


PIECES = """
import sys
import torch
def told(gradient):
    for piece in ("A" * 30_000, "B" * 30_000, "\\n"):
        sys.stdout.write(piece)
        sys.stdout.flush()
x = torch.randn(4, 4, requires_grad=True)
for step in range(100):
    y = x.tanh()
    y.register_hook(told)
    y.sum().backward()
"""


def test_what_was_written_before_a_stop_comes_before_it(tmp_path: Path) -> None:
    """Bytes on a terminal and the stop on a socket come by two ways: 1 to 4 lines of 100 came behind it, or in two
    halves around it, on a busy machine."""
    script = tmp_path / "pieces.py"
    script.write_text(PIECES)
    done = adbg("run", "--batch", "--no-record", "-b", "Tanh*", *commands("commands 1\nc\nend"), script)
    told = [
        line[:1] if line[:1] == "A" else "stop"
        for line in done.stdout.splitlines()
        if line.startswith(("A", "B", "adbg: Breakpoint 1"))
    ]
    assert told == ["A", "stop"] * 100
    assert done.stdout.count("A" * 30_000 + "B" * 30_000 + "\n") == 100


def test_a_nested_backward_is_entered_and_left() -> None:
    outcome = batch("nested_function", "-b", "Level", *commands("c", "s", "where", "delete", "finish"))
    stops = outcome.of("stopped")
    assert stops[1]["depth"] == stops[0]["depth"] + 1, str(outcome)
    assert stops[1]["enclosing"] == [stops[0]["node"]["unique_name"]]
    assert stops[2]["depth"] == stops[0]["depth"], str(outcome)


def test_a_command_file(tmp_path: Path) -> None:
    file = tmp_path / "look.adbg"
    file.write_text("# look\nbreak Tanh\ncommands\n  p index\n  c\nend\nbreak backward-end backward 2\nc\np 40 + 2\n")
    outcome = batch("mlp", "-x", str(file))
    assert outcome.status == 0 and not outcome.of("error"), str(outcome)
    order = [
        line["command"] if line["type"] == "result" else line["phase"]
        for line in outcome.lines
        if line.get("command") or line["type"] == "stopped"
    ]
    looks = ["before", "p index"]
    assert order[3:] == [*looks, *looks, "end", "p 40 + 2", *looks, *looks, *looks], (
        "a breakpoint with commands acts to the end"
    )


def test_commands_from_a_pipe() -> None:
    outcome = adbg("run", "--repl", debuggee("mlp"), input="b Tanh\nc\np 40 + 2\n")
    assert outcome.status == 0, str(outcome)
    assert "adbg: 42" in outcome.stdout and "Breakpoint 1, before TanhBackward0#1" in outcome.stdout
    assert "DIGEST" in outcome.stdout


@pytest.mark.parametrize(
    ("name", "number", "status"), [("SIGINT", signal.SIGINT, 42), ("SIGTERM", signal.SIGTERM, 143)]
)
def test_signals_mean_the_program(tmp_path: Path, name: str, number: int, status: int) -> None:
    script = tmp_path / "wait.py"
    script.write_text(
        "import sys, time\n"
        "try:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('interrupted'); sys.exit(42)\n"
    )
    words = [sys.executable, "-m", "adbg", "run", "--batch", str(script)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == status, err
    assert ("interrupted" in out) == (name == "SIGINT")
    assert "Traceback" not in err


def test_a_recorded_run_can_be_listed_shown_and_deleted(adbg_home: Path) -> None:
    batch("mlp", "-b", "Tanh", *commands("c"))
    listed = adbg("runs")
    assert listed.status == 0 and "mlp.py" in listed.stdout and "ended" in listed.stdout
    name = listed.stdout.splitlines()[1].split()[0]
    shown = adbg("runs", "show", name)
    assert "breakpoint: before TanhBackward0#1" in shown.stdout and "backward call" in shown.stdout
    assert adbg("runs", "delete", name[:8]).status == 0
    assert "no recorded runs" in adbg("runs").stdout
    assert adbg("runs", "show", name).status == 2


def test_no_record(adbg_home: Path) -> None:
    assert batch("mlp", "--no-record").status == 0
    assert "no recorded runs" in adbg("runs").stdout


def test_the_vlog_of_a_run_as_text(adbg_home: Path, tmp_path: Path) -> None:
    batch("nested_function", "--run-dir", str(tmp_path / "run"), *commands("vlog 5"))
    log = tmp_path / "run" / "vlog-r0.log"
    whole = adbg("log", log)
    assert whole.status == 0 and "│" in whole.stdout, str(whole)
    folded = adbg("log", "--depth", "0", log)
    assert "deeper" in folded.stdout and len(folded.stdout.splitlines()) < len(whole.stdout.splitlines())
    calls = adbg("log", "--level", "3", log)
    assert 0 < len(calls.stdout.splitlines()) < len(whole.stdout.splitlines())
    found = adbg("log", "--grep", "begin run", log)
    assert found.stdout and all("begin run" in line for line in found.stdout.splitlines())
    assert adbg("log", tmp_path / "none").status == 2


def test_attach_to_a_program_that_listens(tmp_path: Path) -> None:
    words = [sys.executable, str(DEBUGGEES / "listening.py"), str(tmp_path / "end")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            outcome = adbg("attach", "--batch", "--json", "-b", "backward", *commands("c", "p 1 + 1"), str(process.pid))
            assert outcome.status == 0, str(outcome)
            (said,) = [line["text"] for line in outcome.of("notice") if line["text"].startswith("attached")]
            assert said.startswith(f"attached to process {process.pid}; forward lines") and "stacks on" in said
            assert outcome.of("stopped", reason="backward"), str(outcome)
            assert outcome.of("result", command="p 1 + 1")[0]["value"] == 2
            assert process.poll() is None, "it runs on by itself"
            (tmp_path / "end").touch()
            assert process.wait(30) == 0 and "DIGEST" in process.stdout.read()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_an_attached_batch_leaves_the_program_alone(tmp_path: Path, number: signal.Signals) -> None:
    words = [sys.executable, str(DEBUGGEES / "listening.py"), str(tmp_path / "end")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            attach = [sys.executable, "-m", "adbg", "attach", "--batch", "-b", "NoSuchNodeAnywhere", str(process.pid)]
            with subprocess.Popen(
                [*attach, "-e", "print 'attached'", "-e", "c"], stdout=subprocess.PIPE, text=True
            ) as front:
                assert front.stdout is not None
                while "attached" not in front.stdout.readline():
                    assert front.poll() is None
                front.send_signal(number)
                assert front.wait(20) == 128 + number
            (tmp_path / "end").touch()
            assert process.wait(30) == 0 and "DIGEST" in process.stdout.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("lines", "plain_status", "strict_status"),
    [(["contniue"], 0, 2), (["p nope"], 0, 2), (["info breakpoints"], 0, 0), (["c", "p 1 + 1"], 0, 2)],
)
def test_strict_tells_of_refused_commands(lines: list[str], plain_status: int, strict_status: int) -> None:
    """The last case: the program has ended by the time of the second command. Without the option the status is the
    script's, as ever."""
    assert batch("mlp", *commands(*lines)).status == plain_status
    outcome = batch("mlp", "--strict", *commands(*lines))
    assert outcome.status == strict_status, str(outcome)


def test_nobody_to_attach_to() -> None:
    outcome = adbg("attach", "--batch", str(os.getpid()))
    assert outcome.status == 2 and "started this adbg" in outcome.stderr
    outcome = adbg("attach", "--batch", "4194300")
    assert outcome.status == 2 and "no process" in outcome.stderr


def test_every_line_is_json_whatever_the_script_prints(tmp_path: Path) -> None:
    script = tmp_path / "noise.py"
    script.write_text(
        "import sys\nsys.stdout.buffer.write(b'\\xff{\"type\": 1}\\n\\r50%\\r100%')\nsys.stderr.write('x' * 5000)\n"
    )
    outcome = adbg("run", "--batch", "--json", script)
    assert outcome.status == 0
    for line in outcome.stdout.splitlines():
        json.loads(line)
    assert "".join(line["text"] for line in outcome.of("output", stream="stderr")) == "x" * 5000


def test_the_graph_so_far_can_be_seen_at_a_python_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import adbg, torch\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "y = (x * 2).exp()\n"
        "adbg.breakpoint()\n"
        "y.sum().backward()\n"
    )
    looks = commands("c", "graph", "info names", "b script.py:7", "delete")
    outcome = adbg("run", "--batch", "--json", *looks, str(script))
    value = {line["command"]: line for line in outcome.of("result")}
    assert value["graph"]["value"] == {"node": 1, "name": "ExpBackward0#1", "fed_by": [], "feeds": [2]}
    assert "MulBackward0#1" in value["graph"]["text"] and "ExpBackward0" in value["info names"]["text"]
    past = value["b script.py:7"]["text"]
    assert "that file has 5 lines; nearest: `b script.py:3`; lines of that file that made nodes: 3" in past


def test_a_tracepoint_that_told_of_hits_was_hit() -> None:
    """It never stops, so its count reaches the front end at the end only."""
    outcome = batch("mlp", *commands("trace Tanh", "trace Sin*"), json_lines=False)
    assert outcome.status == 0 and "adbg: trace 1: bwd#1 before TanhBackward0" in outcome.stdout, str(outcome)
    notes = outcome.stdout + outcome.stderr
    assert "breakpoint 1 (Tanh) was never hit" not in notes and "was never hit: no node was named 'Sin*'" in notes


def test_before_the_script_begins_there_is_no_frame_of_it() -> None:
    outcome = batch("mlp", *commands("where"), json_lines=False)
    told = [line for line in (outcome.stdout + outcome.stderr).splitlines() if line.startswith("adbg: ")]
    assert any("the program has not started" in line for line in told), str(outcome)
    assert not any("sitecustomize" in line or "importlib" in line or "threading" in line for line in told)


def test_a_trace_line_says_which_backward_and_whose_parameter_and_the_record_has_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    outcome = batch("mlp", "--run-dir", folder, *commands("trace AccumulateGrad"), json_lines=False)
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("adbg: trace 1: bwd#")]
    assert any(line.startswith("adbg: trace 1: bwd#2 before AccumulateGrad#1: grad_out") for line in lines), lines
    assert all("  parameter " in line for line in lines)
    shown = adbg("runs", "show", folder).stdout
    assert f"{len(lines)} trace hits recorded" in shown and "trace 1: bwd#1 before AccumulateGrad#1: grad_" in shown


def test_a_restart_runs_the_next_commands_on_the_new_program(tmp_path: Path) -> None:
    outcome = batch("mlp", "-b", "Tanh*", *commands("c", "restart", "p 6 * 7", "quit"))
    stops = outcome.of("stopped")
    assert outcome.status == 0 and len(stops) == 2, str(outcome)
    assert (stops[0]["index"], stops[0]["backward"]) == (stops[1]["index"], stops[1]["backward"])
    assert [line["value"] for line in outcome.of("result", command="p 6 * 7")] == [42], str(outcome)
    assert not outcome.of("notice"), "nothing is said about the program that was ended"


def test_a_restart_after_the_end_and_nothing_said_of_a_killed_program() -> None:
    outcome = batch("mlp", "-b", "Tanh*", *commands("disable", "c", "enable", "restart", "p 6 * 7", "kill"))
    assert [line["value"] for line in outcome.of("result", command="p 6 * 7")] == [42], str(outcome)
    assert not outcome.of("notice") and outcome.of("exited"), str(outcome)
