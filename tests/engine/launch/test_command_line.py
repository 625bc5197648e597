"""Bad input gets one clear line before anything starts; good input passes."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from adbg.engine.errors import CommandError
from adbg.engine.launch import command_line as programs
from adbg.engine.launch.command_line import python_command


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(kind: str, target: str) -> str:
    with pytest.raises(CommandError) as caught:
        python_command(kind, target)  # type: ignore[arg-type]
    return str(caught.value)


def test_commands() -> None:
    Path("train.py").write_text("print(1)")
    python = sys.executable
    assert python_command("script", "train.py", ["--lr", "1"]) == [python, "train.py", "--lr", "1"]
    assert python_command("module", "json.tool", ["-h"]) == [python, "-m", "json.tool", "-h"]
    assert python_command("code", "print(1)", ["a"]) == [python, "-c", "print(1)", "a"]
    assert python_command("command", "torchrun", ["train.py"]) == ["torchrun", "train.py"]
    assert python_command("script", "train.py", python="/usr/bin/python3") == ["/usr/bin/python3", "train.py"]


def test_missing_script_names_the_closest() -> None:
    Path("train.py").write_text("")
    Path("eval.py").write_text("")
    assert refused("script", "trian.py") == "no such script: trian.py (did you mean train.py?)"
    assert "did you mean eval.py?" in refused("script", "eval")
    assert refused("script", "zzz.py") == "no such script: zzz.py (this folder has eval.py, train.py)"
    assert "folder nowhere does not exist" in refused("script", "nowhere/x.py")
    assert refused("script", "ls") == "no such script: ls (put a command after --: adbg run -- ls)"


def test_folders() -> None:
    Path("plain").mkdir()
    assert "it has no *.py" in refused("script", "plain")
    Path("plain/a.py").write_text("")
    assert refused("script", "plain") == "plain is a folder, not a script (name a script in it: a.py)"
    Path("plain/__init__.py").write_text("")
    assert "adbg run -m plain.a" in refused("script", "plain")
    Path("plain/__main__.py").write_text("")
    assert python_command("script", "plain")[1:] == ["plain"]


def test_what_is_not_python() -> None:
    shutil.copy(sys.executable, "prog")
    assert (
        refused("script", "prog")
        == "prog is a compiled program, not a Python script (put a command after --: adbg run -- prog)"
    )
    Path("data.bin").write_bytes(bytes(range(256)))
    assert "is a binary file" in refused("script", "data.bin")
    Path("run.sh").write_text("echo $HOME")
    assert refused("script", "run.sh") == "run.sh is a script for bash, not for Python (adbg run -- bash run.sh)"
    Path("tool").write_text("#!/usr/bin/env perl\nprint 1;")
    assert "is a script for /usr/bin/env perl" in refused("script", "tool")
    Path("book.ipynb").write_text("{}")
    assert "jupyter nbconvert" in refused("script", "book.ipynb")


def test_what_python_takes_is_taken() -> None:
    Path("no_suffix").write_text("#!/usr/bin/env python3\nprint(1)")
    Path("uv.py").write_text("#!/usr/bin/env -S uv run\nprint(1)")
    Path("latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9')")
    Path("bom.py").write_bytes(b"\xef\xbb\xbfprint(1)")
    Path("warns.py").write_text("print('\\d', 1 is 1)")
    Path("empty.py").write_text("")
    compileall.compile_file("empty.py", legacy=True, quiet=1)
    with zipfile.ZipFile("app.pyz", "w") as archive:
        archive.writestr("__main__.py", "print(1)")
    for name in ("no_suffix", "uv.py", "latin.py", "bom.py", "warns.py", "empty.py", "empty.pyc", "app.pyz"):
        command = python_command("script", name)
        if name != "uv.py":
            assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0, name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nif x\n    pass\n", "syntax error in bad.py:2: expected ':'\n    if x\n        ^"),
        ("def f():\n    return (1,\n", "syntax error in bad.py:2: '(' was never closed\n    return (1,\n           ^"),
        ("    x = 1\n", "syntax error in bad.py:1: unexpected indent\n    x = 1\n    ^"),
    ],
)
def test_syntax_error_shows_the_line(source: str, expected: str) -> None:
    Path("bad.py").write_text(source)
    assert refused("script", "bad.py") == expected


def test_undecodable_source() -> None:
    Path("bad.py").write_bytes(b"x = '\xff\xfe'\n")
    assert "bad.py" in refused("script", "bad.py") and "utf-8" in refused("script", "bad.py")


def test_a_pipe_is_not_read() -> None:
    os.mkfifo("pipe")
    assert python_command("script", "pipe")[1:] == ["pipe"]


def test_unreadable_script(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("secret.py").write_text("")

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # the tests may run as root, who reads everything
    assert refused("script", "secret.py") == "cannot read secret.py: Permission denied"


def test_modules(folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("raise SystemError('imported')")
    (folder / "pkg" / "train.py").write_text("")
    assert python_command("module", "pkg.train")[1:] == ["-m", "pkg.train"]
    assert (
        refused("module", "pkg")
        == "pkg is a package without __main__.py: it cannot run by itself (run one of its modules: -m pkg.train)"
    )
    assert refused("module", "pkg.trian") == "no module named pkg.trian (did you mean -m pkg.train?)"
    assert "no module named pkg.train.x: pkg.train is a module" in refused("module", "pkg.train.x")
    assert "did you mean -m pkg?" in refused("module", "pkgg")
    assert refused("module", "no_such_thing.at.all").startswith(
        "no module named no_such_thing (asked for no_such_thing.at.all)"
    )
    assert (
        refused("module", "pkg/train.py")
        == "-m takes a module name, not a path: pkg/train.py (adbg run pkg/train.py, or adbg run -m pkg.train)"
    )
    assert python_command("module", "timeit")[1:] == ["-m", "timeit"]
    assert "pkg" not in sys.modules


def test_another_interpreter_judges_for_itself() -> None:
    Path("new.py").write_text("this is no python")
    assert python_command("script", "new.py", python="/usr/bin/env")[0] == "/usr/bin/env"
    assert python_command("module", "nowhere", python="/usr/bin/env")[1:] == ["-m", "nowhere"]


def test_python_of_a_tool_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    assert programs.program_python() == sys.executable
    monkeypatch.setattr(sys, "prefix", "/home/ada/.local/share/pipx/venvs/adbg")
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    assert programs.program_python() == str(folder / "bin" / "python")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("python", True),
        ("/usr/bin/python3.12", True),
        ("python3.13t", True),
        ("pypy3", True),
        ("python-config", False),
        ("bash", False),
        ("pythonista", False),
    ],
)
def test_interpreters_by_name(name: str, expected: bool) -> None:
    assert programs.is_interpreter(name) is expected
