"""``adbg profile FILE``: every view of a saved profile, and what it says of bad input."""

from __future__ import annotations

import cProfile
import json
import pstats
from pathlib import Path

import pytest
from support.program import adbg

from adbg.tui.cli import main as cli
from adbg.tui.cli import profile_report


def inner(n: int) -> int:
    return sum(i * i for i in range(n))


def outer() -> None:
    for _ in range(20):
        inner(3000)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "work.pstats"
    profiler = cProfile.Profile()
    profiler.runcall(outer)
    profiler.dump_stats(path)
    return path


@pytest.fixture
def shown(file: Path, capsys: pytest.CaptureFixture[str]):
    """What `adbg profile FILE …` prints."""

    def show(*words: str, status: int = 0) -> list[str]:
        assert cli.main(["profile", str(file), *words]) == status
        printed = capsys.readouterr()
        return (printed.err if status else printed.out).splitlines()

    return show


def test_the_command_from_a_shell(file: Path) -> None:
    done = adbg("profile", str(file), "--width", "100", "--sort", "cumulative")
    assert done.status == 0 and done.stderr == "", str(done)
    first = done.stdout.splitlines()
    assert "cProfile" in first[0]
    outer_row = next(line for line in first if " outer " in line)
    assert outer_row.endswith(f"report.py:{outer.__code__.co_firstlineno}") and " 1 " in outer_row


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("words", [[], ["--flame"], ["--by", "side"], ["--sort", "calls"]])
def test_lines_fit_the_width(shown, width: int, words: list[str]) -> None:
    lines = shown(*words, "--width", str(width))
    assert max(map(len, lines[2:])) <= width, "all but the file's name and the note"


def test_the_table_says_what_pstats_says(file: Path, shown) -> None:
    stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    rows = [json.loads(line) for line in shown("--json", "--limit", "0")]
    assert {(r["file"] or "~", r["line"], r["name"]): (r["calls"], r["self"], r["cumulative"]) for r in rows} == {
        key: (row[1], row[2], row[3]) for key, row in stats.items()
    }


def test_search_limit_and_groups(shown) -> None:
    assert [line.split()[-2] for line in shown("--search", r"^inner$")[4:]] == ["inner"]
    lines = shown("--limit", "1")
    assert "rows more" in lines[-1] and len(lines) == 6
    assert {line.split()[4] for line in shown("--by", "side")[4:]} == {"python", "native"}
    assert shown("--search", "nothing like it")[-1].startswith("no row matches")


def test_the_flame_graph(shown) -> None:
    rows = [line for line in shown("--flame", "--width", "60") if line.startswith("▏")]
    assert rows[0].startswith("▏all ") and rows[1].startswith("▏outer ") and "▏inner" in rows[2]
    zoomed = [line for line in shown("--zoom", "^inner$", "--width", "60") if line.startswith("▏")]
    assert zoomed[2].startswith("▏inner")
    upside = [line for line in shown("--inverted", "--width", "60") if line.startswith("▏")]
    assert "▏outer" not in upside[1] and "<genexpr>" in upside[1]
    assert shown("--flame", "--search", "^inner$")[-1].startswith("'^inner$' matches ")


def test_the_difference_with_itself_and_another(file: Path, tmp_path: Path, shown) -> None:
    assert len(shown("--diff", str(file))) == 2, "no row has changed"
    other = tmp_path / "other.pstats"
    profiler = cProfile.Profile()
    profiler.runcall(inner, 300_000)
    profiler.dump_stats(other)
    lines = shown("--diff", str(other), "--limit", "0")
    genexpr = next(line for line in lines if "<genexpr>" in line)
    assert genexpr.lstrip().startswith("+")
    assert "gone" in next(line for line in lines if "outer" in line)


@pytest.mark.parametrize(
    "ending", [".collapsed", ".speedscope.json", ".pb.gz", ".trace.json", ".svg", ".html", ".pstats"]
)
def test_it_writes_what_its_reader_or_a_browser_opens(file: Path, tmp_path: Path, shown, ending: str) -> None:
    target = tmp_path / f"out{ending}"
    assert shown("-o", str(target)) == [f"wrote {target}"]
    assert target.stat().st_size > 200
    if ending not in (".svg", ".html"):
        assert profile_report.file_of([str(target)]) == str(target)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--zoom", "nothing"], "no frame matches"),
        (["--search", "("], "is no regular expression"),
        (["--limit", "-1"], "below 0"),
        (["--sort", "colour"], "invalid choice"),
        (["-o", "x.txt"], "which format"),
        (["-o", "/proc/none/x.svg"], "cannot write"),
        (["--diff", "/nowhere.pstats"], "cannot read"),
    ],
)
def test_bad_input_is_one_line(shown, words: list[str], said: str) -> None:
    lines = shown(*words, status=2)
    assert len(lines) == 1 and said in lines[0]


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.prof").write_bytes(b"\0" * 9)
    assert cli.main(["profile", str(tmp_path / "cut.prof")]) == 2
    assert "is no profile" in capsys.readouterr().err
    assert profile_report.file_of(["train.py", "x.pstats"]) is None, "what the script gets is the script's"
    assert profile_report.file_of(["--limit", "3", "none.prof"]) == "none.prof", "a profile's name, whatever is in it"
    empty = tmp_path / "empty.pstats"
    profiler = cProfile.Profile()
    profiler.create_stats()
    profiler.dump_stats(empty)
    assert cli.main(["profile", str(empty)]) == 0
    assert "nothing was sampled" in capsys.readouterr().out
