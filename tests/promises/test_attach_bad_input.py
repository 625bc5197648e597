"""The promise "bad input gets one clear line", for `adbg attach`: what happened, why, what next, the right status; and
what a program has lying around (modules, variables, its own ``adbg``) is never run in place of adbg's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stress import catalog
from stress.attaching import attach_and_detach
from stress.census import census, left_behind
from stress.running import Running
from support.frameworks import only_here
from support.patience import patience
from support.program import Outcome, adbg, own_lines, wait_until

pytestmark = only_here("torch", "the way in is the same for every framework")
USAGE, ADBG_FAILED = 2, 125
SHADOWS = (  # modules that the agent imports, of the standard library and of its own
    "adbg", "socket", "json", "struct", "threading", "queue", "dataclasses", "typing", "pathlib", "inspect", "ast",
    "sqlite3", "ctypes", "secrets", "hmac", "selectors", "tempfile", "platform", "traceback", "contextlib", "logging",
)  # fmt: skip


def complaint(outcome: Outcome, status: tuple[int, ...] = (USAGE, ADBG_FAILED)) -> str:
    """What adbg wrote to stderr: one message, no traceback."""
    assert outcome.status in status, str(outcome)
    assert "Traceback" not in outcome.stderr + outcome.stdout, str(outcome)
    assert not own_lines(outcome.stderr), str(outcome)
    assert len([line for line in outcome.stderr.splitlines() if line.startswith("adbg: ")]) == 1, str(outcome)
    return outcome.stderr


@contextmanager
def process(*command: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(command, stdin=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("word", ["abc", "0", "-1", "1.5", "", "4711x", "1" * 5000])
def test_no_number(word: str) -> None:
    outcome = adbg("attach", "--batch", word)
    assert outcome.status == USAGE, str(outcome)
    assert "Traceback" not in outcome.stderr, str(outcome)
    assert word[:50] in outcome.stderr, str(outcome)


@pytest.mark.parametrize("number", ["99999999", str(2**31), str(2**64), "1" + "0" * 400])
def test_no_such_process(number: str) -> None:
    assert "no process" in complaint(adbg("attach", "--batch", number))


def test_shell() -> None:
    with process("sh", "-c", "read line") as shell:
        said = complaint(adbg("attach", "--batch", str(shell.pid)))
    assert "not a Python process" in said


def test_itself_and_who_started_it() -> None:
    """The shell's ``$$`` becomes adbg's own number by exec; this test's process is its parent."""
    command = f'exec "{sys.executable}" -m adbg attach --batch $$'
    own = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=patience(60))
    assert "is this adbg" in complaint(Outcome(["sh"], own.returncode, own.stdout, own.stderr, 0.0))
    assert "started this adbg" in complaint(adbg("attach", "--batch", str(os.getpid())))


def test_zombie() -> None:
    with process(sys.executable, "-c", "pass") as ended:
        state = Path(f"/proc/{ended.pid}/stat")
        wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", "a zombie")
        assert "zombie" in complaint(adbg("attach", "--batch", str(ended.pid)))


def test_stopped() -> None:
    with Running(catalog.kind("tight Python loop"), sys.executable) as target:
        target.process.send_signal(19)
        said = complaint(adbg("attach", "--batch", str(target.pid)))
        assert f"kill -CONT {target.pid}" in said
        target.process.send_signal(18)
        assert target.end()[0] > 0


def test_ends_meanwhile() -> None:
    """The process ends while adbg is on its way in."""
    with process(sys.executable, "-c", "import sys; sys.stdin.read(); sum(range(60_000_000))") as ending:
        assert ending.stdin is not None
        ending.stdin.close()
        ending.stdin = None
        outcome = adbg("attach", "--batch", "--timeout", "60", str(ending.pid))
    assert "Traceback" not in outcome.stderr, str(outcome)


@contextmanager
def full_disk() -> Iterator[Path]:
    """A file system of its own without any room; its path is short enough for a socket."""
    place = tempfile.mkdtemp(prefix="adbg-f")
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "tmpfs", place]
    mounted = subprocess.run(mount, check=False).returncode == 0
    try:
        if not mounted:
            pytest.skip("no file system may be mounted here")
        Path(place, "fill").write_bytes(b"x" * 4096)
        yield Path(place)
    finally:
        if mounted:
            subprocess.run(["umount", place], check=True)
        os.rmdir(place)


