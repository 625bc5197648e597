"""The command line of a program, and what is wrong with it before it starts.

Runs in the front end; nothing is imported or run here."""

from __future__ import annotations

import difflib
import importlib.machinery
import os
import pkgutil
import re
import shlex
import shutil
import sys
import warnings
import zipfile
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Literal

from adbg.engine.errors import AdbgError, CommandError

Kind = Literal["script", "module", "code", "command"]
_INTERPRETER = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?d?(-dbg)?$")
_TOOL_FOLDERS = ("/pipx/venvs/", "/uv/tools/")  # where pipx and uv give a tool an environment of its own


def python_command(kind: Kind, target: str, args: Sequence[str] = (), python: str = "") -> list[str]:
    """The argv that runs the program.

    Args:
        kind: "script" (a file, or what ``python FILE`` takes: a folder or zip with ``__main__.py``), "module" (-m),
            "code" (-c), or "command" (any program, taken as it is).
        target: path, module name, code, or the program.
        args: the program's own arguments.
        python: the interpreter; "" for ``program_python()``.

    Raises:
        CommandError: the target cannot run; the message says why and what to do.
    """
    if kind == "command":
        return [target, *args]
    interpreter = python or program_python()
    if kind == "code":
        return [interpreter, "-c", target, *args]
    same = os.path.realpath(interpreter) == os.path.realpath(sys.executable)
    if kind == "module":
        if same:  # another interpreter finds other modules, and says so itself
            check_module(target)
        return [interpreter, "-m", target, *args]
    check_script(Path(target), compile_it=same)
    return [interpreter, target, *args]


def program_python() -> str:
    """The interpreter for the program: adbg's own, unless adbg lives in a tool environment (pipx, uv tool), where no
    framework is.
    """
    if any(folder in sys.prefix for folder in _TOOL_FOLDERS):
        active = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
        inside = Path(active, "bin", "python") if active else None
        found = str(inside) if inside and inside.exists() else shutil.which("python3") or shutil.which("python")
        if found:
            return found
    return sys.executable


def is_interpreter(program: str) -> bool:
    """Whether ``program`` (argv[0]) is a Python interpreter, by its name."""
    return program == sys.executable or bool(_INTERPRETER.match(os.path.basename(program)))


def explain_silence(command: Sequence[str]) -> AdbgError:
    """Why the agent of a program that was started never connected."""
    words = list(command)
    if not is_interpreter(words[0]):
        return AdbgError(
            f"{words[0]} is not a Python interpreter: adbg waits until one of its Python children imports a framework",
            "children started with a cleaned environment (env -i, sudo, ssh, a container) cannot be followed",
        )
    flags, _ = _split(words)
    closed = [f"-{flag}" for flag in "IES" if flag in flags]
    if closed:
        return AdbgError(
            f"{' '.join(closed)} keeps adbg out: it makes Python ignore PYTHONPATH or skip site",
            f"debug without {' and '.join(closed)}",
        )
    return AdbgError(
        f"no agent came up in {words[0]}: it is older than Python 3.10, or its start-up is customised",
        "the program needs Python 3.10 or newer; its stderr may say more",
    )


def without_interpreter(words: Sequence[str]) -> list[str]:
    """A command line without the interpreter and its options: ["train.py", ...], ["-m", "pkg.train", ...]."""
    return _split(words)[1] if words and is_interpreter(words[0]) else list(words)


def _split(words: Sequence[str]) -> tuple[set[str], list[str]]:
    """The one-letter options of the interpreter in ``words[0]``, and the words of the program.

    ``python -uE -W ignore x.py -I``: ({"u", "E"}, ["x.py", "-I"]).
    """
    flags: set[str] = set()
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in "cm":  # the program follows
                return flags, [f"-{letter}", *([word[place:]] if word[place:] else []), *rest]
            if letter in "WX":  # takes the rest of the word, or the next one
                del rest[: 1 if place == len(word) else 0]
                break
            flags.add(letter)
    return flags, rest


# ------------------------------------------------------------------ scripts


def check_script(path: Path, compile_it: bool = True) -> None:
    """Raises CommandError when ``python path`` could not run it."""
    try:
        if path.is_dir():
            _check_folder(path)
            return
        if path.exists() and not path.is_file():
            return  # a pipe, <(generate): reading it here would take it from the program
        data = path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    if data[:4] == MAGIC_NUMBER or (data[:2] in (b"PK", b"#!") and zipfile.is_zipfile(path)):
        return  # compiled, or an archive with __main__.py: left to Python
    _check_kind(path, data)
    if compile_it:
        _check_syntax(path, data)


def _missing(path: Path) -> CommandError:
    folder = path.parent
    if not folder.is_dir():
        return CommandError(f"no such script: {path}", f"folder {folder} does not exist")
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".py" or entry.is_dir())
    if not path.suffix and shutil.which(str(path)):
        return CommandError(f"no such script: {path}", f"put a command after --: adbg run -- {path}")
    close = difflib.get_close_matches(path.name, scripts, n=3, cutoff=0.6)
    close = close or difflib.get_close_matches(path.name + ".py", scripts, n=3, cutoff=0.6)
    if close:
        return CommandError(
            f"no such script: {path}", "did you mean " + " or ".join(str(folder / c) for c in close) + "?"
        )
    place = "this folder" if str(folder) == "." else str(folder)
    here = [name for name in scripts if name.endswith(".py")][:5]
    return CommandError(f"no such script: {path}", f"{place} has {', '.join(here)}" if here else f"{place} has no *.py")


