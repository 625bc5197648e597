"""What /proc tells of the threads of a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.program import wait_until

from adbg.engine.attach.stacks import OsThread, threads_of
from adbg.engine.attach.stacks_callers import Callers
from adbg.engine.attach.syscalls import _GENERIC, _X86_64, syscall_name
from adbg.engine.errors import CommandError

X86 = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC = Path("/usr/include/asm-generic/unistd.h")


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def first(pid: int) -> OsThread:
    return threads_of(pid)[0]


def test_a_sleeping_thread_says_in_what_and_for_how_long() -> None:
    with python("import time; print(time.monotonic(), flush=True); time.sleep(100)") as process:
        asleep = wait_until(lambda: first(process.pid) if first(process.pid).sleeps else None, "it sleeps")
        assert (asleep.state, asleep.syscall, asleep.tid) == ("S", "clock_nanosleep", process.pid)
        assert asleep.library.startswith(("libpython", "python"))  # its own clock is the witness of the time:
        begun = time.monotonic()
        asleep = first(process.pid)
        between = time.monotonic()
        time.sleep(1.0)
        again = time.monotonic()
        later = first(process.pid)
        if asleep.slept is None:
            pytest.skip("this kernel does not tell when a thread last ran")
        assert later.slept is not None
        assert again - between - 0.1 <= later.slept - asleep.slept <= time.monotonic() - begun + 0.1


def test_a_busy_thread_burns_what_its_own_clock_says() -> None:
    code = "import time; print('on', flush=True)\nwhile True: pass"
    with python(code) as process:
        stat = Path(f"/proc/{process.pid}/stat")

        def ticks() -> int:
            fields = stat.read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        before, began = ticks(), time.monotonic()
        (thread,) = threads_of(process.pid, gap=1.0)
        spent = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        assert thread.cpu == pytest.approx(spent, abs=0.15) and thread.cpu > 0.05


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(CommandError, match=f"there is no process {process.pid} any more"):
        threads_of(process.pid)


def test_a_kernel_that_tells_little(tmp_path: Path) -> None:
    """No sched, no syscall (another user's rules), and a thread that ends meanwhile."""
    task = tmp_path / "77" / "task"
    (task / "77").mkdir(parents=True)
    (task / "78").mkdir()
    fields = ["S", *["0"] * 10, "250", "50", *["0"] * 6, "1234", *["0"] * 20]
    (task / "77" / "stat").write_text(f"77 (a ) name) {' '.join(fields)}\n")
    (task / "77" / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t9\n")
    (thread,) = threads_of(77, gap=0, proc=str(tmp_path))
    assert (thread.tid, thread.name, thread.state, thread.syscall) == (77, "a ) name", "S", "")
    assert (thread.slept, thread.switches, thread.started, thread.library) == (None, 9, 1234, "")
    assert thread.cpu_seconds == 300 / os.sysconf("SC_CLK_TCK")


def test_the_library_of_a_stack_that_cannot_be_read(tmp_path: Path) -> None:
    assert Callers(77, str(tmp_path)).library(77) == ""


@pytest.mark.parametrize(("header", "table"), [(X86, _X86_64), (GENERIC, _GENERIC)], ids=["x86_64", "generic"])
def test_the_names_are_those_of_the_kernel(header: Path, table: dict[int, str]) -> None:
    if not header.exists():
        pytest.skip(f"no {header}")
    known = {int(number): name for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())}
    assert {number: known.get(number) for number in table} == table


def test_a_call_that_is_not_in_the_table() -> None:
    assert syscall_name(202, "x86_64") == "futex" and syscall_name(98, "aarch64") == "futex"
    assert syscall_name(9999, "x86_64") == "system call 9999" and syscall_name(0, "mips") == "system call 0"
