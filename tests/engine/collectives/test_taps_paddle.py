"""The taps on Paddle's process groups, in a group of one. A process of its own: what gloo starts stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("paddle")
pytestmark = pytest.mark.paddle

TEXT = """
import socket, sys, os, traceback
os.environ["PADDLE_TRAINER_ID"] = "0"
import paddle
from paddle.base import core
from paddle.distributed.communication import group as groups
from adbg.engine.backends.paddle.backend import PaddleBackend
from adbg.engine.collectives.ledger import Ledger

def methods():
    kinds = [getattr(core, name) for name in dir(core) if name.startswith("ProcessGroup")] + [core.task]
    return {(kind, name): value for kind in kinds for name, value in vars(kind).items()}

with socket.socket() as free:
    free.bind(("127.0.0.1", 0)); port = free.getsockname()[1]
backend = PaddleBackend()
ledger = Ledger(lambda groups: None)
ledger.backend_added(backend)
taps = backend.collectives()
before = methods()
taps.install()
assert not taps.tapped
store = core.TCPStore("127.0.0.1", port, True, 1, 60)
gloo = core.ProcessGroupGloo.create(store, 0, 1, 0)
assert taps.tapped
groups._add_new_group(groups.Group(0, 0, [0], gloo, "_default_pg"))
value = paddle.ones([2, 3])
gloo.all_reduce(value, core.ReduceOp.MAX, True).wait()
gloo.broadcast(value, 0, True)
try:
    gloo.all_reduce("no tensor", 1, 2, 3, 4)
except TypeError as error:
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["<module>"]
for row in ledger.values(9):
    print(row.op, row.seq, row.shape, row.dtype, row.reduce, row.peer, row.state, row.place.function)
taps.uninstall()
after = methods()
assert [key for key in before if before[key] is not after[key]] == []
sys.stdout.flush()
os._exit(0)
"""


def test_rows_lines_and_the_very_objects_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", TEXT], capture_output=True, text=True, timeout=100)
    rows = [line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]
    assert [" ".join(row) for row in rows if row[0] in ("all_reduce", "broadcast")][:2] == [
        "all_reduce 1 (2, 3) float32 MAX None done <module>",
        "broadcast 2 (2, 3) float32  0 done <module>",
    ], done.stderr
    assert done.returncode == 0, done.stderr
