"""The injector on real processes: it gets in and cleans up; killed in the middle, it leaves the target unharmed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.attach_targets import Running, eventually, inject, kinds, plain, target, touch
from support.program import ROOT

from adbg.engine.attach.injector.aarch64 import AArch64
from adbg.engine.attach.injector.loop import FrontEnd, Injection
from adbg.engine.attach.injector.machine import Machine, State
from adbg.engine.attach.injector.page import MARK
from adbg.engine.attach.injector.ptrace import Memory
from adbg.engine.attach.injector.x86_64 import X86_64
from adbg.engine.proc import Proc

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="written for x86_64")
MOST_STEPS = 60


@pytest.mark.parametrize(
    ("kind", "way"),
    [("tight", "pending"), ("recv", "thread"), ("lock", "thread"), ("sleep", "thread"), ("poll", "thread")],
)
def test_it_gets_in_and_leaves_nothing(tmp_path: Path, kind: str, way: str) -> None:
    expected = plain(tmp_path, kind)
    with target(tmp_path, kind) as running:
        before = running.maps()
        for count in range(1, 4):
            lines = inject(running.pid, running.started, touch(tmp_path / "ran"))
            assert kinds(lines) == ["entered", "released"], lines
            assert lines[-2]["way"] in (f"ptrace-{way}", "ptrace-pending"), "or it came to Python in between"
            eventually(lambda count=count: (tmp_path / "ran").read_text() == "x" * count)
            assert running.untraced()
        assert running.maps() == before
        assert running.end() == expected


def test_a_call_that_holds_the_lock_is_waited_for(tmp_path: Path) -> None:
    with target(tmp_path, "held") as running:
        assert kinds(inject(running.pid, running.started, touch(tmp_path / "ran"))) == ["entered", "released"]
        assert (tmp_path / "ran").exists()
        assert running.end()["seen"] == [str(sum(range(15_000_000)))]


@pytest.mark.parametrize("kind", ["tight", "recv", "lock", "sleep", "vectors"])
def test_killed_at_every_step(tmp_path: Path, kind: str) -> None:
    """At each of its steps in turn the injector is killed: the target's results are those of a run that nobody
    entered, and the next one gets in, and takes away what was left."""
    if kind == "vectors":
        pytest.importorskip("numpy")
    thorough = kind == "recv"  # another one gets in after each
    expected = plain(tmp_path, kind)
    steps = []
    with target(tmp_path, kind) as running:
        before = running.maps()
        while len(steps) < MOST_STEPS:
            lines = inject(running.pid, running.started, "0", pause_at=len(steps))
            if lines[-1]["kind"] != "paused":
                assert kinds(lines) == ["entered", "released"], lines
                break
            steps.append(lines[-1]["step"])
            eventually(running.untraced)
            if thorough or len(steps) % 8 == 0:
                lines = inject(running.pid, running.started, touch(tmp_path / "ran"))
                assert kinds(lines) == ["entered", "released"], (steps, lines)
        eventually(lambda: (tmp_path / "ran").stat().st_size == len(steps) if thorough else (tmp_path / "ran").exists())
        assert kinds(inject(running.pid, running.started, "0")) == ["entered", "released"]
        # A page that was mapped a moment before, and not marked yet, is all that may stay.
        left = [line for line in running.maps() if line not in before]
        assert len(left) <= steps.count("called") and all(" r-xp 00000000 00:00 0" in line for line in left), left
        assert running.end() == expected
    # Which steps a round takes depends on where the target was: of those on the way in and back all but a few are met.
    way = {"seized", "stopped", "framed", "aimed", "called", "mapped", "leaving", "home"}
    assert len(way & set(steps)) >= len(way) - 2, steps


class Patient(FrontEnd):
    """Has nothing to say."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.mark.parametrize("kind", ["tight", "recv"])
def test_signals_come_as_they_would(tmp_path: Path, kind: str) -> None:
    """One is sent at every step. They are queued and counted, not merged, so one that is lost or doubled shows."""
    sent: list[str] = []
    with target(tmp_path, kind) as running:

        def step(name: str) -> None:
            if name in sent:
                return
            sent.append(name)
            os.kill(running.pid, signal.SIGRTMIN)
            if name == "seized":  # it runs, and stops to deliver the signal
                eventually(lambda: Proc(running.pid).status()["State"].startswith("t"))

        order = {"pid": running.pid, "started": running.started, "snippet": touch(tmp_path / "ran")}
        injection = Injection(Patient(), order, step)
        injection.enter()
        assert injection.clean() == "" and running.untraced()
        result = running.end()
    assert {"seized", "stopped", "framed", "aimed", "called", "leaving", "home", "unmapped"} <= set(sent)
    assert result["signals"] == len(sent) and result["same"] and result["threads"] == 1
    assert (tmp_path / "ran").read_text() == "x"


