"""``adbg log --batch`` on what is no whole plain file: cut archives, pipes, the folder of a run, binary files."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from support.program import adbg

DATA = Path(__file__).parents[2] / "data" / "vlog" / "promo_v4.log"
LOG = [sys.executable, "-m", "adbg", "log", "--batch"]


def piped(data: bytes, name: str) -> str:
    done = subprocess.run([*LOG, name], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout.decode()


def test_a_cut_archive_gives_what_it_has_and_says_so(tmp_path: Path) -> None:
    packed = gzip.compress(DATA.read_bytes())
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) * 2 // 3])
    done = adbg("log", "--batch", tmp_path / "cut.gz")
    whole = adbg("log", "--batch", DATA).stdout.splitlines()
    shown = done.stdout.splitlines()
    assert done.status != 0 and "cut.gz is truncated: the end of the file is missing" in done.stderr
    assert len(whole) > len(shown) > len(whole) // 3 and shown[:-2] == whole[: len(shown) - 2]


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_pipe_is_read_packed_or_not(name: str) -> None:
    whole = adbg("log", "--batch", DATA).stdout
    assert piped(DATA.read_bytes(), name) == whole == piped(gzip.compress(DATA.read_bytes()), name)


def test_the_folder_of_a_run_is_its_logs(tmp_path: Path) -> None:
    refused = adbg("log", "--batch", tmp_path)
    assert refused.status != 0 and "no VLOG in" in refused.stderr
    (tmp_path / "vlog-r0.log").write_bytes(DATA.read_bytes())
    assert adbg("log", "--batch", tmp_path).stdout == adbg("log", "--batch", DATA).stdout


def test_a_message_on_the_next_line_stands_in_the_first(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "I1121 05:47:36.344256  1146 dygraph_functions.cc:114219] \n===Running_AD_API: uniform===\n"
    )
    (line,) = adbg("log", "--batch", tmp_path / "log").stdout.splitlines()
    assert line == "05:47:36.344256 3 ===Running_AD_API: uniform===  (dygraph_functions.cc:114219)"


def test_what_a_terminal_would_obey_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x1b]0;title\x07\x1b[2J plain \xff\n" + DATA.read_bytes())
    done = adbg("log", "--batch", tmp_path / "log")
    assert "\\x1b]0;title\\x07\\x1b[2J plain" in done.stdout and "\x1b" not in done.stdout
