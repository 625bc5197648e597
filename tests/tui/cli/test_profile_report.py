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
from adbg.tui.app.profile.artifacts import saved
from adbg.tui.app.profile.report_words import earlier
from adbg.tui.cli import main as cli
from adbg.tui.cli import profile_report
from adbg.tui.cli.profile import VALUED, _newest
from adbg.tui.cli.profile import Profile as Profile_
from adbg.tui.cli.run import warn_of_own
from adbg.tui.cli.subcommand import parser_of


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
    assert len(printed(capsys, one, "--diff", one)) == 3, "no row has changed"
    told = printed(capsys, one, "--diff", other, "--limit", 0)
    assert told[:2] == ["one.speedscope.json → other.speedscope.json", "total 3.0s → 4.5s (+50%)"]
    lines = [line.split() for line in told[3:]]
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


# ------------------------------------------------------------------ folders of runs, and what goes to the script


def artifact(run: Path, name: str, content: bytes | str, file: str = "profile.pstats", **meta: object) -> Path:
    """A profile in a run's folder."""
    folder = run / "profiles" / name
    folder.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    region = {"kind": "iterations", "count": 10, "warmup": 1, "place": "", "spec": ""}
    (folder / "meta.json").write_text(
        json.dumps({"profiler": name.partition("-")[2], "file": file, "region": region, **meta})
    )
    return folder


def counted(folder: str, own: float, iterations: int, tmp_path: Path) -> bytes:
    """What cProfile writes of a script in ``folder`` with one function."""
    path = tmp_path / "c.pstats"
    stats = pstats.Stats()
    stats.stats = {(f"{folder}/train.py", 3, "step"): (iterations, iterations, own, own, {})}  # type: ignore[attr-defined]
    stats.dump_stats(path)
    return path.read_bytes()


NODES = {
    "adbg_nodes": 1,
    "framework": "torch",
    "cost": {"launch_us": 10.0},
    "nodes": [
        {
            "name": "MmBackward0",
            "calls": 10,
            "total_us": 1000.0,
            "us": 100.0,
            "gap_us": 5.0,
            "file": "/a/m.py",
            "line": 4,
        },
        {"name": "TBackward0", "calls": 10, "total_us": 50.0, "us": 5.0, "gap_us": 0.0, "file": "/a/m.py", "line": 9},
    ],
    "iterations": [{"backward_us": 200.0, "outside_us": 100.0}] * 3,
}


def test_a_run_with_one_profile_is_that_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "a", tmp_path / "b"
    artifact(one, "001-cprofile", counted("/one", 1.0, 10, tmp_path), iterations=10)
    artifact(two, "001-cprofile", counted("/two", 10.0, 50, tmp_path), iterations=50)
    assert printed(capsys, one, "--no-open")[-1].split()[-2:] == ["step", "one/train.py:3"]
    assert printed(capsys, one, "-o", tmp_path / "x.collapsed") == [f"wrote {tmp_path / 'x.collapsed'}"]
    lines = printed(capsys, one, "--diff", two)
    assert lines[0] == "a/profiles/001-cprofile → b/profiles/001-cprofile"
    assert lines[1] == "total 100ms → 200ms (+100%)"
    assert lines[2] == "note: of one iteration each: 10 and 50 were measured"
    rows = [line.split() for line in lines[4:]]
    assert rows == [["+100ms", "+100ms", "100ms", "200ms", "step", "two/train.py:3"]], "one row: a copy elsewhere"
    artifact(one, "002-nodes", json.dumps(NODES), "nodes.json")
    listed = printed(capsys, one)
    assert listed[0].startswith(f"{one}: 2 profiles; ") and listed[0].endswith("002-nodes")
    assert [line.split()[0] for line in listed[1:]] == ["002-nodes", "001-cprofile"]
    assert cli.main(["profile", str(two), "--diff", str(one)]) == 2
    assert "has 2 profiles: 002-nodes, 001-cprofile" in capsys.readouterr().err
    assert cli.main(["profile", str(two), "--diff", str(one / "profiles" / "002-nodes")]) == 2
    assert "no row in common" in capsys.readouterr().err


def test_nodes_by_line_and_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifact(tmp_path / "n", "001-nodes", json.dumps(NODES), "nodes.json")

    def rows(*words: str) -> dict[str, list[str]]:
        lines = printed(capsys, path, *words, "--width", 120)
        start = next(n for n, line in enumerate(lines) if line.endswith("  where"))
        return {line.split("  ")[-2].strip() or line.split()[4]: line.split() for line in lines[start + 1 :]}

    by_line = rows("--by", "line")
    assert by_line["m.py:4"][:3] == ["1.0ms", "90.9", "1.1ms"]
    assert "m.py:9" in by_line
    told = printed(capsys, path, "--by", "phase")
    assert any(line.split()[:1] == ["1.1ms"] and "backward" in line for line in told[5:])
    assert [line.split()[-2] for line in printed(capsys, path, "--sort", "name") if line.endswith("m.py:4")] == [
        "MmBackward0"
    ]
    found = printed(capsys, path, "--search", "^TBack")
    assert not any("MmBackward0" in line for line in found) and any("TBackward0" in line for line in found)
    assert {json.loads(line)["name"] for line in printed(capsys, path, "--json")} >= {"MmBackward0", "TBackward0"}
    assert cli.main(["profile", str(path), "--by", "thread"]) == 2
    assert "cannot be shown by thread" in capsys.readouterr().err


def test_what_an_option_of_a_run_takes_is_no_report(tmp_path: Path, file: Path) -> None:
    run = tmp_path / "r"
    artifact(run, "001-nodes", json.dumps(NODES), "nodes.json")
    assert profile_report.file_of([str(run)]) == str(run)
    for words in (["--run-dir", str(run), "--with", "nodes", "t.py"], ["-m", str(run)], ["-c", str(file)]):
        assert profile_report.file_of(words, VALUED) is None
    assert profile_report.file_of(["--flame", str(file)], VALUED) == str(file), "--flame takes no value"
    script = tmp_path / "train.py"
    script.write_text("main;inner 5\n")
    assert profile_report.file_of([str(script)]) is None, "nothing of a script is looked at"


def test_the_newest_is_the_one_of_the_highest_number(tmp_path: Path) -> None:
    for name in ("999-nodes", "1000-nodes"):
        artifact(tmp_path, name, json.dumps(NODES), "nodes.json")
    assert Path(_newest(str(tmp_path))).name == "1000-nodes"
    assert [each.name for each in saved(str(tmp_path))] == ["1000-nodes", "999-nodes"]
    assert earlier(str(tmp_path / "profiles" / "1000-nodes")) == ["999-nodes"]


def test_help_of_a_file_and_an_option_behind_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "FILE", "--help"]) == 0
    assert "--inverted" in capsys.readouterr().out
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--iterations')\n")
    warn_of_own(parser_of("profile", Profile_()), ["--with=yep", "--iterations", "3", "--mine"], str(script))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "--with stands after" in said[0], "the script has --iterations itself"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--iteration", "3", "t.py"], "did you mean --iterations?"),
        (["--iterations", "3", "--iteration-at", "t.py:9999", "t.py"], "t.py:9999: t.py has 2 lines"),
        (["grows.log"], "no such file: grows.log (expected a script, or a saved profile)"),
    ],
)
def test_what_cannot_be_is_said_before_the_script_runs(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.py").write_text("print('it ran')\npass\n")
    monkeypatch.chdir(tmp_path)
    done = adbg("profile", *words)
    assert done.status == 2 and says in done.stderr and "it ran" not in done.stdout, str(done)
