"""Profiles of a process that nobody prepared: what they find, that nothing of them stays, and that it computes what a
process does to which nobody came. Witnesses: a census taken inside it, its own digest, the tools' own readers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from promises.test_attach_leaves_no_trace import unexpected
from support.frameworks import on_frameworks
from support.front_end import Refused
from support.late import Late, Session
from support.patience import patience
from support.profiling import Profiled, attached, calls_of, meta_of, names
from support.program import wait_until

#: What a profiler leaves in the process, once; docs of each say it too.
STAYS = (
    "libprofiler.so", "libunwind.so", "liblzma.so",  # yep: no library is unloaded that has handlers of signals
    "status SigCgt", "descriptor 3", "descriptor 4", "descriptor 5", "descriptor 6",  # its handler, its unwinder's pipe
    "read folder", "module html", "module adbg",
    "mapped anonymous memory that can be executed",  # one function of C by which the main thread is called
    "system threads: ['python'] -> ['python', 'python']",  # torch.profiler's own: a plain program keeps it too
)  # fmt: skip
TRAIN = 12


def stays(lines: list[str]) -> list[str]:
    return [line for line in unexpected(lines) if not any(part in line for part in STAYS)]


def gone(program: Late) -> list[str]:
    deadline = time.monotonic() + patience(30)
    while (left := stays(program.ask("differences"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def alone(framework: str, steps: int) -> str:
    with Late(framework) as program:
        program.ask("train", steps)
        digest: str = program.ask("digest")
        return digest


def reads_stdin(pid: int) -> bool:
    """Its main thread is in ``read`` of descriptor 0."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == ["0", "0x0"]


@on_frameworks()
def test_every_profiler_leaves_the_process_as_it_was(framework: str, tmp_path: Path) -> None:
    """Each to its end, each let go of in its region, and each while the front end is killed."""
    with Late(framework) as program:
        steps = 5
        program.ask("train", steps)
        program.ask("census")
        program.ask("census")
        with attached(program, tmp_path) as profiled:
            for name in names(framework):
                profiled.start(name, "iterations", 5, warmup=2, cores=str(min(os.sched_getaffinity(0))))
                program.ask("train", TRAIN)
                steps += TRAIN
                state = profiled.ended()
                if name == "yep":  # a few milliseconds have no sample
                    assert state["state"] in ("done", "partial"), state
                    continue
                assert (state["state"], state["iterations"], state["why"]) == ("done", 5, ""), state
                assert os.path.getsize(os.path.join(state["folder"], state["file"])) > 100
                if name == "cprofile":
                    assert calls_of(state["folder"], "step") == 2 * 5, "the program's and the optimizer's"
        for number, name in enumerate(names(framework)):
            with Session() as session:
                peer = session.enter(program)
                peer.begin()
                profiled = Profiled(peer, tmp_path / name)
                profiled.start(name, "iterations", 10**6)
                program.ask("train", TRAIN)
                steps += TRAIN
                program.post("train", 200)  # it is at work when it is left
                steps += 200
                if number % 2:
                    peer.request("disconnect")
                    peer.drain()
                else:
                    peer.close()
                program.answer()
            (folder,) = (tmp_path / name).iterdir()
            meta = meta_of(folder)
            assert meta["state"] == "partial" and f"of {10**6} iterations" in meta["why"], meta
            assert meta["iterations"] >= TRAIN - 1
            assert os.path.getsize(folder / meta["file"]) > 100, "what was measured until then is kept"
        assert gone(program) == []
        assert program.ask("digest") == alone(framework, steps)
        assert program.end() == 0


OWN = {
    "torch": """
import torch
with torch.profiler.profile() as mine:
    program.step()
framework.counted = len(mine.events())
""",
    "paddle": """
import paddle
mine = paddle.profiler.Profiler(targets=[paddle.profiler.ProfilerTarget.CPU], on_trace_ready=lambda found: None)
mine.start()
program.step()
mine.stop()
mine.export(PATH, format="json")
framework.counted = PATH
""",
}
HELD = {
    "torch": "import torch\nframework.mine = torch.profiler.profile()\nframework.mine.start()",
    # the one before is in a cycle with its lambda, and Paddle has one at a time
    "paddle": "import gc, paddle\ngc.collect()\nframework.mine = paddle.profiler.Profiler(on_trace_ready=print)",
}
LET_GO = {"torch": "framework.mine.stop()\ndel framework.mine", "paddle": "del framework.mine"}
FORK = """
import os
child = os.fork()
if not child:
    left = os.sched_getaffinity(0)
    program.random()
    os._exit(len(left))
framework.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
open(PATH, "w").write(str(framework.status))
"""
CPROFILE = """
import cProfile, pstats, sys
mine = cProfile.Profile()
mine.enable()
program.step()
kept = hasattr(sys, "monitoring") or sys.getprofile() is mine
mine.disable()
open(PATH, "w").write(str(kept and len(pstats.Stats(mine).stats) > 5))
"""


