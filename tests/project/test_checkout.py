"""A checkout runs as it lies there, whatever its folder is called: nothing installed, or another adbg installed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from support.program import ROOT, Outcome, run
from support.terminal import Terminal

NAMES = ["adbg", "torch", "engine", "tui", "two words", "gradient-∇é"]
START = "import sys, adbg, adbg.engine; print('PLACES', adbg.__path__[0], adbg.engine.__path__[0])"


def places(checkout: Path) -> str:
    """What ``START`` prints where adbg is this checkout's."""
    return f"PLACES {checkout / 'adbg'} {checkout / 'engine'}"


@pytest.fixture(params=NAMES)
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The product's folders, in a folder of an unusual name."""
    made = tmp_path / "src" / request.param
    made.mkdir(parents=True)
    for name in ("adbg", "engine", "tui", "profiles"):
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    return made


one_name = pytest.mark.parametrize("checkout", ["adbg"], indirect=True)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the standard library only."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    made = run([sys.executable, "-m", "venv", "--without-pip", folder])
    assert made.status == 0, str(made)
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    """Where packages are installed for an interpreter."""
    return next((python.parent.parent / "lib").glob("python*")) / "site-packages"


@pytest.fixture
def with_dependencies(bare_python: Path) -> Path:
    """The same with the packages that these tests have, but without what installs adbg (.pth files are not read)."""
    (site_packages(bare_python) / "packages.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    return bare_python


@pytest.fixture
def with_another_adbg(bare_python: Path) -> Path:
    """The same with an adbg installed that is not the checkout's: it says so and ends."""
    other = site_packages(bare_python) / "adbg"
    other.mkdir()
    for name in ("__init__", "__main__", "engine"):
        (other / f"{name}.py").write_text("raise SystemExit('the installed adbg')\n")
    return bare_python


@pytest.fixture(autouse=True)
def as_before(bare_python: Path) -> object:
    """Nothing is installed there but what a test asks for."""
    yield
    (site_packages(bare_python) / "packages.pth").unlink(missing_ok=True)
    shutil.rmtree(site_packages(bare_python) / "adbg", ignore_errors=True)


def alone(command: list[str | Path], folder: Path) -> Outcome:
    """Run without anything of this repository in sight."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return run(command, cwd=folder, env=kept)


# ------------------------------------------------------------------ by whatever name


def test_runs_uninstalled(checkout: Path, bare_python: Path, tmp_path: Path) -> None:
    """From inside and from outside, with the program's own view of adbg being the same checkout's."""
    for command, folder in (([bare_python, "-m", "adbg"], checkout), ([bare_python, checkout / "adbg"], tmp_path)):
        version = alone([*command, "--version"], folder)
        assert version.stdout.startswith("adbg ") and f"from {checkout / 'adbg'}\n" in version.stdout, str(version)
        ran = alone([*command, "run", "--batch", "-c", START], folder)
        assert ran.stdout.strip() == places(checkout), str(ran)


@one_name
def test_runs_beside_an_installed_one(checkout: Path, with_another_adbg: Path, tmp_path: Path) -> None:
    assert "the installed adbg" in alone([with_another_adbg, "-m", "adbg"], tmp_path).stderr
    inside = alone([with_another_adbg, "-m", "adbg", "run", "--batch", "-c", START], checkout)
    assert inside.stdout.strip() == places(checkout), str(inside)
    outside = alone([with_another_adbg, checkout / "adbg", "run", "--batch", "-c", START], tmp_path)
    assert outside.stdout.strip() == places(checkout), str(outside)


# ------------------------------------------------------------------ one name is enough


@one_name
def test_the_programs_own_names(checkout: Path, bare_python: Path, tmp_path: Path) -> None:
    """A script's engine.py, tui.py and tests/ are its own, and are nothing of adbg's."""
    project = tmp_path / "project"
    (project / "tests").mkdir(parents=True)
    for name in ("engine.py", "tui.py", "mine.py", "tests/__init__.py"):
        (project / name).write_text("print('mine', __name__)\n")
    (project / "train.py").write_text(
        "import engine, tui, tests, adbg, adbg.engine, importlib.util as u, sys\n"
        "print([n for n in ('mine', 'tests', 'docs', 'examples') if u.find_spec('adbg.' + n)])\n"
        "print('found', [e for e in sys.path if u.find_spec('profiles')])\n"
    )
    ran = alone([bare_python, checkout / "adbg", "run", "--batch", "train.py"], project)
    assert ran.stdout.splitlines() == ["mine engine", "mine tui", "mine tests", "[]", "found []"], str(ran)


@one_name
def test_a_copy_of_the_front_door_takes_nothing_in(bare_python: Path, checkout: Path, tmp_path: Path) -> None:
    """``adbg/`` beside a project's own engine/ and tui/ does not make those adbg's."""
    project = tmp_path / "project"
    shutil.copytree(checkout / "adbg", project / "adbg")
    for name in ("engine", "tui"):
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("")
    done = alone([bare_python, "-c", "import adbg; print(len(adbg.__path__)); import adbg.engine"], project)
    assert done.stdout == "1\n" and "No module named 'adbg.engine'" in done.stderr, str(done)


@one_name
def test_children(checkout: Path, bare_python: Path, tmp_path: Path) -> None:
    """A worker that is spawned gets the same adbg."""
    (tmp_path / "work.py").write_text(
        "import multiprocessing, sys\n"
        f"def work():\n    {START}\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    worker.start(); worker.join(); sys.exit(worker.exitcode)\n"
    )
    ran = alone([bare_python, checkout / "adbg", "run", "--batch", "work.py"], tmp_path)
    assert ran.status == 0 and ran.stdout.strip() == places(checkout), str(ran)


@one_name
@pytest.mark.torch
def test_stops_in_a_worker(checkout: Path, with_dependencies: Path, tmp_path: Path) -> None:
    """An agent of the checkout's in a spawned process, which alone imports the framework."""
    (tmp_path / "work.py").write_text(
        "import multiprocessing, sys\n"
        "def work():\n    import torch; torch.ones(1, requires_grad=True).sin().backward()\n"
        "if __name__ == '__main__':\n"
        "    worker = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    worker.start(); worker.join(); sys.exit(worker.exitcode)\n"
    )
    ran = alone([with_dependencies, checkout / "adbg", "run", "--batch", "-b", "Sin*", "work.py"], tmp_path)
    assert ran.status == 0 and "Breakpoint 1, before SinBackward0#1" in ran.stdout, str(ran)


@one_name
def test_a_missing_dependency(checkout: Path, bare_python: Path) -> None:
    """Screen and prompt say in one sentence what is missing and how to get it; batch needs nothing."""
    for option, name in (("--tui", "textual"), ("--repl", "prompt_toolkit")):
        command = [str(bare_python), "-m", "adbg", "run", option, "-c", "print(1)"]
        with Terminal(command, cwd=str(checkout)) as terminal:
            assert terminal.wait_end() == 125
            said = " ".join(terminal.raw.decode().split())
        assert f"adbg: {name} is not installed (install it with" in said and "Traceback" not in said, said
        assert "-m pip install" in said, said
    doctor = alone([bare_python, "-m", "adbg", "doctor"], checkout)
    line = next(line for line in doctor.stdout.splitlines() if " textual " in line)
    assert line.split()[0] == "missing" and line.endswith(f"-m pip install {checkout}"), str(doctor)
