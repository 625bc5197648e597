"""Fd 2 into a file: what is a record stays there, everything else reaches the real stderr, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from adbg.engine.log.forwarder import Splitter, Tail, holders

RECORD = b"I1121 02:19:25.942734 16194 backward.cc:459] TanhGradNode(0x557e) Preparing \n"
BLOCK = (
    b"\tI1121 02:19:25.942740 16194 py_layer_node.cc:51] PyLayer forward call stack:"
    b'   File "/t.py", line 4, in <module>\n'
    b"\t    y = Outer.apply(h)\n"
    b"\t  # in Layer ffn.gate\n"
    b"\t  # operator 9\n"
    b"I1121 02:18:57.804463 15526 dygraph_functions.cc:45361] \n"
    b"==========================Running_AD_API: full==========================\n"
    b"I1121 02:18:57.804500 15526 dygraph_functions.cc:48957] \n"
    b"Forward Debug Info {\nAPI_Name: tanh1 \nInput: [ \n( x , {\n\tName: None,\n\tShape: 2, 3,\n}),  \n ]  \n"
    b"Output: [ \n}), ] } \n"
)
TRACEBACK = b'Traceback (most recent call last):\n  File "c.py", line 1, in f\n    g()\nKeyError: 1\n'
FOREIGN = (b"hello from C\n", TRACEBACK, b"{json}\n")


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_foreign_text_is_told_from_records_wherever_the_stream_is_cut(size: int) -> None:
    stream = FOREIGN[0] + RECORD + FOREIGN[1] + BLOCK + FOREIGN[2] + RECORD + BLOCK + b"half a line"
    splitter = Splitter()
    out = b"".join(splitter.feed(stream[i : i + size]) for i in range(0, len(stream), size)) + splitter.end()
    assert out == b"".join(FOREIGN) + b"half a line"


def test_half_a_line_is_handed_on_when_it_cannot_become_a_record() -> None:
    splitter = Splitter()
    assert splitter.feed(RECORD + b"Password: ") == b"" and splitter.flush() == b"Password: "
    assert splitter.feed(b"Epoch 1/3") == b"" and splitter.flush() == b"Epoch 1/3", "begins with a severity's letter"
    assert splitter.feed(b"I1121 02:1") == b"" and splitter.flush() == b""
    assert splitter.feed(b"8:57.804463 15526 a.cc:1] x\n") == b""


@pytest.mark.parametrize("name", ["promo_v4", "pylayer_nested_v3"])
def test_paddle_logs_give_back_what_python_wrote_between(name: str) -> None:
    """Real logs: the warnings and prints that were written to the same stream, and nothing of the records."""
    found = list((Path(__file__).parents[2] / "data" / "vlog").glob(f"*{name}*"))
    if not found:
        pytest.skip(f"no sample {name} in tests/data/vlog")
    splitter = Splitter()
    foreign = splitter.feed(found[0].read_bytes()) + splitter.end()
    assert b"Name: " not in foreign and b"====" not in foreign and b"] " not in foreign.split(b"\n")[0]


def test_a_file_that_is_nobodys_record_gives_its_space_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(fd, RECORD * 20_000)
    before = os.fstat(fd).st_blocks
    target = os.open(os.devnull, os.O_WRONLY)
    tail = Tail(fd, target, 0, keep=0)
    while tail.step():
        pass
    assert os.fstat(fd).st_blocks < before / 10
    assert not holders(str(path))


PROGRAM = """
    import ctypes, logging, os, subprocess, sys
    logging.basicConfig()
    handler = logging.getLogger("made before")
    from adbg.engine.log.redirect import StderrTap
    tap = StderrTap()
    tap.start(sys.argv[1])
    assert tap.on and sys.stderr.name == "<stderr>"
    os.write(2, b"I1121 02:19:25.942734 16194 backward.cc:459] TanhGradNode(0x557e) Preparing \\n")
    ctypes.CDLL(None).dprintf(2, b"from C\\n")
    subprocess.run(["sh", "-c", "echo from a child >&2"])
    handler.warning("from logging")
    print("from print", file=sys.stderr, flush=True)
    pid = os.fork()
    if pid == 0:
        tap.abandon()
        os.write(2, b"from a fork\\n")
        os._exit(0)
    os.waitpid(pid, 0)
