"""Many programs diagnosed by one process that imports the framework once and forks for each: a program is a child of
its own, with the real framework, a session and all detectors in it, and no front end.

What ``adbg diagnose`` adds to that (starting, telling, exit statuses) is tested in ``test_core_frameworks``. A program
costs 0.3 to 0.7 s so, where one that is started alone costs 4 s, nearly all of it imports. That process serves all
files of tests that one worker of pytest runs.

    python diagnosing_many.py FRAMEWORK      reads {"folder", "environment"} a line: one folder in it a program, with
                                             train.py; answers {"status", "said"}
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from adbg.engine.diagnosis.diagnosis import Diagnosis
from adbg.engine.protocol.codec import from_json, to_json
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.session import Session
from adbg.tui.debugger.findings.ranking import Told, ranked
from support.diagnosing import CAUSE, check_commands, line_of, text_of
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
    failures: list[str]  # of adbg: a detector that raised is switched off, and finds nothing from then on
    errors: str  # on stderr
    plain_errors: str

    def __str__(self) -> str:
        return "\n".join([*map(json.dumps, self.every), "output:", self.output])

    def above_notes(self) -> list[dict[str, Any]]:
        return [each for each in self.told if each["severity"] != "note"]

    def check_first(self, kind: str) -> dict[str, Any]:
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
        check_commands(first)
        if kind != "uninitialised":  # what such a program computes differs from run to run
            self._check_undisturbed()
        return first

    def check_names(self, kind: str) -> dict[str, Any]:
        """The marked line is named as this kind too, at whatever place."""
        lines = [each["cause"]["line"] for each in self.every if each["kind"] == kind and each["cause"] is not None]
        assert lines == [line_of(self.program)], f"{kind} was expected at the marked line\n{self}"
        return next(each for each in self.every if each["kind"] == kind)

    def check_healthy(self, *notes: str) -> None:
        """No finding but notes of these kinds, in this order, and the same results as without adbg."""
        found = [(each["kind"], each["severity"]) for each in self.told]
        assert found == [(kind, "note") for kind in notes], f"a false alarm\n{self}"
        self._check_undisturbed()

    def _check_undisturbed(self) -> None:
        assert self.output == self.plain, f"another result under diagnosis\n{self}\nplain:\n{self.plain}"
        assert not self.failures, f"{self.failures}\n{self}"


def numbered(cases: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Programs by the kind that is expected first and a number: ``{"zero-grad 0": program, ...}``."""
    return {f"{kind} {number}": program for number, (kind, program) in enumerate(cases)}


def kind_of(name: str) -> str:
    """The kind that is expected first of a program, with which its name begins."""
    return name.split()[0].rstrip(":")


def diagnose_each(framework: str, folder: Path, programs: Mapping[str, str]) -> dict[str, Run]:
    """Every program diagnosed, and run once without. A program that ends by an exception shows it in its output."""
    names = list(programs)
    for number, name in enumerate(names):
        place = folder / str(number)
        place.mkdir()
        (place / "train.py").write_text(text_of(programs[name]))
    status, said = _server(framework).run(folder)
    assert status == 0, said
    return {name: _read(folder / str(number), programs[name]) for number, name in enumerate(names)}


class _Server:
    """The process that forks. It ends with its standard input, so with this process."""

    def __init__(self, framework: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, framework], env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1, start_new_session=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(self, folder: Path) -> tuple[int, str]:
        """The programs in a folder. Returns an exit status, and what was said where it is not 0."""
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None and answers is not None
        commands.write(json.dumps({"folder": str(folder), "environment": _environment()}) + "\n")
        ready, _, _ = select.select([answers], [], [], patience(LIMIT))
        line = answers.readline() if ready else ""
        if line:
            answer = json.loads(line)
            return int(answer["status"]), str(answer["said"])
        os.killpg(self._process.pid, signal.SIGKILL)  # with the program that does not end
        self._process.wait()
        why = "it ended" if ready else f"no answer within {patience(LIMIT):.0f} s"
        return 1, f"the process that diagnoses programs: {why}, at {sorted(folder.iterdir())}"


def _environment() -> dict[str, str]:
    tests = Path(__file__).parents[1]  # and adbg as it lies beside them, wherever another one is installed
    return {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}", "OMP_NUM_THREADS": "1"}


_servers: dict[str, _Server] = {}  # by framework


def _server(framework: str) -> _Server:
    if framework not in _servers or not _servers[framework].alive:
        _servers[framework] = _Server(framework)
    return _servers[framework]


