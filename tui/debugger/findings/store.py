"""What diagnosis of each process told so far. Changed on the threads that read what agents say; any thread may ask."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from adbg.engine.protocol.messages import DiagnosisBody, DiagnosisEnds, Examined, Finding, RankFacts
from adbg.tui.debugger.findings.job import Job, is_apart, is_passed_by
from adbg.tui.debugger.findings.own_words import in_own_words, words_of
from adbg.tui.debugger.findings.ranking import Told, merged, ranked
from adbg.tui.debugger.process import Process
from adbg.tui.text.findings import INTERRUPTED, Progress, Ranked


class Findings:
    """Of one start of the program; ``begin`` forgets them. ``command``: argv of the program that adbg started.

    Attributes:
        listing: a command asks, and lists in its answer what is told meanwhile.
    """

    def __init__(self, command: Sequence[str] = ()) -> None:
        self.listing = False
        self._command = tuple(command)
        self._lock = threading.Lock()
        self._told: dict[tuple[int, int], Told] = {}
        self._ends: dict[int, DiagnosisEnds] = {}
        self._own: list[Examined] = []  # what was looked for here
        self._ended = self._interrupted = False
        self._begun = 0  # iterations of the rank that is farthest, as ranks tell it while they run
        self._job = Job()

    def begin(self) -> None:
        """The program starts."""
        with self._lock:
            self._told.clear()
            self._ends.clear()
            self._own.clear()
            self._ended = self._interrupted = False
            self._begun = 0
            self._job = Job()

    @contextlib.contextmanager
    def listed(self) -> Iterator[None]:
        """What is told in here is in the list that the user asked for: people need not be told of it twice."""
        self.listing = True
        try:
            yield
        finally:
            self.listing = False

    def compare(self, process: Process, facts: RankFacts) -> list[tuple[Finding, str]]:
        """What several ranks show together, and what is new of it, as ``add`` says it. They are findings of no rank."""
        with self._lock:
            self._begun = max(self._begun, facts.iteration)
            if facts.what == "stands":
                return []
            found = self._job.add(process.info.rank or 0, facts)
            told = [(each, self._note((0, each.id), Told(process.number, None, each))) for each in found]
            if any(is_apart(each) and each.confidence <= 0 for each in found):  # averaged from time to time
                sure = [(key, each) for key, each in self._told.items() if each.finding.severity == "warning"]
                for key, each in sure:
                    if is_passed_by(each.finding):
                        less = self._job.doubted(each.finding)
                        told.append((less, self._note(key, replace(each, finding=less))))
        return [(finding, what) for finding, what in told if what]

    def add_of_job(self, process: Process, finding: Finding) -> str:
        """As ``add``, of what no single rank shows."""
        with self._lock:
            return self._note((0, finding.id), Told(process.number, None, finding))

    @property
    def words(self) -> str:
        """What stands for the program behind ``adbg run``; "" where adbg did not start it."""
        return words_of(self._command)

    def worded(self, process: Process, finding: Finding) -> Finding:
        """As it is shown: its commands name the program, and what all ranks show proves it."""
        with self._lock:
            finding = self._job.confirmed(finding)
        if self._command:
            return in_own_words(finding, self.words)
        return in_own_words(finding, words_of(process.info.argv, process.info.cwd))

    def add(self, process: Process, finding: Finding) -> str:
        """What is new of it: "told", "changed", "taken back"; "" where nothing is."""
        finding = self.worded(process, finding)
        with self._lock:
            return self._note((process.number, finding.id), Told(process.number, process.info.rank, finding))

    def _note(self, key: tuple[int, int], told: Told) -> str:
        before, finding = self._told.get(key), told.finding
        self._told[key] = told
        if before is not None and before.finding == finding:
            return ""
        if finding.confidence <= 0:
            return "taken back"
        return "told" if before is None else "changed"

    def add_own(self, process: Process, finding: Finding) -> Finding:
        """One that the program did not tell, under the next id of ``process``."""
        with self._lock:
            last = max((id for number, id in self._told if number == process.number), default=0)
        known = self.worded(process, replace(finding, id=last + 1))
        self.add(process, known)
        return known

    def looked(self, row: Examined) -> None:
        """What came of looking for a kind that no program looks for."""
        with self._lock:
            self._own.append(row)

    def learn(self, process: Process, body: DiagnosisBody) -> None:
        """What it answered."""
        for finding in body.findings:
            self.add(process, finding)
        with self._lock:
            self._ended = self._ended and not body.on
            self._ends[process.number] = DiagnosisEnds(body.examined, body.iterations)

    def ended(self, process: Process, end: DiagnosisEnds) -> None:
        with self._lock:
            self._ended = True
            self._interrupted = self._interrupted or end.interrupted
            self._ends[process.number] = end

    def ranked(self) -> list[Ranked]:
        with self._lock:
            told = list(self._told.values())
        return ranked(told)

    def taken_back(self) -> list[Finding]:
        """What was told, and turned out otherwise; not what was told again since."""
        with self._lock:
            every = [told.finding for told in self._told.values()]
        stand = {(each.kind, each.cause) for each in every if each.confidence > 0}
        return [each for each in every if each.confidence <= 0 and (each.kind, each.cause) not in stand]

    def examined(self) -> list[Examined]:
        """What all came to so far, of those that told."""
        with self._lock:
            ends, own = list(self._ends.values()), list(self._own)
        return merged([*(row for end in ends for row in end.examined), *own])

    @property
    def iterations(self) -> int:
        """Of the process with most of them; a rank that was killed has told how far it was before."""
        with self._lock:
            return max((self._begun, *(end.iterations for end in self._ends.values())))

    @property
    def known(self) -> bool:
        """Some process said what it had looked at: as it was asked, or at its end."""
        with self._lock:
            return bool(self._ends)

    @property
    def told_end(self) -> bool:
        """Some process came to an end of its own (or of diagnosis), and said what it looked at; Ctrl-C ended none."""
        with self._lock:
            return self._ended and not self._interrupted

    def progress(self, alive: bool, on: bool, cut: str = "") -> Progress:
        """How far it is; the arguments are as in ``Progress``."""
        with self._lock:
            cut = cut or (INTERRUPTED if self._interrupted else "")
        return Progress(self.iterations, alive, self.known, self.told_end, on, cut)