def _check_folder(path: Path) -> None:
    if (path / "__main__.py").exists():
        return
    scripts = sorted(entry.name for entry in path.glob("*.py"))[:5]
    if (path / "__init__.py").exists():
        hint = f"it is a package without __main__.py; run one of its modules: adbg run -m {path.name}.{_stem(scripts)}"
    else:
        hint = f"name a script in it: {', '.join(scripts)}" if scripts else "it has no *.py"
    raise CommandError(f"{path} is a folder, not a script", hint)


def _stem(scripts: Sequence[str]) -> str:
    modules = [Path(name).stem for name in scripts if name != "__init__.py"]
    return modules[0] if modules else "MODULE"


def _check_kind(path: Path, data: bytes) -> None:
    first = data[:200].splitlines()[0] if data[:200].splitlines() else b""
    shebang = first[2:].decode(errors="replace").strip() if first.startswith(b"#!") else ""
    behind = f"put a command after --: adbg run -- {shlex.quote(str(path))}"
    if data[:4] == b"\x7fELF" or data[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        raise CommandError(f"{path} is a compiled program, not a Python script", behind)
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise CommandError(f"{path} is a binary file, not a Python script")
    if path.suffix == ".ipynb":
        raise CommandError(
            f"{path} is a notebook", f"jupyter nbconvert --to script {shlex.quote(str(path))}, and run that"
        )
    if path.suffix in (".sh", ".bash", ".zsh") or (shebang and path.suffix != ".py" and "py" not in shebang):
        shell = shebang or "bash"
        raise CommandError(
            f"{path} is a script for {shell}, not for Python", f"adbg run -- {shell} {shlex.quote(str(path))}"
        )


def _check_syntax(path: Path, data: bytes) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the program's own run shows them
            compile(data, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CommandError(_syntax_text(path, error)) from None
    except ValueError as error:
        raise CommandError(f"{path} is not Python source: {error}") from None
    except (MemoryError, RecursionError, OverflowError):
        return  # beyond this parser here: let the program's own interpreter judge


def _syntax_text(path: Path, error: SyntaxError) -> str:
    """One line, then the source line and a caret, as Python prints them."""
    where = f"{path}:{error.lineno}" if error.lineno else str(path)
    text = f"syntax error in {where}: {error.msg}"
    if not error.text:
        return text
    line = error.text.rstrip()
    source = line.lstrip()
    start = max((error.offset or 1) - 1 - (len(line) - len(source)), 0)
    same_line = error.end_lineno == error.lineno and error.end_offset
    width = max((error.end_offset or 0) - (error.offset or 0), 1) if same_line else 1
    return f"{text}\n    {source}\n    {' ' * start}{'^' * min(width, max(len(source) - start, 1))}"


# ------------------------------------------------------------------ modules


def check_module(name: str) -> None:
    """Raises CommandError when ``python -m name`` could not find it. Looks for files, imports nothing."""
    if name.endswith(".py") or os.sep in name:
        dotted = name.removesuffix(".py").replace(os.sep, ".")
        raise CommandError(f"-m takes a module name, not a path: {name}", f"adbg run {name}, or adbg run -m {dotted}")
    spec = None
    folders: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        part = ".".join(parts[:depth])
        spec = _find(part, folders)
        if spec is None:
            raise _no_module(name, part, folders)
        if depth < len(parts):
            if spec.submodule_search_locations is None:
                raise CommandError(f"no module named {name}: {part} is a module, not a package")
            folders = list(spec.submodule_search_locations)
    if spec is None or spec.submodule_search_locations is None:
        return
    if _find(f"{name}.__main__", list(spec.submodule_search_locations)) is None:
        raise CommandError(
            f"{name} is a package without __main__.py: it cannot run by itself", _module_hint(name, spec)
        )


def _module_hint(name: str, spec: importlib.machinery.ModuleSpec) -> str:
    inside = sorted(found.name for found in pkgutil.iter_modules(list(spec.submodule_search_locations or ())))[:5]
    return "run one of its modules: " + ", ".join(f"-m {name}.{m}" for m in inside) if inside else ""


def _find(name: str, folders: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    if folders is not None:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    spec = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    if spec is not None and spec.loader is not None:
        return spec
    for finder in sys.meta_path:
        found: importlib.machinery.ModuleSpec | None = (
            finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        )
        if found is not None:
            return found
    return spec  # a plain folder here


def _no_module(name: str, part: str, folders: Sequence[str] | None) -> CommandError:
    parent = part.rpartition(".")[0]
    search = [os.getcwd(), *sys.path] if folders is None else list(folders)
    known = {found.name for found in pkgutil.iter_modules(search)}
    close = difflib.get_close_matches(part.rpartition(".")[2], sorted(known), n=3, cutoff=0.7)
    names = [f"{parent}.{c}" if parent else c for c in close]
    hint = (
        "did you mean " + " or ".join(f"-m {n}" for n in names) + "?"
        if names
        else "check that it is installed in this environment"
    )
    return CommandError(f"no module named {part}" + (f" (asked for {name})" if part != name else ""), hint)
