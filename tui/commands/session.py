"""Commands about the session itself: logs, dumps, recording, processes, help, quit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.places import checked_place
from adbg.tui.commands.table import (
    GROUPS,
    TABLE,
    Command,
    CommandResult,
    choice_of,
    command,
    no_argument,
    resolve,
    table_result,
    words_of,
)
from adbg.tui.debugger.job.stop_all import HELD_SECONDS

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

TITLES = {
    "running": "Running and stepping",
    "breakpoints": "Breakpoints",
    "data": "Values",
    "stack": "Stack and source",
    "graph": "Graph",
    "information": "Information",
    "session": "Session",
}


@command("vlog", group="session", args="[bw] [LEVEL | MODULE=LEVEL… | off] [at FILE:A-B]", completes="vlog")
def vlog(debugger: Debugger, argument: str) -> CommandResult:
    """Show or set the VLOG level: `vlog 5`, `vlog backward=6,nodes=4`, `vlog 6 at train.py:10-14`, `vlog off`.

    Level 3 logs calls and nodes, 4 adds shapes and dtypes, 5 metadata and modules, 6 unique names and forward lines.
    With Paddle, these are its own levels and modules (`vlog dygraph_functions=6,nodes=5`), and its log goes to the run
    directory instead of the program's stderr until `vlog off`. `vlog 6 at FILE:A-B` raises the level only while these
    lines run; `vlog bw 6 at FILE:A-B` only while the nodes made there run (nodes made before the command are found by
    their stacks). On Paddle both trace the thread, so Python calls are slower; `vlog bw` uses Paddle's own
    `backward_vlog_guard`, which knows nodes by address: one made later where a freed one was is logged too. Regions are
    cumulative; `vlog off` removes them too. A Paddle program that is started with `GLOG_v=4` or `GLOG_vmodule` begins
    at that level.
    """
    levels, place, at = f"{argument} ".partition(" at ")
    first, _, rest = levels.strip().partition(" ")
    backward = first in ("bw", "backward")
    levels = ",".join((rest if backward else levels).replace(",", " ").split())
    if (backward or place) and not (levels and at.strip()):
        raise CommandError("expected a level and source lines", "for example: vlog bw 6 at train.py:10-14")
    region, remark = checked_place(at, debugger.program.command, "vlog 6 at train.py:10-14") if place else ("", "")
    body = debugger.settings.set_vlog(levels, region, backward)
    names = {name: level for name, level in body.levels.items() if name != "*"}
    level = body.levels.get("*", 0)
    text = f"vlog {level if level or names or body.regions else 'off'}"
    text += "".join(f"  {name}={level}" for name, level in names.items())
    text += "".join(f"\nvlog {region}" for region in body.regions)
    text += f"\n{remark}" if remark else ""
    text += f"\n→ {body.file}  (`adbg log` shows it)" if body.file else ""
    value: dict[str, object] = dict(body.levels)
    return CommandResult(text, {**value, "regions": body.regions} if body.regions else value)


@command("aids", "aid", group="session", args="[NAME [VALUE]]")
def aids(debugger: Debugger, argument: str) -> CommandResult:
    """Show the framework's own debugging aids, or set one: `aids check_nan_inf 0`, `aids call_stack_level 3`.

    The list says what this build of the framework does with each. `detach` restores the script's settings.
    """
    words = words_of(argument)
    if len(words) > 2:
        raise CommandError("expected an aid and a value", "for example: aids check_nan_inf 0")
    rows = debugger.settings.aids(*words).aids
    cells = [(row.name, row.value, row.values, row.what, row.note) for row in rows]
    value = [{"name": row.name, "value": row.value, "note": row.note} for row in rows]
    return table_result(("aid", "now", "takes", "what it does", "in this build"), cells, "", value)


@command("dump", group="session", args="graph|stack|grads DIR", completes="dump")
def dump(debugger: Debugger, argument: str) -> CommandResult:
    """Write the graph (.dot), the forward stacks or the current gradients into files in DIR, creating it if needed."""
    words = words_of(argument)
    if len(words) != 2:
        raise CommandError("expected what to dump and a folder", "for example: dump graph /tmp/graph")
    what = choice_of(words[0], ("graph", "stack", "grads"), "dump")
    directory = os.path.abspath(os.path.expanduser(words[1]))
    body: protocol.DumpBody = debugger.view.request(protocol.Dump(what, directory), 600.0)
    return CommandResult("\n".join(f"wrote {name}" for name in body.files), body.files)


@command("record", group="session", args="[on|off]")
def record(debugger: Debugger, argument: str) -> CommandResult:
    """Show whether the run is being recorded, or turn recording on or off."""
    on = None if not argument else choice_of(argument, ("on", "off"), "record") == "on"
    body: protocol.RecordBody = debugger.view.request(protocol.Record(on))
    if not body.recording:
        text = f"not recording{': ' + body.message if body.message else ''}"
    else:
        text = f"recording {body.message or 'the run'} into {body.run_dir}"
    return CommandResult(text, {"recording": body.recording, "run_dir": body.run_dir})


@command("stacks", group="session", args="[on|off]")
def stacks(debugger: Debugger, argument: str) -> CommandResult:
    """Show whether forward stacks and module paths are kept, or turn them on or off for nodes made from now on."""
    if not argument:
        now: protocol.StacksBody = debugger.view.request(protocol.Stacks())
        return CommandResult(f"forward stacks and module paths are {'kept' if now.on else 'not kept'}", now.on)
    on = choice_of(argument, ("on", "off"), "stacks") == "on"
    for process in debugger.processes:
        process.client.request(protocol.Stacks(on))
    return CommandResult(f"forward stacks and module paths are {'kept' if on else 'not kept'} from now on", on)


@command("process", group="session", args="[N]", completes="process")
def process_(debugger: Debugger, argument: str) -> CommandResult:
    """Select process N, which commands then act on; without N, list the processes (ranks, workers)."""
    from adbg.tui.commands.information import process_table

    if not argument:
        return process_table(debugger)
    if not argument.isdigit():
        raise CommandError(f"expected a process number, got {argument!r}", "`process` lists them")
    chosen = debugger.select_process(int(argument))
    return CommandResult(f"{chosen.title} is the current process", {"process": chosen.number, "rank": chosen.rank})


@command("quit", "q", "exit", group="session")
def quit_(_debugger: Debugger, argument: str) -> CommandResult:
    """Leave adbg, ending a program that adbg started. An attached program continues; `detach` first to keep yours."""
    no_argument(argument, "quit")
    return CommandResult(quit=True)


@command("help", "h", "?", group="session", args="[COMMAND | KIND]", completes="command")
def help_(_debugger: Debugger, argument: str) -> CommandResult:
    """List the commands, or describe one, or a kind of finding of `diagnose` (`help zero-gradient`)."""
    if argument:
        return CommandResult(_help_of(argument.split()))
    lines = []
    for group in GROUPS:
        rows = [row for row in TABLE.commands() if row.group == group]
        if not rows:
            continue
        lines.append(f"{TITLES[group]}:")
        lines += [f"  {_names(row):<24} {row.summary}" for row in rows]
    lines.append(
        "Commands may be abbreviated to a unique prefix. An empty line repeats the last step. `help COMMAND` says more."
    )
    return CommandResult("\n".join(lines), [row.name for row in TABLE.commands()], action="help")


def _help_of(words: list[str]) -> str:
    """Of a command, or of a kind of finding (`help zero-gradient`, `help diagnose zero-gradient`)."""
    from adbg.tui.commands.diagnosis.kind_help import kind_text

    try:
        command_text = help_text(resolve(words[0]))
    except CommandError:
        if about := kind_text(words[-1]):  # reads all detectors, so it is asked for last
            return about
        raise
    return (kind_text(words[-1]) if len(words) > 1 else "") or command_text


def _names(row: Command) -> str:
    return ", ".join((row.name, *row.aliases))


def usage(row: Command) -> str:
    """ "print [/FORMAT] EXPR"."""
    return f"{row.name} {row.args}".strip()


def help_text(row: Command) -> str:
    """Usage, other names, the whole help."""
    other = f"   (also: {', '.join(row.aliases)})" if row.aliases else ""
    return f"{usage(row)}{other}\n\n{_paragraphs(row.help)}"


def _paragraphs(text: str) -> str:
    """``text`` with each of its paragraphs as one line, for the front end to break where its own lines end. Lines that
    are indented are a table: they stay."""
    lines: list[str] = []
    flows = False
    for line in text.split("\n"):
        prose = bool(line) and not line.startswith((" ", "-", "|"))
        if prose and flows:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        flows = prose
    return "\n".join(lines)


# ------------------------------------------------------------------ `set NAME VALUE`

_STOP = "`set stop all` (the default: ranks stop and go on together) or `set stop one`"
_TIMEOUT = (
    "`set group-timeout hold` (the default: raised while a rank is or may be stopped), `keep` (never touched), or a "
    "number of seconds that collectives wait at least from now on"
)


def setting(debugger: Debugger, argument: str) -> CommandResult | None:
    """``set stop …`` and ``set group-timeout …``; None for anything else."""
    name, _, word = argument.strip().partition(" ")
    word, stop_all = word.strip(), debugger.stop_all
    if name == "stop" and "=" not in argument:
        if word and word not in ("all", "one"):
            raise CommandError(f"expected `all` or `one`, got {word!r}", _STOP)
        with debugger.model.changed:
            stop_all.on = word != "one" if word else stop_all.on
        how = "together" if stop_all.on else "one by one"
        return CommandResult(f"ranks stop {how}", "all" if stop_all.on else "one")
    if name == "group-timeout":
        if word and word not in ("hold", "keep") and not (word.isdecimal() and int(word) > 0):
            raise CommandError(f"expected `hold`, `keep` or seconds, got {word!r}", _TIMEOUT)
        with debugger.model.changed:
            if word == "keep":
                stop_all.timeout, stop_all.always = None, 0.0
            elif word:
                stop_all.always = float(word) if word.isdecimal() else 0.0
                stop_all.timeout = max(HELD_SECONDS, stop_all.always)
            stop_all.renew_timeouts()
        held = (
            "are left alone"
            if stop_all.timeout is None
            else "are raised to a day while a rank is stopped or may stop at a breakpoint"
        )
        always = f", and wait at least {stop_all.always:g} s at all times" if stop_all.always else ""
        return CommandResult(f"the time-outs of process groups {held}{always}", word or "hold")
    return None
