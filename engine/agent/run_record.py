"""What this process keeps of its run: the record, the crash journal, and where log records go.

The launched process opens both at its start, a child with its first backward (most children have none).
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adbg.engine.protocol import messages as p
from adbg.engine.protocol.codec import to_json
from adbg.engine.protocol.rendezvous import SessionConfig
from adbg.engine.record.files import vlog_path
from adbg.engine.record.journal import Journal, open_journal
from adbg.engine.record.observers import CrashNotes, Recording
from adbg.engine.session.problems import Outlet
from adbg.engine.session.session import Session

if TYPE_CHECKING:
    from adbg.engine.record.recorder import Recorder

_NOT_RECORDED = "the run was started without a run directory"


class RunRecord:
    """``config.run_dir`` "": nothing is recorded. ``scratch``: a private folder of the session that a front end made,
    for what would lie beside the record; "": none."""

    def __init__(self, session: Session, outlet: Outlet, config: SessionConfig, scratch: str) -> None:
        self._session = session
        self._outlet = outlet
        self._run_dir = config.run_dir
        self._limit = config.record_limit
        self._scratch = scratch
        self._recording: Recording | None = None
        self.recorder: Recorder | None = None
        self.journal: Journal | None = None
        self.due = bool(config.run_dir)  # the record is still to be opened
        self.opened: Callable[[Recorder], None] = lambda recorder: None  # told once
        # Python ends the recorder before it ends the agent: what the ledger has of the last quarter second comes first.
        self.before_end: Callable[[], object] = lambda: None
        self.kept: Callable[[Journal], None] = lambda journal: None  # told once

    def open(self) -> None:
        session = self._session
        if self.due:
            from adbg.engine.record.recorder import Recorder  # with sqlite: 2 MB that a program without a record spares

            self.due = False
            self.recorder = Recorder.open(
                self._run_dir,
                session.rank,
                self._problem,
                self._limit,
                argv=list(sys.orig_argv),
                cwd=os.getcwd(),
                pid=os.getpid(),
                python=platform.python_version(),
            )
        folder, label = self._scratch, str(session.rank)
        if self.recorder is not None and self.recorder.recording:
            folder, label = self.recorder.run_dir, self.recorder.label
        self.journal = open_journal(folder, label, self._problem)
        if self.journal is not None:
            self.kept(self.journal)
            session.observe(CrashNotes(self.journal, lambda: session.stacks))
        if self.recorder is not None:
            self._recording = Recording(self.recorder)
            session.observe(self._recording)
            self.recorder.before_end = self.before_end
            self.opened(self.recorder)

    @property
    def run_dir(self) -> str:
        """ "" while nothing is recorded."""
        return self.recorder.run_dir if self.recorder is not None else ""

    def _problem(self, text: str) -> None:
        self._outlet.event(p.Output(text.rstrip("\n") + "\n", "important"))

    def switch(self, on: bool | None) -> p.RecordBody:
        """Answer ``adbg/record``: on records every node from the next backward on; off only what is hooked anyway."""
        recording = self._recording
        if recording is None or not self.run_dir:
            return p.RecordBody(False, "", _NOT_RECORDED)
        if on is not None:
            self._session.change(lambda: setattr(recording, "every", on))
        every = "every node" if recording.every else "stops, VLOG and the nodes that are hooked anyway"
        return p.RecordBody(True, self.run_dir, every)

    # ---- files beside the record

    def captures_folder(self) -> str:
        return os.path.join(self.run_dir, "captures") if self.run_dir else os.path.abspath("adbg-captures")

    def log_file(self) -> tuple[Path | str, bool]:
        """Where a framework's own log goes, and whether that file is kept; "": a file without a name."""
        recorder = self.recorder
        if recorder is not None and recorder.recording:
            return vlog_path(Path(recorder.run_dir), recorder.label), True
        if self._scratch and os.path.isdir(self._scratch):
            return vlog_path(Path(self._scratch), f"0-{os.getpid()}"), True
        return "", False

    def log(self, record: str) -> None:
        """A record of adbg's own, into the VLOG of the run, or to the front end."""
        if self.journal is not None:
            self.journal.log(record)
        if self.recorder is not None and self.recorder.recording:
            self.recorder.log(record)
        else:
            self._outlet.event(p.Output(record, "vlog"), droppable=True)

    def place_log(self, offset: int, length: int) -> None:
        """Bytes that a framework wrote into the VLOG itself get their place among the events."""
        if self.recorder is not None:
            self.recorder.log_range(offset, length)

    def note_groups(self, groups: Sequence[p.ProcessGroup], rank: int | None) -> None:
        """Into run.json: the process groups, whose collectives the record has, and the rank: None where it is not
        known; it may not have been when the record was opened."""
        if self.recorder is not None:
            self.recorder.update_info(process_groups=[to_json(group) for group in groups], rank=rank)

    def note_diagnosis(self, event: p.Found | p.RankFacts | p.DiagnosisEnds) -> None:
        """A finding, told anew under its id, facts to be compared with those of other ranks, or what each detector
        came to."""
        if self.recorder is not None:
            kind, id = ("rank-facts" if isinstance(event, p.RankFacts) else "diagnosis"), ""
            if isinstance(event, p.Found):
                kind, id = "finding", str(event.finding.id)
            self.recorder.artifact(kind, id, json.dumps(to_json(event)))

    def look_again(self) -> None:
        """Now and then: the program may have closed what a crash would write to."""
        if self.journal is not None:
            self.journal.check_faults()

    # ---- the end

    def close(self) -> None:
        """The program ends: write what still waits, within a second."""
        if self.recorder is not None:
            self.recorder.flush(1.0)
            self.recorder.close()
        journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()

    def abandon(self) -> None:
        """In a forked child: both are the parent's."""
        self.recorder = self.journal = self._recording = None
