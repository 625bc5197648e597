"""The command ``diagnose``: what is wrong with this training, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult, command
from adbg.tui.debugger.findings.kinds import check
from adbg.tui.text.findings import Ranked, count_text, examined_lines, finding_lines, headline, list_lines

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

WIDTH = 110
_NOTHING_YET = "nothing is known yet: no whole iteration has run since diagnosis was switched on"


@command("diagnose", group="information", args="[KIND,… | N] | start [deep] [KIND,…] | stop", completes="diagnose")
def diagnose(debugger: Debugger, argument: str) -> CommandResult:
    """Name the causes of what is wrong with the training: which line, which node, why, and what proves it.

    The first one switches diagnosis on; it watches from there on, and tells what it finds as soon as it is certain.
    At a stop it looks at the node at hand too. `diagnose` lists what was found so far, `diagnose 2` shows finding 2
    with its evidence and the commands that show it, `diagnose zero-grad` lists those of a kind. `diagnose start`
    switches it on without a look, `diagnose start deep` has it look closely in every iteration; `diagnose stop` ends
    it.
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
    if begins:
        debugger.settings.diagnose(protocol.Diagnose("start"))
    on = _look(debugger)
    return findings_result(debugger, only, on, begins)


def _look(debugger: Debugger) -> bool:
    """Have the current process look, where there is one; whether diagnosis is on."""
    process = debugger.current
    if process is None or not process.alive:
        return False
    body: protocol.DiagnosisBody = process.client.request(protocol.Diagnose("state"), 60.0)
    debugger.findings.learn(process, body)
    return body.on


def look_again(debugger: Debugger) -> str:
    """Diagnosis is switched on where it is off, and looks; what is to be said where it has found nothing."""
    begins = debugger.settings.diagnosis is None and debugger.alive
    if begins:
        debugger.settings.diagnose(protocol.Diagnose("start"))
    on = _look(debugger)
    if begins:
        return "diagnosis is on now: what it finds while the program runs is told here"
    if on and not debugger.findings.iterations and not debugger.findings.ranked():
        return _NOTHING_YET
    return "nothing found so far" if on else "diagnosis is not on: the program does not run"


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
    when = ", from the end of the next backward on" if debugger.alive and debugger.run.begun else ""
    when = when if debugger.alive else ", once the program is started again"
    return CommandResult(f"diagnosis is on: it {what}{when}", {"on": True, "only": only, "deep": deep})


def _stop(debugger: Debugger) -> CommandResult:
    if debugger.settings.diagnosis is None:
        raise CommandError("diagnosis is not on", "`diagnose start` switches it on")
    debugger.settings.diagnose(None)
    _look(debugger)
    rows = debugger.findings.ranked()
    seen = count_text(rows) if rows or debugger.findings.iterations else "no iteration was watched"
    return CommandResult(f"diagnosis is off: {seen}", {"on": False, "findings": _values(rows)})


def _one(debugger: Debugger, number: int) -> CommandResult:
    rows = debugger.findings.ranked()
    if not 1 <= number <= len(rows):
        have = f"there are 1 to {len(rows)}" if rows else "nothing was found so far"
        raise CommandError(f"no finding {number}", have)
    row = rows[number - 1]
    return CommandResult("\n".join(line.text for line in finding_lines(row, WIDTH)), _values([row])[0])


def findings_result(debugger: Debugger, only: list[str], on: bool, begins: bool = False) -> CommandResult:
    """What was found so far, ranked; the details where it is one."""
    rows = debugger.findings.ranked()
    if only:
        rows = [row for row in rows if {row.finding.kind, *(each.kind for each in row.also)} & set(only)]
    told = debugger.findings.told_end
    head = headline(rows, debugger.findings.examined(), True) if told else count_text(rows)
    if not rows and begins:
        head = "diagnosis is on now; nothing is known so far: it tells what it finds as the program runs"
    elif not rows and on and not debugger.findings.iterations:
        head = _NOTHING_YET
    elif not rows:
        head += " so far" if on else "" if told else "; diagnosis was not on (`diagnose start`)"
    lines = [head, *(line.text for line in list_lines(rows, WIDTH, len(rows) == 1))]
    if len(rows) > 1:
        lines.append("`diagnose N` shows what proves it, and the commands that show it")
    if not rows and not begins and told:
        examined = [row for row in debugger.findings.examined() if not only or row.kind in only]
        lines += examined_lines(examined, debugger.findings.iterations, True, False)
    return CommandResult("\n".join(lines), {"on": on, "findings": _values(rows)})


def _values(rows: list[Ranked]) -> list[object]:
    return [
        {
            "number": row.number,
            **to_json(row.finding),
            "process": row.process,
            "ranks": list(row.ranks),
            "also": [each.id for each in row.also],
        }
        for row in rows
    ]
