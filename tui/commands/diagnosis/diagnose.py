"""The command ``diagnose``: what is wrong with this training, and why."""

from __future__ import annotations

import contextlib
import shutil
from textwrap import wrap
from typing import TYPE_CHECKING

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult, command
from adbg.tui.debugger.findings.kinds import check
from adbg.tui.text.findings import (
    Progress,
    Ranked,
    count_text,
    examined_lines,
    finding_lines,
    headline,
    iterations_text,
    list_lines,
)

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

_WIDEST = 110  # columns; where there is no terminal, too


def _width() -> int:
    """Of the terminal that the text is for: the app's console wraps by itself what is wider than it."""
    return min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)


OTHERS = 2.0  # seconds for another rank to answer


@command("diagnose", group="information", args="[KIND,… | N] | start [deep] [KIND,…] | stop", completes="diagnose")
def diagnose(debugger: Debugger, argument: str) -> CommandResult:
    """Name the causes of what is wrong with the training: which line, which node, why, and what proves it.

    The first one switches diagnosis on; it watches from there on, and tells what it finds as soon as it is certain.
    At a stop it looks at the node at hand too. `diagnose` lists what was found so far, `diagnose 2` shows finding 2
    with its evidence and the commands that show it, `diagnose zero-grad` lists those of a kind, and
    `help zero-grad` says what that kind means. `diagnose start` switches it on without a look, `diagnose start deep`
    has it look closely in every iteration; `diagnose stop` ends it.
    """
    words = argument.split()
    if words[:1] == ["start"]:
        return _start(debugger, words[1:])
    if words == ["stop"]:
        return _stop(debugger)
    if len(words) == 1 and words[0].isdigit():
        return _one(debugger, int(words[0]))
    only = check([kind for word in words for kind in word.split(",") if kind])
    begins = debugger.settings.diagnosis is None and debugger.alive
    with contextlib.nullcontext() if only else debugger.findings.listed():
        if begins:  # at a stop it looks as it begins
            debugger.settings.diagnose(protocol.Diagnose("start"))
        on = _look(debugger)
    return findings_result(debugger, only, on, begins)


def _look(debugger: Debugger) -> bool:
    """Have the current process look, where there is one; whether diagnosis is on. The others of a job are asked how far
    they are: the current one may be its launcher. What they find comes by itself."""
    process = debugger.current
    if process is None or not process.alive:
        return False
    body: protocol.DiagnosisBody = process.client.request(protocol.Diagnose("state"), 60.0)
    debugger.findings.learn(process, body)
    for other in debugger.processes:
        if other is not process:
            with contextlib.suppress(AdbgError):
                debugger.findings.learn(other, other.client.request(protocol.Diagnose("state"), OTHERS))
    return body.on


def look_again(debugger: Debugger) -> None:
    """Diagnosis is switched on where it is off, and looks."""
    if debugger.settings.diagnosis is None and debugger.alive:
        debugger.settings.diagnose(protocol.Diagnose("start"))
        if since := watched_since(debugger):
            debugger.model.notice("info", f"diagnosis is on now: {since}")
    _look(debugger)


def watched_since(debugger: Debugger) -> str:
    """From when on diagnosis watches that is switched on now, and what it cannot know; "" where that is the whole
    run."""
    if not debugger.alive or not (debugger.run.begun or not debugger.program.launched):
        return ""
    stop = debugger.stop
    again = "; `restart` has it watch the whole run" if debugger.program.launched else ""
    if stop is None or not stop.backward:
        return f"it watches from the end of the next backward on, and knows nothing of what ran before{again}"
    before = f"of iteration {stop.iteration}" if stop.iteration == 1 else f"of iterations 1 to {stop.iteration}"
    before = before if stop.iteration else "of what ran before"
    return (
        f"it watches from the end of this backward on; {before} it knows only what lies at this stop, not the steps,"
        f" losses and gradients that were{again}"
    )


def progress(debugger: Debugger) -> Progress:
    """How far it is."""
    exited = debugger.run.exit
    cut = exited.signal_name if exited is not None else ""
    return debugger.findings.progress(debugger.alive, debugger.settings.diagnosis is not None, cut)


