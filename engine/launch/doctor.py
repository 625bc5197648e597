"""``adbg doctor``: what was found of Python, frameworks, terminal and folders. Runs in the front end.

``collect`` looks, ``render`` and ``to_json`` write. Frameworks are imported only in a child process of the interpreter
that would run the program, with a time limit: a broken framework costs one line here.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from adbg.engine.backends import REGISTRY
from adbg.engine.backends.base import DoctorLine
from adbg.engine.errors import AdbgError
from adbg.engine.launch.command_line import program_python
from adbg.engine.launch.launch import BOOTSTRAP, ENGINE, OLDEST_PYTHON, install_command, package_folder
from adbg.engine.names import FRAMEWORKS
from adbg.engine.native.load import VARIABLE as NATIVE
from adbg.engine.protocol.rendezvous import private_dir
from adbg.engine.record.runs import runs_root

TIMEOUT = 120.0  # seconds for one framework; a cold import of torch from a network disk takes tens of seconds
_MARK = "\x1eadbg-doctor "  # before the answer: a framework may print anything while it is imported
_PROBE = """
import importlib.util, sys
site, package, engine, name = sys.argv[1:]
spec = importlib.util.spec_from_file_location("adbg_bootstrap", site)
bootstrap = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bootstrap)
bootstrap.load_adbg(package, engine)
from adbg.engine.launch import doctor
doctor.report(name)
"""
_NO_ENTRY = (
    ("python -I, -E or -S", "make Python ignore PYTHONPATH or skip site: adbg cannot get in"),
    ("sudo, ssh, containers", "clear the environment, which keeps adbg out: run adbg inside"),
)


@dataclass(frozen=True, slots=True)
class Section:
    """One heading and its lines."""

    title: str
    lines: tuple[DoctorLine, ...]


def collect(python: str = "", timeout: float = TIMEOUT) -> list[Section]:
    """Look at everything. ``python`` is the interpreter that would run the program ("": as ``adbg run`` chooses)."""
    interpreter = python or program_python()
    sections = [Section("adbg", tuple(_adbg_lines(interpreter)))]
    for name in dict.fromkeys((*REGISTRY, *FRAMEWORKS)):
        lines = _framework_lines(name, interpreter, timeout)
        if lines:
            sections.append(Section(name, tuple(lines)))
    sections.append(Section("profilers", tuple(_profiler_lines())))
    sections.append(Section("terminal", tuple(_terminal_lines())))
    sections.append(Section("system", tuple(_system_lines())))
    return sections


def healthy(sections: Sequence[Section]) -> bool:
    """Whether a program can be debugged here: some framework works, and so do sockets and terminals."""
    frameworks = [s for s in sections if s.title in REGISTRY]
    works = any(s.lines and s.lines[0].status == "ok" for s in frameworks)
    return works and not any(line.status == "missing" for s in sections if s.title == "system" for line in s.lines)


def render(sections: Sequence[Section]) -> str:
    """Text: a heading per section, one line per fact, marked ok, off, missing or limit."""
    width = max((len(line.what) for section in sections for line in section.lines), default=0)
    width = min(width, 34)
    text = []
    for section in sections:
        text.append(section.title)
        text += [f"  {line.status:<8} {line.what:<{width}}  {line.detail}".rstrip() for line in section.lines]
    return "\n".join(text) + "\n"


def to_json(sections: Sequence[Section]) -> str:
    """[{"title": ..., "lines": [{"status": ..., "what": ..., "detail": ...}]}], one object per section."""
    return json.dumps([dataclasses.asdict(section) for section in sections], indent=2)


# ------------------------------------------------------------------ adbg and Python


def _adbg_lines(interpreter: str) -> list[DoctorLine]:
    import adbg

    python = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    lines = [DoctorLine("ok", f"adbg {adbg.__version__}", package_folder()), DoctorLine("ok", "its Python", python)]
    if os.path.realpath(interpreter) != os.path.realpath(sys.executable):
        lines.append(_program_python(interpreter))
    for name in ("textual", "prompt_toolkit", "pygments", "networkx", "psutil"):
        try:
            lines.append(DoctorLine("ok", name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            lines.append(DoctorLine("missing", name, install_command()))
    return lines


def _program_python(interpreter: str) -> DoctorLine:
    code = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
    try:
        answer = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return DoctorLine("missing", "the program's Python", f"{interpreter}: {error}")
    version = answer.stdout.strip()
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        return DoctorLine("missing", "the program's Python", f"{version}, {interpreter}: adbg needs 3.10 or newer")
    return DoctorLine("ok", "the program's Python", f"{version}, {interpreter}")


# ------------------------------------------------------------------ frameworks


def _framework_lines(name: str, interpreter: str, timeout: float) -> list[DoctorLine]:
    site = str(BOOTSTRAP / "sitecustomize.py")
    command = [interpreter, "-c", _PROBE, site, package_folder(), str(ENGINE), name]
    env = {key: value for key, value in os.environ.items() if not key.startswith("ADBG_") or key == NATIVE}
    begin = time.monotonic()
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, cwd="/", env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return [DoctorLine("missing", name, f"`import {name}` did not finish within {timeout:.0f} s")]
    except OSError as error:
        return [DoctorLine("missing", name, f"{interpreter}: {error.strerror}")]
    seconds = time.monotonic() - begin
    marked = answer.stdout.rpartition(_MARK)
    if not marked[1]:
        last = answer.stderr.strip().splitlines()[-1:] or [f"its process ended with status {answer.returncode}"]
        return [DoctorLine("missing", name, f"`import {name}` killed its process: {last[0]}")]
    lines = [DoctorLine(**line) for line in json.loads(marked[2])]
    if lines and lines[0].status == "ok":
        lines.insert(1, DoctorLine("ok", "import", f"{seconds:.1f} s in a fresh process"))
    return lines


def report(name: str) -> None:
    """In the probe's process: print the lines about framework ``name``."""
    lines = _report_lines(name)
    print(_MARK + json.dumps([dataclasses.asdict(line) for line in lines]), flush=True)


