"""Find or make the Python environment that the Makefile works in, and install adbg into it. Standard library only.

    python3 .ci/environment.py [--framework torch|paddle] [--extras dev] [--wanted profilers]

The environment of torch is, in this order: ``$VENV``; the active one (``$VIRTUAL_ENV``), if it has torch; ``.venv`` of
this repository, made when it is missing (over the packages of ``$PYTHON``, if that one has torch). That of paddle is
found in the same way, with ``$VENV_PADDLE`` and ``.venv-paddle``. A framework found there is
used as it is: never installed over, never upgraded. Everything else is pinned by ``constraints.txt``. What was
installed is noted in a stamp file, so that a second call costs nothing until ``pyproject.toml`` or ``constraints.txt``
change. The last line printed is the environment's Python.

Kept readable by Python 3.6, so that an old one gets a sentence and not a syntax error.
"""

import argparse
import hashlib
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST_PYTHON = (3, 10)

# name: (distribution, oldest version, what its own pins decide in constraints.txt, its folder, the variable that
# names another one)
FRAMEWORKS = {
    "torch": (
        "torch",
        (2, 4),
        ("torch", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "sympy", "numpy"),
        ".venv",
        "VENV",
    ),
    "paddle": (
        "paddlepaddle",
        (3, 3),
        ("paddlepaddle", "protobuf", "opt_einsum", "safetensors", "httpx", "numpy", "pillow"),
        ".venv-paddle",
        "VENV_PADDLE",
    ),
}
PROBE = (
    "import sys\n"
    "def v(n):\n"
    "    try:\n"
    "        import importlib.metadata as m\n"
    "        return m.version(n)\n"
    "    except ImportError: return '-'\n"  # PackageNotFoundError is one
    "print('%d.%d' % sys.version_info[:2], v(sys.argv[1]), v('numpy'))"
)


class Failed(Exception):
    """What happened, why, and what to do next."""


def say(text):
    print("adbg: " + text, file=sys.stderr, flush=True)


def probe(python, framework):
    """(version tuple, the framework's version or None, numpy version or None) of an interpreter."""
    try:
        answer = subprocess.check_output([python, "-c", PROBE, FRAMEWORKS[framework][0]]).decode()
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"{python} does not run ({error}): set PYTHON=/path/to/python3 and try again") from None
    version, found, numpy = answer.split()
    return numbers(version), None if found == "-" else found, None if numpy == "-" else numpy


def numbers(version):
    """The first two numbers of a version text."""
    return tuple(int(part) for part in version.split(".")[:2])


def environment_python(folder):
    return os.path.join(folder, "bin", "python")


def check_version(version, python):
    if version < OLDEST_PYTHON:
        found, wanted = (".".join(map(str, pair)) for pair in (version, OLDEST_PYTHON))
        raise Failed(
            f"{python} is Python {found}, adbg needs {wanted} or newer: install one and say PYTHON=/path/to/python3"
        )


def make_environment(folder, base, framework):
    version, found, _ = probe(base, framework)
    check_version(version, base)
    say(f"making {os.path.relpath(folder, ROOT)} with {base} (Python {version[0]}.{version[1]})")
    arguments = [base, "-m", "venv", folder]
    if found:
        say(f"{base} has {framework} {found}: used as it is")
        arguments.insert(3, "--system-site-packages")
    if subprocess.run(arguments, stdout=sys.stderr).returncode != 0:
        raise Failed(
            f"{base} could not make a virtual environment in {folder}: install its venv module"
            " (Debian: apt-get install python3-venv), or say PYTHON=/path/to/another/python3"
        )


def choose_environment(framework):
    """The folder of the environment to work in; made when it is missing."""
    base = os.environ.get("PYTHON") or "python3"
    name, variable = FRAMEWORKS[framework][3:]
    chosen = os.environ.get(variable)
    if chosen:
        folder = os.path.abspath(chosen)
    else:
        active = os.environ.get("VIRTUAL_ENV")
        if active and os.path.exists(environment_python(active)) and probe(environment_python(active), framework)[1]:
            return active
        folder = os.path.join(ROOT, name)
    if not os.path.exists(environment_python(folder)):
        make_environment(folder, base, framework)
    return folder


