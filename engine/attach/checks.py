"""What stands against entering a process: one message each. Files of /proc are read, nothing else is done."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import time
from pathlib import Path

from adbg.engine.attach import elf
from adbg.engine.attach.injector.library import NotThere, libc_functions, python_functions, python_symbols
from adbg.engine.errors import AttachError
from adbg.engine.proc import Mapping, Proc

LIST = "`adbg attach` without a number lists your Python processes"
UNTESTED = "ADBG_ATTACH_UNTESTED"
PASSING = 1.0  # seconds
TRY = f"set {UNTESTED}=1"
_MACHINES = {"x86_64": elf.X86_64, "aarch64": elf.AARCH64}
_STARTING = 1.0  # seconds that a process may take to map its interpreter
_SYS_PTRACE = 19
_REMOTE_EXEC = (3, 14)  # adds a way in that a tracer does not stand in the way of
#: Only interpreters without a GIL have this function.
_FREE_THREADED = "_Py_MergeZeroLocalRefcount"


def gone(pid: int) -> AttachError:
    return AttachError(f"there is no process {pid}", LIST)


def check_exists(process: Proc) -> dict[str, str]:
    """Its ``status``. Not a thread of another, a zombie, or the kernel's."""
    pid = process.pid
    status = process.status()
    leader = int(status.get("Tgid", pid))
    if leader != pid:
        raise AttachError(f"{pid} is a thread of process {leader}", f"adbg attach {leader}")
    if status.get("State", "").startswith(("Z", "X")):
        parent = status.get("PPid", "?")
        raise AttachError(
            f"process {pid} has ended (a zombie): its parent, process {parent}, has not asked for its status", LIST
        )
    if "VmSize" not in status:
        raise AttachError(f"process {pid} ({status.get('Name', '?')}) is a thread of the kernel", LIST)
    return status


def check_relation(process: Proc, status: dict[str, str]) -> None:
    """Not adbg itself, nor what waits for it."""
    if process.pid == os.getpid():
        raise AttachError(f"process {process.pid} is this adbg", LIST)
    pid = os.getppid()
    root = process.folder.parent
    with contextlib.suppress(OSError, ValueError, KeyError):
        while pid > 1:
            if pid == process.pid:
                raise AttachError(
                    f"process {pid} ({status.get('Name', '?')}) started this adbg: a stop there would stop adbg, too",
                    "run adbg attach in another terminal",
                )
            pid = int(Proc(pid, root).status()["PPid"])


def check_owner(process: Proc, status: dict[str, str]) -> None:
    owners = {int(word) for word in status.get("Uid", "").split()}
    if owners == {os.geteuid()}:
        return
    if os.geteuid() not in owners or len(owners) == 1:
        other = _user(min(owners - {os.geteuid()}))
        raise AttachError(
            f"process {process.pid} belongs to user {other}, and adbg enters its own user's processes only",
            f"sudo -u {other} adbg attach {process.pid}",
        )
    raise AttachError(
        f"process {process.pid} runs with the rights of several users ({', '.join(map(_user, sorted(owners)))})",
        "adbg does not enter such a process",
    )


def check_readable(process: Proc) -> None:
    """The kernel's word on whether it may be looked at."""
    try:
        process.maps()
    except PermissionError:
        raise AttachError(
            f"process {process.pid} does not let itself be looked at: it is not dumpable (prctl PR_SET_DUMPABLE, or an "
            "executable that may not be read)",
            "start it without that, or give adbg CAP_SYS_PTRACE (sudo)",
        ) from None


def check_namespaces(process: Proc, status: dict[str, str]) -> None:
    """Both must see the same files and the same numbers."""
    own = process.folder.parent / "self"
    for name, what in (("pid", "numbers of processes"), ("mnt", "files")):
        if os.readlink(process.folder / "ns" / name) == os.readlink(own / "ns" / name):
            continue
        inside = status.get("NSpid", "").split()[-1:] or [str(process.pid)]
        where = _container(process)
        command = f"adbg attach {inside[0]}"
        hint = f"docker exec -it {where} {command}" if where else f"nsenter --target {process.pid} --all {command}"
        raise AttachError(
            f"process {process.pid} runs in a container: it has {what} of its own (another {name} namespace)",
            f"run adbg inside, where it has to be installed: {hint}",
        )
    if not os.path.samestat(os.stat(process.folder / "root"), os.stat(own / "root")):
        raise AttachError(
            f"process {process.pid} has another root folder (chroot)",
            f"run adbg there: chroot … adbg attach {process.pid}",
        )


