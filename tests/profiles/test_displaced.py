"""Profilers and a program that profiles itself, forks, or has taken what they need. Each in a process of its own: the
signal and the timer are there once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import patience
from support.program import ROOT

from adbg.profiles import registry
from adbg.profiles.profilers import yep
from adbg.profiles.report.formats import gperftools

HEAD = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from adbg.profiles.base import ProfileError
from adbg.profiles.profilers.cprofile import CProfile
from adbg.profiles.profilers.yep import Yep
from adbg.profiles.region import Region

def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def refused(profiler):
    try:
        profiler.start(Region("run"), sys.argv[1])
    except ProfileError as error:
        print(error)

def measured(profiler):
    profiler.start(Region("run"), sys.argv[1])
    return profiler
"""
needs_yep = pytest.mark.skipif(yep.library() is None, reason="libprofiler is not installed")


def said(code: str, folder: Path, **environment: str) -> str:
    command = [sys.executable, "-u", "-c", HEAD + code, str(folder)]
    environ = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sampled(path: Path) -> float:
    """Seconds of CPU time."""
    return sum(sample.weight for sample in gperftools.read(path).samples)


@needs_yep
def test_yep_is_refused_where_the_program_has_its_signal(tmp_path: Path) -> None:
    code = """
calls = []
signal.setitimer(signal.ITIMER_PROF, 50, 50)
refused(Yep())
signal.setitimer(signal.ITIMER_PROF, 0)
signal.signal(signal.SIGPROF, lambda *_: calls.append(1))
refused(Yep())
signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
burn(0.2)
signal.setitimer(signal.ITIMER_PROF, 0)
print(len(calls) > 3)
"""
    timer, handler, works = said(code, tmp_path).splitlines()
    assert "its timer ITIMER_PROF is running" in timer and "py-spy" in timer
    assert "handles SIGPROF itself" in handler and "py-spy" in handler
    assert works == "True" and os.listdir(tmp_path) == []


@needs_yep
def test_a_handler_of_c_is_seen_too(tmp_path: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None)
libc.signal(signal.SIGPROF, ctypes.cast(libc.abs, ctypes.c_void_p))
print(signal.getsignal(signal.SIGPROF))
refused(Yep())
"""
    python, ours = said(code, tmp_path).splitlines()
    assert python == "0" or "SIG_DFL" in python, "Python does not know of it"
    assert "handles SIGPROF itself" in ours


@needs_yep
def test_the_timer_that_the_program_sets_meanwhile_goes_on(tmp_path: Path) -> None:
    code = """
calls = []
ours = measured(Yep())
burn(0.3)
ours.checkpoint()
signal.signal(signal.SIGPROF, lambda *_: calls.append(1))
signal.setitimer(signal.ITIMER_PROF, 0.03, 0.03)
burn(0.1)
artifact = ours.stop()
before = len(calls)
burn(0.3)
print(artifact.file, len(calls) - before > 3, round(signal.getitimer(signal.ITIMER_PROF)[1], 2))
print(artifact.meta["displaced"])
signal.setitimer(signal.ITIMER_PROF, 0)
"""
    first, why = said(code, tmp_path).splitlines()
    assert first == "profile.prof True 0.03" and "the program took SIGPROF" in why


@needs_yep
def test_the_programs_own_yep_ends_it_and_what_was_sampled_is_kept(tmp_path: Path) -> None:
    code = f"""
import ctypes
library = ctypes.CDLL({yep.LIBRARIES[0]!r})
ours = measured(Yep())
burn(0.3)
print(library.ProfilerStart(b"/dev/null"))
library.ProfilerStop()
library.ProfilerStart(sys.argv[1].encode() + b"/theirs")
burn(0.2)
artifact = ours.stop()
print(artifact.file, artifact.meta["displaced"])
burn(0.2)
library.ProfilerStop()
"""
    started, found = said(code, tmp_path).splitlines()
    assert started == "0", "libprofiler lets one run at a time"
    assert found.startswith("profile.prof the program ended the profile")
    ours, theirs = (
        sum(sample.weight for sample in gperftools.read(tmp_path / name).samples) for name in (yep.FILE, "theirs")
    )
    assert ours > 0.1 and theirs > 0.25, "theirs ran on"


@needs_yep
@pytest.mark.parametrize("abandons", [True, False])
def test_a_forked_child_does_not_write_into_its_parents_profile(abandons: bool, tmp_path: Path) -> None:
    """Not abandoned, libprofiler's own clean-up in the child writes an end into the middle: the test of this test."""
    code = f"""
ours = measured(Yep())
burn(0.2)
child = os.fork()
if not child:
    if {abandons}:
        ours.abandon()
    sys.exit(0)
os.waitpid(child, 0)
burn(0.6)
ours.stop()
"""
    assert said(code, tmp_path) == ""
    assert (sampled(tmp_path / yep.FILE) > 0.5) is abandons, "0.8 s were sampled"


