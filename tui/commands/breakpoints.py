"""Commands about breakpoints and tracepoints."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError, UnknownName
from adbg.engine.names import is_address
from adbg.tui.commands.table import CommandResult, command, need, numbers_of
from adbg.tui.debugger.breakpoint_list import Breakpoint
from adbg.tui.text.formatting import table_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

WIDTH = 73  # cells of what stands below a breakpoint: with the prefix of batch mode, the terminal has 80
BELOW = " " * 5
COLUMNS = ("num", "type", "enabled", "hits", "matches", "spec", "condition", "note")


def kind_of(row: Breakpoint) -> str:
    return "trace" if row.trace else "once" if row.temporary else "break"


def row_value(row: Breakpoint) -> dict[str, Any]:
    """A breakpoint as plain JSON values."""
    return {
        "id": row.id,
        "type": kind_of(row),
        "spec": row.spec,
        "condition": row.condition,
        "enabled": row.enabled,
        "hits": row.hits,
        "matches": row.matches,
        "commands": list(row.commands),
        "message": row.message,
        "kind": row.kind,
        "file": row.file,
        "line": row.line,
    }


def describe(row: Breakpoint) -> str:
    """ "Breakpoint 1: Mm* if norm(grad_outputs[0]) > 1 (30 nodes match here)"."""
    word = {"trace": "Tracepoint", "once": "Temporary breakpoint", "break": "Breakpoint"}[kind_of(row)]
    text = f"{word} {row.id}: {row.spec}"
    if row.condition:
        text += f" if {row.condition}"
    if row.matches:
        text += f" ({row.matches} node{'s' if row.matches > 1 else ''} of this graph)"
    if row.message and not row.matches:
        text += f"\n  {row.message}"
    return text


def breakpoint_table(debugger: Debugger) -> CommandResult:
    """``info breakpoints``."""
    found = debugger.settings.breakpoints
    rows: list[tuple[object, ...]] = []
    for row in found:
        rows.append((row.id, kind_of(row), row.enabled, row.hits, row.matches, row.spec, row.condition, _note(row)))
        rows.extend(("", "", "", "", "", f"    {line}", "", "") for line in row.commands)
    error = (
        "stops at exceptions in backward and at one that ends the program"
        if debugger.settings.error_stops
        else "does not stop at exceptions (`enable error`)"
    )
    head = error if rows else f"no breakpoint is set; {error}"
    text = "\n".join([head, *_listed(found)])
    return CommandResult(text, [row_value(row) for row in found], COLUMNS, tuple(rows))


def _note(row: Breakpoint) -> str:
    ignore = f"from hit {row.ignore}" if row.ignore > row.hits else ""
    return "; ".join(part for part in (ignore, row.message) if part)


def _listed(found: Sequence[Breakpoint]) -> list[str]:
    """A line each, and below it, as gdb has it, what may be long: its condition, a note, its commands."""
    if not found:
        return []
    cells = [(row.id, kind_of(row), row.enabled, row.hits, row.matches, row.spec) for row in found]
    head, *heads = table_text(COLUMNS[:6], cells).split("\n")
    lines = [head]
    for row, text in zip(found, heads):
        lines.append(text)
        for each in (f"if {row.condition}" if row.condition else "", _note(row)):
            lines += wrap(each, WIDTH, initial_indent=BELOW, subsequent_indent=BELOW, break_on_hyphens=False)
        lines += [f"{BELOW}  {command}" for command in row.commands]
    return lines


def _add(debugger: Debugger, argument: str, **kind: bool) -> CommandResult:
    row = debugger.settings.add_breakpoint(named_spec(debugger, argument), **kind)
    return _told(debugger, row)


def named_spec(debugger: Debugger, spec: str) -> str:
    """``spec`` with the unique name of the node in place of its address, which only this graph has."""
    head, space, rest = spec.strip().partition(" ")
    if not is_address(head) or debugger.stop is None:
        return spec
    return debugger.view.node(debugger.view.find_node(head)).node.unique_name + space + rest


def _told(debugger: Debugger, row: Breakpoint) -> CommandResult:
    """The breakpoint, and whether its condition uses a name that does not exist. Other errors are not reported: the
    condition may be valid at other nodes."""
    stop = debugger.stop
    text = describe(row)
    if row.spec == "error" and not (row.condition or row.trace) and debugger.settings.error_stops:
        text += "\n  adbg stops at exceptions without it, too (`disable error` switches that off)"
    if row.condition and stop is not None and stop.node is not None:
        try:
            debugger.view.evaluate(row.condition, at_node=True)
        except UnknownName as error:
            text += f"\n  evaluated here: {error}; the breakpoint stops where its condition raises"
        except CommandError:
            pass
    return CommandResult(text, row_value(row))


def _here(debugger: Debugger) -> str:
    stop = debugger.view.need_stop()
    if stop.node is None:
        raise CommandError(
            "there is no current node to set a breakpoint on", "name one: break Mm*, break #12, break model.py:16"
        )
    return stop.node.unique_name


@command("break", "b", group="breakpoints", args="[SPEC]", completes="spec")
def break_(debugger: Debugger, argument: str) -> CommandResult:
    """Set a breakpoint at the nodes that match SPEC; without SPEC, at the current node.

    SPEC is one of:
      BmmBackward0, Bmm*, MmBackward0#3   nodes by name; at a stop also by address (0x55d0…, as in Paddle's log)
      #112                                the 112th node to run
      model.py:16                         the nodes that this line of the forward made
      module:layers.3.*, param:fc.*       by module, by parameter
      nan, inf, nonfinite                 where one begins: made of finite gradients
      backward, backward-end, error       the begin and end of each backward; an exception

    Suffixes:
      before, after                       before the node runs (the default), or after it, with its grad_inputs
      every N, ignore N                   at each N-th hit, after N hits
      backward N, rank 0,2-3              only in the N-th backward, only on these ranks of a job
      if EXPR                             where EXPR is true; it can use what `print` can: norm(grad_outputs[0]), saved

    A SPEC that matches no node is kept, since later graphs may have one.
    """
    return _add(debugger, argument or _here(debugger))


@command("tbreak", "tb", group="breakpoints", args="[SPEC]", completes="spec")
def tbreak(debugger: Debugger, argument: str) -> CommandResult:
    """Set a temporary breakpoint, which is removed after its first hit."""
    return _add(debugger, argument or _here(debugger), temporary=True)


@command("trace", group="breakpoints", args="SPEC", completes="spec")
def trace(debugger: Debugger, argument: str) -> CommandResult:
    """Set a tracepoint: print one line at each node that matches SPEC, without stopping."""
    return _add(debugger, need(argument, "what to trace", "trace param:fc.*"), trace=True)


@command("condition", group="breakpoints", args="N [EXPR]", completes="breakpoint")
def condition(debugger: Debugger, argument: str) -> CommandResult:
    """Set the condition of breakpoint N to EXPR; without EXPR, remove it.

    EXPR can use the same names as `print`: grad_outputs, saved, node, index, norm(t), nonfinite(t). If it raises, the
    program stops there and the error is shown.
    """
    number, _, expression = need(argument, "the breakpoint's number", "condition 1 index > 10").partition(" ")
    row = debugger.settings.change_breakpoint(
        numbers_of(number, "condition 1 index > 10")[0], condition=expression.strip()
    )
    return _told(debugger, row)


@command("ignore", group="breakpoints", args="N COUNT", completes="breakpoint")
def ignore(debugger: Debugger, argument: str) -> CommandResult:
    """Ignore the next COUNT hits of breakpoint N."""
    words = argument.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise CommandError("expected a breakpoint and a count", "for example: ignore 1 10")
    row = debugger.settings.change_breakpoint(int(words[0]), ignore=int(words[1]))
    return CommandResult(f"Breakpoint {row.id} ignores its next {words[1]} hits", row_value(row))


def _switch(debugger: Debugger, argument: str, on: bool) -> CommandResult:
    word = "enabled" if on else "disabled"
    if argument == "error":
        debugger.settings.set_error_stops(on)
        return CommandResult(f"{word}: stop at exceptions")
    numbers = numbers_of(argument, "disable 1 2") if argument else [row.id for row in debugger.settings.breakpoints]
    for number in numbers:
        debugger.settings.change_breakpoint(number, enabled=on)
    return CommandResult(f"{word}: {', '.join(map(str, numbers)) or 'no breakpoint is set'}", numbers)


@command("enable", group="breakpoints", args="[N… | error]", completes="breakpoint")
def enable(debugger: Debugger, argument: str) -> CommandResult:
    """Enable breakpoints, by default all; `enable error` stops at exceptions."""
    return _switch(debugger, argument, True)


@command("disable", group="breakpoints", args="[N… | error]", completes="breakpoint")
def disable(debugger: Debugger, argument: str) -> CommandResult:
    """Disable breakpoints, by default all; `disable error` does not stop at exceptions."""
    return _switch(debugger, argument, False)


@command("delete", group="breakpoints", args="[N…]", completes="breakpoint")
def delete(debugger: Debugger, argument: str) -> CommandResult:
    """Delete breakpoints, by default all; what they were is said, to be set again."""
    numbers = numbers_of(argument, "delete 1") if argument else [row.id for row in debugger.settings.breakpoints]
    rows = [debugger.settings.breakpoint(number) for number in numbers]
    for number in numbers:
        debugger.settings.remove_breakpoint(number)
    what = ", ".join(f"{row.id} ({row.command_text})" for row in rows)
    return CommandResult(f"deleted: {what or 'no breakpoint is set'}", numbers)


@command("commands", group="breakpoints", args="[N] [CMD; CMD…]", completes="breakpoint")
def commands(debugger: Debugger, argument: str) -> CommandResult:
    """Run commands each time breakpoint N stops: `commands 1 print norm(grad_outputs[0]); continue`.

    Without N, use the last breakpoint. Without commands, the prompt reads them, one per line, up to `end`;
    `commands 1 end` removes them. Commands are separated by line ends or `;`, except inside quotes and brackets.
    """
    first, _, rest = argument.strip().partition(" ") if argument[:1].isdigit() else ("", "", argument)
    head, newline, tail = first.partition("\n")
    if newline:
        first, rest = head, f"{tail} {rest}"
    found = debugger.settings.breakpoints
    if not found:
        raise CommandError("no breakpoint is set", "`break SPEC` sets one")
    number = int(first) if first.isdigit() else found[-1].id
    lines = tuple(line for line in split_commands(rest) if line != "silent")
    if not lines:
        row = debugger.settings.breakpoint(number)
        text = "\n".join(row.commands) or f"breakpoint {number} has no commands"
        return CommandResult(text, list(row.commands))
    keep = tuple(line for line in lines if line != "end")
    row = debugger.settings.change_breakpoint(number, commands=keep)
    done = f"breakpoint {number} runs: {'; '.join(row.commands)}" if keep else f"breakpoint {number} runs no commands"
    return CommandResult(done, list(row.commands))


def split_commands(text: str) -> list[str]:
    """Split at ``;`` and line ends outside quotes and brackets."""
    parts, depth, quote, current = [], 0, "", ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth = max(0, depth - 1)
        if char == "\n" or (char == ";" and not depth and not quote):
            parts.append(current)
            current, quote, depth = "", "", 0
        else:
            current += char
    return [part.strip() for part in [*parts, current] if part.strip()]
