"""Programs that a signal kills in a node: the report names the node, the line that made it, and what led to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.frameworks import on_frameworks, only
from support.program import Outcome, adbg, commands

pytestmark = pytest.mark.xdist_group("crash")

END = """
import ctypes, os, signal, sys
def end(g):
    kind = sys.argv[1]
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os.abort() if kind == "abort" else ctypes.string_at(0)
in_hook = "hook" in sys.argv
"""
TORCH = f"""{END}
import torch
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        end(g)
x = torch.ones(3, 4, requires_grad=True)
y = x.exp()
if in_hook:
    y.register_hook(end)
    z = y * 2  # @made
else:
    z = Boom.apply(y)  # @made
z.sum().backward()
"""
PADDLE = f"""{END}
import paddle
from paddle.autograd import PyLayer
class Boom(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        end(g)
x = paddle.ones([3, 4])
x.stop_gradient = False
y = paddle.exp(x)
if in_hook:
    y.register_hook(end)
    z = y * 2  # @made
else:
    z = Boom.apply(y)  # @made
z.sum().backward()
"""
SCRIPTS = {"torch": TORCH, "paddle": PADDLE}


def _crash(tmp_path: Path, script: str, *options: str, arguments: tuple[str, ...]) -> tuple[Outcome, Path]:
    path = tmp_path / "boom.py"
    path.write_text(script)
    return adbg("run", "--batch", "--run-dir", tmp_path / "run", *options, path, *arguments), path


def _made(script: str) -> int:
    lines = [number for number, line in enumerate(script.splitlines(), 1) if line.endswith("# @made")]
    return lines[-1]


@on_frameworks()
@pytest.mark.parametrize(
    ("kind", "name", "status"), [("kill", "SIGKILL", 137), ("abort", "SIGABRT", 134), ("segv", "SIGSEGV", 139)]
)
@pytest.mark.parametrize("recorded", [True, False], ids=["record on", "breakpoint"])
def test_the_node_its_line_and_its_gradient(
    tmp_path: Path, framework: str, kind: str, name: str, status: int, recorded: bool
) -> None:
    script = SCRIPTS[framework]
    options = commands("record on", "vlog 3") if recorded else ["-b", "*Boom* if False"]
    done, path = _crash(tmp_path, script, *options, arguments=(kind,))
    assert done.status == status, str(done)
    report = (tmp_path / "run" / "crash-r0.txt").read_text()
    assert f"killed by {name}" in report and report.splitlines()[0] in done.stderr
    assert re.search(r"last node seen: #2 \w*Boom\w* of backward 1; it was running", report), report
    assert f"made by {path}:{_made(script)} in <module>" in report
    assert "grad_outputs[0]  f32[3, 4] norm 3.464" in report
    assert ("last log records:" in report) == recorded
    assert ("Python stacks at the crash" in report) == (kind != "kill")
    assert ("dmesg" in report) == (kind == "kill")
    shown = adbg("runs", "show", tmp_path / "run")
    assert "crash-r0.txt" in shown.stdout, str(shown)


@on_frameworks()
def test_unarmed_and_killed_there_is_a_report(tmp_path: Path, framework: str) -> None:
    done, _ = _crash(tmp_path, SCRIPTS[framework], arguments=("kill",))
    assert done.status == 137 and "killed by SIGKILL" in done.stderr, str(done)
    assert (tmp_path / "run" / "crash-r0.txt").exists()


@on_frameworks()
def test_what_the_user_had_killed_is_no_crash(tmp_path: Path, framework: str) -> None:
    script = SCRIPTS[framework].replace(
        "    kind = sys.argv[1]\n", "    import time\n    time.sleep(60)\n    kind = 'kill'\n"
    )
    path = tmp_path / "slow.py"
    path.write_text(script)
    done = adbg("run", "--batch", "--timeout", "6", "--run-dir", tmp_path / "run", path, "kill")
    assert done.status == 124 and "crash journal" not in done.stderr, str(done)


@on_frameworks()
def test_in_a_tensor_hook(tmp_path: Path, framework: str) -> None:
    """Python's stack has the hook; the journal has the node before it."""
    script = SCRIPTS[framework]
    done, path = _crash(tmp_path, script, *commands("record on"), arguments=("segv", "hook"))
    assert done.status == 139, str(done)
    report = (tmp_path / "run" / "crash-r0.txt").read_text()
    assert "last node seen: #" in report and "in end" in report
    assert f"made by {path}:" in report


@only("paddle", "Paddle dies of an undefined gradient")
@pytest.mark.parametrize("options", [[], commands("record on"), ["--no-stacks"]], ids=["plain", "record", "no stacks"])
def test_after_the_warning_the_node_is_known(tmp_path: Path, options: list[str]) -> None:
    script = """
import paddle
from paddle.autograd import PyLayer
class Nothing(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return None
x = paddle.ones([3, 4])
x.stop_gradient = False
h = paddle.concat([x, x])  # @made
Nothing.apply(h).sum().backward()
"""
    done, path = _crash(tmp_path, script, *options, arguments=())
    assert done.status == 139, str(done)
    report = (tmp_path / "run" / "crash-r0.txt").read_text()
    assert re.search(r"last node seen: #3 ConcatGradNode of backward 1; it was running", report), report
    assert "grad_outputs[0]  undefined" in report
    assert (f"made by {path}:{_made(script)} in <module>" in report) == ("--no-stacks" not in options)
