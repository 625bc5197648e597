"""A program that closes all its descriptors, as daemons do, at any moment within a transaction of the record: what it
opens then is its own, and what was recorded before is read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adbg.engine.record.reader import RunReader

PROGRAM = """
import os, sys
from adbg.engine.record import recorder as module
from adbg.engine.record.recorder import Recorder
folder, moment, last, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
problems, mine = [], []
moment, at = moment.split()
seen = 0
def statement(text):  # sqlite is about to run it: here, as on another thread of the program's at that moment
    global seen
    seen += text.startswith(moment)
    if not mine and seen == int(at):
        os.closerange(3, last)
        mine.extend(os.open(f"{folder}/mine-{n}", os.O_RDWR | os.O_CREAT) for n in range(count))
def rows(first):
    for n in range(first, first + 400):
        recorder.node_event(1, n, "before", 1.0, 2.0)
    recorder.flush()
recorder = Recorder.open(folder + "/run", 0, problems.append)
rows(0)
recorder._writer._db.set_trace_callback(statement)
rows(400)
recorder.close()
assert len(mine) == count
for n, fd in enumerate(mine):
    path = f"{folder}/mine-{n}"
    assert os.path.samestat(os.fstat(fd), os.stat(path)), f"{n} was closed"
    assert os.fstat(fd).st_size == 0, f"{n} has {os.pread(fd, 100, 0)!r}"
print(problems)
"""


@pytest.mark.parametrize("files", [12, 300])
@pytest.mark.parametrize("last", [256, 4096])
@pytest.mark.parametrize("moment", ["BEGIN 1", "INSERT 1", "INSERT 200", "COMMIT 1"])
def test_what_it_opens_is_its_own(moment: str, last: int, files: int, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), moment, str(last), str(files)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    reader = RunReader(tmp_path / "run")
    assert reader._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(reader.events()) in ([400, 800] if last == 256 else [400]), done.stdout


LOOP = """
import os, sys, threading, time
from adbg.engine.record.recorder import Recorder
folder, problems, on = sys.argv[1], [], True
recorder = Recorder.open(folder + "/run", 0, problems.append)
def rows():
    n = 0
    while on:
        n += 1
        recorder.node_event(1, n, "before", 1.0, 2.0)
        if n % 400 == 0:
            recorder.flush()
thread = threading.Thread(target=rows)
thread.start()
for round in range(200):
    os.closerange(3, 256)
    mine = {os.open(f"{folder}/mine-{n}", os.O_RDWR | os.O_CREAT): f"{folder}/mine-{n}" for n in range(12)}
    time.sleep(0.003)
    for fd, path in mine.items():
        assert os.path.samestat(os.fstat(fd), os.stat(path)) and os.fstat(fd).st_size == 0, (round, path)
on = False
thread.join()
recorder.close()
assert not problems, problems
"""


def test_it_closes_all_over_and_over_and_the_record_goes_on(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LOOP, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    events = RunReader(tmp_path / "run").events()
    assert [event.index for event in events] == list(range(1, len(events) + 1)) and len(events) > 400
