"""How batch mode writes: text for people, or JSON lines for scripts. Main thread only.

Text: the program's streams go through byte for byte; adbg's own lines begin with "adbg: " and go to stdout, its
    notices to stderr. JSON (cli.md): stdout carries nothing but one object a line; warnings go to stderr as well.
    Besides the types of cli.md there are
``{"type":"notice","level":…,"text":…}``, ``{"type":"trace",…}`` (a tracepoint; fields of ``stopped`` and its text) and
``{"type":"display",…}`` (a display or watch at a stop). ``stopped`` of another process than the first carries
``process``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, BinaryIO

from adbg.engine.errors import AdbgError
from adbg.engine.protocol.codec import to_json
from adbg.engine.types import NodeStop, SourceLine
from adbg.tui.commands.table import CommandResult
from adbg.tui.debugger import events
from adbg.tui.debugger.debugger import Debugger
from adbg.tui.debugger.process import Process
from adbg.tui.text.formatting import shown_text, stop_report, trace_text

PREFIX = "adbg: "


class Writer:
    """What the batch loop reports; the base of both."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None) -> None:
        self._out = stdout if stdout is not None else sys.stdout.buffer
        self._err = stderr if stderr is not None else sys.stderr.buffer

    def _complain(self, text: str) -> None:
        """To stderr, for the person who looks on, in both forms."""
        self._write(self._err, f"{PREFIX}{text}\n".encode(errors="backslashreplace"))

    def _write(self, stream: BinaryIO, data: bytes) -> None:
        """A reader that went away (``| head``) does not end the program being debugged."""
        try:
            stream.write(data)
            stream.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
        raise NotImplementedError

    def result(self, line: str, result: CommandResult) -> None:
        raise NotImplementedError

    def error(self, line: str, error: AdbgError) -> None:
        raise NotImplementedError

    def accepted(self, line: str, result: CommandResult) -> None:
        """A ``-b`` that was set: not worth a line for a person, who gave it."""

    def refused(self, line: str, error: AdbgError) -> None:
        """A ``-b`` that is no breakpoint: a usage error."""
        self._complain(f"{line}: {error}")

    def output(self, event: events.Output) -> None:
        raise NotImplementedError

    def notice(self, level: str, text: str) -> None:
        raise NotImplementedError

    def trace(self, event: events.Trace) -> None:
        raise NotImplementedError

    def exited(self, code: int, text: str) -> None:
        """``text`` says how, where it was a signal."""
        raise NotImplementedError

    def backward_began(self, event: events.BackwardBegan) -> None:
        """Text mode is silent about it."""

    def backward_ended(self, event: events.BackwardEnded) -> None:
        """Text mode is silent about it."""

    def flush(self) -> None:
        """Nothing more may come for a while: pass on what is held back."""


