"""The promise "no trace": what a framework's own aids, profilers and modes tell of a program is of the program alone,
with and without adbg, armed or not. Each run's files are compared with those of plain Python."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.frameworks import only
from support.program import adbg, commands, run

_READS = (
    "continue", "p norm(grad_outputs[0])", "info node", "p saved", "x grad_outputs[0]", "stats grad_outputs[0]",
    "set grad_outputs[0] = grad_outputs[0]", "step", "delete 1", "continue",
)  # fmt: skip


def stopping(condition: str, *more: str) -> list[str]:
    return ["-b", f"Tanh* if {condition}", *commands(*more, *_READS)]


WAYS: dict[str, Sequence[str]] = {
    "unarmed": ["--no-stacks"],
    "recorded": commands("record on"),
    # On Paddle what a condition or a display computes is put aside too; what a person types is the person's.
    "stopped": stopping("float((grad_outputs[0] ** 2).sum()) >= 0", "display grad_outputs[0] * 2"),
}
needs_paddle = only("paddle", "Paddle's own aids")
needs_torch = only("torch", "torch's own modes and profiler")

PADDLE = """
import os, sys
import paddle
folder, aid = sys.argv[1:]
if aid in ("md5", "both"):
    paddle.set_flags({"FLAGS_tensor_md5_checksum_output_path": os.path.join(folder, "md5")})
if aid in ("nan", "both"):
    paddle.set_flags({"FLAGS_check_nan_inf": True, "FLAGS_check_nan_inf_level": 3})
if aid == "names":
    paddle.set_flags({"FLAGS_enable_unique_name": True})
paddle.seed(3)
linear = paddle.nn.Linear(4, 4)
x = paddle.randn([2, 4])
for step in range(2):
    y = paddle.tanh(linear(x))
    loss = paddle.concat([y, y * 2]).sum()
    loss.backward()
    made = [y.name, loss.name, paddle.zeros([1]).name, linear.weight.grad.name, paddle.to_tensor([1.0]).name]
    print("NAMES", *made, paddle.base.unique_name.generate("own"), y.grad_fn.name())
    linear.clear_gradients()
print("DRAWN", paddle.get_rng_state(), float(paddle.rand([])), float(linear.weight.sum()))
"""
# The state prints as an address; the number drawn next is what it stands for.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def told(output: str) -> list[str]:
    lines = [line for line in output.splitlines() if not line.startswith("adbg: ")]
    return [_ADDRESS.sub("", line) for line in lines if line.startswith(("NAMES", "DRAWN", "[PRECISION]", "TOLD"))]


@needs_paddle
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("aid", ["none", "names", "both"])
def test_paddles_aids_tell_of_the_program_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aid: str, way: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # C's stdout too: else what Paddle prints comes whenever that is full
    script = tmp_path / "train.py"
    script.write_text(PADDLE)
    files = []
    for name in ("plain", "adbg"):
        folder = tmp_path / name
        folder.mkdir()
        words = [script, folder, aid]
        if name == "plain":
            done = run([sys.executable, *words])
        else:
            done = adbg("run", "--batch", "--run-dir", tmp_path / "run", *WAYS[way], *words)
        assert done.status == 0, str(done)
        md5 = folder / "md5"
        files.append((md5.read_text() if md5.exists() else "", told(done.stdout)))
    assert files[0] == files[1]
    assert len(files[0][1]) >= 3 and bool(files[0][0]) == (aid == "both")


VLOG = """
import sys
import paddle
from paddle.base.framework import backward_vlog_guard, vlog_guard
x = paddle.ones([2, 2])
x.stop_gradient = False
paddle.tanh(x).sum().backward()
level = int(sys.argv[1])
if level:
    with backward_vlog_guard(level):
        y = paddle.exp(x)
        y = paddle.matmul(y, y)
    paddle.sin(y).sum().backward()
    paddle.base.core.set_vlog_level(4)
    paddle.exp(x)
    paddle.base.core.set_vlog_level(0)
    with vlog_guard(3):
        paddle.exp(x).sum().backward()
    with vlog_guard({"nodes": 5}):
        paddle.exp(x).sum().backward()
print("TOLD the end")
"""
_STAMP = re.compile(r"^(\t*[IWEF])\d{4} [\d:.]+ +\d+", re.MULTILINE)
_POINTERS = re.compile(r"0x[0-9a-f]+|Tensor_[0-9a-f]+|\b[0-9a-f]{12}\b")


def records(text: str) -> list[str]:
    lines = _POINTERS.sub("", _STAMP.sub(r"\1", text)).splitlines()
    return [line for line in lines if not line.startswith("adbg: ")]


@needs_paddle
@pytest.mark.parametrize(
    ("level", "way"), [("3", "recorded"), ("6", "unarmed"), ("3", "stopped"), ("6", "stopped"), ("6", "never hit")]
)
def test_paddles_log_guards_write_what_they_write_alone(tmp_path: Path, level: str, way: str) -> None:
    """Every record of Paddle's guards and levels, byte for byte but for times and addresses."""
    script = tmp_path / "guards.py"
    script.write_text(VLOG)
    options = WAYS.get(way, ["-b", "nosuchnode"])
    alone = run([sys.executable, script, level])
    done = adbg("run", "--batch", "--run-dir", tmp_path / "run", *options, script, level)
    assert done.status == alone.status == 0, str(done)
    assert len(records(alone.stderr)) > 60
    if way == "recorded":  # its hooks are called inside the guarded nodes, and Paddle says so
        assert set(records(alone.stderr)) <= set(records(done.stderr)), str(done)
    else:
        assert records(done.stderr) == records(alone.stderr)


