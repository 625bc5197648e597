"""Getting in: the script finds its world as plain Python gives it, and its Python children stay what they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adbg
from adbg.engine.backends import REGISTRY
from adbg.engine.bootstrap import sitecustomize
from adbg.engine.launch.command_line import explain_silence
from adbg.engine.launch.launch import BOOTSTRAP, program_environment

FAKE_TORCH = "import os; print('fake torch in', os.environ.get('ROLE', 'main'), flush=True)"
WORLD = """
import json, os, re, sys
skip = {"ADBG_SESSION", "PYTHONPATH", "STUB_AGENT_LOG", "DRIVER_READY"}
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "name": __name__,
    "doc": __doc__, "file": globals().get("__file__"), "package": __package__, "executable": sys.executable,
    "spec": re.sub("0x[0-9a-f]+", "", str(__spec__)), "flags": str(sys.flags), "umask": os.umask(0o22),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "environ": {k: v for k, v in os.environ.items() if k not in skip},
    "importers": sorted(sys.path_importer_cache),
}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def output(program: Any) -> Callable[..., str]:
    """stdout and stderr of a command that must end well."""

    def run(command: list[str], **fields: Any) -> str:
        ran = program(command, **fields)
        assert ran.wait().status == 0, ran.output
        return str(ran.stream("stdout").decode())

    return run


@pytest.mark.parametrize("kind", ["script", "linked", "module", "package", "code", "folder"])
def test_same_world_as_plain_python(output: Callable[..., str], folder: Path, kind: str) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    for name in ("world.py", "pkg/__main__.py", "__main__.py"):
        (folder / name).write_text(WORLD)
    (folder / "bin").mkdir()
    (folder / "bin" / "linked.py").symlink_to(folder / "world.py")
    targets = {
        "script": ["world.py"],
        "linked": ["bin/linked.py"],
        "module": ["-m", "world"],
        "package": ["-m", "pkg"],
        "code": ["-c", WORLD],
        "folder": ["."],
    }
    command = [sys.executable, *targets[kind], "-x", "two words", "--batch"]
    env = {**os.environ, "PYTHONPATH": f"{folder / 'extra'}{os.pathsep}{folder / 'more'}"}
    plain = json.loads(subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=60, check=True).stdout)
    ours = json.loads(output(command, cwd=str(folder), env=env))
    assert ours.pop("importers") and plain.pop("importers")
    ours["environ"].pop("_", None), plain["environ"].pop("_", None)
    assert ours == plain


def test_the_bootstrap_folder_leaves_no_importer(output: Callable[..., str]) -> None:
    assert str(BOOTSTRAP) not in output([sys.executable, "-c", "import sys; print(sys.path, *sys.path_importer_cache)"])


def test_python_path_is_kept(tmp_path: Path) -> None:
    session = tmp_path / "session.json"
    first = program_environment({"PYTHONPATH": f"a{os.pathsep}"}, session, main=True)
    assert first["PYTHONPATH"] == f"{BOOTSTRAP}{os.pathsep}a{os.pathsep}"
    again = program_environment(first, session, main=False)
    assert again["PYTHONPATH"] == first["PYTHONPATH"] and "ADBG_MAIN" not in again
    assert program_environment({}, session, main=True)["PYTHONPATH"] == str(BOOTSTRAP)


def test_agent_starts_in_the_main_process_only(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path
) -> None:
    child = "import os; print(os.environ.get('ADBG_MAIN'))"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert "None" in output([sys.executable, "-c", code])
    assert agent_log() == ["start main=True torch=False"]


def test_children_get_an_agent_with_the_framework(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path
) -> None:
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "child.py").write_text("import torch, sys; print(sorted(m for m in sys.modules if m.startswith('adbg')))")
    (folder / "script.py").write_text(
        "import subprocess, sys; subprocess.run([sys.executable, 'child.py'], check=True); import torch"
    )
    text = output([sys.executable, "script.py"], cwd=str(folder))
    assert text.count("fake torch") == 2
    expected = ["start main=True torch=False", "start main=False torch=True", "torch imported torch=True"]
    assert agent_log() == expected


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_multiprocessing(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path, method: str
) -> None:
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "script.py").write_text(f"""
import multiprocessing, os, sys
print("module", __name__)
def work(n):
    import torch
    return n * n, __name__, [p for p in sys.path if "bootstrap" in p]
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with context.Pool(2) as pool:
        print("result", pool.map(work, range(4), 2))
    queue = context.Queue()
    process = context.Process(target=queue.put, args=("through",))
    process.start(); print(queue.get(timeout=30)); process.join(); sys.exit(process.exitcode)
""")
    command = [sys.executable, "script.py"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # it tears lines apart
    plain = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=60, check=True).stdout.decode()
    text = output(command, cwd=str(folder), env=env)
    assert set(text.splitlines()) == set(plain.splitlines())  # one worker may do all of it, or both a part
    log = agent_log()
    assert log[0] == "start main=True torch=False"
    # Without exec the main process's own watch is inherited; with it, each worker starts an agent of its own.
    workers = {"start main=False torch=True"} if method != "fork" else {"torch imported torch=True"}
    assert set(log[1:]) == workers and 1 <= len(log[1:]) <= 2