@on_frameworks()
def test_the_programs_own_profilers_and_forks_in_the_region(framework: str, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def does(code: str) -> None:
        program.ask("run", code.replace("PATH", repr(str(out))))

    with Late(framework) as program:
        program.ask("train", 3)
        with attached(program, tmp_path / "p") as profiled:
            # its own framework's: adbg's ends, is kept, and the program's works
            profiled.start(framework, "iterations", 10**6)
            program.ask("train", 5)
            does(OWN[framework])
            program.ask("train", 2)
            state = profiled.ended()
            assert (state["state"], state["iterations"]) == ("partial", 4), state
            assert f"the program itself starts {framework}.profiler" in state["why"]
            text = (Path(state["folder"]) / "trace.json").read_text()
            assert json.loads(text)["traceEvents"]
            if framework == "torch":
                does("open(PATH, 'w').write(str(framework.counted > 9))")
                assert out.read_text() == "True"
            else:
                assert json.loads(out.read_text())["traceEvents"]
            # the same, but the program's was first
            does(HELD[framework])
            profiled.start(framework, "iterations", 5)
            program.ask("train", 3)
            state = profiled.ended()
            assert state["state"] == "failed" and "of its own" in state["why"].replace("program's own", "of its own")
            does(LET_GO[framework])
            with pytest.raises(Refused) as refused:
                profiled.start({"torch": "paddle", "paddle": "torch"}[framework], "iterations", 5)
            assert f"this program uses {framework}" in str(refused.value.error)
            # its own cProfile takes the place of adbg's, which says so
            profiled.start("cprofile", "iterations", 10**6)
            with pytest.raises(Refused) as refused:
                profiled.start("nodes", "iterations", 5)
            assert "cprofile is at work already" in str(refused.value.error)
            program.ask("train", 5)
            if not hasattr(__import__("sys"), "monitoring"):
                does(CPROFILE)
                assert out.read_text() == "True"
                profiled.stop()
                state = profiled.ended()
                assert "the program took cProfile's place" in state["warnings"][0], state
            else:
                profiled.stop()
                state = profiled.ended()
            assert calls_of(state["folder"], "backward") >= 4
            # a child that is forked in the region is not pinned, and ends
            cores = sorted(os.sched_getaffinity(0))
            for name in names(framework):
                profiled.start(name, "iterations", 10**6, cores=str(cores[0]))
                program.ask("train", 5)
                does(FORK)
                assert out.read_text() == str(len(cores)), name
                program.ask("train", 3)
                profiled.peer.send("adbg/profile", action="stop")
                program.ask("train", 3)
                state = profiled.ended()
                assert state["state"] in ("done", "partial") and state["iterations"] >= 7, state
            # the folder goes away in the region
            profiled.start("cprofile", "iterations", 3)
            program.ask("train", 1)
            does(f"import shutil\nshutil.rmtree({str(tmp_path / 'p')!r})")
            program.ask("train", 5)
            state = profiled.ended()
            assert state["state"] == "failed" and "cannot be written to" in state["why"], state
        assert program.end() == 0


@on_frameworks()
def test_a_region_that_never_begins_and_one_that_cannot_end(framework: str, tmp_path: Path) -> None:
    """The program waits for its input: no backward comes, and its main thread runs no Python."""
    with Late(framework) as program:
        program.ask("train", 3)
        with attached(program, tmp_path) as profiled:
            profiled.start("cprofile", "iterations", 5)
            profiled.stop()
            state = profiled.ended()
            assert (state["state"], state["file"]) == ("partial", "") and "before the region began" in state["why"]
            profiled.start("cprofile", "seconds", 60)  # on a thread that does not come
            state = profiled.ended()
            assert "the main thread ran no Python within 10 s" in state["why"] and "py-spy" in state["why"], state
            profiled.start(framework, "iterations", 100)
            program.ask("train", 4)
            wait_until(lambda: reads_stdin(program.process.pid), "its next command is waited for")
            state = profiled.stop()
            assert state["state"] == "running" and "as soon as its thread runs Python" in state["why"], state
            program.ask("train", 1)
            state = profiled.ended()
            assert (state["state"], state["why"]) == ("done", "") and state["file"] == "trace.json", state
            profiled.start("cprofile", "iterations", 100)
            program.ask("train", 4)
            wait_until(lambda: reads_stdin(program.process.pid), "its next command is waited for")
            profiled.stop()  # this one is ended from outside
            state = profiled.ended()
            assert state["state"] == "done" and calls_of(state["folder"], "backward") >= 3, state
            program.ask("run", "import sys\nassert sys.getprofile() is None")
        assert program.end() == 0