"""


def _run(tmp_path: Path, ending: str, *options: str) -> tuple[subprocess.CompletedProcess[str], bytes]:
    log = tmp_path / "vlog"
    code = textwrap.dedent(PROGRAM) + textwrap.dedent(ending)
    done = subprocess.run(
        [sys.executable, *options, "-c", code, str(log)], capture_output=True, text=True, timeout=60, check=False
    )
    return done, log.read_bytes()


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_only_records_stay_in_the_file_and_fd_2_is_put_back(tmp_path: Path, options: tuple[str, ...]) -> None:
    done, log = _run(tmp_path, "tap.stop(); os.write(2, b'behind\\n'); print('last', file=sys.stderr)", *options)
    assert done.returncode == 0, done.stderr
    for text in ("from C", "from a child", "WARNING:made before:from logging", "from print", "from a fork"):
        assert done.stderr.count(text) == 1, (text, done.stderr)
    assert "behind" in done.stderr and "last" in done.stderr
    assert "Preparing" not in done.stderr and b"Preparing" in log
    assert b"behind" not in log and b"from print" not in log and b"from logging" not in log


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("os._exit(3)", 3),
        ("ctypes.string_at(0)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_nothing_is_lost_when_the_program_dies(tmp_path: Path, ending: str, status: int) -> None:
    done, _ = _run(tmp_path, f"os.write(2, b'last words')\n{ending}")
    assert done.returncode == status
    assert done.stderr.endswith("last words") and "from C" in done.stderr


def test_a_child_that_outlives_the_redirection_is_still_heard(tmp_path: Path) -> None:
    ending = "child = subprocess.Popen(['sh', '-c', 'sleep 1; echo late >&2']); tap.stop(); child.wait()"
    done, _ = _run(tmp_path, ending)
    assert done.returncode == 0 and "late" in done.stderr


def test_the_forwarder_is_no_child_of_the_program(tmp_path: Path) -> None:
    """``os.wait()`` of the program must not find it, and it ends with the program."""
    ending = """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no child")
    print(open(f"/proc/{os.getpid()}/stat").read().split()[0])
    """
    done, _ = _run(tmp_path, ending)
    assert "no child" in done.stdout
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _forwarders(done.stdout.split()[-1]):
        time.sleep(0.05)
    assert not _forwarders(done.stdout.split()[-1])


def _forwarders(pid: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0") if name.isdigit() else []
        except OSError:
            continue
        if any(word.endswith(b"stderr_tail.py") for word in words) and pid.encode() in words:
            found.append(name)
    return found


def test_a_redirection_of_the_programs_own_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own.log"
    ending = f"""
    tap.start(sys.argv[1])
    own = os.open({str(own)!r}, os.O_WRONLY | os.O_CREAT)
    os.dup2(own, 2)
    tap.stop()
    os.write(2, b"behind")
    print(" and from Python", end="", file=sys.stderr, flush=True)
    """
    done, _ = _run(tmp_path, ending)
    assert done.returncode == 0 and own.read_text() == "behind and from Python", done


def test_a_file_that_got_number_2_is_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ending = f"""
    os.close(2)
    number = os.open({str(data)!r}, os.O_WRONLY | os.O_CREAT)
    tap.stop()
    os.write(number, b"mine")
    print(number)
    """
    done, _ = _run(tmp_path, ending)
    assert done.stdout == "2\n" and data.read_bytes() == b"mine", done


def test_a_number_taken_from_sys_stderr_stays_good(tmp_path: Path) -> None:
    """``faulthandler.enable()`` keeps the number: what crashes later must not be told to a file of the program's."""
    data = tmp_path / "data"
    ending = f"""
    import faulthandler
    faulthandler.enable()
    for _ in range(3):
        tap.stop()
        data = open({str(data)!r}, "wb", buffering=0)
        tap.start(sys.argv[1])
    tap.stop()
    ctypes.string_at(0)
    """
    done, _ = _run(tmp_path, ending)
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr and data.read_bytes() == b""


