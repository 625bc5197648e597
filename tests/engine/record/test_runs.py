"""The folder of recorded runs: new ones, the list, finding and deleting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.record.recorder import Recorder
from adbg.engine.record.runs import delete_run, find_run, list_runs, new_run_dir, prepare_run_dir, runs_root


def make(root: Path, script: str, started: float, exit_code: int | None = 0, close: bool = True) -> Path:
    run = new_run_dir([script], root)
    recorder = Recorder.open(run, 0, None, argv=[script, "--fast"], started=started)
    recorder.node_event(1, 1, "after")
    recorder.flush(10)
    if close:
        recorder.close()
        if exit_code is not None:
            (run / "exit.json").write_text(json.dumps({"code": exit_code}))
    else:
        recorder.close()
        info = json.loads((run / "run.json").read_text())
        ended = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, timeout=30, check=True
        )
        info.update(ended=None, pid=int(ended.stdout), pid_start="gone")  # as a process that died left it
        (run / "run.json").write_text(json.dumps(info))
    return run


def test_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADBG_RUNS", "/a/b")
    assert runs_root() == Path("/a/b")
    monkeypatch.delenv("ADBG_RUNS")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert runs_root() == Path("/state/adbg/runs")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert runs_root() == Path("/home/me/.local/state/adbg/runs")


def test_new_run_directories_are_private_and_distinct(tmp_path: Path) -> None:
    paths = [new_run_dir(["some dir/train model.py"], tmp_path / "a" / "b") for _ in range(3)]
    assert len(set(paths)) == 3
    assert all("train_model.py" in path.name for path in paths)
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o700}
    assert new_run_dir(["-m", "pkg.mod"], tmp_path).name.endswith("pkg.mod")
    assert new_run_dir([], tmp_path).name.endswith("python")


def test_a_root_that_cannot_be_written_says_what_next(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdbgError, match="Not a directory") as caught:
        new_run_dir(["x.py"], tmp_path / "file" / "runs")
    assert "--no-record" in caught.value.hint


def test_the_list(tmp_path: Path) -> None:
    now = time.time()
    make(tmp_path, "old.py", now - 100, 2)
    make(tmp_path, "dead.py", now - 50, close=False)
    live = new_run_dir(["live.py"], tmp_path)
    recorder = Recorder.open(live, 0, None, argv=["live.py"])
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").write_text("")
    os.symlink(live, tmp_path / "link")
    runs = list_runs(tmp_path)
    assert [(run.script, run.state, run.exit) for run in runs] == [
        ("live.py", "running", None), ("dead.py", "crashed", None), ("old.py", "ended", 2),
    ]  # fmt: skip
    assert runs[2].seconds == pytest.approx(100, abs=10) and runs[2].ranks == 1
    assert runs[2].size == sum(path.stat().st_size for path in Path(runs[2].path).iterdir()) > 1000
    recorder.close()
    assert list_runs(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("left", "state", "code"),
    [
        ({"code": 0, "signal": None}, "ended", 0),
        ({"code": 3, "signal": None}, "ended", 3),
        ({"code": None, "signal": 11}, "crashed", -11),
        ({"code": None, "signal": 2}, "ended", -2),
        ({"code": None, "signal": 9, "asked": False}, "crashed", -9),
        ({"code": None, "signal": 9, "asked": True}, "ended", -9),
    ],
)
def test_what_the_keeper_saw_decides(tmp_path: Path, left: dict[str, int | bool | None], state: str, code: int) -> None:
    run = make(tmp_path, "train.py", time.time(), None, close=False)
    (run / "exit.json").write_text(json.dumps(left))
    (summary,) = list_runs(tmp_path)
    assert (summary.state, summary.exit) == (state, code)


def test_a_broken_run_json_is_listed_as_crashed_and_can_be_deleted(tmp_path: Path) -> None:
    run = make(tmp_path, "train.py", time.time(), None)
    (run / "run.json").write_text('{"argv": [')
    (summary,) = list_runs(tmp_path)
    assert (summary.state, summary.script) == ("crashed", "")
    delete_run(run)
    assert list_runs(tmp_path) == []


def test_finding_by_name_prefix_and_path(tmp_path: Path) -> None:
    run = make(tmp_path, "train.py", time.time())
    make(tmp_path, "evaluate.py", time.time())
    assert find_run(run.name, tmp_path) == run
    assert find_run(str(run), tmp_path / "elsewhere") == run
    assert find_run(run.name[:-1], tmp_path) == run
    with pytest.raises(CommandError, match="names 2 runs"):
        find_run(run.name[:2], tmp_path)
    with pytest.raises(CommandError, match="no run 'nope'") as caught:
        find_run("nope", tmp_path)
    assert caught.value.hint.startswith("closest: ")


def test_deleting_is_careful(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(CommandError, match="not a run directory: nothing was deleted"):
        delete_run(tmp_path / "mine")
    live = new_run_dir(["live.py"], tmp_path)
    recorder = Recorder.open(live, 0, None)
    with pytest.raises(CommandError, match="still being recorded"):
        delete_run(live)
    os.symlink(live, tmp_path / "link")
    with pytest.raises(CommandError, match="not a run directory"):
        delete_run(tmp_path / "link", force=True)
    recorder.close()
    delete_run(live)
    assert not live.exists() and (tmp_path / "mine" / "thesis.tex").exists()


def test_a_run_directory_is_used_again(tmp_path: Path) -> None:
    run = make(tmp_path, "train.py", time.time())
    (run / "notes.txt").write_text("mine")
    (run / "exit.json").write_text('{"code": 1, "signal": null}')
    assert prepare_run_dir(run) == run
    assert [path.name for path in run.iterdir()] == ["notes.txt"]
    recorder = Recorder.open(run, 0, None)
    assert recorder.label == "0"
    with pytest.raises(AdbgError, match="by another run"):
        prepare_run_dir(run)
    recorder.close()
    assert prepare_run_dir(tmp_path / "new" / "one").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(AdbgError, match="cannot be used as run directory: File exists"):
        prepare_run_dir(tmp_path / "file")