def _report_lines(name: str) -> list[DoctorLine]:
    known = name in REGISTRY
    if importlib.util.find_spec(name) is None:
        return [DoctorLine("missing", name, f"not installed; {_how_to_install(name)}")] if known else []
    if not known:
        return [DoctorLine("limit", name, "installed, but this version of adbg has no backend for it")]
    try:
        module = importlib.import_module(name)
        backend = REGISTRY[name]()
        lines = list(backend.doctor())
    except Exception as error:
        return [DoctorLine("missing", name, f"installed, but broken: {type(error).__name__}: {error}")]
    version = backend.version or str(getattr(module, "__version__", "?"))
    place = os.path.dirname(getattr(module, "__file__", "") or "")
    if not (lines and lines[0].what == name):
        lines.insert(0, DoctorLine("ok", name, f"{version} in {place}"))
    able = [f for f in backend.capabilities.__dataclass_fields__ if getattr(backend.capabilities, f)]
    lines.insert(1, DoctorLine("ok", "can", ", ".join(f.replace("_", " ") for f in able)))
    return lines


def _how_to_install(name: str) -> str:
    """By the extra of that name where adbg has one: it pins the version that is tested."""
    try:
        extras = importlib.metadata.metadata("adbg").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        extras = [*FRAMEWORKS]
    return f"pip install 'adbg[{name}]'" if name in extras else f"install {name} as its own pages say"


def _profiler_lines() -> list[DoctorLine]:
    """Those in this Python; the frameworks' own come with them."""
    from adbg.profiles import registry

    lines = []
    for name in registry.REGISTRY:
        profiler = registry.make(name)
        can = profiler.available()
        detail = profiler.what if can.ok else f"{can.why}; {can.hint}"
        lines.append(DoctorLine("ok" if can.ok else "off", name, detail))
    return lines


# ------------------------------------------------------------------ terminal and system


def _terminal_lines() -> list[DoctorLine]:
    term = os.environ.get("TERM", "")
    lines = []
    if sys.stdin.isatty() and sys.stdout.isatty():
        size = shutil.get_terminal_size()
        roomy = size.columns >= 80 and size.lines >= 24
        detail = f"{size.columns}x{size.lines}" + ("" if roomy else "; the screen needs 80x24 or more")
        lines.append(DoctorLine("ok" if roomy else "limit", "size", detail))
    else:
        lines.append(DoctorLine("limit", "no terminal", "the screen needs one; --batch and --repl do not"))
    status = "limit" if term in ("", "dumb", "unknown") else "ok"
    lines.append(DoctorLine(status, "TERM", term or "not set"))
    lines.append(_colours(term))
    encoding = locale.getpreferredencoding(False)
    fits = encoding.lower().replace("-", "") == "utf8"
    detail = encoding if fits else f"{encoding}: lanes and histograms need UTF-8, set LC_ALL=C.UTF-8"
    lines.append(DoctorLine("ok" if fits else "limit", "encoding", detail))
    return lines


def _colours(term: str) -> DoctorLine:
    if os.environ.get("NO_COLOR"):
        return DoctorLine("off", "colours", "NO_COLOR is set")
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct"):
        return DoctorLine("ok", "colours", "16 million")
    if "256color" in term:
        return DoctorLine("ok", "colours", "256 (COLORTERM=truecolor, if the terminal can do more)")
    return DoctorLine("limit", "colours", "16 at most, as TERM says")


def _system_lines() -> list[DoctorLine]:
    lines = [
        _tried("socket folder", _try_socket_folder),
        _tried("pseudo-terminals", _try_terminal),
        _tried("recorded runs", _try_runs),
    ]
    lines += [DoctorLine("limit", what, detail) for what, detail in _NO_ENTRY]
    lines.append(DoctorLine("ok", "gdb, perf, root rights", "not needed"))
    return lines


def _tried(what: str, attempt: Callable[[], str]) -> DoctorLine:
    try:
        return DoctorLine("ok", what, attempt())
    except AdbgError as error:
        return DoctorLine("missing", what, str(error))
    except OSError as error:
        status = "limit" if attempt is _try_runs else "missing"
        after = "; debugging works without a record" if status == "limit" else ""
        return DoctorLine(status, what, f"{error.filename or ''} {error.strerror}".strip() + after)


def _try_socket_folder() -> str:
    folder = private_dir()
    try:
        mode = folder.stat().st_mode & 0o777
        if mode != 0o700:
            raise AdbgError(f"{folder} was made with mode {mode:o}, not 700", "set TMPDIR to a local disk")
        return f"{folder.parent} (private folders, mode 700; no TCP port is opened)"
    finally:
        folder.rmdir()


def _try_terminal() -> str:
    master, slave = os.openpty()
    try:
        return f"{os.ttyname(slave)} works"
    finally:
        os.close(master)
        os.close(slave)


def _try_runs() -> str:
    root = runs_root()
    place = root
    while not place.exists():
        place = place.parent
    with tempfile.TemporaryFile(dir=place):
        pass
    free = shutil.disk_usage(place).free / (1 << 30)
    count = sum(1 for _ in root.iterdir()) if root.is_dir() else 0
    return f"{root}: {count} runs, {free:.1f} GiB free"


def main(arguments: Sequence[str]) -> int:
    """``adbg doctor [--json]``: 0 when a program can be debugged here, else 1."""
    sections = collect()
    print(to_json(sections) if "--json" in arguments else render(sections), end="")
    return 0 if healthy(sections) else 1