@needs_yep
def test_children_that_are_forked_while_other_threads_are_sampled_end(tmp_path: Path) -> None:
    """A handler of SIGPROF that runs on another thread at the fork holds a lock of the library's. Deep stacks, read
    every few milliseconds of each thread: it is in one at 3 of 100 forks. Without the library's clean-up at its exit
    such a child ends too, so each does what ``abandon`` does."""
    code = """
import ctypes
libc, pattern, over = ctypes.CDLL(None), b"(" * 800 + b"a" + b")" * 800, []
def work():
    found = ctypes.create_string_buffer(256)
    while not over:
        libc.regcomp(found, pattern, 1)  # as deep in C as its parentheses
        libc.regfree(found)
ours = measured(Yep())
for _ in range(3):
    threading.Thread(target=work).start()
hung = 0
for _ in range(120):
    child = os.fork()
    if not child:
        signal.alarm(10)  # it hangs; busy machines take their time
        ours.abandon()
        os._exit(0)
    hung = os.waitpid(child, 0)[1]
    if hung:
        break
samples = signal.getitimer(signal.ITIMER_PROF)[1] > 0
over.append(True)
print(hung, samples, ours.stop().file)
"""
    assert said(code, tmp_path, CPUPROFILE_FREQUENCY="1000") == "0 True profile.prof\n"


@needs_yep
def test_a_program_that_becomes_another_one_is_not_killed(tmp_path: Path) -> None:
    """What was sampled until then is in its file; where there is no such program, sampling goes on."""
    code = """
ours = measured(Yep())
try:
    os.execlp("no-such-program-anywhere", "x")
except FileNotFoundError:
    print(signal.getitimer(signal.ITIMER_PROF)[1] > 0, flush=True)
burn(0.4)
again = "import time, signal\\nprint(signal.getitimer(signal.ITIMER_PROF)[1])\\nend = time.process_time() + 0.3"
again += "\\nwhile time.process_time() < end: pass\\nprint('lives')"
os.execl(sys.executable, sys.executable, "-S", "-c", again)
"""
    assert said(code, tmp_path).splitlines() == ["True", "0.0", "lives"]
    assert sampled(tmp_path / yep.FILE) > 0.2


@needs_yep
def test_what_stands_in_for_exec_is_gone_afterwards(tmp_path: Path) -> None:
    code = """
import posix
before = os.execv, os.execve, posix.execv, posix.execve
ours = measured(Yep())
stands_in = os.execv
ours.stop()
print(before == (os.execv, os.execve, posix.execv, posix.execve), stands_in not in before)
stands_in(sys.executable, [sys.executable, "-S", "-c", "print('lives')"])
"""
    assert said(code, tmp_path).splitlines() == ["True True", "lives"]


def test_the_programs_own_cprofile_takes_its_place_and_keeps_it(tmp_path: Path) -> None:
    code = """
import cProfile, gc, pstats
ours, theirs = measured(CProfile()), cProfile.Profile()
sorted([1])
if hasattr(sys, "monitoring"):
    sys.exit(print("alone"))  # Python refuses the second
theirs.enable()
ours.checkpoint(); ours.pause(); ours.resume()
here = sys.getprofile() is theirs
artifact = ours.stop()
del ours
gc.collect()
print(here, sys.getprofile() is theirs, artifact.file, artifact.meta["displaced"])
max([1])
theirs.disable()
print(any("max" in row[2] for row in pstats.Stats(theirs).stats))
"""
    first, *rest = said(code, tmp_path).splitlines()
    if first != "alone":
        assert first.startswith("True True profile.pstats the program took cProfile's place") and rest == ["True"]


def test_cprofile_is_ended_from_another_thread(tmp_path: Path) -> None:
    """One that waits in C: nothing can run there. What runs is counted up to now; nothing profiles it afterwards."""
    code = """
import marshal
ours, begun, go = CProfile(), threading.Event(), threading.Lock()
go.acquire()
def work():
    measured(ours)
    sorted([1])
    begun.set()
    go.acquire()
    print(sys.getprofile())
thread = threading.Thread(target=work)
thread.start()
begun.wait()
time.sleep(0.3)
artifact = ours.stop()
go.release()
thread.join()
rows = marshal.load(open(os.path.join(sys.argv[1], artifact.file), "rb"))
print([row[3] > 0.2 for label, row in rows.items() if "acquire" in label[2]], sys.getswitchinterval())
"""
    assert said(code, tmp_path).splitlines() == ["None", "[True] 0.005"]


def test_what_is_missing_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the library and without the package: by names that nothing has."""
    from adbg.engine.launch import doctor

    monkeypatch.setattr(yep, "LIBRARIES", ("libprofiler-that-is-not-there.so.0",))
    monkeypatch.setattr(yep.importlib.util, "find_spec", lambda name: None)
    can = registry.make("yep").available()
    assert not can.ok and can.why == "libprofiler is not installed"
    assert "apt-get install libgoogle-perftools-dev" in can.hint
    (line,) = (line for line in doctor._profiler_lines() if line.what == "yep")
    assert (line.status, can.hint in line.detail) == ("off", True), line


def test_a_frameworks_profiler_is_for_programs_of_that_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "paddle"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    there = {"torch": False, "paddle": True}
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there[name] else None)
    missing, later = registry.make("torch").available(), registry.make("paddle").available()
    assert (missing.ok, missing.why) == (False, "torch is not installed in this Python")
    assert (later.ok, later.why) == (True, "paddle is not imported yet"), "a script imports it later"
    monkeypatch.setitem(sys.modules, "torch", object())
    assert registry.make("torch").available().ok
    other = registry.make("paddle").available()
    assert (other.ok, other.why) == (False, "this program uses torch, not paddle") and "take torch" in other.hint