@needs_paddle
def test_an_environments_level_is_taken_as_vlog(tmp_path: Path) -> None:
    """GLOG_v: shown, its records read apart from stderr, as many as without adbg, and changed at a stop."""
    script, run_dir = tmp_path / "guards.py", tmp_path / "run"
    script.write_text(VLOG)
    environment = {**os.environ, "GLOG_v": "4"}
    alone = run([sys.executable, script, "0"], env=environment)
    done = adbg(
        "run", "--batch", "--run-dir", run_dir, "-b", "Tanh*", *commands("continue", "vlog", "continue"), script, "0",
        env=environment,
    )  # fmt: skip
    log = (run_dir / "vlog-r0.log").read_text()
    assert "vlog 4" in done.stdout and "GLOG_v" in done.stdout + done.stderr, str(done)
    # Behind the first operator, with which Paddle says once what it has found on the machine.
    step, log = (text[text.index("Running_AD_API: sum") :] for text in (alone.stderr, log))
    assert "Running_AD_API_GRAD: tanh_grad" in step
    for line in set(records(step)):
        assert records(log).count(line) >= records(step).count(line), line
    assert "Running_AD_API" not in done.stderr, str(done)
    quiet = adbg(
        "run", "--batch", "--run-dir", tmp_path / "quiet", "-b", "Tanh*", *commands("continue", "vlog off", "continue"),
        script, "0", env=environment,
    )  # fmt: skip
    log = (tmp_path / "quiet" / "vlog-r0.log").read_text()
    assert quiet.status == 0 and "tanh" in log and "Finish_AD_API_GRAD: tanh_grad" not in log, str(quiet)


DUMPS = """
import os, sys
import paddle
from paddle.utils import capture_backward_subgraph_guard
os.chdir(sys.argv[1])
paths = ("FLAGS_dump_api_python_stack_path", "FLAGS_dump_grad_node_forward_stack_path")
paddle.set_flags({name: os.path.abspath(name) for name in paths})
x = paddle.ones([2, 2])
x.stop_gradient = False
paddle.seed(5)
layer = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Tanh())
y = layer(x)
paddle.matmul(y, y).sum().backward()
paddle.set_flags(dict.fromkeys(paths, ""))
with capture_backward_subgraph_guard("captured", True):
    y = paddle.exp(layer(x))
    z = paddle.matmul(y, y)
z.sum().backward()
print("TOLD", paddle.get_flags(["FLAGS_call_stack_level", "FLAGS_enable_unique_name"]))
"""
_NUMBERED = re.compile(r"\.\d+$|^[\d:._-]+")  # a process in an end, a time in a beginning


@needs_paddle
@pytest.mark.parametrize("way", ["unarmed", "stacks", "stopped"])
def test_paddles_dump_files_are_the_same(tmp_path: Path, way: str) -> None:
    """Whatever Paddle writes to files, forward stacks among it, has nothing of adbg's, with stacks on too."""
    script = tmp_path / "dumps.py"
    script.write_text(DUMPS)
    found = []
    for name in ("plain", "adbg"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "plain":
            done = run([sys.executable, script, folder])
        else:
            done = adbg("run", "--batch", "--no-record", *WAYS.get(way, []), script, folder)
        assert done.status == 0, str(done)
        files = {
            _NUMBERED.sub("", path.name): sorted(_POINTERS.sub("", path.read_text()).splitlines())
            for path in folder.rglob("*")
            if path.is_file()
        }
        found.append((files, told(done.stdout)))
    assert found[0] == found[1]
    assert len(found[0][0]) >= 6, sorted(found[0][0])


TORCH = """
import sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print("TOLD dispatched", func)
        return func(*args, **(kwargs or {}))

torch.manual_seed(3)
x = torch.randn(4, 4, requires_grad=True)
weight = torch.randn(4, 4)

def step():
    (x.exp() @ weight).tanh().sum().backward()
    x.grad = None

with Seeing():
    step()
with torch.autocast("cpu", dtype=torch.bfloat16):
    step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    step()
for event in sorted((event.key, event.count) for event in profile.key_averages()):
    print("TOLD profiled", *event)
print("DRAWN", torch.get_rng_state().sum(), torch.rand(()), x.exp().grad_fn._sequence_nr())
"""


@needs_torch
@pytest.mark.parametrize("way", [*WAYS, "watched"])
def test_torchs_modes_and_profiler_see_the_program_alone(tmp_path: Path, way: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TORCH)
    ways = {**WAYS, "stopped": stopping("norm(grad_outputs[0]) >= 0"), "watched": ["-b", "nan"]}
    alone = run([sys.executable, script])
    done = adbg("run", "--batch", "--run-dir", tmp_path / "run", *ways[way], script)
    assert done.status == alone.status == 0, str(done)
    assert len(told(alone.stdout)) > 30
    assert told(done.stdout) == told(alone.stdout)