class TextWriter(Writer):
    """For people."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None) -> None:
        super().__init__(stdout, stderr)
        self._open_line = {"stdout": False, "stderr": False}

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
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
        self._lines(self._err, "stderr", text)

    def trace(self, event: events.Trace) -> None:
        self._say(trace_text(event.breakpoint, event.text, event.stop))

    def exited(self, code: int, text: str) -> None:
        if text.startswith("killed by"):
            self.notice("info", f"the program was {text}")

    def _say(self, text: str) -> None:
        if text:
            self._lines(self._out, "stdout", text)

    def _lines(self, stream: BinaryIO, name: str, text: str) -> None:
        start = "\n" if self._open_line[name] else ""  # the program left its line open
        self._open_line[name] = False
        lines = "".join(f"{PREFIX}{line}\n" for line in text.splitlines())
        self._write(stream, (start + lines).encode(errors="backslashreplace"))


class JsonWriter(Writer):
    """For scripts. Output of the program is passed on in whole lines, as far as it comes in lines."""

    def __init__(self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None) -> None:
        super().__init__(stdout, stderr)
        self._held: dict[str, str] = {}

    def stopped(self, debugger: Debugger, event: events.Stopped) -> None:
        self._object("stopped", **stop_fields(event.process, event.stop))
        for row in debugger.displays.values():
            self._object(
                "display",
                number=row.number,
                expression=row.expression,
                text=row.text,
                error=row.error,
                watch=row.watched,
                changed=row.changed,
            )

    def result(self, line: str, result: CommandResult) -> None:
        fields: dict[str, Any] = {"command": line, "value": result.value, "text": result.text}
        if result.rows:
            fields |= {"columns": result.columns, "rows": result.rows}
        self._object("result", **fields)

    def error(self, line: str, error: AdbgError) -> None:
        extra = {"hint": error.hint} if error.hint else {}
        self._object("error", command=line, message=error.message, **extra)

    def output(self, event: events.Output) -> None:
        text = self._held.pop(event.stream, "") + event.text
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if end:
            self._put({"type": "output", "stream": event.stream, "text": text[:end]})
        if text[end:]:
            self._held[event.stream] = text[end:]

    def accepted(self, line: str, result: CommandResult) -> None:
        self.result(line, result)

    def refused(self, line: str, error: AdbgError) -> None:
        super().refused(line, error)
        self.error(line, error)

    def notice(self, level: str, text: str) -> None:
        self._object("notice", level=level, text=text)
        if level != "info":
            self._complain(text)

    def trace(self, event: events.Trace) -> None:
        fields = stop_fields(event.process, event.stop)
        self._object("trace", **{**fields, "breakpoint": event.breakpoint, "text": event.text})

    def exited(self, code: int, text: str) -> None:
        self._object("exited", code=code)

    def backward_began(self, event: events.BackwardBegan) -> None:
        begin = event.begin
        fields: dict[str, Any] = {
            "phase": "begin",
            "backward": begin.backward,
            "nodes": begin.nodes,
            "roots": begin.roots,
        }
        fields |= {"file": begin.file, "line": begin.line, "depth": begin.depth, "rank": event.process.rank}
        self._object("backward", **fields)

    def backward_ended(self, event: events.BackwardEnded) -> None:
        end = event.end
        extra = {"error": end.error} if end.error else {}
        rank = event.process.rank
        self._object("backward", phase="end", backward=end.backward, us=end.us, depth=end.depth, rank=rank, **extra)

    def flush(self) -> None:
        held, self._held = self._held, {}
        for stream, text in held.items():
            self._put({"type": "output", "stream": stream, "text": text})

    def _object(self, kind: str, **fields: Any) -> None:
        self.flush()
        self._put({"type": kind, **fields})

    def _put(self, fields: dict[str, Any]) -> None:
        text = json.dumps(to_json(fields), ensure_ascii=False, allow_nan=False)
        self._write(self._out, text.encode(errors="backslashreplace") + b"\n")


def stop_fields(process: Process, stop: NodeStop) -> dict[str, Any]:
    """The fields of a ``stopped`` line, in cli.md's order; then what cli.md does not name."""
    node = stop.node
    fields: dict[str, Any] = {
        "reason": stop.reason,
        "breakpoints": stop.breakpoints,
        "phase": stop.phase,
        "backward": stop.backward,
        "index": stop.index,
        "total": stop.total,
        "depth": stop.depth,
        "rank": stop.rank,
        "node": None,
        "forward": _line(node.forward if node is not None else None),
        "enclosing": stop.enclosing,
        "location": _line(stop.location),
        "message": stop.message,
        "iteration": stop.iteration,
    }
    if node is not None:
        fields["node"] = {
            "name": node.name,
            "unique_name": node.unique_name,
            "module": node.module,
            "parameter": node.parameter,
        }
    if process.number != 1:
        fields["process"] = process.number
    return fields


def _line(line: SourceLine | None) -> dict[str, Any] | None:
    return None if line is None else {"file": line.file, "line": line.line, "function": line.function}
