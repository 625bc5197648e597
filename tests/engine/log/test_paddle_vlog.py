"""Paddle's own VLOG on the running program: levels, modules after their sites ran, lines of code, and put back."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.program import Outcome, adbg, commands, run

from adbg.engine.glog import Record, parse

pytest.importorskip("paddle")
pytestmark = pytest.mark.xdist_group("paddle-vlog")

SCRIPT = """
import ctypes, os, sys
import paddle
from paddle.autograd import PyLayer

linear = paddle.nn.Linear(4, 4)

class Inner(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if "crash" in sys.argv:
            ctypes.string_at(0)
        return g * 2

def model(x):
    h = paddle.tanh(x)
    h = linear(h)  # @first
    y = paddle.exp(h)  # @last
    return Inner.apply(y).sum()

x = paddle.ones([3, 4])
x.stop_gradient = False
kept = []  # Paddle's own guard, which ``vlog bw`` uses, knows nodes by address: a later one at that of a freed one too
for i in range(3):
    os.write(2, b"from C %d\\n" % i)
    sys.stderr.write(f"from Python {i}\\n")
    loss = model(x)
    loss.backward()
    if "crash" not in sys.argv:  # there Paddle 3.3.1's own signal handler fails with it in most runs, without adbg too
        kept.append(loss)
    print("iteration", i, flush=True)
with paddle.base.framework.vlog_guard(3):
    if "guard" in sys.argv:
        model(x).backward()
print("FLAGS", paddle.get_flags(["FLAGS_call_stack_level", "FLAGS_enable_unique_name", "FLAGS_check_nan_inf"]))
"""
FIRST = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "@first" in line)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _run(script: Path, *options: str, arguments: tuple[str, ...] = ()) -> tuple[Outcome, str]:
    run_dir = script.parent / "run"
    done = adbg("run", "--batch", "--run-dir", run_dir, *options, script, *arguments)
    log = run_dir / "vlog-r0.log"
    return done, log.read_text(errors="replace") if log.exists() else ""


def mark(word: str) -> str:
    """A command that puts a line among the records."""
    return f"! import os; os.write(2, b'{word}\\n')"


def _plain(script: Path, **env: str) -> list[Record]:
    """What Paddle writes without adbg."""
    return parse(run([sys.executable, script], env={**os.environ, **env}).stderr)


def _apis(log: str) -> list[str]:
    return re.findall(r"Running_AD_API: (\w+)=", log)


def test_records_go_to_the_record_and_everything_else_to_stderr(script: Path) -> None:
    done, log = _run(script, *commands("vlog 3"))
    assert done.status == 0, done
    assert log.count("Running_AD_API: tanh=") == 3 and log.count("TanhGradNode(") + log.count("tanh") > 3
    assert "GradNodePyLayer_Inner" in log and "Running_AD_API" not in done.stderr
    for number in range(3):
        assert done.stderr.count(f"from C {number}") == 1, done
        assert done.stderr.count(f"from Python {number}") == 1
    assert not re.search(r"^\t*I\d{4} ", done.stderr, re.MULTILINE), done.stderr


def test_a_module_follows_after_its_sites_ran(script: Path) -> None:
    """The trap: a site that ran keeps the level that it was bound to."""
    at_second = ["-b", "Exp* backward 2"]
    done, log = _run(script, *at_second, *commands("continue", "vlog dygraph_functions=6,nodes=5", "continue"))
    assert done.status == 0, done
    assert f"→ {script.parent / 'run' / 'vlog-r0.log'}  (`adbg log` shows it)" in done.stdout + done.stderr
    assert _apis(log).count("tanh") == 1, "the third iteration only"
    assert "nodes.cc" in log and "backward.cc" not in log
    assert re.search(r"^adbg: vlog 0  dygraph_functions=6  nodes=5", done.stdout + done.stderr, re.MULTILINE)


def test_off_ends_it(script: Path) -> None:
    lines = ["continue", "vlog off", "vlog", "delete 1", "continue"]
    done, log = _run(script, "-b", "Exp* backward 2", *commands("vlog 3", *lines))
    assert done.status == 0, done
    assert log.count("Running_AD_API: tanh=") == 2
    assert "from C 2" in done.stderr


def test_only_while_lines_run(script: Path) -> None:
    done, log = _run(script, *commands(f"vlog 6 at train.py:{FIRST}-{FIRST + 1}"))
    assert done.status == 0, done
    assert set(_apis(log)) == {"matmul", "add", "exp"} and len(_apis(log)) == 9
    assert "Preparing" not in log


def test_only_while_the_nodes_run_that_lines_made(script: Path) -> None:
    done, log = _run(script, *commands(f"vlog bw 6 at train.py:{FIRST}-{FIRST + 1}"))
    assert done.status == 0, done
    begun = re.findall(r"(\w+)\(#\d+\) Preparing", log)
    assert begun.count("ExpGradNode") == 3 and {"MatmulGradNode", "AddGradNode"} <= set(begun)
    assert "TanhGradNode" not in begun and "SumGradNode" not in begun
    assert "exp_grad kernel" in log and "tanh_grad" not in log and _apis(log) == []


def test_what_adbg_reads_is_not_in_the_log(script: Path) -> None:
    """At level 6 every shape that is read writes a record. What a person has computed may write its own."""
    reads = ["node", "graph", "where", "list", "stats grad_outputs[0]", "x grad_outputs[0]", "info saved"]
    asked = [mark("typed"), "p grad_outputs[0] * 3", mark("read"), *reads, mark("end"), "vlog off", "continue"]
    done, log = _run(script, "-b", "Exp* if norm(grad_outputs[0]) > 0", *commands("continue", "vlog 6", *asked))
    assert done.status == 0 and "norm" in done.stdout, done
    typed, read = (log.partition(f"{a}\n")[2].partition(f"{b}\n")[0] for a, b in (("typed", "read"), ("read", "end")))
    assert "Running_AD_API: scale" in typed
    assert not re.search(r"^\t*I\d{4} ", read, re.MULTILINE), read


def test_what_hooks_measure_is_not_in_the_log(script: Path) -> None:
    """A condition that computes, at every node: no record more than without any breakpoint, and none less."""
    # level 4 follows adbg's own hooks ("Call PyTensorHook"), which are the same in number with both conditions
    logs = [
        _run(script, "-b", f"* if {rule}", *commands("vlog 4"))[1] for rule in ("False", "norm(grad_outputs[0]) < 0")
    ]
    plain, measured = ([re.sub(r"0x\w+|^.*?\] ?", "", line) for line in log.splitlines()] for log in logs)
    assert _apis(logs[0]) and sorted(plain) == sorted(measured)


def test_the_scripts_own_guard_reaches_every_module(script: Path) -> None:
    plain = run([sys.executable, script, "guard"])
    done, _ = _run(script, arguments=("guard",))

    def kinds(text: str) -> set[str]:
        return set(re.findall(r"\] *\n?=+(\w+: \w+)=", text)) | set(re.findall(r"\d (\w+\.cc):\d+\]", text))

    assert done.status == 0 and "backward.cc" in kinds(plain.stderr)
    assert kinds(plain.stderr) <= kinds(done.stderr) | {"pybind.cc"}


@pytest.mark.parametrize("level", [3, 4, 5, 6])
def test_no_record_is_said_to_be_of_a_higher_level_than_it_is(script: Path, level: int) -> None:
    """glog wrote it at ``level``, so ``adbg log --level`` of it must not hide it."""
    records = _plain(script, GLOG_v=str(level))
    hidden = {(r.level, r.text) for r in records if r.level is not None and r.level > level}
    assert len(records) > 100 and not hidden
    if level == 4:
        assert {r.level for r in records if r.text.startswith("type_name: float")} == {4}


@pytest.mark.parametrize(
    "levels, forward, backward",
    [
        ({"GLOG_v": "3"}, "Forward multiply1(x f32[3,4], y f32[]) → out f32[3,4]", ""),
        ({"GLOG_v": "4"}, "Forward matmul1(x, y) → out", ""),
        (
            {"GLOG_v": "5"},
            "Forward matmul1(x f32[3,4], y f32[4,4]) → out f32[3,4]",
            "Input grad_out f32[3,4], out f32[3,4]",
        ),
        ({"GLOG_v": "0", "GLOG_vmodule": "nodes=5"}, "", "Input grad_out, out"),
    ],
    ids=["3", "4", "5", "nodes=5"],
)
def test_one_line_of_a_block_names_what_is_there(
    script: Path, levels: dict[str, str], forward: str, backward: str
) -> None:
    from adbg.tui.app.log.summary import summary

    script.write_text(SCRIPT.replace("paddle.tanh(x)", "paddle.tanh(paddle.multiply(x, paddle.to_tensor(1.0)))"))
    lines = [summary(record) for record in _plain(script, **levels)]
    calls, inputs = ([line for line in lines if line.startswith(word)] for word in ("Forward ", "Input "))
    assert not forward or forward in calls, calls[:20]
    assert not backward or backward in inputs, inputs[:20]
    assert not any("nothing" in line for line in calls)


def test_levels_changed_by_two_threads_at_once() -> None:
    """A region begins while the person's last word, or another region's end, is on its way to glog."""
    from adbg.engine.backends.paddle.vlog import PaddleVlog

    class Core:
        """glog's side of it, slow where a test wants it to be."""

        def __init__(self) -> None:
            self.levels: dict[str, int] = {}
            self.reached, self.go_on = threading.Event(), threading.Event()
            self.slow = False

        def set_vlog_level(self, levels: dict[str, int]) -> None:
            if self.slow:
                self.slow = False
                self.reached.set()
                self.go_on.wait(0.5)
            self.levels.update(levels)

    core = Core()
    vlog = PaddleVlog(core)
    core.slow = True
    region = threading.Thread(target=vlog.raise_levels, args=({"*": 6},))
    region.start()
    assert core.reached.wait(10)
    vlog.lower_levels({"*": 6})
    core.go_on.set()
    region.join()
    assert not any(core.levels.values())


def test_a_crash_while_redirected_loses_nothing(script: Path) -> None:
    done, log = _run(script, *commands("record on", "vlog 4"), arguments=("crash",))
    assert done.status == 139, done
    assert "from C 0" in done.stderr and "from Python 0" in done.stderr
    assert "Segmentation fault` is detected" in done.stdout + done.stderr, "Paddle's own word on it"
    assert "last node seen: " in done.stderr and "GradNodePyLayer_Inner" in done.stderr
    assert "grad_outputs[0]  f32[3, 4] norm" in done.stderr
    assert "last log records:" in done.stderr and "in backward" in done.stderr
    assert "GradNodePyLayer_Inner" in log.splitlines()[-1] + log[-4000:]
    assert (script.parent / "run" / "crash-r0.txt").exists()


def test_aids_are_listed_switched_and_put_back(script: Path) -> None:
    switched = ["aids check_nan_inf 1", "aids sync on", "aids nonsense on", "aids md5 /no/such/x"]
    lines = ["continue", "aids", *switched, "detach"]
    done, _ = _run(script, "-b", "Exp*", "--no-stacks", *commands(*lines))
    assert done.status == 0, done
    assert "ignored: operators on the CPU" in done.stdout and "ignored: fresh memory" in done.stdout
    assert "unknown aid 'nonsense'" in done.stdout + done.stderr and "cannot be written" in done.stdout + done.stderr
    flags = re.search(r"FLAGS (.*)", done.stdout)
    assert flags and "'FLAGS_call_stack_level': 1" in flags[1] and "'FLAGS_check_nan_inf': False" in flags[1]


@pytest.mark.parametrize(("level", "told"), [("6", 1), ("5", 0)])
def test_level_6_says_what_paddle_does_to_optimizers(script: Path, level: str, told: int) -> None:
    done, _ = _run(script, *commands(f"vlog {level}"))
    assert done.status == 0 and (done.stdout + done.stderr).count("lose their state") == told, done


CAPTURING = """
import sys, types

class Digraph:
    def __init__(self, *args, **kwargs):
        pass
    def __getattr__(self, name):
        return lambda *args, **kwargs: print("DRAWN", name, *args[:2]) if name in ("node", "edge") else None

sys.modules["graphviz"] = types.ModuleType("graphviz")
sys.modules["graphviz"].Digraph = Digraph
import paddle
from paddle.utils import capture_forward_subgraph_guard

x = paddle.ones([2, 2])
x.stop_gradient = False
with capture_forward_subgraph_guard("unused"):
    y = paddle.matmul(paddle.tanh(x), x)
paddle.sin(y).sum().backward()
print("DRAWN all", sys.stderr.fileno())
"""


@pytest.mark.parametrize("level", ["3", "5", "off"])  # from 6 on Paddle names what it did not name before
def test_paddles_forward_graph_is_what_it_is_without(tmp_path: Path, level: str) -> None:
    """``capture_forward_subgraph_guard`` puts a file in place of stderr and reads the records in it."""
    script = tmp_path / "capture.py"
    script.write_text(CAPTURING)
    alone = [line for line in run([sys.executable, script]).stdout.splitlines() if line.startswith("DRAWN")]
    done, log = _run(script, *commands(f"vlog {level}"))
    assert done.status == 0 and len(alone) >= 5, str(done)
    assert [line for line in done.stdout.splitlines() if line.startswith("DRAWN")] == alone
    assert ("Running_AD_API: sin" in log) == (level != "off"), "the user's level holds again behind it"


GUARDED = """
import contextlib, sys
import paddle
from paddle.base.framework import backward_vlog_guard

x = paddle.ones([2, 2])
x.stop_gradient = False
kept = []
for step in range(2):
    with backward_vlog_guard(6) if "guard" in sys.argv else contextlib.nullcontext():
        y = paddle.exp(x)  # @here
        z = paddle.matmul(y, y)
    paddle.sin(z).sum().backward()
    kept.append((y, z))  # Paddle's guard knows nodes by address: a later one at that of a freed one is told of too
"""


def test_a_backward_region_has_every_record_of_paddles_own_guard(tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    script.write_text(GUARDED)
    line = next(n for n, text in enumerate(GUARDED.splitlines(), 1) if "@here" in text)
    guard = parse(run([sys.executable, script, "guard"]).stderr)
    done, log = _run(script, *commands(f"vlog bw 6 at guarded.py:{line}-{line + 1}"))

    def told(records: list[Record]) -> list[tuple[str, str]]:
        own = [record for record in records if record.file.endswith(".cc") or record.file.endswith(".h")]
        plain = [(r.file, re.sub(r"0x\w+|(?<=Tensor)_\w+|\(\w*@?\w*\)", "", r.text)) for r in own]
        # A hook of adbg's is told of, and holds the gradient, so that the node does not write into its memory.
        return [record for record in plain if "PyTensorHook" not in record[1] and "Perform View" not in record[1]]

    assert done.status == 0 and len(told(guard)) > 40, str(done)
    assert Counter(told(parse(log.encode()))) == Counter(told(guard)), "no record less, and none of another node"
