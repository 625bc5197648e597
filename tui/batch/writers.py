"""How batch mode writes: text for people, or JSON lines for scripts. Main thread only.

Text: the program's streams go through byte for byte; adbg's own lines begin with "adbg: " and go to stdout, its
notices to stderr. JSON: stdout carries nothing but one object a line (``lines.py``); warnings go to stderr as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

from adbg.engine.errors import AdbgError
from adbg.engine.protocol.codec import to_json
from adbg.engine.types import ExitStatus
from adbg.tui.batch import lines
from adbg.tui.commands.table import CommandResult
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.findings.store import Findings
from adbg.tui.debugger.reports import shown_text, stop_report
from adbg.tui.text.evidence import stop_message
from adbg.tui.text.findings import report_lines, told_line
from adbg.tui.text.formatting import exit_text, trace_text
from adbg.tui.text.memory import growth_lines
from adbg.tui.text.profile import is_whole, state_text

PREFIX = "adbg: "


class Writer:
    """What the batch loop reports; the base of both. ``quiet``: stops, calls and mere information are not reported."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, quiet: bool = False) -> None:
        self.quiet = quiet
        self._out = stdout if stdout is not None else sys.stdout.buffer
        self._err = stderr if stderr is not None else sys.stderr.buffer

    def _complain(self, text: str) -> None:
        """To stderr, in both forms."""
        self._write(self._err, f"{PREFIX}{text}\n".encode(errors="backslashreplace"))

    def _write(self, stream: BinaryIO, data: bytes) -> None:
        """A reader that went away (``| head``), a full disk: no reason to end the program being debugged. What cannot
        be written is dropped from then on, and that is said once where it can be."""
        try:
            stream.write(data)
            stream.flush()
        except ValueError:  # closed
            pass
        except OSError as error:
            self._drop(stream)
            if not isinstance(error, BrokenPipeError):
                name = "stdout" if stream is self._out else "stderr"
                self._complain(f"nothing more is written to {name}: {error.strerror}; the program runs on")

    def _drop(self, stream: BinaryIO) -> None:
        """Have it write to nowhere, what still waits in its buffer too: Python would fail on that at its end."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
        raise NotImplementedError

    def result(self, line: str, result: CommandResult) -> None:
        raise NotImplementedError

    def error(self, line: str, error: AdbgError) -> None:
        raise NotImplementedError

    def accepted(self, line: str, result: CommandResult) -> None:
        """A ``-b`` that was set: not worth a line, as the user gave it."""

    def refused(self, line: str, error: AdbgError) -> None:
        """A bad ``-b``: a usage error."""
        self._complain(f"{line}: {error}")

    def output(self, event: events.Output) -> None:
        raise NotImplementedError

    def notice(self, level: str, text: str) -> None:
        raise NotImplementedError

    def trace(self, event: events.Trace) -> None:
        raise NotImplementedError

    def exited(self, status: ExitStatus, by_timeout: bool = False, failed_on: Sequence[int] = ()) -> None:
        """``by_timeout``: adbg ended it, and said so. ``failed_on``: breakpoints of ``--fail-on`` that were hit."""
        raise NotImplementedError

    def backward_began(self, event: events.BackwardBegan) -> None:
        """Text mode is silent about it."""

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """Text mode is silent about it."""

    def profile_ended(self, event: events.ProfileEnded) -> None:
        """What was asked for: not mere information."""
        raise NotImplementedError

    def memory_grows(self, event: events.MemoryGrows) -> None:
        raise NotImplementedError

    def found(self, event: events.Found) -> None:
        """A finding of diagnosis, told anew where it changed."""
        raise NotImplementedError

    def diagnosed(self, findings: Findings, cut: str = "") -> None:
        """The program ended: what was found, ranked, and what was looked at. ``cut``: what ended it before its end,
        where it did not say what it had looked at."""
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing more may come for a while: pass on what is held back."""