def check_machine(process: Proc, executable: str, untested: bool) -> None:
    pid = process.pid
    try:
        found = elf.identity(process.folder / "exe")
    except ValueError:
        raise AttachError(f"process {pid} runs {executable}, which is no ELF executable", LIST) from None
    name = platform.machine()
    if found.bits != 64 or found.machine != _MACHINES.get(name):
        raise AttachError(
            f"process {pid} runs code for {found.name}, and adbg enters 64-bit processes of {name} here"
            if name in _MACHINES
            else f"adbg has no code for {name}",
            "call adbg.listen() in the script: that needs no way in",
        )
    if found.machine == elf.AARCH64 and not untested:
        raise AttachError(
            f"process {pid} runs on aarch64: the way in was written from the ABI documents and has never been run",
            f"{TRY} to try it, on a process that may be lost; or call adbg.listen() in the script",
        )


def check_libc(process: Proc, maps: list[Mapping]) -> None:
    if any("ld-musl" in os.path.basename(part.path) for part in maps):
        raise AttachError(
            f"process {process.pid} uses the musl libc, which adbg's way in was not made for",
            "call adbg.listen() in the script: that needs no way in",
        )


def check_python(process: Proc, maps: list[Mapping], executable: str) -> None:
    """An interpreter, and the libc that it needs. One that has just been started may still be mapping it."""
    end = time.monotonic() + (_STARTING if _age(process) < 2 * _STARTING else 0.0)
    while True:
        try:
            python_functions(process, maps)
            libc_functions(process, maps)
            return
        except NotThere as error:
            if time.monotonic() < end:
                time.sleep(0.05)
                maps[:] = process.maps()
                continue
            if python_symbols(process, maps):
                raise AttachError(
                    f"process {process.pid} cannot be entered: {error}", "call adbg.listen() in the script"
                ) from None
            raise AttachError(
                f"process {process.pid} ({executable}) is not a Python process: no interpreter is mapped in it",
                f"give the number of the Python process, not of the shell or launcher that started it: {LIST}",
            ) from None


def check_version(process: Proc, version: tuple[int, int], oldest: tuple[int, int]) -> None:
    if (0, 0) != version < oldest:
        raise AttachError(
            f"process {process.pid} runs Python {version[0]}.{version[1]}, and adbg needs {oldest[0]}.{oldest[1]} or "
            "newer",
            "run it with a newer Python",
        )


def check_threading(process: Proc, maps: list[Mapping], untested: bool) -> None:
    if not untested and _FREE_THREADED in python_symbols(process, maps, _FREE_THREADED):
        raise AttachError(
            f"process {process.pid} runs a free-threaded Python (without a GIL), on which adbg has never been run",
            f"{TRY} to try it, on a process that may be lost; or use a Python with a GIL",
        )


def check_filters(process: Proc, status: dict[str, str], untested: bool) -> None:
    """What adbg has the process do (mmap, socket, clone, gettid) may be forbidden there, and a filter may kill for it.
    One that adbg runs under as well, a container's, has let it do the same. The count is there since Linux 5.9."""
    try:
        own = Proc(os.getpid(), process.folder.parent).status()
    except OSError:
        own = {}
    mode, filters = ([int(each.get(name, "0")) for each in (status, own)] for name in ("Seccomp", "Seccomp_filters"))
    if not untested and (mode[0] == 1 or filters[0] > filters[1] or (mode[0] > mode[1])):
        raise AttachError(
            f"process {process.pid} runs under a seccomp filter that adbg does not run under: it may forbid what adbg "
            "has to do there, and a process that does what is forbidden may be killed",
            f"run adbg in the same sandbox; or {TRY} to try it, on a process that may be lost",
        )


