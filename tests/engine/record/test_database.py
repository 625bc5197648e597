"""The database of a record beside sqlite's readers, which know nothing of how it is locked, and after its process was
killed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adbg.engine.record import database as module
from adbg.engine.record.database import Database

TABLE = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)"
#: Two tables that are equal between two transactions; many pages, so that sqlite writes some before the COMMIT.
WRITER = f"""
import sys
from pathlib import Path
from adbg.engine.record.database import Database
database = Database(Path(sys.argv[1]), "{TABLE}; CREATE TABLE u (a INTEGER PRIMARY KEY, b TEXT)")
if sys.argv[2] == "of the process":
    database._of_file = None
print("ready", flush=True)
for n in range(int(sys.argv[3])):
    database.begin(large=sys.argv[5] == "large")
    for table in "tu":
        for row in range(int(sys.argv[4])):
            database.db.execute(f"INSERT OR REPLACE INTO {{table}} VALUES (?, ?)", (row * 7919 % 50021, str(n) * 400))
    database.commit()
    database.end()
database.close()
"""


def writing(path: Path, locks: str, count: int, rows: int, size: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(path), locks, str(count), str(rows), size]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def reader(path: Path, mode: str = "ro") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=20.0, isolation_level=None)


@contextlib.contextmanager
def transaction(database: Database, large: bool = False) -> Iterator[None]:
    database.begin(large)
    try:
        yield
        database.commit()
    finally:
        database.end()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "a.sqlite", TABLE)


def test_a_reader_that_has_the_pages_sees_a_change_that_adds_none(database: Database, tmp_path: Path) -> None:
    with reader(tmp_path / "a.sqlite") as db:
        for text in "xyz":
            with transaction(database):
                database.db.execute("INSERT OR REPLACE INTO t VALUES (1, ?)", (text,))
            assert db.execute("SELECT * FROM t").fetchall() == [(1, text)]


@pytest.mark.parametrize("locks", ["of the file", "of the process"])
def test_a_reader_sees_whole_transactions(locks: str, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    process = writing(path, locks, 150, 300, "small")
    db, seen = reader(path), set()
    while process.poll() is None:
        db.execute("BEGIN")
        first, second = (db.execute(f"SELECT a, b FROM {table} ORDER BY a").fetchall() for table in "tu")
        db.execute("COMMIT")
        assert first == second
        seen.add(first[0][1] if first else "")
    assert process.wait(60) == 0
    assert len(seen) > 2
    assert sorted(os.listdir(tmp_path)) == ["a.sqlite"]


@pytest.mark.parametrize("size", ["small", "large"])
def test_killed_at_any_time_it_is_whole(size: str, tmp_path: Path) -> None:
    undone = 0
    for round in range(15):
        path = tmp_path / f"{round}.sqlite"
        process = writing(path, "of the file", 100_000, 4000, size)
        time.sleep(random.Random(round).random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        undone += os.path.getsize(f"{path}-journal") > 0
        db = reader(path, "rw")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        first, second = (db.execute(f"SELECT a, b FROM {table} ORDER BY a").fetchall() for table in "tu")
        assert first == second
    assert undone  # some were in the middle


READER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT * FROM t").fetchall()
print("reads", flush=True)
time.sleep(0.5)
"""


def test_it_waits_for_a_reader(database: Database, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", READER, str(tmp_path / "a.sqlite")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "reads\n"
        began = time.monotonic()
        with transaction(database):
            database.db.execute("INSERT INTO t VALUES (1, 'x')")
            assert time.monotonic() - began < 0.3  # it is the end that waits
        assert time.monotonic() - began > 0.3


def test_a_reader_that_never_ends_ends_the_record(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WAIT", 0.2)
    with reader(tmp_path / "a.sqlite") as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM t").fetchall()
        with pytest.raises(OSError, match="locked") as caught, transaction(database):
            pass
        assert caught.value.errno == errno.EBUSY
        with reader(tmp_path / "a.sqlite") as beside:  # nothing stays locked
            beside.execute("PRAGMA busy_timeout=0")
            assert beside.execute("SELECT * FROM t").fetchall() == []


def test_a_transaction_that_fails_leaves_nothing(database: Database, tmp_path: Path) -> None:
    with pytest.raises(sqlite3.IntegrityError), transaction(database):
        database.db.execute("INSERT INTO t VALUES (1, 'x')")
        database.db.execute("INSERT INTO t VALUES (1, 'x')")
    with reader(tmp_path / "a.sqlite") as db:
        assert db.execute("SELECT * FROM t").fetchall() == []
    with transaction(database):
        database.db.execute("INSERT INTO t VALUES (1, 'x')")


def test_a_file_that_anybody_closes_does_not_unlock_it(database: Database, tmp_path: Path) -> None:
    with transaction(database, large=True):
        os.close(os.open(tmp_path / "a.sqlite", os.O_RDONLY))  # ends all locks of the process on it, of sqlite's kind
        asking = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT * FROM t')"
        done = subprocess.run(
            [sys.executable, "-c", asking, str(tmp_path / "a.sqlite")], capture_output=True, text=True, timeout=30
        )
        assert "locked" in done.stderr


def test_a_forked_child_neither_keeps_nor_ends_a_transaction(database: Database, tmp_path: Path) -> None:
    def seen() -> list[tuple[int, str]]:
        with contextlib.closing(reader(tmp_path / "a.sqlite")) as db:
            return db.execute("PRAGMA busy_timeout=0").execute("SELECT * FROM t").fetchall()

    database.begin(large=True)
    database.db.execute("INSERT INTO t VALUES (1, 'x')")
    first, second = os.fork(), 0
    if not first:
        os._exit(0)
    os.waitpid(first, 0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        seen()
    if not (second := os.fork()):
        time.sleep(20)
        os._exit(0)
    database.commit()
    database.end()
    try:
        assert seen() == [(1, "x")]
    finally:
        os.kill(second, signal.SIGKILL)
        os.waitpid(second, 0)