def test_forkserver_that_preloads_the_framework(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path
) -> None:
    """No agent in the server, whose threads would not survive the fork: one in each process forked from it."""
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "script.py").write_text("""
import multiprocessing, os
def work(): print("work", flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    for _ in range(2):
        process = context.Process(target=work); process.start(); process.join()
""")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    text = output([sys.executable, "script.py"], cwd=str(folder), env=env)
    assert text.count("work") == 2 and text.count("fake torch") == 1
    assert agent_log() == ["start main=True torch=False"] + ["start main=False torch=True"] * 2


def test_compile_workers_are_left_alone(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path
) -> None:
    worker = folder / "torch" / "_inductor" / "compile_worker"
    worker.mkdir(parents=True)
    for each in (worker, worker.parent, worker.parent.parent):
        (each / "__init__.py").write_text("")
    (worker / "__main__.py").write_text("print('worker')")
    by_name = [sys.executable, "-m", "torch._inductor.compile_worker"]
    by_path = [sys.executable, str(worker / "__main__.py")]
    code = f"import subprocess; subprocess.run({by_name!r}, check=True); subprocess.run({by_path!r}, check=True)"
    env = {**os.environ, "PYTHONPATH": str(folder)}
    assert output([sys.executable, "-c", code], cwd=str(folder), env=env) == "worker\nworker\n"
    assert agent_log() == ["start main=True torch=False"]


def test_own_modules_win(output: Callable[..., str], folder: Path) -> None:
    """A script whose folder has files named like adbg's own, and like modules that the agent imported before the
    script.
    """
    names = ("engine", "agent", "launch", "keeper", "wire", "session", "bootstrap", "sitecustomize", "profiles")
    standard = ("queue", "secrets", "tempfile", "dataclasses", "json")
    for name in (*names, *standard):
        (folder / f"{name}.py").write_text(f"mine = {name!r}")
    for name in ("tui", "adbg"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"mine = {name!r}")
    modules = (*names, *standard, "tui", "adbg")
    (folder / "script.py").write_text(
        f"import {', '.join(modules)}\nprint(*(m.mine for m in ({', '.join(modules)})))\nimport secrets, threading"
    )
    assert output([sys.executable, "script.py"], cwd=str(folder)).split() == list(modules)
    for name in standard:  # a child's agent starts when these are in front already; it says so if it cannot
        (folder / f"{name}.py").unlink()
    (folder / "child.py").write_text("import adbg, torch; print(adbg.mine)")
    (folder / "torch.py").write_text("")
    code = "import subprocess, sys; subprocess.run([sys.executable, 'child.py'], check=True)"
    (folder / "parent.py").write_text(code)
    assert output([sys.executable, "parent.py"], cwd=str(folder)) == "adbg\n"


