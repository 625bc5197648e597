"""The way by ``sys.remote_exec``; where no Python 3.14 is at hand, a stand-in for its ``sys.remote_exec`` is called."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from adbg.engine.attach import enter as entering
from adbg.engine.attach.enter import EntryCancelled, Progress, enter
from adbg.engine.attach.remote_exec import RemoteScript
from adbg.engine.attach.target import Target
from adbg.engine.errors import AttachError


def stand_in(tmp_path: Path, body: str) -> str:
    """An interpreter whose ``sys.remote_exec(pid, script)`` does ``body``."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nimport sys\npid, script = sys.argv[-2:]\n{body}\n")
    python.chmod(0o700)
    return str(python)


@pytest.fixture
def traced() -> Target:
    return Target(os.getpid(), 0, "", (3, 14), "x86_64", traced_by=1)


def test_it_runs_and_its_file_goes(tmp_path: Path, traced: Target) -> None:
    ran = tmp_path / "ran"
    script = RemoteScript(traced, f"open({str(ran)!r}, 'w')", stand_in(tmp_path, "exec(open(script).read())"))
    assert script.ran and ran.exists()
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


def test_it_is_queued_and_told_not_to(tmp_path: Path, traced: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    python = stand_in(tmp_path, f"open({str(tmp_path / 'asked')!r}, 'w').write(pid + ' ' + script)")
    monkeypatch.setattr(entering, "RemoteScript", lambda target, code: RemoteScript(target, code, python))
    told: list[Progress] = []
    cancelled = threading.Event()

    def tell(progress: Progress) -> None:
        told.append(progress)
        if progress.kind == "queued":
            cancelled.set()

    with pytest.raises(EntryCancelled):
        enter(traced, tmp_path / "session.json", tell, cancelled)
    pid, path = (tmp_path / "asked").read_text().split()
    assert (told[-1].kind, told[-1].way, pid) == ("queued", "remote_exec", str(os.getpid()))
    assert Path(path).read_text() == "", "the target comes to it later, and does nothing"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and stat.S_IMODE(os.stat(Path(path).parent).st_mode) == 0o700


def test_it_is_refused(tmp_path: Path, traced: Target) -> None:
    python = stand_in(tmp_path, "raise RuntimeError('Remote debugging is not enabled in the remote process')")
    with pytest.raises(AttachError, match="Remote debugging is not enabled") as caught:
        RemoteScript(traced, "", python)
    assert "end the tracer" in caught.value.hint
    assert os.listdir(os.environ["XDG_RUNTIME_DIR"]) == []


@pytest.mark.skipif(sys.version_info < (3, 14), reason="sys.remote_exec is of Python 3.14")
def test_the_real_one(tmp_path: Path, traced: Target) -> None:
    ran = tmp_path / "ran"
    script = RemoteScript(traced, f"open({str(ran)!r}, 'w')")
    assert script.ran and ran.exists()
