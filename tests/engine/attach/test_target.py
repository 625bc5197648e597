"""What is said of a process that cannot be entered, before anything is touched: of real ones, and where this machine
has none of the kind, of a folder that looks like its /proc."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attach_targets import eventually, injecting, target

from adbg.engine.attach import checks, elf
from adbg.engine.attach.target import examine
from adbg.engine.errors import AttachError, error_of_id
from adbg.engine.proc import Proc

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the samples are of x86_64")
SLEEP = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]


@contextlib.contextmanager
def running(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed a line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def refusal(pid: int, **options: object) -> AttachError:
    with pytest.raises(AttachError) as caught:
        examine(pid, **options)  # type: ignore[arg-type]
    assert error_of_id(caught.value.ID) is AttachError
    return caught.value


def test_a_process_that_can_be_entered() -> None:
    with running(SLEEP) as process:
        found = examine(process.pid)
        assert (found.pid, found.version, found.traced_by) == (process.pid, sys.version_info[:2], 0)
        assert os.path.samefile(found.executable, Path(f"/proc/{process.pid}/exe").resolve())
        assert found.started == int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_nobody() -> None:
    limit = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert refusal(limit + 1).message == f"there is no process {limit + 1}"
    assert "lists your Python processes" in refusal(limit + 1).hint


def test_a_thread() -> None:
    script = "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); print(1, flush=True)"
    with running([sys.executable, "-c", script]) as process:
        tid = Proc(process.pid).threads()[-1]
        assert tid != process.pid
        assert refusal(tid).message == f"{tid} is a thread of process {process.pid}"
        assert refusal(tid).hint == f"adbg attach {process.pid}"


def test_a_zombie() -> None:
    process = subprocess.Popen(["true"])
    try:
        eventually(lambda: Proc(process.pid).status()["State"].startswith("Z"))
        assert f"has ended (a zombie): its parent, process {os.getpid()}," in refusal(process.pid).message
    finally:
        process.wait()


def test_adbg_itself_and_what_started_it() -> None:
    assert refusal(os.getpid()).message == f"process {os.getpid()} is this adbg"
    script = (
        "from adbg.engine.attach.target import examine\nfrom adbg.engine.errors import AttachError\nimport os\n"
        "try: examine(os.getppid())\nexcept AttachError as error: print(error)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    assert f"process {os.getpid()} " in output and "started this adbg" in output and "another terminal" in output


def test_another_user() -> None:
    if os.geteuid():
        pytest.skip("only root can start one")
    with running(["/usr/bin/env", "sh", "-c", "echo 1; exec sleep 600"], user="nobody") as process:
        error = refusal(process.pid)
        assert error.message == (
            f"process {process.pid} belongs to user nobody, and adbg enters its own user's processes only"
        )
        assert error.hint == f"sudo -u nobody adbg attach {process.pid}"


def test_stopped() -> None:
    with running(SLEEP) as process:
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: Proc(process.pid).status()["State"].startswith("T"))
        error = refusal(process.pid)
        assert (error.message, error.hint) == (
            f"process {process.pid} is stopped (Ctrl-Z or SIGSTOP)",
            f"kill -CONT {process.pid}, then attach again",
        )
        process.send_signal(signal.SIGCONT)
        eventually(lambda: not Proc(process.pid).status()["State"].startswith("T"))
        examine(process.pid)


def test_traced(tmp_path: Path) -> None:
    with target(tmp_path, "recv") as traced, injecting(traced.pid, traced.started, "0", "seized") as tracer:
        assert '"paused"' in tracer.stdout.readline()  # type: ignore[union-attr]
        error = refusal(traced.pid)
        assert f"is traced by process {tracer.pid} (python" in error.message and "end python" in error.hint


def test_no_python() -> None:
    with running(["sh", "-c", "echo 1; exec sleep 600"]) as process:
        eventually(lambda: Proc(process.pid).status()["Name"] == "sleep")
        error = refusal(process.pid)
        assert "is not a Python process: no interpreter is mapped in it" in error.message and "sleep" in error.message
        assert "not of the shell or launcher" in error.hint


def test_an_old_python() -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python3.[6-9]"))
    if not found:
        pytest.skip("no Python older than 3.10 here")
    with running([str(found[-1]), *SLEEP[1:]]) as process:
        assert "and adbg needs 3.10 or newer" in refusal(process.pid).message


def test_a_free_threaded_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(SLEEP) as process:
        monkeypatch.setattr(checks, "_FREE_THREADED", "Py_Initialize")  # which every interpreter has
        assert "runs a free-threaded Python" in refusal(process.pid).message
        assert "set ADBG_ATTACH_UNTESTED=1 to try it" in refusal(process.pid).hint
        monkeypatch.setenv("ADBG_ATTACH_UNTESTED", "1")
        assert examine(process.pid)


def test_the_program_of_another_session(tmp_path: Path) -> None:
    folder = Path(os.environ["XDG_RUNTIME_DIR"])
    environment = {**os.environ, "ADBG_SESSION": str(folder / "session.json")}
    with running(SLEEP, env=environment) as process:
        examine(process.pid)  # the front end has gone
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "s.sock"))
            listener.listen()
            error = refusal(process.pid)
        assert f"is debugged already: it belongs to the session of adbg, process {os.getpid()}" in error.message
        assert "detach there" in error.hint


def test_another_mount_namespace() -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    with running(["unshare", "-m", *SLEEP]) as process:
        error = refusal(process.pid)
        assert "runs in a container: it has files of its own (another mnt namespace)" in error.message
        assert error.hint.endswith(f"nsenter --target {process.pid} --all adbg attach {process.pid}")


# ------------------------------------------------------------------ a folder that looks like /proc


PID = 4711


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """Makes a /proc with one process, copied from a real one, in whose file NAME the text is replaced."""
    with running(SLEEP) as process:
        real = Path(f"/proc/{process.pid}")

        def make(name: str = "", *changes: tuple[str, str]) -> Path:
            root = tmp_path / "proc"
            folder = root / str(PID)
            for part in (folder, root / "self"):
                (part / "ns").mkdir(parents=True)
                for space in ("pid", "mnt"):
                    (part / "ns" / space).symlink_to(os.readlink(f"/proc/self/ns/{space}"))
                (part / "root").symlink_to("/")
            for file in ("status", "stat", "maps", "environ", "cgroup"):
                data = (real / file).read_bytes().replace(b"%d" % process.pid, b"%d" % PID)
                for old, new in changes if file == name else ():
                    assert old.encode() in data, data
                    data = data.replace(old.encode(), new.encode())
                (folder / file).write_bytes(data)
            (folder / "mem").touch()
            (folder / "exe").symlink_to(os.readlink(real / "exe"))
            return root

        yield make


def test_the_copy_is_one_that_can_be_entered(fake: Callable[..., Path]) -> None:
    assert examine(PID, root=fake()).pid == PID


@pytest.mark.parametrize(
    ("scope", "text", "hint"),
    [
        ("0", "the kernel refuses it (a security module", "--cap-add=SYS_PTRACE"),
        ("1", "only a process's ancestors may trace it", "sudo sysctl -w kernel.yama.ptrace_scope=0"),
        ("2", "only processes with CAP_SYS_PTRACE", "sudo sysctl -w kernel.yama.ptrace_scope=0"),
        ("3", "cannot be lowered until the machine starts again", "adbg.listen()"),
    ],
)
def test_ptrace_scope(
    fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, scope: str, text: str, hint: str
) -> None:
    root = fake()
    (root / "sys/kernel/yama").mkdir(parents=True)
    (root / "sys/kernel/yama/ptrace_scope").write_text(scope + "\n")
    examine(PID, root=root)  # the kernel lets it be opened: it is an ancestor, or PR_SET_PTRACER was called
    opened = os.open

    def refuse(path: str | Path, *arguments: int, **more: Any) -> int:
        if Path(path).name == "mem":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **more)

    monkeypatch.setattr(checks.os, "open", refuse)
    error = refusal(PID, root=root)
    assert text in error.message and hint in error.hint
    assert scope == "0" or f"ptrace_scope is {scope}" in error.message


def test_a_thread_of_the_kernel(fake: Callable[..., Path]) -> None:
    assert "is a thread of the kernel" in refusal(PID, root=fake("status", ("VmSize", "Vm"))).message


def test_several_users(fake: Callable[..., Path]) -> None:
    me = os.geteuid()
    root = fake("status", (f"Uid:\t{me}\t{me}", f"Uid:\t{me}\t4242"))
    assert "runs with the rights of several users" in refusal(PID, root=root).message


def test_not_dumpable(fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: Proc) -> None:
        raise PermissionError(13, "Permission denied")

    root = fake()
    monkeypatch.setattr(Proc, "maps", refuse)
    assert "it is not dumpable" in refusal(PID, root=root).message


@pytest.mark.parametrize(("space", "text"), [("pid", "numbers of processes"), ("mnt", "files")])
def test_a_container(fake: Callable[..., Path], space: str, text: str) -> None:
    root = fake("status", (f"NSpid:\t{PID}", f"NSpid:\t{PID}\t17"))
    (root / str(PID) / "ns" / space).unlink()
    (root / str(PID) / "ns" / space).symlink_to(f"{space}:[1]")
    (root / str(PID) / "cgroup").write_text("0::/system.slice/docker-0123456789abcdef.scope\n")
    error = refusal(PID, root=root)
    assert f"it has {text} of its own (another {space} namespace)" in error.message
    assert error.hint.endswith("docker exec -it 0123456789ab adbg attach 17")


def test_another_root(fake: Callable[..., Path], tmp_path: Path) -> None:
    root = fake()
    (root / str(PID) / "root").unlink()
    (root / str(PID) / "root").symlink_to(tmp_path)
    assert "has another root folder (chroot)" in refusal(PID, root=root).message


@pytest.mark.parametrize(
    ("bits", "machine", "text"), [(1, 3, "i386, 32 bits"), (2, elf.AARCH64, "aarch64"), (2, 243, "riscv64")]
)
def test_another_machine(fake: Callable[..., Path], tmp_path: Path, bits: int, machine: int, text: str) -> None:
    root = fake()
    (tmp_path / "program").write_bytes(b"\x7fELF" + bytes([bits, 1]) + bytes(12) + machine.to_bytes(2, "little"))
    (root / str(PID) / "exe").unlink()
    (root / str(PID) / "exe").symlink_to(tmp_path / "program")
    error = refusal(PID, root=root)
    assert f"runs code for {text}" in error.message and "adbg.listen()" in error.hint


def test_musl(fake: Callable[..., Path]) -> None:
    root = fake("maps", ("libc.so.6", "ld-musl-x86_64.so.1"))
    assert "uses the musl libc" in refusal(PID, root=root).message


def test_no_shared_libc(fake: Callable[..., Path]) -> None:
    root = fake("maps", ("libc.so.6", "other.so"))
    assert "it has no GNU libc, or is linked statically" in refusal(PID, root=root).message


def test_one_that_ends_meanwhile(fake: Callable[..., Path]) -> None:
    root = fake()
    (root / str(PID) / "maps").unlink()
    assert refusal(PID, root=root).message == f"there is no process {PID}"


def test_it_is_quick() -> None:
    """A listing asks this of every Python process. 2 ms of processor time on an idle machine."""
    with running(SLEEP) as process:
        examine(process.pid)
        began = time.process_time()
        for _ in range(5):
            examine(process.pid)
        assert (time.process_time() - began) / 5 < 0.02


def test_symbols_are_where_nm_sees_them() -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm here")
    libraries = {
        part.path for part in Proc(os.getpid()).maps() if Path(part.path).name.startswith(("libpython", "libm.so"))
    }
    for path in map(Path, libraries or {sys.executable}):
        lines = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True).stdout.split(
            "\n"
        )
        words = [line.split() for line in lines if "@" not in line]
        wanted = {word[2]: int(word[0], 16) for word in words if len(word) == 3 and word[1] == "T"}
        found = elf.symbols(path, {*wanted, "no_such_function"})
        assert found.keys() == wanted.keys()
        assert len({found[name] - wanted[name] for name in wanted}) <= 1, "all are off by where the file is mapped"