def _read(place: Path, program: str) -> Run:
    found = json.loads((place / "found.json").read_text())
    findings = [from_json(Finding, each) for each in found["findings"]]
    told = [asdict(row.finding) for row in ranked(Told(1, None, each) for each in findings)]
    output, plain = ((place / name).read_text() for name in ("diagnosed.txt", "plain.txt"))
    errors, plain_errors = ((place / name).read_text() for name in ("diagnosed.err", "plain.err"))
    return Run(
        program, told, found["findings"], output, plain, found["iterations"], found["failures"], errors, plain_errors
    )


# ---- in the process that forks


def _session(framework: str, said: list[str]) -> Any:
    session = Session(_Silent(said))
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
    def __init__(self, said: list[str]) -> None:
        self.said = said

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


def _run(framework: str, script: Path) -> tuple[BaseException | None, dict[str, Any]]:
    """The program as ``python train.py`` runs it. Returns what ended it, and its global names."""
    import numpy

    module = type(sys)("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv = [str(script)]
    sys.path.insert(0, str(script.parent))
    os.chdir(script.parent)
    random.seed(0)  # not every program has a seed
    numpy.random.seed(0)
    if framework == "torch":
        sys.modules["torch"].manual_seed(0)
    else:
        sys.modules["paddle"].seed(0)
    try:
        exec(compile(script.read_text(), str(script), "exec"), module.__dict__)
    except SystemExit:
        return None, module.__dict__
    except BaseException as error:
        print(type(error).__name__)  # Paddle's text has more of its own stack while nodes keep theirs
        return error, module.__dict__
    return None, module.__dict__


def _plain(framework: str, script: Path) -> None:
    _, names = _run(framework, script)
    print(_results(framework, names))


def _results(framework: str, names: dict[str, Any]) -> str:
    """What the program leaves behind, to the bit: every tensor and gradient that its global names lead to (parameters,
    buffers, states of optimizers), and the random numbers that would come next."""
    import numpy

    library = sys.modules[framework]
    met: dict[int, Any] = {}  # kept, so that no other object gets the same id
    tensors = 0
    found = hashlib.sha256()

    def add(value: Any) -> None:
        nonlocal tensors
        if id(value) in met:
            return
        met[id(value)] = value
        if isinstance(value, library.Tensor):
            tensors += 1
            found.update(_bits(value))
            if value.is_leaf and value.grad is not None:
                found.update(_bits(value.grad))
        elif isinstance(value, dict):
            for each in list(value.values()):
                add(each)
        elif isinstance(value, (list, tuple)):
            for each in value:
                add(each)
        elif type(value).__module__.split(".")[0] in ("__main__", framework) and not isinstance(value, type):
            add(getattr(value, "__dict__", None))

    add(names)
    next_ones = [*library.rand([4]).tolist(), random.random(), numpy.random.rand()]
    return f"{tensors} tensors, {found.hexdigest()}, {next_ones}"


def _bits(tensor: Any) -> bytes:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.detach().tolist()}".encode()


def _diagnosed(framework: str, script: Path) -> None:
    said: list[str] = []
    session = _session(framework, said)
    sent: list[Any] = []
    made = Diagnosis(session, sent.append)
    session.observe(made)
    made.began()
    error, names = _run(framework, script)
    made.program_ends(error)
    found = {
        "findings": [to_json(each) for each in made.findings()], "iterations": sent[-1].iterations,
        "failures": said,
    }  # fmt: skip
    (script.parent / "found.json").write_text(json.dumps(found))
    print(_results(framework, names))


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


def _programs(framework: str, folder: Path) -> tuple[int, str]:
    for place in sorted(folder.iterdir()):
        script = place / "train.py"
        for name, job in (("plain", _plain), ("diagnosed", _diagnosed)):
            status = _child(job, framework, script, into=place / f"{name}.txt")
            if status:
                return status, f"{script}: status {status}\n{(place / f'{name}.err').read_text()}"
    return 0, ""


def main(framework: str) -> None:
    commands, answers = (os.fdopen(os.dup(number), mode) for number, mode in ((0, "r"), (1, "w")))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no program reads what is meant for this one
    os.dup2(2, 1)
    _warm(framework)
    gc.freeze()  # what looks through all objects meets the program's, not the 200,000 of the imports
    for line in iter(commands.readline, ""):
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environment"])
        status, said = _programs(framework, Path(asked["folder"]))
        print(json.dumps({"status": status, "said": said}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