def test_adbg_is_there_without_being_installed(output: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    """The program's Python has no adbg in its site-packages: ``import adbg`` works in it and in its children."""
    venv = tmp_path / "venv"
    base = Path(sys.base_prefix, "bin", "python3")
    subprocess.run([base, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    python = str(venv / "bin" / "python")
    assert subprocess.run([python, "-c", "import adbg"], cwd="/", capture_output=True, timeout=60).returncode == 1
    child = "import adbg; print(adbg.__version__, flush=True)"
    code = f"{child}; import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert output([python, "-c", code], cwd="/").split() == [adbg.__version__] * 2


def test_hidden_sitecustomize_still_runs(output: Callable[..., str], folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys; sys.marker = __file__; value = 5")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    code = "import sys, sitecustomize; print(sys.marker, sitecustomize.value, sitecustomize.__spec__.origin)"
    expected = f"{folder / 'sitecustomize.py'} 5 {folder / 'sitecustomize.py'}\n"
    assert output([sys.executable, "-c", code], env=env) == expected


def test_failing_hidden_sitecustomize_fails_as_without(output: Callable[..., str], folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("raise ValueError('broken site')")
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "print('on')"]
    plain = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert output(command, env=env) == plain.stderr + plain.stdout


def test_agent_that_fails_costs_one_line(output: Callable[..., str]) -> None:
    env = {**os.environ, "STUB_AGENT_FAILS": "1"}
    text = output([sys.executable, "-c", "print('runs on')"], env=env)
    assert text == "adbg: the script runs undebugged: RuntimeError: no debugger here\nruns on\n"


def test_children_after_the_session_is_gone(output: Callable[..., str], tmp_path: Path, folder: Path) -> None:
    (folder / "torch.py").write_text("print('torch')")
    gone = str(tmp_path / "session")
    child = [sys.executable, "-c", "import torch; import adbg; print('fine')"]
    code = f"import shutil, subprocess; shutil.rmtree({gone!r}); print(subprocess.run({child!r}).returncode)"
    assert output([sys.executable, "-c", code], cwd=str(folder)).split() == ["torch", "fine", "0"]


def test_venv_and_pip_are_not_disturbed(output: Callable[..., str], folder: Path) -> None:
    made = output([sys.executable, "-m", "venv", "--without-pip", "fresh"], cwd=str(folder))
    assert made == "" and (folder / "fresh" / "bin" / "python").exists()
    versions = f"import subprocess; subprocess.run([{sys.executable!r}, '-m', 'pip', '--version'], check=True)"
    assert output([sys.executable, "-c", versions]).startswith("pip ")


def test_a_shell_as_the_command(output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path) -> None:
    """Behind ``--``: no process is the main one; the Python child that imports the framework gets the agent."""
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "train.py").write_text("import torch; print('trained')")
    line = f"{sys.executable} -c 'print(1)' && ROLE=worker {sys.executable} train.py"
    assert output(["sh", "-c", line], cwd=str(folder)) == "1\nfake torch in worker\ntrained\n"
    assert agent_log() == ["start main=False torch=True"]


def interpreters() -> dict[str, str]:
    """Other CPythons of this machine that work, by version "3.x"."""
    found = {}
    installed = sorted(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv").glob("versions/3.*/bin/python"))
    for minor in range(7, 16):
        own = [str(path) for path in installed if path.parts[-3].startswith(f"3.{minor}.")]
        for path in [*own, shutil.which(f"python3.{minor}") or ""]:
            code = f"import sys; sys.exit(sys.version_info[:2] != (3, {minor}))"
            if (
                path
                and subprocess.run([path, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0
            ):
                found.setdefault(f"3.{minor}", path)
    return found


INTERPRETERS = interpreters()
OLD = [version for version in INTERPRETERS if int(version[2:]) < 10]
NEW = [version for version in INTERPRETERS if int(version[2:]) >= 10]


@pytest.mark.skipif(not OLD, reason="no Python older than 3.10 here")
@pytest.mark.parametrize("version", OLD)
def test_old_python_says_so_and_runs(output: Callable[..., str], version: str) -> None:
    python = INTERPRETERS[version]
    child = f"import subprocess, sys; sys.exit(subprocess.run([{python!r}, '-c', 'print(1)']).returncode)"
    first, *rest = output([python, "-c", child]).splitlines()
    assert first.startswith(f"adbg: this Python is {version}.") and "the script runs undebugged" in first
    assert rest == ["1"], "a child says nothing"


@pytest.mark.skipif(not NEW, reason="no other Python from 3.10 on here")
@pytest.mark.parametrize("version", NEW)
def test_other_pythons(
    output: Callable[..., str], agent_log: Callable[[], list[str]], folder: Path, version: str
) -> None:
    """They have no adbg installed; spawned children, the framework's import and ``import adbg`` work as in this one."""
    (folder / "torch.py").write_text(FAKE_TORCH)
    (folder / "secrets.py").write_text("mine = 'secret'")
    (folder / "script.py").write_text("""
import multiprocessing, secrets, sys
def work(n):
    import adbg, torch
    return n, adbg.__version__
if __name__ == "__main__":
    assert "sitecustomize" not in sys.modules
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(secrets.mine, pool.map(work, [1]))
    import torch
""")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    text = output([INTERPRETERS[version], "script.py"], cwd=str(folder), env=env)
    assert text == f"fake torch in main\nsecret [(1, {adbg.__version__!r})]\nfake torch in main\n"
    expected = ["start main=True torch=False", "start main=False torch=True", "torch imported torch=True"]
    assert agent_log() == expected


def test_silence_is_explained() -> None:
    python = sys.executable
    assert "-I keeps adbg out" in str(explain_silence([python, "-I", "x.py"]))
    assert "-E -S keeps adbg out" in str(explain_silence([python, "-ESu", "x.py"]))
    assert "debug without -E" in str(explain_silence(["python3.12", "-W", "ignore", "-E", "-m", "x"]))
    assert "older than" in str(explain_silence([python, "x.py", "-I"]))
    assert "is not a Python interpreter" in str(explain_silence(["bash", "-c", "true"]))


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_keep_adbg_out(output: Callable[..., str], agent_log: Callable[[], list[str]], flag: str) -> None:
    """What ``explain_silence`` says is so."""
    assert output([sys.executable, flag, "-c", "print('runs')"]) == "runs\n"
    assert agent_log() == []


def test_frameworks_are_those_of_the_registry() -> None:
    assert set(sitecustomize.FRAMEWORKS) == set(REGISTRY)


def test_a_child_costs_no_module(output: Callable[..., str]) -> None:
    """Until a framework comes in, a Python child has loaded nothing more than plain Python has."""
    child = [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"]
    plain = subprocess.run(child, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    code = f"import subprocess; subprocess.run({child!r}, check=True)"
    extra = set(output([sys.executable, "-c", code]).split()) - set(plain)
    assert extra <= {"sitecustomize", "importlib.util", "importlib", "importlib._abc", "contextlib"} | set(plain), extra