def write_constraints(folder, framework, found, numpy):
    """``constraints.txt`` without the lines that an installed framework decides."""
    distribution, _, decided, _, _ = FRAMEWORKS[framework]
    kept = []
    with open(os.path.join(ROOT, "constraints.txt")) as lines:
        for line in lines:
            name = line.split("==")[0].strip()
            if found and name in decided:
                continue
            kept.append(line)
    if found:
        kept.append(f"{distribution}=={found}\n")
        if numpy:
            kept.append(f"numpy=={numpy}\n")
    path = os.path.join(folder, "adbg-constraints.txt")
    with open(path, "w") as file:
        file.writelines(kept)
    return path


def fingerprint(found):
    """Of all that decides what an installation puts in, but for the extras."""
    digest = hashlib.sha256(repr(found).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def installed(folder, extras, found):
    """Whether a stamp says that these extras, or more, are there and still as they should be."""
    for name in os.listdir(folder):
        if name.startswith("adbg-") and name.endswith(".stamp") and set(extras) <= set(name[5:-6].split("-")):
            with open(os.path.join(folder, name)) as file:
                if file.read() == fingerprint(found):
                    return True
    return False


def install(folder, framework, extras):
    python = environment_python(folder)
    version, found, numpy = probe(python, framework)
    check_version(version, python)
    oldest, variable = FRAMEWORKS[framework][1], FRAMEWORKS[framework][4]
    if found and numbers(found) < oldest:
        wanted = ".".join(map(str, oldest))
        raise Failed(
            f"{folder} has {framework} {found}, adbg needs {wanted} or newer and upgrades none by itself:"
            f" say {variable}=/path/to/another/environment"
        )
    if found and installed(folder, extras, found):
        return python
    beside = f"beside {framework} {found}" if found else f"with {framework} (large: this may take minutes)"
    say(f"installing adbg[{','.join(extras)}] into {folder}, {beside}")
    constraints = write_constraints(folder, framework, found, numpy)
    target = f"{ROOT}[{','.join(extras)}]"
    command = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints, "--editable", target]
    # setuptools warns of every editable installation; the Makefile builds the extension where it is wanted
    quiet = dict(os.environ, PYTHONWARNINGS="ignore", ADBG_BUILD_NATIVE="0")
    if subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env=quiet).returncode != 0:
        raise Failed(
            "pip could not install adbg (its reason is above): check the network and pip's index settings,"
            " then run make again"
        )
    stamp(folder, framework, extras)
    return python


def stamp(folder, framework, extras):
    with open(os.path.join(folder, "adbg-" + "-".join(sorted(extras)) + ".stamp"), "w") as file:
        file.write(fingerprint(probe(environment_python(folder), framework)[1]))


def want(folder, framework, wanted):
    """Extras without which adbg works: what cannot be installed (yep needs a system library) is told, once."""
    python = environment_python(folder)
    _, found, numpy = probe(python, framework)
    for extra in wanted:
        if installed(folder, [extra], found):
            continue
        constraints = write_constraints(folder, framework, found, numpy)
        command = [python, "-m", "pip", "install", "--quiet", "--constraint", constraints]
        command += ["--editable", f"{ROOT}[{extra}]"]
        quiet = dict(os.environ, PYTHONWARNINGS="ignore", ADBG_BUILD_NATIVE="0")
        if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=quiet).returncode != 0:
            say(f"adbg[{extra}] cannot be installed: its tests are skipped (apt-get install libgoogle-perftools-dev?)")
        stamp(folder, framework, [extra])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=sorted(FRAMEWORKS), help="default: torch")
    parser.add_argument("--extras", default="", help="comma separated, beside the framework itself")
    parser.add_argument("--wanted", default="", help="extras that may be missing, comma separated")
    options = parser.parse_args()
    try:
        if sys.version_info[:2] < OLDEST_PYTHON and not os.environ.get("PYTHON"):
            check_version(sys.version_info[:2], sys.executable)
        extras = [options.framework, *filter(None, options.extras.split(","))]
        folder = choose_environment(options.framework)
        python = install(folder, options.framework, list(dict.fromkeys(extras)))
        want(folder, options.framework, [extra for extra in options.wanted.split(",") if extra])
        print(python)
    except Failed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
