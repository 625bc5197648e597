"""``adbg profile FILE``: every view of a saved profile, and what it says of bad input."""

from __future__ import annotations

import cProfile
import json
import pstats
from pathlib import Path

import pytest
from support.program import adbg

from adbg.profiles.report.formats import detect
from adbg.profiles.report.model import SECONDS, Frame, Profile, Sample
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


STACKS = "outer (a.py:9);inner (a.py:3);sum (a.py:1) 70\nouter (a.py:9);inner (a.py:4) 20\nouter (a.py:8) 10\n"


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert cli.main(["profile", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_flame_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.collapsed"
    path.write_text(STACKS)

    def rows(*words: str) -> list[list[str]]:
        lines = printed(capsys, path, *words, "--width", 41)
        return [line.split() for line in lines if line.startswith("▏")]

    assert rows("--flame") == [["▏all", "100"], ["▏outer", "100"], ["▏inner", "90"], ["▏sum", "70"]]
    assert rows("--flame", "--by", "line")[1] == ["▏outer", "90", "▏out…"], "two lines of one function"
    zoomed = printed(capsys, path, "--zoom", "^inner$", "--width", 45)[1:]
    assert zoomed == ["▏all 100", "▏outer 100", "▏inner 90", "▏sum 70"]
    assert rows("--inverted")[1] == ["▏sum", "70", "▏inner", "▏out…"]
    assert printed(capsys, path, "--flame", "--search", "^inner$")[-1] == "'^inner$' matches 90.0%"


def test_the_difference_with_itself_and_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "one.speedscope.json", tmp_path / "other.speedscope.json"
    frames = tuple(Frame(name, "a.py") for name in ("outer", "inner", "new"))
    before = Profile(frames, (Sample((0, 1), 2.0), Sample((0,), 1.0)), SECONDS)
    after = Profile(frames, (Sample((1,), 0.5), Sample((1, 2), 4.0)), SECONDS)
    detect.write(before, one)
    detect.write(after, other)
    assert len(printed(capsys, one, "--diff", one)) == 2, "no row has changed"
    lines = [line.split() for line in printed(capsys, one, "--diff", other, "--limit", 0)[2:]]
    assert lines == [
        ["+4.0s", "+4.0s", "new", "4.0s", "new", "a.py"],
        ["-1.5s", "+2.5s", "2.0s", "500ms", "inner", "a.py"],
        ["-1.0s", "-3.0s", "1.0s", "gone", "outer", "a.py"],
    ]


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
