"""Profiles of real programs: every profiler, what its file says, and that the program is none the wiser. Witnesses are
the program's own clock and digest, and the tools' own readers."""

from __future__ import annotations

import json
import os
import pstats
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.frameworks import on_frameworks, only
from support.program import adbg, commands, digest_of, run

from adbg.profiles import registry

SCRIPT = """
import hashlib, sys
framework = sys.argv[1]
if framework == "torch":
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    w = torch.randn(64, 64, requires_grad=True)
    draw, module = (lambda: torch.randn(64, 64)), torch
else:
    import paddle
    paddle.seed(0)
    w = paddle.randn([64, 64])
    w.stop_gradient = False
    draw, module = (lambda: paddle.randn([64, 64])), paddle

def forward(x):
    h = module.matmul(x, w)
    return module.tanh(h).sum()

def train(steps):
    for step in range(steps):
        loss = forward(draw())
        loss.backward()

for part in range(int(sys.argv[2])):
    train(1000)  # of a part this long a sampler has something on a busy machine too
    breakpoint()
print("DIGEST", hashlib.sha256(w.grad.numpy().tobytes()).hexdigest())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def meta_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    return found


def folder_of(run_dir: Path, profiler: str) -> Path:
    (folder,) = (run_dir / "profiles").glob(f"*-{profiler}")
    return folder


def opened(folder: Path, meta: dict[str, Any]) -> str:
    """What the file has, read without adbg."""
    path = folder / meta["file"]
    if meta["format"] == "pstats":
        rows = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
        (train,) = (row for (_, _, name), row in rows.items() if name == "forward")
        return f"forward {train[1]}"
    if meta["format"] == "chrome":
        events = json.loads(path.read_text())["traceEvents"]
        names = {str(event.get("name")) for event in events}
        return "matmul" if any("mm" in name or "matmul" in name for name in names) else f"no product in {names}"
    if meta["format"] == "nodes":
        rows = json.loads(path.read_text())["nodes"]
        return "tanh" if any("Tanh" in row["name"] and row["us"] > 0 for row in rows) else f"no tanh in {rows}"
    if meta["format"] == "gperftools":
        return "words" if path.stat().st_size > 80 and path.read_bytes()[:8] == bytes(8) else "no profile"
    return "stacks" if ";" in path.read_text() else "no stacks"


WANTED = {"pstats": "forward 10", "chrome": "matmul", "nodes": "tanh", "gperftools": "words", "collapsed": "stacks"}


@on_frameworks()
def test_every_profiler_on_a_region_and_the_same_digest(framework: str, script: Path, tmp_path: Path) -> None:
    others = {"torch", "paddle"} - {framework}
    names = [name for name in registry.REGISTRY if name not in others and registry.make(name).available().ok]
    regions = {"yep": "run", "py-spy": "run"}  # sampled: ten small iterations may have no sample
    lines = [line for name in names for line in ("continue", f"profile {name} {regions.get(name, '10 iterations')}")]
    lines = [line for pair in zip(lines[::2], lines[1::2]) for line in (*pair, "continue", "profile stop")]
    parts = str(2 * len(names) + 1)
    plain = run([sys.executable, script, framework, parts], env=_without_breakpoints())
    assert plain.status == 0, str(plain)
    run_dir = tmp_path / "run"
    seen = adbg("run", "--batch", "--run-dir", run_dir, *commands(*lines), script, framework, parts)
    assert seen.status == 0, str(seen)
    assert digest_of(seen.stdout) == digest_of(plain.stdout)
    for name in names:
        folder = folder_of(run_dir, name)
        meta = meta_of(folder)
        assert (meta["state"], meta["profiler"]) == ("done", name), (meta, str(seen))
        assert opened(folder, meta) == WANTED[meta["format"]], str(seen)
        assert 0 < meta["seconds"] < seen.seconds and meta["machine"]["cores"]
    counted = meta_of(folder_of(run_dir, "cprofile"))
    assert counted["iterations"] == 10 and counted["region"] == {
        "kind": "iterations", "count": 10, "warmup": 1, "place": "", "spec": "",
    }  # fmt: skip
    missing = [name for name in ("yep", "py-spy") if name not in names]
    if missing:
        pytest.skip("; ".join(f"{name}: {registry.make(name).available().why}" for name in missing))


def _without_breakpoints() -> dict[str, str]:
    return {**os.environ, "PYTHONBREAKPOINT": "0"}


@on_frameworks()
def test_the_command_line_and_the_scripts_own_status(framework: str, script: Path, tmp_path: Path) -> None:
    """Pinned to one core meanwhile; the script itself says where it may run before and after."""
    where = "import os\nprint('CORES', os.sched_getaffinity(0))\n"
    script.write_text(where + SCRIPT.replace("    breakpoint()\n", "") + where + "sys.exit(7)\n")
    plain = run([sys.executable, script, framework, "1"])
    run_dir, core = tmp_path / "run", min(os.sched_getaffinity(0))
    words = ["--iterations", "5", "--warmup", "3", "--pin", str(core), "--run-dir", run_dir]
    seen = adbg("profile", *words, script, framework, "1")
    assert (seen.status, seen.stdout) == (7, plain.stdout), str(seen)
    meta = meta_of(folder_of(run_dir, "cprofile"))
    assert (meta["iterations"], meta["machine"]["affinity"]) == (5, [core])
    assert opened(folder_of(run_dir, "cprofile"), meta) == "forward 5"


ONE = only("torch", "what goes wrong is no framework's: test_profile_attached has what differs")

TINY = """
import os, signal, sys, time
import torch
torch.set_num_threads(1)
x = torch.ones(4, requires_grad=True)
def step():
    torch.tanh(x).sum().backward()
