"""Coverage and line tracers see of a program what they see of it without adbg: the program's lines, in its order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.program import batch, commands, run

MODEL = {
    "torch": "import torch as framework\ndef leaf():\n    return framework.ones(3, requires_grad=True)\n",
    "paddle": "import paddle as framework\ndef leaf():\n    w = framework.ones([3])\n    w.stop_gradient = False\n"
    "    return w\n",
}
SETTRACE = """
import sys, threading
seen = []
def tracer(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        seen.append((event, frame.f_lineno))
        return tracer
    return None
"""
MONITORING = """
import sys
seen = []
tool = sys.monitoring.COVERAGE_ID
sys.monitoring.use_tool_id(tool, "test")
def line(code, number):
    if code.co_filename == __file__:
        seen.append(("line", number))
sys.monitoring.register_callback(tool, sys.monitoring.events.LINE, line)
sys.monitoring.set_events(tool, sys.monitoring.events.LINE)
"""
BODY = """
def step(number):
    w = leaf()
    w.register_hook(lambda gradient: gradient * 2)
    loss = (w * number).exp().sin().sum()
    loss.backward()
    return w.grad.tolist()
def work():
    return [step(number) for number in range(3)]
threading.settrace(tracer)
sys.settrace(tracer)
work()
thread = threading.Thread(target=work)
thread.start(); thread.join()
sys.settrace(None)
threading.settrace(None)
print(len(seen), seen)
"""
PASSIVE = [[], ["-b", "nan"], commands("record on", "vlog 4"), ["-b", "Sin*"]]


@pytest.mark.parametrize("arming", PASSIVE, ids=["unarmed", "nan watch", "record and log", "stopped"])
@on_frameworks()
def test_settrace_sees_the_same_lines(framework: str, arming: list[str], tmp_path: Path) -> None:
    script = tmp_path / "traced.py"
    script.write_text(MODEL[framework] + SETTRACE + BODY)
    expected = run([sys.executable, script])
    assert expected.status == 0 and expected.stdout.startswith(tuple("123456789")), str(expected)
    outcome = batch(str(script), *arming)
    assert outcome.status == 0, str(outcome)
    assert outcome.program_output == expected.stdout


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 has sys.monitoring")
@on_frameworks()
def test_monitoring_sees_the_same_lines(framework: str, tmp_path: Path) -> None:
    script = tmp_path / "monitored.py"
    body = BODY.replace("threading.settrace(tracer)\nsys.settrace(tracer)\n", "")
    body = body.replace("sys.settrace(None)\nthreading.settrace(None)\n", "sys.monitoring.set_events(tool, 0)\n")
    script.write_text("import threading\n" + MODEL[framework] + MONITORING + body)
    expected = run([sys.executable, script])
    outcome = batch(str(script), "-b", "nan")
    assert outcome.status == expected.status == 0, str(outcome)
    assert outcome.program_output == expected.stdout


@on_frameworks()
def test_coverage_counts_the_same_lines(framework: str, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    script = tmp_path / "covered.py"
    script.write_text(
        "import sys, threading\n"
        + MODEL[framework]
        + "tracer = None\nseen = []\n"
        + BODY.replace("sys.settrace(tracer)\n", "")
        .replace("threading.settrace(tracer)\n", "")
        .replace("sys.settrace(None)\nthreading.settrace(None)\n", "")
    )
    reports = []
    for front in ([sys.executable], [sys.executable, "-m", "adbg", "run", "--batch", "-b", "nan"]):
        data = tmp_path / f"data{len(reports)}"
        words = [*front, "-m", "coverage", "run", f"--data-file={data}", f"--include={script}", str(script)]
        outcome = run(words, cwd=tmp_path)
        assert outcome.status == 0, str(outcome)
        report = run([sys.executable, "-m", "coverage", "report", "-m", f"--data-file={data}"], cwd=tmp_path)
        reports.append(report.stdout)
    assert reports[0] == reports[1] and "covered.py" in reports[0]