def test_full_disk() -> None:
    """The session cannot be written: said, and the process is not touched."""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target, full_disk() as place:
        before = census(target.pid)
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(place), "TMPDIR": str(place)}
        said = complaint(adbg("attach", "--batch", "--timeout", "60", str(target.pid), env=variables))
        assert "No space left" in said
        assert list(place.iterdir()) == [place / "fill"]
        assert not left_behind(before, census(target.pid))
        target.end()


def test_no_runtime_folder(tmp_path: Path) -> None:
    """Variables that name a folder which is not there: the session gets another one."""
    with Running(catalog.kind("tight Python loop"), sys.executable) as target:
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "x"), "TMPDIR": str(tmp_path / "x")}
        outcome = adbg("attach", "--batch", "--timeout", "60", "-e", "detach", str(target.pid), env=variables)
        assert outcome.status == 0, str(outcome)
        target.end()


# ------------------------------------------------------------------ what the program has lying around


@contextmanager
def surrounded(tmp_path: Path, imports: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A program whose folder, current folder and PYTHONPATH are full of modules that note when they are run."""
    notes = tmp_path / "notes"
    notes.touch()
    folders = [tmp_path / name for name in ("script", "current", "path")]

    def fill(folder: Path) -> None:
        for name in SHADOWS:
            (folder / f"{name}.py").write_text(
                f"import os\nfd = os.open({str(notes)!r}, os.O_WRONLY | os.O_APPEND)\n"
                f"os.write(fd, b'{folder.name} {name}\\n')\nos.close(fd)\nthis_is_a_shadow = True\n"
            )

    for folder in folders:
        folder.mkdir()
    fill(folders[0])
    script = folders[0] / "train.py"
    script.write_text(
        "import sys\nsys.path.insert(0, '')\n"
        f"{imports}\n"
        "import os\nprint('READY', flush=True)\n"
        "while not os.path.exists('stop'): pass\n"
        f"print(all(getattr(sys.modules.get(name), 'this_is_a_shadow', False) for name in {imports.split()[1:]!r}))\n"
    )
    variables = {
        **os.environ, "PYTHONPATH": str(folders[2]), "PYTHONINSPECT": "", "PYTHONSTARTUP": str(folders[2] / "json.py"),
        "ADBG_SESSION": str(tmp_path / "no-session"), "PYTHONBREAKPOINT": "json.dumps",
    }  # fmt: skip
    with process(sys.executable, str(script), cwd=folders[1], env=variables, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None and program.stdout.readline() == b"READY\n"
        for folder in folders[1:]:  # not before: the start of Python itself would use them
            fill(folder)
        yield program, notes


def test_modules_beside_the_program_are_not_run(tmp_path: Path) -> None:
    with surrounded(tmp_path, "") as (program, notes):
        before = notes.read_text()
        for _ in range(2):
            attached = attach_and_detach(program.pid)
            assert not attached.error and not attached.left, attached
        assert notes.read_text() == before
        (tmp_path / "current" / "stop").touch()
        assert program.wait(patience(60)) == 0


@pytest.mark.parametrize("name", ["json", "socket", "adbg", "dataclasses"])
def test_modules_that_it_has_imported_already(name: str, tmp_path: Path) -> None:
    """Under a name of the standard library the program has one of its own: adbg comes in beside it or says why not,
    runs no other one, and the program keeps its own."""
    with surrounded(tmp_path, f"import {name}") as (program, notes):
        before = notes.read_text()
        assert f"script {name}\n" in before, "the shadow is in use"
        attached = attach_and_detach(program.pid)
        assert not attached.left, attached
        if attached.error:
            assert f"own {name} ({tmp_path}/script/{name}.py) stands in" in attached.error
        assert notes.read_text() == before
        (tmp_path / "current" / "stop").touch()
        assert program.stdout is not None
        assert program.stdout.read().strip() == b"True"
        assert program.wait(patience(60)) == 0