"""


@ONE
@pytest.mark.parametrize(
    ("name", "body", "words", "said", "status"),
    [
        (
            "own",
            "import cProfile\np = cProfile.Profile()\np.enable()\n"
            "for _ in range(9): step()\np.disable()\nprint(len(p.getstats()) > 3)\n",
            ["--iterations", "3"],
            "another profiler is at work on this thread already",
            0,
        ),
        (
            "own-torch",
            "with torch.profiler.profile() as p:\n    for _ in range(9): step()\nprint(len(p.events()) > 9)\n",
            ["--with", "torch", "--iterations", "3"],
            "the program's own torch.profiler is at work already",
            0,
        ),
        ("nothing", "print(True)\n", ["--iterations", "3"], "before the region began: 3 iterations after 1", 0),
        ("few", "for _ in range(3): step()\nprint(True)\n", ["--iterations", "9"], "after 2 of 9 iterations", 0),
        (
            "exec",
            "end = time.monotonic() + 2.5\nwhile time.monotonic() < end: step()\n"
            "os.execv(sys.executable, [sys.executable, '-c', 'print(True)'])\n",
            ["--iterations", "10000000"],
            "what was saved until then is kept",
            0,
        ),
        (
            "killed",
            "end = time.monotonic() + 2.5\nprint(True, flush=True)\nstep()\nwhile time.monotonic() < end: step()\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
            ["--iterations", "10000000"],
            "what was saved until then is kept",
            128 + signal.SIGKILL,
        ),
    ],
)
def test_what_goes_wrong_is_said_and_harms_nothing(
    name: str, body: str, words: list[str], said: str, status: int, tmp_path: Path
) -> None:
    script = tmp_path / f"{name}.py"
    script.write_text(TINY + body)
    run_dir = tmp_path / "run"
    seen = adbg("profile", *words, "--run-dir", run_dir, script)
    assert (seen.status, seen.stdout) == (status, "True\n"), str(seen)
    assert said in seen.stderr and "Traceback" not in seen.stderr, str(seen)
    if name in ("few", "killed", "exec"):
        folder = folder_of(run_dir, "cprofile")
        meta = meta_of(folder)
        assert meta["state"] == "partial"
        rows = pstats.Stats(str(folder / meta["file"])).stats  # type: ignore[attr-defined]
        (steps,) = (row[1] for (_, _, function), row in rows.items() if function == "step")
        assert steps == 2 if name == "few" else steps > 10
        assert not {function for (_, _, function) in rows} & {"_exitfunc", "_del_library"}, "how Python takes it down"


@ONE
def test_a_folder_that_cannot_be_written_is_said_before_the_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    script.write_text(TINY + "for _ in range(9): step()\nprint(True)\n")
    place = tmp_path / "file"
    place.write_text("")
    seen = adbg("run", "--batch", *commands(f"profile cprofile 3 iterations in {place}/x"), script)
    assert (seen.status, "True\n" in seen.stdout) == (0, True), str(seen)
    assert "cannot be written" in seen.stdout + seen.stderr, str(seen)


@on_frameworks()
def test_the_other_regions_at_a_stop(framework: str, script: Path, tmp_path: Path) -> None:
    """One backward, to the next stop, source lines, and a node that is run again where the framework can do that."""
    first = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "module.matmul" in line)
    lines = ["break Tanh*", "continue", "profile cprofile node Tanh* --repeat 40", "profile cprofile stop", "continue"]
    lines += ["delete 1", "profile cprofile backward", "continue", f"profile cprofile {script}:{first}-{first + 1}"]
    run_dir = tmp_path / "run"
    plain = run([sys.executable, script, framework, "2"], env=_without_breakpoints())
    seen = adbg("run", "--batch", "--run-dir", run_dir, *commands(*lines), script, framework, "2")
    assert (seen.status, digest_of(seen.stdout)) == (0, digest_of(plain.stdout)), str(seen)
    kinds = {}
    for folder in sorted((run_dir / "profiles").iterdir()):
        meta = meta_of(folder)
        rows = pstats.Stats(str(folder / meta["file"])).stats  # type: ignore[attr-defined]
        kinds[meta["region"]["kind"]] = meta, {name: row[1] for (_, _, name), row in rows.items()}
    wanted = {"stop", "backward", "lines"} | ({"node"} if framework == "torch" else set())
    assert set(kinds) == wanted, str(seen)
    assert all(meta["state"] == "done" for meta, _ in kinds.values()), str(seen)
    assert kinds["stop"][1]["forward"] == 1, "from the node of one backward to that of the next"
    assert "forward" not in kinds["backward"][1] and any("run_backward" in name for name in kinds["backward"][1])
    assert any("tanh" in name for name in kinds["lines"][1]) and "backward" not in kinds["lines"][1]
    if framework == "torch":
        assert kinds["node"][0]["iterations"] == 40
        (again,) = (n for name, n in kinds["node"][1].items() if name.startswith("TanhBackward0"))
        assert again == 40, "under its name"
    else:
        assert "no way to run a node by itself" in seen.stdout


REPEATED = """
import hashlib
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
calls = {"tensor": 0, "node": 0, "custom": 0}

