"""Profiles of libprofiler, made by it, against google-pprof's report of the same file."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from adbg.profiles.report.formats import detect, gperftools
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import NATIVE, SECONDS
from adbg.profiles.report.tables import Grouping, table

PROGRAM = """
import ctypes, sys, time, zlib
profiler = ctypes.CDLL("libprofiler.so.0")
data = bytes(range(256)) * 4000
assert profiler.ProfilerStart(sys.argv[1].encode())
end = time.process_time() + 0.6  # of the processor: on a busy machine the samples are the same
while time.process_time() < end:
    zlib.compress(data, 9)
if sys.argv[2] == "killed":
    profiler.ProfilerFlush()
    import os, shutil
    shutil.copy("/proc/self/maps", os.path.join(os.path.dirname(sys.argv[1]), "maps"))
    os.kill(os.getpid(), 9)
profiler.ProfilerStop()
"""
needs_libprofiler = pytest.mark.skipif(
    ctypes.util.find_library("profiler") is None, reason="libprofiler (apt: libgoogle-perftools4) is not installed"
)
pprof = shutil.which("google-pprof") or shutil.which("pprof")


def sampled(path: Path, how: str = "stopped") -> Path:
    environment = {**os.environ, "CPUPROFILE_FREQUENCY": "250"}
    command = [sys.executable, "-c", PROGRAM, str(path), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == (0 if how == "stopped" else -9), done.stderr
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled(tmp_path_factory.mktemp("gperftools") / "zlib.prof")


@needs_libprofiler
def test_who_took_the_time(file: Path) -> None:
    profile = detect.read(file)
    assert profile.unit == SECONDS and profile.period == pytest.approx(1 / 250)
    assert {frame.side for frame in profile.frames} == {NATIVE}
    assert 0.3 < profile.total < 1.2, "of 0.6 s of processor time, and what the interpreter needs"
    modules = {row.frame.name: row for row in table(profile, Grouping.MODULE).rows}
    zlib = next(row for name, row in modules.items() if name.startswith("libz"))
    assert zlib.own > 0.8 * profile.total
    assert next(row for name, row in modules.items() if "python" in name).cumulative > 0.9 * profile.total


@needs_libprofiler
@pytest.mark.skipif(pprof is None, reason="google-pprof (apt: google-perftools) is not installed")
def test_the_samples_are_those_that_google_pprof_counts(file: Path) -> None:
    said = subprocess.run(
        [str(pprof), "--text", sys.executable, str(file)], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    theirs = {}
    for line in said.splitlines():
        if found := re.match(r"\s*(\d+)\s+[\d.]+%\s+[\d.]+%\s+(\d+)\s+[\d.]+%\s+(\S+)", line):
            theirs[found[3]] = int(found[1]), int(found[2])
    profile = detect.read(file)
    rows = table(profile).rows
    assert sum(own for own, _ in theirs.values()) == round(profile.total / profile.period)
    exported = {
        row.frame.name: row for row in rows if row.frame.name.startswith("_PyEval") or row.frame.name == "compress"
    }
    assert exported
    for name, row in exported.items():  # nm's names: functions that are local to libz have none and go to a neighbour
        if name in theirs:
            assert round(row.cumulative / profile.period) == pytest.approx(theirs[name][1], abs=2), name
    assert "_PyEval_EvalFrameDefault" in theirs.keys() & exported.keys()


@needs_libprofiler
def test_one_of_a_killed_program_keeps_its_samples(tmp_path: Path) -> None:
    profile = detect.read(sampled(tmp_path / "killed.prof", "killed"))
    assert profile.total > 0.2
    assert "has no end" in str(profile.meta["note"])
    assert any(frame.module.startswith("libz") for frame in profile.frames), "by the maps that lie beside it"


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


HEADER = (0, 3, 0, 10_000, 0)


def test_counts_stacks_and_the_signals_own_frames(tmp_path: Path) -> None:
    path = tmp_path / "made.prof"
    path.write_bytes(words(*HEADER, 2, 3, 0x10, 0x21, 0x31, 3, 1, 0x10, 1, 3, 0x10, 0x21, 0x31, 0, 1, 0))
    profile = gperftools.read(path)
    by_stack = {tuple(profile.frames[i].name for i in stack): weight for stack, weight, _ in profile.samples}
    assert by_stack == {("0x30", "0x20", "0x10"): pytest.approx(0.03), ("0x10",): pytest.approx(0.03)}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("word", ["Q", "L"])
def test_words_of_any_machine(tmp_path: Path, order: str, word: str) -> None:
    path = tmp_path / "other.prof"
    path.write_bytes(struct.pack(f"{order}11{word}", *HEADER, 5, 1, 0x40, 0, 1, 0))
    assert detect.kind_of(path) == "gperftools"
    assert gperftools.read(path).total == pytest.approx(0.05)


def test_one_without_samples_and_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.prof"
    path.write_bytes(words(*HEADER))
    with pytest.raises(FormatError, match="no samples and no end"):
        detect.read(path)
    path.write_bytes(words(*HEADER, 0, 1, 0))
    assert detect.read(path).empty