def test_a_program_that_is_profiled_does_not_see_it(tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("the interpreter has no way to be told since 3.11")
    script = tmp_path / "profiled.py"
    script.write_text(
        "import os, sys\n"
        "seen = set()\n"
        "def note(frame, event, argument):\n"
        "    if event.startswith('c_'): seen.add(argument.__name__)\n"
        "    seen.add((frame.f_code.co_filename, frame.f_code.co_name))\n"
        "def work():\n"
        "    while not os.path.exists(sys.argv[1]):\n"
        "        for i in range(1000): pass\n"
        "print('ready', flush=True)\n"
        "sys.setprofile(note)\n"
        "sys.settrace(lambda *all: note(*all))\n"
        "work()\n"
        "sys.setprofile(None); sys.settrace(None)\n"
        "print(sorted(map(str, seen)))\n"
    )
    results = []
    for entered in (False, True):
        end = tmp_path / f"end{entered}"
        with subprocess.Popen([sys.executable, str(script), str(end)], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                if entered:
                    lines = inject(process.pid, Proc(process.pid).started(), touch(tmp_path / "ran"))
                    assert kinds(lines) == ["entered", "released"] and (tmp_path / "ran").exists()
                end.touch()
                results.append(process.communicate()[0])
            finally:
                process.kill()
    assert results[0] == results[1] and "work" in results[0]


def test_what_a_killed_injector_queued_is_used_again(tmp_path: Path) -> None:
    """The call in the queue has an address in the page: it must stay, and the next snippet goes by it."""
    with target(tmp_path, "held") as running:
        lines = inject(running.pid, running.started, touch(tmp_path / "first"), pause_at="queued")
        assert lines[-1] == {"kind": "paused", "step": "queued"}
        assert kinds(inject(running.pid, running.started, touch(tmp_path / "second"))) == ["entered", "released"]
        assert (tmp_path / "second").read_text() == "x"
        assert _pages(running) == []
        assert running.end()["seen"] == [str(sum(range(15_000_000)))]


def _pages(running: Running) -> list[str]:
    """Marked pages in the target."""
    memory = Memory(running.pid)
    try:
        parts = [part for part in Proc(running.pid).maps() if part.access == "r-xp" and not part.path]
        return [hex(part.start) for part in parts if memory.read(part.start, len(MARK)) == MARK]
    finally:
        memory.close()


@pytest.mark.parametrize("moment", ["at once", "entered"])
def test_the_front_end_is_killed(tmp_path: Path, moment: str) -> None:
    expected = plain(tmp_path, "tight")
    with target(tmp_path, "tight") as running:
        before = running.maps()
        script = (
            "import sys, threading, time\n"
            "from pathlib import Path\n"
            "from adbg.engine.attach import enter, snippet\n"
            "from adbg.engine.attach.target import examine\n"
            "class Shown(enter.Injector):\n"
            "    def __init__(self, *all):\n"
            "        super().__init__(*all)\n"
            "        print(self.pid, flush=True)\n"
            "enter.Injector = Shown\n"
            f"entry = enter.enter(examine({running.pid}), Path('/nowhere'), lambda _: None, threading.Event())\n"
            "print('entered', flush=True)\n"
            "time.sleep(1000)\n"
        )
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as front:
            assert front.stdout is not None
            injector = int(front.stdout.readline())
            if moment == "entered":
                assert front.stdout.readline() == "entered\n"
            front.kill()
        eventually(lambda: not Path(f"/proc/{injector}").exists() or _zombie(injector))
        assert running.untraced() and running.maps() == before
        eventually(lambda: len(os.listdir(f"/proc/{running.pid}/task")) == 1)  # a thread of ours may be ending
        assert running.end() == expected


def _zombie(pid: int) -> bool:
    return Proc(pid).status().get("State", "Z").startswith("Z")


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_pythons(tmp_path: Path, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"))
    python = str(found[-1]) if found else shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no Python {version} here")
    for kind in ("tight", "recv"):
        with target(tmp_path, kind, python) as running:
            for _ in range(3):
                lines = inject(running.pid, running.started, touch(tmp_path / kind))
                assert kinds(lines) == ["entered", "released"], lines
            assert (tmp_path / kind).read_text() == "xxx"
            result = running.end()
            assert result["same"] and len(result["seen"]) == 1


@pytest.mark.parametrize(("machine", "prefix"), [(X86_64, ""), (AArch64, "aarch64-linux-gnu-")])
def test_the_code_is_what_its_source_says(tmp_path: Path, machine: type[Machine], prefix: str) -> None:
    if shutil.which(prefix + "as") is None or shutil.which(prefix + "objcopy") is None:
        pytest.skip("no assembler here")
    source = ROOT / "engine" / "attach" / "injector" / f"{machine.__name__.lower()}.s"
    code, file = tmp_path / "code.o", tmp_path / "code"
    subprocess.run([prefix + "as", str(source), "-o", str(code)], check=True)
    subprocess.run([prefix + "objcopy", "-O", "binary", "-j", ".text", str(code), str(file)], check=True)
    assert file.read_bytes()[machine.HOME :] == machine.CODE
    labels = subprocess.run([prefix + "nm", str(code)], check=True, capture_output=True, text=True).stdout
    places = {name: int(value, 16) for value, name in re.findall(r"^(\w+) t (home|pending|thread)$", labels, re.M)}
    assert places == {"home": machine.HOME, "pending": machine.PENDING, "thread": machine.THREAD}


def test_the_frame_of_aarch64_is_laid_out_as_the_documents_say() -> None:
    """By the offsets of the kernel's headers: it cannot be run here."""
    registers = struct.pack("<34Q", *range(100, 131), 0x7FFF_0000_1234, 0x40_0000, 0x6000_0000)
    floats = bytes(range(256)) * 2 + struct.pack("<II8x", 0x11, 0x22)
    state = State(registers, ((2, floats),), 0x8000, 0x40_0000, 0x7FFF_0000_1234)
    at, frame = AArch64().frame(state, b"")
    assert at % 16 == 0 and at + len(frame) <= state.stack - 128
    context = 128  # ucontext follows siginfo
    assert struct.unpack_from("<Q", frame, context + 40) == (0x8000,)
    assert struct.unpack_from("<33Q", frame, context + 176 + 8)[30:] == (130, 0x7FFF_0000_1234, 0x40_0000)
    assert struct.unpack_from("<IIII", frame, context + 176 + 288) == (0x46508001, 528, 0x11, 0x22)
    assert frame[context + 176 + 288 + 16 :][:512] == floats[:512]
    assert frame[context + 176 + 288 + 528 :][:8] == bytes(8), "nothing follows"