class TextWriter(Writer):
    """For people."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, quiet: bool = False) -> None:
        super().__init__(stdout, stderr, quiet)
        self._open_line = {"stdout": False, "stderr": False}

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
        if self.quiet:
            return
        self._say(stop_report(event.process.view, event.stop))
        for row in debugger.displays.values():
            self._say(shown_text(row))

    def result(self, line: str, result: CommandResult) -> None:
        """The question stands above its answer: a log of twenty bare numbers answers nothing."""
        if result.text:
            self._say(f"(adbg) {line}\n{result.text}")

    def error(self, line: str, error: AdbgError) -> None:
        self._say(f"{line.splitlines()[0]}: {error}")

    def output(self, event: events.Output) -> None:
        if event.data:
            self._open_line[event.stream] = not event.data.endswith((b"\n", b"\r"))
            self._write(self._err if event.stream == "stderr" else self._out, event.data)

    def notice(self, level: str, text: str) -> None:
        if level == "info" and self.quiet:
            return
        self._lines(self._err, "stderr", text)

    def profile_ended(self, event: events.ProfileEnded) -> None:
        self._lines(self._err, "stderr", state_text(event.state))

    def memory_grows(self, event: events.MemoryGrows) -> None:
        self._lines(self._err, "stderr", "\n".join(growth_lines(event.growth)))

    def found(self, event: events.Found) -> None:
        if event.worth_a_line:
            self._lines(self._err, "stderr", told_line(event.finding, event.what, event.rank))

    def diagnosed(self, findings: Findings, cut: str = "") -> None:
        width = shutil.get_terminal_size((120, 24)).columns - len(PREFIX)
        progress = findings.progress(False, True, cut)
        lines = report_lines(findings.ranked(), findings.examined(), progress, findings.words, width)
        self._lines(self._err, "stderr", "\n".join([f"diagnosis: {lines[0]}", *lines[1:]]))

    def trace(self, event: events.Trace) -> None:
        self._say(trace_text(event.breakpoint, event.text, event.stop))

    def exited(self, status: ExitStatus, by_timeout: bool = False, failed_on: Sequence[int] = ()) -> None:
        if status.signal is not None and not by_timeout:
            self.notice("warning", f"the program was {exit_text(status)}")
        for number in failed_on:
            self.notice("warning", f"breakpoint {number} of --fail-on was hit: exit status 3")

    def _say(self, text: str) -> None:
        if text:
            self._lines(self._out, "stdout", text)

    def _lines(self, stream: BinaryIO, name: str, text: str) -> None:
        start = "\n" if self._open_line[name] else ""  # the program left its line open
        self._open_line[name] = False
        prefixed = "".join(f"{PREFIX}{line}".rstrip() + "\n" for line in text.splitlines())
        self._write(stream, (start + prefixed).encode(errors="backslashreplace"))


class JsonWriter(Writer):
    """For scripts. Output of the program is passed on in whole lines, as far as it comes in lines."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, quiet: bool = False) -> None:
        super().__init__(stdout, stderr, quiet)
        self._held: dict[str, str] = {}

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
        if self.quiet:
            return
        self._put(lines.Stopped(**_fields(event)))
        for row in debugger.displays.values():
            self._put(
                lines.Display(
                    number=row.number,
                    expression=row.expression,
                    text=row.text,
                    error=row.error,
                    watch=row.watched,
                    changed=row.changed,
                )
            )

    def result(self, line: str, result: CommandResult) -> None:
        columns, rows = (list(result.columns), [list(row) for row in result.rows]) if result.rows else (None, None)
        self._put(lines.Result(command=line, value=result.value, text=result.text, columns=columns, rows=rows))

    def error(self, line: str, error: AdbgError) -> None:
        self._put(lines.Error(command=line, message=error.message, hint=error.hint))

    def output(self, event: events.Output) -> None:
        text = self._held.pop(event.stream, "") + event.text
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if end:
            self._write_line(lines.Output(stream=event.stream, text=text[:end]))
        if text[end:]:
            self._held[event.stream] = text[end:]

    def accepted(self, line: str, result: CommandResult) -> None:
        self.result(line, result)

    def refused(self, line: str, error: AdbgError) -> None:
        super().refused(line, error)
        self.error(line, error)

    def notice(self, level: str, text: str) -> None:
        if level == "info" and self.quiet:
            return
        self._put(lines.Notice(level=level, text=text))
        if level != "info":
            self._complain(text)

    def profile_ended(self, event: events.ProfileEnded) -> None:
        state = event.state
        self._put(
            lines.Profile(
                profiler=state.profiler,
                state=state.state,
                region=to_json(state.region),
                folder=state.folder,
                file=state.file,
                format=state.format,
                iterations=state.iterations,
                seconds=state.seconds,
                why=state.why,
                warnings=state.warnings,
                pid=state.pid,
                rank=event.process.rank,
            )
        )
        if not is_whole(state):
            self._complain(state_text(state))

    def memory_grows(self, event: events.MemoryGrows) -> None:
        growth, owner = event.growth, event.growth.owner
        fed = owner.filled or owner.where or owner.made
        self._put(
            lines.MemoryGrows(
                owner=owner.path,
                file=fed.file if fed is not None else "",
                line=fed.line if fed is not None else 0,
                unit="nodes" if growth.nodes else "tensors",
                counts=growth.counts,
                sure=growth.sure,
                rank=event.process.rank,
            )
        )
        self._complain("\n".join(growth_lines(growth)))

    def found(self, event: events.Found) -> None:
        self._put(lines.finding_line(event.finding, event.rank, event.process.number))

    def diagnosed(self, findings: Findings, cut: str = "") -> None:
        self._put(lines.diagnosis_line(findings))

    def trace(self, event: events.Trace) -> None:
        self._put(lines.Trace(**_fields(event), breakpoint=event.breakpoint, text=event.text))

    def exited(self, status: ExitStatus, by_timeout: bool = False, failed_on: Sequence[int] = ()) -> None:
        self._put(lines.Exited(code=status.status, signal=status.signal_name, failed_on=tuple(failed_on)))

    def backward_began(self, event: events.BackwardBegan) -> None:
        begin = event.begin
        if self.quiet:
            return
        self._put(
            lines.BackwardBegins(
                phase="begin",
                backward=begin.backward,
                nodes=begin.nodes,
                roots=begin.roots,
                file=begin.file,
                line=begin.line,
                depth=begin.depth,
                rank=event.process.rank,
                truncated=begin.truncated,
            )
        )

    def backward_ended(self, event: events.BackwardEnded) -> None:
        end, rank = event.end, event.process.rank
        if self.quiet:
            return
        self._put(
            lines.BackwardEnds(
                phase="end", backward=end.backward, us=end.us, depth=end.depth, rank=rank, error=end.error
            )
        )

    def flush(self) -> None:
        held, self._held = self._held, {}
        for stream, text in held.items():
            self._write_line(lines.Output(stream=stream, text=text))

    def _put(self, line: lines.Line) -> None:
        """After what the program printed before it."""
        self.flush()
        self._write_line(line)

    def _write_line(self, line: lines.Line) -> None:
        text = lines.written(lines.as_json(line))
        self._write(self._out, text.encode(errors="backslashreplace") + b"\n")


def _fields(event: events.Stopped | events.Trace) -> dict[str, Any]:
    return lines.stop_fields(event.stop, stop_message(event.stop), event.process.number)
