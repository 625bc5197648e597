"""What a program does beside a profile: a profiler of its own in another thread, a fork, a thread that ends, a full
disk, child processes. Each in a process of its own; witnesses are the framework and the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.patience import patience
from support.program import ROOT

from adbg.profiles.profilers import yep

HEAD = f"""
import os, resource, signal, subprocess, sys, threading
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from adbg.engine.protocol import messages as p
framework, profiler = sys.argv[2:4]
if framework == "torch":
    import torch
    torch.set_num_threads(1)
else:
    import paddle
from support.profile_run import Run

def disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def in_a_thread(what):
    thread = threading.Thread(target=what)
    thread.start()
    thread.join()

run = Run(framework, Path(sys.argv[1]))
run.step()
"""


def said(code: str, folder: Path, framework: str, profiler: str = "") -> list[str]:
    command = [sys.executable, "-u", "-c", HEAD + code, str(folder), framework, profiler or framework]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(90), env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


OWN = {
    "torch": """
def own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as mine:
        run.step()
    print("own", len(mine.events()) > 5, torch.autograd._profiler_enabled())
""",
    "paddle": """
def own():
    mine = paddle.profiler.Profiler(targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=lambda found: None)
    mine.start()
    run.step()
    mine.stop()
    print("own", mine.profiler_result is not None, False)
""",
}


@on_frameworks()
@pytest.mark.parametrize("waits", [True, False])
def test_the_programs_own_profiler_in_another_thread_works_and_later_ones_too(
    framework: str, waits: bool, tmp_path: Path
) -> None:
    """adbg's has to end on its own thread, which waits for the other one in C, or runs on."""
    code = """
run.start(profiler, 1000)
run.step()
run.step()
if %s:
    in_a_thread(own)
else:
    thread = threading.Thread(target=own)
    thread.start()
    while thread.is_alive():
        sum(range(1000))
own()
state = run.profiling.state()
print(state.state, state.file, state.why)
print(signal.getsignal(signal.SIGURG) == signal.SIG_DFL)
"""
    lines = said(OWN[framework] + code % waits, tmp_path, framework)
    own = [line for line in lines if line.startswith("own")]
    assert own == ["own True False"] * 2
    end, before = lines[-2:]
    assert end.startswith("partial trace.json the program itself starts") and before == "True"


@pytest.mark.torch
def test_a_forked_child_is_not_profiled(tmp_path: Path) -> None:
    code = """
run.start(profiler, 2)
run.step()
begun = torch.autograd._profiler_enabled()
if not os.fork():
    os.write(1, b"the child %d\\n" % torch.autograd._profiler_enabled())
    run.session.abandon()
    os.write(1, b"the child %d\\n" % torch.autograd._profiler_enabled())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as mine:
        torch.ones(2) + 1
    os.write(1, b"the child %d %d\\n" % (torch.autograd._profiler_enabled(), len(mine.events()) > 0))
    os._exit(0)
os.wait()
run.step()
run.step()
print(begun, run.told[-1])
"""
    assert said(code, tmp_path, "torch") == ["the child 1", "the child 0", "the child 0 1", "True ('done', 'done')"]


@on_frameworks()
def test_a_trace_that_does_not_fit_on_the_disk_is_no_profile(framework: str, tmp_path: Path) -> None:
    code = """
run.start(profiler, 4)
run.step()
run.step()
disk(4096)
for _ in range(5):
    run.step()
state = run.profiling.state()
print(state.state, os.path.exists(os.path.join(state.folder, "trace.json")), state.why)
"""
    line = said(code, tmp_path, framework)[-1]
    assert line.startswith("failed False") and "disk is full" in line


@pytest.mark.skipif(yep.library() is None, reason="libprofiler is not installed")
@on_frameworks()
@pytest.mark.parametrize("begun", [False, True])
def test_yep_on_a_full_disk_ends_and_the_program_goes_on(framework: str, begun: bool, tmp_path: Path) -> None:
    """libprofiler ends the process where a write fails. Witness: the kernel's timer, and what ``os`` has."""
    code = """
before = os.execv
if not %s:
    disk(8192)
run.start(profiler, 2)
run.step()
samples = signal.getitimer(signal.ITIMER_PROF)[1] > 0
disk(8192)
for _ in range(4):
    run.step()
print(samples, signal.getitimer(signal.ITIMER_PROF), os.execv is before, run.told[-1][0])
disk(resource.RLIM_INFINITY)
run.start(profiler, 1)
for _ in range(3):
    run.step()
print(run.told[-1][0], "own" not in run.profiling.state().why)
"""
    first, second = said(code % begun, tmp_path, framework, "yep")[-2:]
    assert first == f"{begun} (0.0, 0.0) True failed"
    assert second in ("done True", "partial True"), "a short one may have no sample"


@on_frameworks()
@pytest.mark.parametrize(("profiler", "state"), [("nodes", "done"), ("cprofile", "partial")])
def test_iterations_of_a_thread_that_has_ended(framework: str, profiler: str, state: str, tmp_path: Path) -> None:
    """A first backward in a thread, to try it. Who measures one thread alone is told to be over, for the right reason;
    the others go on with the thread that comes then."""
    code = """
run.start(profiler, 3)
in_a_thread(run.step)
for _ in range(8):
    run.step()
state = run.profiling.state()
print(state.state, state.iterations)
print(state.why, state.warnings)
"""
    end, why = said(code, tmp_path, framework, profiler)[-2:]
    assert end == ("done 3" if state == "done" else "partial 0"), why
    assert "took cProfile's place" not in why
    assert state == "done" or why.startswith("its thread ended after 0 of 3 iterations")


@on_frameworks()
def test_what_the_program_begins_in_the_region_runs_where_and_as_fast_as_without(
    framework: str, tmp_path: Path
) -> None:
    """One that it had begun before is left alone. Witness: the kernel."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    code = """
early = subprocess.Popen(["sleep", "60"])
os.sched_setaffinity(early.pid, {%d})
region = p.ProfileRegion("iterations", 2, 0)
run.profiling.answer(p.Profile("start", profiler, region, cores="%d", nice=19))
run.step()
late = subprocess.Popen(["sleep", "60"])
inside = os.sched_getaffinity(late.pid)
for _ in range(4):
    run.step()
here = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
there = os.sched_getaffinity(late.pid), os.getpriority(os.PRIO_PROCESS, late.pid)
print(inside == {%d}, here == there, os.sched_getaffinity(early.pid) == {%d})
early.kill()
late.kill()
"""
    assert said(code % ((cores[0],) * 4), tmp_path, framework, "cprofile")[-1] == "True True True"