def check_tracer(process: Proc, status: dict[str, str], version: tuple[int, int]) -> int:
    """The pid of its tracer, 0 for none. Python 3.14 has a way in beside it. One who reads its stacks, or takes back
    what an attach that was given up left there, is gone in a moment: it is looked at for ``PASSING``."""
    tracer = int(status.get("TracerPid", "0"))
    end = time.monotonic() + PASSING
    while tracer and time.monotonic() < end:
        time.sleep(0.02)
        tracer = int(process.status().get("TracerPid", "0"))
    if not tracer or version >= _REMOTE_EXEC:
        return tracer
    try:
        name = Proc(tracer, process.folder.parent).status().get("Name", "?")
    except OSError:
        name = "ended meanwhile"
    raise AttachError(
        f"process {process.pid} is traced by process {tracer} ({name}), and only one tracer can be",
        f"end {name} (or detach it), then attach again",
    )


def check_running(process: Proc, status: dict[str, str]) -> None:
    if status.get("State", "").startswith("T"):
        raise AttachError(
            f"process {process.pid} is stopped (Ctrl-Z or SIGSTOP)", f"kill -CONT {process.pid}, then attach again"
        )


def check_rights(process: Proc) -> None:
    """The kernel's word on whether it may be traced: this open asks just that, and reads nothing."""
    try:
        os.close(os.open(process.folder / "mem", os.O_RDWR | os.O_CLOEXEC))
    except PermissionError:
        raise refused(process) from None


def refused(process: Proc) -> AttachError:
    """The kernel does not let this user trace it."""
    pid = process.pid
    try:
        scope = int((process.folder.parent / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    about = f"process {pid} may not be traced: kernel.yama.ptrace_scope is {scope}, "
    if scope == 1:
        return AttachError(
            about + "so only a process's ancestors may trace it",
            "sudo sysctl -w kernel.yama.ptrace_scope=0, or give this Python CAP_SYS_PTRACE (sudo setcap "
            "cap_sys_ptrace+ep), or have the script call prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)",
        )
    if scope == 2:
        return AttachError(
            about + "so only processes with CAP_SYS_PTRACE may trace",
            "sudo sysctl -w kernel.yama.ptrace_scope=0, or give this Python the capability "
            "(sudo setcap cap_sys_ptrace+ep)",
        )
    if scope >= 3:
        return AttachError(
            about + "so nothing may be traced, and it cannot be lowered until the machine starts again",
            "set kernel.yama.ptrace_scope=0 in /etc/sysctl.d and start the machine again, or call adbg.listen() in the "
            "script: that needs no tracing",
        )
    return AttachError(
        f"process {pid} may not be traced: the kernel refuses it (a security module, or a container without "
        "CAP_SYS_PTRACE)",
        "docker run --cap-add=SYS_PTRACE, or call adbg.listen() in the script: that needs no tracing",
    )


def check_session(process: Proc) -> None:
    """No debugger that is there already: the program of an ``adbg run`` whose front end lives."""
    try:
        variables = (process.folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return
    path = next((os.fsdecode(line[13:]) for line in variables if line.startswith(b"ADBG_SESSION=")), "")
    if not path:
        return
    front = _listener(Path(path).parent, process.folder.parent)
    if front:
        raise AttachError(
            f"process {process.pid} is debugged already: it belongs to the session of adbg, process {front}",
            "go on there, or detach there, then attach again",
        )


def _listener(folder: Path, root: Path) -> int:
    """The process that listens on a unix socket in ``folder``, 0 where none does or it cannot be seen."""
    try:
        rows = [line.split(None, 7) for line in (root / "net/unix").read_text().splitlines()[1:]]
    except OSError:
        return 0
    wanted = {
        f"socket:[{row[6]}]"
        for row in rows
        if len(row) == 8 and os.path.dirname(row[7]) == str(folder) and int(row[3], 16) & 0x10000
    }
    if wanted:
        for name in filter(str.isdecimal, os.listdir(root)):
            with contextlib.suppress(OSError):
                if any(_link(fd) in wanted for fd in os.scandir(root / name / "fd")):
                    return int(name)
    return 0


def _link(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)
    except OSError:
        return ""


def _container(process: Proc) -> str:
    """The name that docker or podman know it by, "" where its control group has none."""
    try:
        found = re.search(r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{12})", process.text("cgroup"))
    except OSError:
        return ""
    return found[1] if found else ""


def _age(process: Proc) -> float:
    try:
        up = float((process.folder.parent / "uptime").read_text().split()[0])
        return up - process.started() / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 1e9


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"
