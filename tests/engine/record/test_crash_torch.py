"""A program on real torch that dies in a node: what the front end shows, and what stays in the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import Outcome, adbg

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("crash")

SCRIPT = """
import ctypes, os, sys, torch

class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if "abort" in sys.argv:
            os.abort()
        ctypes.string_at(0)

class Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            Boom.apply(x.detach().requires_grad_()).sum().backward()
        return g

Outer.apply(torch.ones(3, 4, requires_grad=True).tanh()).sum().backward()
"""


def _crash(tmp_path: Path, *options: str, arguments: tuple[str, ...] = ()) -> tuple[Outcome, Path]:
    script, run_dir = tmp_path / "boom.py", tmp_path / "run"
    script.write_text(SCRIPT)
    record = [] if "--no-record" in options else ["--run-dir", str(run_dir)]
    return adbg("run", "--batch", *record, *options, script, *arguments), run_dir


@pytest.mark.parametrize(("arguments", "name", "status"), [((), "SIGSEGV", 139), (("abort",), "SIGABRT", 134)])
def test_armed(tmp_path: Path, arguments: tuple[str, ...], name: str, status: int) -> None:
    done, run_dir = _crash(tmp_path, "-e", "record on", "-e", "vlog 4", arguments=arguments)
    assert done.status == status, done
    assert f"killed by {name}" in done.stderr
    assert "#2 BoomBackward of backward 2, nested 1 deep; it was running" in done.stderr
    assert "inside OuterBackward#1" in done.stderr
    assert "grad_outputs[0]  f32[3, 4] norm 3.464" in done.stderr
    assert "BoomBackward(#2) Preparing" in done.stderr
    assert "boom.py" in done.stderr and "in backward" in done.stderr
    assert (run_dir / "crash-r0.txt").read_text() in done.stderr.replace("adbg: ", "") + "\n"
    shown = adbg("runs", "show", str(run_dir))
    assert "crash-r0.txt" in shown.stdout


def test_unarmed_there_is_at_least_the_python_stack(tmp_path: Path) -> None:
    done, run_dir = _crash(tmp_path)
    assert "killed by SIGSEGV" in done.stderr and "boom.py" in done.stderr and "no node was hooked" in done.stderr
    assert (run_dir / "crash-r0.txt").exists()


def test_without_a_record_it_is_shown_all_the_same(tmp_path: Path) -> None:
    done, _ = _crash(tmp_path, "--no-record", "-b", "Boom*", "-e", "continue")
    assert "BoomBackward of backward 2" in done.stderr and "kept in" not in done.stderr


def test_a_good_end_and_an_exception_leave_no_journal(tmp_path: Path) -> None:
    script = tmp_path / "fine.py"
    script.write_text("import torch\ntorch.ones(2, requires_grad=True).sum().backward()\nraise SystemExit(3)\n")
    done = adbg("run", "--batch", "--run-dir", tmp_path / "run", "-e", "record on", script)
    assert done.status == 3 and "journal" not in done.stderr
    left = [path.name for path in (tmp_path / "run").iterdir()]
    assert not any(name.startswith(("journal", "faults", "crash")) for name in left), left


def test_a_crash_after_the_backward_is_not_laid_to_its_node(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text("""
import ctypes, torch
x = torch.ones(3, requires_grad=True)
for _ in range(3):
    (x * 2).exp().sum().backward()
ctypes.string_at(0)
""")
    commands = ["-b", "MulBackward0", *["-e", "continue"] * 3]
    done = adbg("run", "--batch", *commands, "--run-dir", str(tmp_path / "run"), script)
    assert done.status == 139, done
    assert "#3 MulBackward0 of backward 3; that backward had ended; the crash came later" in done.stderr
    report = done.stderr.replace("adbg: ", "")
    assert "backward 3 ends" in report.partition("after it:")[2] and "it was running" not in report
