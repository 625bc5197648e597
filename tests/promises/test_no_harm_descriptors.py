"""The promise "no harm" where a program closes every descriptor that it does not know, as daemons do: what it opens
then gets numbers that adbg had, and nothing of adbg's may go there, nor be closed there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.frameworks import on_frameworks
from support.program import batch, commands

MODEL = {
    "torch": "import torch as framework\ndef step():\n"
    "    w = framework.ones(3, requires_grad=True)\n    (w * 2).sin().sum().backward()\n",
    "paddle": "import paddle as framework\ndef step():\n"
    "    w = framework.ones([3])\n    w.stop_gradient = False\n    (w * 2).sin().sum().backward()\n",
}
CLOSE = {
    "closerange": "os.closerange(3, 4096)",
    "as daemons do": "os.closerange(3, 256)",
    # the number stays open all the time: it is another file from one instruction to the next
    "dup2": "for name in os.listdir('/proc/self/fd'):\n"
    "        if int(name) > 2 and os.path.exists('/proc/self/fd/' + name): os.dup2(null, int(name))",
}
DAEMON = """
import atexit, os, socket, sys, time, warnings
step()
step()
null = os.open(os.devnull, os.O_RDONLY)
ROUNDS, FILES = 5, 700
def close_all():
    {close}
def opened(number):
    return [os.open(f"{{sys.argv[1]}}/{{number}}-{{n}}", os.O_RDWR | os.O_CREAT | os.O_APPEND) for n in range(FILES)]
total = 0
for number in range(ROUNDS):
    close_all()
    null = os.open(os.devnull, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    files = opened(number)
    for _ in range(10):
        step()
        time.sleep(0.01)
    ours.setblocking(False)
    try:
        print("in the socket:", ours.recv(100))
    except BlockingIOError:
        pass
    for fd in files:
        os.write(fd, b"mine")
        if os.pread(fd, 1000, 0) != b"mine":
            print("in", os.readlink(f"/proc/self/fd/{{fd}}"), os.pread(fd, 100, 0))
        os.close(fd)
        total += 1
    ours.close(), theirs.close()
left = open(sys.argv[1] + "/left", "w")  # buffered: written when the interpreter ends
left.write("kept")
print("all", total)
"""
ARMED = {
    "log": ["-e", "vlog 4"],
    "log and record": commands("vlog 4", "record on", "break nan"),
    "listening only": [],
}


@pytest.mark.parametrize("close", list(CLOSE))
@pytest.mark.parametrize("armed", list(ARMED))
@on_frameworks()
def test_a_programs_files_are_its_own(framework: str, armed: str, close: str, tmp_path: Path) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(MODEL[framework] + DAEMON.format(close=CLOSE[close]))
    folder = tmp_path / "files"
    folder.mkdir()
    outcome = batch(str(script), "--run-dir", str(tmp_path / "run"), *ARMED[armed], arguments=[str(folder)])
    assert outcome.status == 0, str(outcome)
    assert outcome.program_output == "all 3500\n", str(outcome)[-3000:]
    assert (folder / "left").read_text() == "kept"
    for path in folder.iterdir():
        assert path.read_bytes() in (b"mine", b"kept"), path