class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        calls["custom"] += 1
        return grad * torch.rand_like(grad)

def count(name):
    calls[name] += 1

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))
for step in range(3):
    y = Noisy.apply(model(torch.randn(4, 8)))
    z = torch.sigmoid_(y * 1)
    y.register_hook(lambda grad: count("tensor"))
    z.grad_fn.register_prehook(lambda grads: count("node"))
    z.sum().backward()
found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
for parameter in model.parameters():
    found.update(parameter.grad.numpy().tobytes())
print("DIGEST", found.hexdigest())
print("CALLS", *calls.values())
"""


@only("torch", "Paddle has no way to run a node by itself, which test_the_other_regions_at_a_stop asserts")
def test_a_node_run_again_changes_nothing_and_calls_no_hook(tmp_path: Path) -> None:
    """Random numbers drawn in it, an operator in place, the user's hooks. The Python code of a custom function is the
    one thing that runs as often: it is the node."""
    script = tmp_path / "repeated.py"
    script.write_text(REPEATED)
    plain = run([sys.executable, script])
    again = "profile cprofile node . --repeat 50"
    lines = ["break Sigmoid*", "continue", again, "delete 1", "tbreak Noisy*", "continue", again, "continue"]
    seen = adbg("run", "--batch", "--run-dir", tmp_path / "run", *commands(*lines), script)
    assert (seen.status, digest_of(seen.stdout)) == (0, digest_of(plain.stdout)), str(seen)
    assert "CALLS 3 3 3\n" in plain.stdout
    assert "CALLS 3 3 54\n" in seen.stdout, "50 and the one that warms up"
    assert len(list((tmp_path / "run" / "profiles").iterdir())) == 2


JOB = """
import os
import sys
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for step in range(9):
    model(torch.randn(4, 8)).sum().backward()
total = sum(parameter.double().sum().item() for parameter in model.parameters())
sys.stdout.write(f"rank {dist.get_rank()} {os.getpid()} {total!r}\\n"); sys.stdout.flush()
dist.destroy_process_group()
"""


@only("torch", "its launcher is a Python program; that of a rank in general is the way of every process")
def test_of_a_job_the_ranks_are_profiled_and_not_their_launcher(tmp_path: Path) -> None:
    """Each rank has a folder of its own in the run directory. That it is rank 0 alone where no --rank is given:
    tests/tui/debugger/test_profiled_ranks.py."""
    script, run_dir = tmp_path / "job.py", tmp_path / "run"
    script.write_text(JOB)
    words = ["-m", "torch.distributed.run", "--nproc_per_node", "2", script]
    seen = adbg("profile", "--iterations", "3", "--rank", "all", "--run-dir", run_dir, *words)
    assert seen.status == 0, str(seen)
    pids = {int(rank): int(pid) for rank, pid in re.findall(r"^rank (\d) (\d+) ", seen.stdout, re.MULTILINE)}
    folders = sorted((run_dir / "profiles").iterdir())
    metas = {meta["rank"]: meta for meta in map(meta_of, folders)}
    assert {rank: meta["pid"] for rank, meta in metas.items()} == pids and len(folders) == 2, str(seen)
    for folder in folders:
        meta = meta_of(folder)
        assert (meta["state"], meta["iterations"]) == ("done", 3), meta
        rows = pstats.Stats(str(folder / meta["file"])).stats  # type: ignore[attr-defined]
        assert sum(row[1] for (_, _, name), row in rows.items() if name == "backward") >= 3
    assert all(f"cprofile of rank {rank}, 3 iterations" in seen.stderr for rank in pids), str(seen)
    assert "without a word" not in seen.stderr and seen.stderr.count(" iterations, ") == 2, str(seen)
