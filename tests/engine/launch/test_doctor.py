"""``adbg doctor``: true about what is here, and not hurt by what is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from adbg.engine.backends.base import DoctorLine
from adbg.engine.launch import doctor
from adbg.engine.launch.doctor import Section


def section(title: str, **arguments: object) -> list[DoctorLine]:
    found = [list(s.lines) for s in doctor.collect(**arguments) if s.title == title]  # type: ignore[arg-type]
    return found[0] if found else []


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    (folder / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_real_torch() -> None:
    torch = pytest.importorskip("torch")
    before = set(sys.modules)
    sections = doctor.collect()
    lines = next(s.lines for s in sections if s.title == "torch")
    assert lines[0].status == "ok" and torch.__version__ in lines[0].detail
    assert any(line.what == "can" and "pre hooks" in line.detail for line in lines)
    assert any(line.status == "limit" and "C++" in line.what for line in lines), "what cannot be seen is said"
    assert doctor.healthy(sections)
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] in ("torch", "numpy")}
    text = doctor.render(sections)
    assert "\nterminal\n" in text and f"adbg {__import__('adbg').__version__}" in text
    assert json.loads(doctor.to_json(sections))[0]["title"] == "adbg"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "raise OSError('libcudart.so.12: cannot open')",
            "installed, but broken: OSError: libcudart.so.12: cannot open",
        ),
        ("import os; os.abort()", "killed its process"),
        ("import sys; sys.exit('half installed')", "half installed"),
    ],
)
def test_broken_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, expected: str) -> None:
    fake(tmp_path, monkeypatch, "torch", source)
    lines = section("torch")
    assert len(lines) == 1 and lines[0].status == "missing" and expected in lines[0].detail


def test_framework_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "torch", "import time; time.sleep(60)")
    assert "did not finish within 1 s" in section("torch", timeout=1.0)[0].detail


def test_no_framework(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True, timeout=60)
    python = str(tmp_path / "v" / "bin" / "python")
    sections = doctor.collect(python)
    lines = next(s.lines for s in sections if s.title == "torch")
    assert [(line.status, line.detail) for line in lines] == [("missing", "not installed; pip install 'adbg[torch]'")]
    assert not doctor.healthy(sections)


def test_framework_without_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "mindspore", "print('noise')")
    assert section("mindspore") == [
        DoctorLine("limit", "mindspore", "installed, but this version of adbg has no backend for it")
    ]


def test_python_that_is_not_there() -> None:
    lines = {line.what: line for line in section("adbg", python="/nowhere/python")}
    assert (
        lines["the program's Python"].status == "missing" and "/nowhere/python" in lines["the program's Python"].detail
    )


def test_runs_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADBG_RUNS", str(tmp_path / "file"))
    runs = next(line for line in doctor._system_lines() if line.what == "recorded runs")
    assert runs.status == "limit" and "debugging works without a record" in runs.detail


def test_no_place_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adbg.engine.protocol.rendezvous.os.access", lambda path, mode: False)
    line = next(line for line in doctor._system_lines() if line.what == "socket folder")
    assert line.status == "missing" and "TMPDIR" in line.detail
    assert not doctor.healthy([Section("torch", (DoctorLine("ok", "torch"),)), Section("system", (line,))])


@pytest.mark.parametrize(
    ("environment", "status", "detail"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "ok", "16 million"),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, "ok", "256"),
        ({"TERM": "xterm", "COLORTERM": ""}, "limit", "16 at most"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, "off", "NO_COLOR"),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], status: str, detail: str) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = next(line for line in doctor._terminal_lines() if line.what == "colours")
    assert line.status == status and detail in line.detail
