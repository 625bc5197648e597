"""Many programs diagnosed by one process that imports the framework once and forks for each: a program is a child of
its own, with the real framework, a session and all detectors in it, and no front end.

What ``adbg diagnose`` adds to that (starting, telling, exit statuses) is tested in ``test_core_frameworks``. A program
costs 0.3 s so, where one that is started alone costs 4 s, nearly all of it imports.

    python diagnosing_many.py FRAMEWORK FOLDER      one folder in FOLDER a program, with train.py
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adbg.engine.diagnosis.diagnosis import Diagnosis
from adbg.engine.protocol.codec import from_json, to_json
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.session import Session
from adbg.tui.debugger.findings.ranking import Told, ranked
from support.diagnosing import CAUSE, line_of, text_of
from support.patience import patience

LIMIT = 300.0  # seconds for all of them


@dataclass
class Run:
    """What came of one program. ``told``: as a user reads it, what is folded under another one left out."""

    program: str
    told: list[dict[str, Any]]
    every: list[dict[str, Any]]
    output: str
    plain: str
    iterations: int
    problems: list[str]  # detectors that could not look
    errors: str  # on stderr
    plain_errors: str

    def __str__(self) -> str:
        return "\n".join([*map(json.dumps, self.every), "output:", self.output])

    def above_notes(self) -> list[dict[str, Any]]:
        return [each for each in self.told if each["severity"] != "note"]

    def first(self, kind: str) -> dict[str, Any]:
        """The first finding above a note, or of all where there is none: of that kind, with the marked line."""
        told = self.above_notes() or self.told
        assert told, f"nothing was found\n{self}"
        first = told[0]
        assert first["kind"] == kind, f"{kind} was expected first\n{self}"
        if CAUSE in self.program:
            assert first["cause"] is not None, f"no line is named\n{self}"
            assert first["cause"]["line"] == line_of(self.program), f"another line is named\n{self}"
            assert first["cause"]["file"].endswith("train.py"), str(self)
        assert first["evidence"], f"nothing proves it\n{self}"
        assert self.output == self.plain, f"another result under diagnosis\n{self}\nplain:\n{self.plain}"
        return first

    def names(self, kind: str) -> dict[str, Any]:
        """The marked line is named as this kind too, at whatever place."""
        lines = [each["cause"]["line"] for each in self.every if each["kind"] == kind and each["cause"] is not None]
        assert lines == [line_of(self.program)], f"{kind} was expected at the marked line\n{self}"
        return next(each for each in self.every if each["kind"] == kind)

    def healthy(self) -> None:
        """No finding above a note, and the same output as without adbg."""
        assert not self.above_notes(), f"a false alarm\n{self}"
        assert self.output == self.plain, f"another result under diagnosis\n{self}\nplain:\n{self.plain}"


def diagnose_each(framework: str, folder: Path, programs: Mapping[str, str]) -> dict[str, Run]:
    """Every program diagnosed, and run once without. A program that ends by an exception shows it in its output."""
    names = list(programs)
    for number, name in enumerate(names):
        place = folder / str(number)
        place.mkdir()
        (place / "train.py").write_text(text_of(programs[name]))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, framework, str(folder)], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=patience(LIMIT),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return {name: _read(folder / str(number), programs[name]) for number, name in enumerate(names)}


def _read(place: Path, program: str) -> Run:
    found = json.loads((place / "found.json").read_text())
    findings = [from_json(Finding, each) for each in found["findings"]]
    told = [asdict(row.finding) for row in ranked(Told(1, None, each) for each in findings)]
    output, plain = ((place / name).read_text() for name in ("diagnosed.txt", "plain.txt"))
    errors, plain_errors = ((place / name).read_text() for name in ("diagnosed.err", "plain.err"))
    return Run(
        program, told, found["findings"], output, plain, found["iterations"], found["problems"], errors, plain_errors
    )


# ---- in the process that forks


def _session(framework: str) -> Any:
    session = Session(_Silent())
    session.set_filters([])
    session.set_stacks(True)
    session.attach()
    if framework == "torch":
        from adbg.engine.backends.torch.backend import TorchBackend as Backend
    else:
        from adbg.engine.backends.paddle.backend import PaddleBackend as Backend  # type: ignore[assignment]
    session.add_backend(Backend())
    return session


class _Silent:
    def __init__(self) -> None:
        self.said: list[str] = []

    def event(self, body: Any, droppable: bool = False) -> None:
        text = getattr(body, "output", "")
        if text:
            self.said.append(text)


@contextlib.contextmanager
def _told_to(path: Path) -> Iterator[None]:
    """What this process says goes to a file, and what it warns of to another beside it."""
    with open(path, "w") as file, open(path.with_suffix(".err"), "w") as errors:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _run(script: Path) -> BaseException | None:
    """The program as ``python train.py`` runs it. Returns what ended it."""
    module = type(sys)("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    os.chdir(script.parent)
    try:
        exec(compile(script.read_text(), str(script), "exec"), module.__dict__)
    except SystemExit:
        return None
    except BaseException as error:
        print(type(error).__name__)  # Paddle's text has more of its own stack while nodes keep theirs
        return error
    return None


def _diagnosed(framework: str, script: Path) -> None:
    session = _session(framework)
    sent: list[Any] = []
    made = Diagnosis(session, sent.append)
    session.observe(made)
    made.began()
    error = _run(script)
    made.program_ends(error)
    found = {
        "findings": [to_json(each) for each in made.findings()], "iterations": sent[-1].iterations,
        "problems": [row.why for row in made.examined() if row.result == "could not look"],
    }  # fmt: skip
    (script.parent / "found.json").write_text(json.dumps(found))


def _child(job: Any, *args: Any, into: Path) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        with _told_to(into):
            job(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _warm(framework: str) -> None:
    """Import here what every child would import: torch's first optimizer brings its compiler in, 2 s."""
    from adbg.engine.diagnosis.detector import known

    list(known())
    if framework == "torch":
        import torch

        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    else:
        __import__(framework)


def main(framework: str, folder: Path) -> int:
    _warm(framework)
    for place in sorted(folder.iterdir()):
        script = place / "train.py"
        for name, job in (("plain", _run), ("diagnosed", functools.partial(_diagnosed, framework))):
            status = _child(job, script, into=place / f"{name}.txt")
            if status:
                print(f"{script}: status {status}\n{(place / f'{name}.err').read_text()}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
