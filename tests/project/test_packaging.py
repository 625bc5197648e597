"""What is in the wheel: every package, every data file, and no more; tried in an environment without any framework."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.program import ROOT, Outcome, run

FOLDERS = {"adbg": "adbg", "adbg.engine": "engine", "adbg.tui": "tui", "adbg.profiles": "profiles"}
pytestmark = pytest.mark.xdist_group("wheel")


def declared_packages() -> list[str]:
    """``[tool.setuptools] packages``, read without tomllib, which Python 3.10 has not."""
    lines = (ROOT / "pyproject.toml").read_text().split("[tool.setuptools]", 1)[1]
    text = lines.split("packages = ", 1)[1].split("]", 1)[0] + "]"
    return list(ast.literal_eval(text))


def packages_of_the_tree() -> list[str]:
    """Every folder of the four that holds Python files, by its import name."""
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.parent.relative_to(ROOT / folder).parts
            found.append(".".join((package, *inside)))
    return sorted(set(found))


def files_of_the_tree() -> set[str]:
    """Every file that belongs into the wheel, by its path there."""
    names = set()
    for package, folder in FOLDERS.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("_native."):
                names.add(f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder)}")
    return names


def test_every_package_is_declared() -> None:
    assert sorted(declared_packages()) == packages_of_the_tree()


def folder_of(package: str) -> Path:
    """Where a package lies in the tree."""
    top = ".".join(package.split(".")[:2])
    top = top if top in FOLDERS else "adbg"
    return ROOT / FOLDERS[top] / package[len(top) :].strip(".").replace(".", "/")


def test_every_package_has_an_init() -> None:
    missing = [name for name in packages_of_the_tree() if not (folder_of(name) / "__init__.py").exists()]
    assert not missing


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: source distribution first, the wheel from that."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", *sorted(set(FOLDERS.values()))):
        path = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "_native.*")
        shutil.copytree(path, source / name, ignore=ignore) if path.is_dir() else shutil.copy(path, source / name)
    out = tmp_path_factory.mktemp("dist")
    built = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source], limit=110)
    assert built.status == 0, str(built)
    (found,) = out.glob("*.whl")
    return found


def test_wheel_holds_the_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    built = {name for name in names if name.startswith("adbg/_native.")}
    assert names - built == files_of_the_tree()
    assert bool(built) == (sys.platform == "linux" and (shutil.which("g++") or shutil.which("c++")) is not None)


@pytest.fixture(scope="session")
def empty_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel and what it depends on, as ``pip install adbg`` makes it."""
    folder = tmp_path_factory.mktemp("empty") / "venv"
    assert run([sys.executable, "-m", "venv", folder]).status == 0
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel]
    done = run(pip, limit=110)
    assert done.status == 0, str(done)
    return python


def elsewhere(command: list[str | Path], folder: Path) -> Outcome:
    """Run without anything of this repository in sight."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return run(command, cwd=folder, env=environment)


def test_no_framework_is_pulled_in(empty_python: Path, tmp_path: Path) -> None:
    listed = elsewhere([empty_python, "-m", "pip", "list", "--format=freeze"], tmp_path).stdout.lower()
    for framework in ("torch", "paddle", "mindspore", "numpy"):
        assert f"\n{framework}" not in f"\n{listed}"


def test_wheel_works(empty_python: Path, tmp_path: Path) -> None:
    """--version, --help, doctor, and a program under ``adbg run``, by the console script and by ``python -m``."""
    script = tmp_path / "hello.py"
    script.write_text("import sys\nprint('hello', sys.argv[1:])\nsys.exit(3)\n")
    console_script = empty_python.parent / "adbg"
    assert elsewhere([console_script, "--version"], tmp_path).stdout.startswith("adbg ")
    assert "run" in elsewhere([empty_python, "-m", "adbg", "--help"], tmp_path).stdout
    doctor = elsewhere([console_script, "doctor"], tmp_path)
    assert "torch" in doctor.stdout
    assert "pip install" in doctor.stdout, str(doctor)
    ran = elsewhere([console_script, "run", "--batch", "hello.py", "--verbose"], tmp_path)
    assert ran.status == 3, str(ran)
    assert ran.stdout == "hello ['--verbose']\n"


def test_every_module_of_the_wheel_imports(empty_python: Path, tmp_path: Path) -> None:
    """All but the backends, which need their framework, and the bootstrap, which belongs into a program."""
    code = (
        "import importlib, pkgutil, sys, adbg\n"
        "names = [m.name for m in pkgutil.walk_packages(adbg.__path__, 'adbg.')]\n"
        "names = [n for n in names if '.backends.' not in n and '.bootstrap.' not in n]\n"
        "names = [n for n in names if not n.endswith('.__main__')]\n"
        "for name in names + ['adbg.engine.backends.base']: importlib.import_module(name)\n"
        "print(len(names))\n"
    )
    done = elsewhere([empty_python, "-c", code], tmp_path)
    assert done.status == 0, str(done)
    assert int(done.stdout) > 30


def test_distribution_is_tried_not_the_tree(empty_python: Path, tmp_path: Path) -> None:
    where = elsewhere([empty_python, "-c", "import adbg.engine; print(adbg.engine.__file__)"], tmp_path).stdout.strip()
    assert Path(where).is_relative_to(empty_python.parents[1])


def test_a_checkout_is_itself_beside_the_installed_one(empty_python: Path) -> None:
    done = elsewhere([empty_python, "-m", "adbg", "--version"], ROOT)
    assert done.stdout.endswith(f" from {ROOT / 'adbg'}\n"), str(done)


def test_wheels_are_built_for_the_pythons_that_are_found() -> None:
    """``make wheels`` takes a minute for each: here is what it would build for, and what it says where it cannot."""
    code = "import sys; sys.path.insert(0, '.ci'); import wheels; print(wheels.pythons())"
    found = ast.literal_eval(run([sys.executable, "-c", code], cwd=ROOT).stdout)
    versions = [run([python, "-c", "import sys; print(sys.version_info[:2])"]).stdout for python in found]
    assert f"{sys.version_info[:2]}\n" in versions and len(set(versions)) == len(versions)
    assert all(ast.literal_eval(version) >= (3, 10) for version in versions)
    failed = run([sys.executable, "-c", "import sys; sys.path.insert(0, '.ci'); import wheels; wheels.run(['false'])"],
                 cwd=ROOT)  # fmt: skip
    assert "wheels.Failed: false" in failed.stderr


def test_old_python_is_told(tmp_path: Path) -> None:
    """``make demo`` with an interpreter that cannot do it: one line that says what to do, no traceback."""
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho 3.8 - -\n")
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake), "VENV": str(tmp_path / "venv")}
    command = [sys.executable, str(ROOT / ".ci" / "environment.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "adbg needs 3.10 or newer" in done.stderr
    assert len(done.stderr.splitlines()) == 1