def advice(now: Progress) -> str:
    """What to do where nothing was found; "" where all was looked at."""
    if now.alive and now.on:
        return "it is told here as soon as it is certain; let the program run"
    if now.ended and now.iterations:
        return ""
    return "`diagnose start`" + ("" if now.alive else ", then `restart`, watches the whole run")


def _start(debugger: Debugger, words: list[str]) -> CommandResult:
    deep = "deep" in words
    only = check([kind for word in words if word != "deep" for kind in word.split(",") if kind])
    asked = protocol.Diagnose("start", only, deep)
    now = debugger.settings.diagnosis
    if now is not None and (now.only, now.iterations) != (only, 0):
        raise CommandError("diagnosis is on already, for other things", "`diagnose stop`, then start it again")
    if now is not None and now.deep:
        asked = now
    debugger.settings.diagnose(asked)
    if now is not None and debugger.alive:
        text = "diagnosis is on already" + (", and looks closely in every iteration" if now.deep else "")
        if deep and not now.deep:
            text = "diagnosis looks closely in every iteration, from the next one on"
        return CommandResult(text, {"on": True, "only": only, "deep": asked.deep})
    what = f"looks for {', '.join(only)}" if only else "looks for everything it knows"
    when = "" if debugger.alive else ", once the program is started again"
    since = f"\n{watched_since(debugger)}".rstrip()
    return CommandResult(f"diagnosis is on: it {what}{when}{since}", {"on": True, "only": only, "deep": deep})


def _stop(debugger: Debugger) -> CommandResult:
    if debugger.settings.diagnosis is None:
        raise CommandError("diagnosis is not on", "`diagnose start` switches it on")
    debugger.settings.diagnose(None)
    _look(debugger)
    rows = debugger.findings.ranked()
    many = debugger.findings.iterations
    head = f"{count_text(rows)}, in {iterations_text(many)}" if many or rows else "no backward was watched"
    return CommandResult(f"diagnosis is off: {head}", {"on": False, "findings": _values(rows)})


def _one(debugger: Debugger, number: int) -> CommandResult:
    rows = debugger.findings.ranked()
    if not 1 <= number <= len(rows):
        have = f"there are 1 to {len(rows)}" if rows else "nothing was found so far"
        raise CommandError(f"no finding {number}", have)
    row = rows[number - 1]
    return CommandResult("\n".join(line.text for line in finding_lines(row, _width())), _values([row])[0])


def known_result(debugger: Debugger) -> CommandResult:
    """``info findings``: asks the program, where diagnosis is on, and switches nothing."""
    on = debugger.settings.diagnosis is not None
    return findings_result(debugger, [], on and _look(debugger))


def findings_result(debugger: Debugger, only: list[str], on: bool, begins: bool = False) -> CommandResult:
    """What was found so far, ranked; the details where it is one. ``begins``: diagnosis was switched on just now."""
    rows = debugger.findings.ranked()
    if only:
        rows = [row for row in rows if {row.finding.kind, *(each.kind for each in row.also)} & set(only)]
    now = progress(debugger)
    examined = [row for row in debugger.findings.examined() if not only or row.kind in only]
    head = headline(rows, examined, now)
    if only and not rows:
        head = f"{', '.join(only)}: {head}"
    if begins:
        head = f"diagnosis is on now; {head}"
    since = watched_since(debugger) if begins else ""
    lines = [
        head,
        *wrap(since, _width(), break_on_hyphens=False),
        *(line.text for line in list_lines(rows, _width(), len(rows) == 1)),
    ]
    if len(rows) > 1:
        lines.append("`diagnose N` shows what proves it, and the commands that show it")
    if not rows:
        lines += [advice(now)] if advice(now) else []
        notes = [] if begins else examined_lines(examined, now, False)
        lines += [part for each in notes for part in wrap(each, _width(), break_on_hyphens=False)]
    return CommandResult("\n".join(lines), {"on": on, "findings": _values(rows)})


def _values(rows: list[Ranked]) -> list[object]:
    return [
        {
            "number": row.number,
            **{name: value for name, value in to_json(row.finding).items() if name != "advice"},  # of the evidence
            "process": row.process,
            "ranks": list(row.ranks),
            "also": [each.id for each in row.also],
        }
        for row in rows
    ]