def test_a_reader_that_is_late_on_a_stderr_that_does_not_block(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    log = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(log, b"x" * 99_999 + b"\n")
    threading.Timer(0.3, lambda: received.extend(iter(lambda: os.read(reading, 1 << 16), b""))).start()
    received: list[bytes] = []
    Tail(log, writing, 0).finish()
    os.close(writing)
    deadline = time.monotonic() + 10
    while sum(map(len, received)) < 100_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(map(len, received)) == 100_000


CLOSES_ALL = """
    real = os.fstat(2)
    os.closerange(3, 1 << 12)
    files = [open(f"{sys.argv[1]}.own{n}", "wb", buffering=0) for n in range(900)]  # up to adbg's high numbers
    print("from print, later", file=sys.stderr, flush=True)
    handler.warning("from logging, later")
    tap.write(b"I1121 02:19:25.942734 16194 backward.cc:459] A record \\n")
    os.write(2, b"I1121 02:19:25.942734 16194 backward.cc:459] Another record \\n")
    print(tap.size, file=sys.stderr, flush=True)
    tap.stop()
    os.write(2, b"behind\\n")
    print("last", file=sys.stderr, flush=True)
    written = [file.name for file in files if os.fstat(file.fileno()).st_size]
    for file in files:
        file.write(b"mine")
        file.close()
    assert not written, written
    assert not any(os.path.getsize(file.name) != 4 for file in files)
"""


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_program_that_closes_all_descriptors_has_its_files_for_itself(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Daemons do: what it opens then gets the numbers that adbg had. Neither adbg's records nor the program's own
    stderr may go there, and no number may be closed that is the program's now."""
    done, _ = _run(tmp_path, CLOSES_ALL, *options)
    assert done.returncode == 0, done.stderr
    for text in ("from print, later", "from logging, later", "behind", "last"):
        assert done.stderr.count(text) == 1, "what the program says on stderr is still heard"


def test_stderr_that_the_program_puts_elsewhere_takes_python_along(tmp_path: Path) -> None:
    """``os.dup2(log, 2)`` while fd 2 goes into the VLOG: what Python writes to stderr follows, as without adbg."""
    own = tmp_path / "own.log"
    ending = f"""
    own = os.open({str(own)!r}, os.O_WRONLY | os.O_CREAT)
    os.dup2(own, 2)
    print("follows", file=sys.stderr, flush=True)
    tap.stop()
    print("still", file=sys.stderr, flush=True)
    """
    done, _ = _run(tmp_path, ending)
    assert done.returncode == 0 and own.read_text() == "follows\nstill\n", done


SHORT = """
import os, resource, sys, time
from adbg.engine.log.redirect import StderrTap
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
tap, taken, before = StderrTap(), [], os.fstat(2)
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for _ in range(int(sys.argv[2])):
    os.close(taken.pop(int(sys.argv[3])))
try:
    tap.start(sys.argv[1])
except OSError:
    print("refused")
    assert not tap.on and tap.path == "" and tap.size == 0
    assert os.path.samestat(os.fstat(2), before)
    os.close(taken.pop())
    numbers = [n for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
    assert not any(os.readlink(f"/proc/self/fd/{n}") == sys.argv[1] for n in numbers)
os.write(2, b"from C\\n")
print("from print", file=sys.stderr, flush=True)
for number in taken:
    os.close(number)
tap.start(sys.argv[1])
assert tap.on
tap.stop()
time.sleep(0.5)  # where a thread hands on, it is given the time
"""


@pytest.mark.parametrize("where", ["0", "-1"])
def test_without_free_descriptors_all_stays_as_it_was(tmp_path: Path, where: str) -> None:
    refused = []
    for free in range(1, 12):
        log = tmp_path / f"{free}"
        command = [sys.executable, "-c", SHORT, str(log), str(free), where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (free, done.stderr)
        assert done.stderr.count("from C") == done.stderr.count("from print") == 1, (free, done.stderr)
        refused.append("refused" in done.stdout)
    assert refused[0] and not refused[-1]
