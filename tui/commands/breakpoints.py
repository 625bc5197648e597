"""Commands about breakpoints and tracepoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adbg.engine.errors import CommandError, UnknownName
from adbg.tui.commands.table import CommandResult, command, need, numbers_of, table_result
from adbg.tui.debugger.breakpoint_list import Breakpoint

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

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
    found = debugger.breakpoints
    rows: list[tuple[object, ...]] = []
    for row in found:
        ignore = f"from hit {row.ignore}" if row.ignore > row.hits else ""
        note = "; ".join(part for part in (ignore, row.message) if part)
        rows.append((row.id, kind_of(row), row.enabled, row.hits, row.matches, row.spec, row.condition, note))
        rows.extend(("", "", "", "", "", f"    {line}", "", "") for line in row.commands)
    error = "an exception inside backward stops" if debugger.error_stops else "errors do not stop (`enable error`)"
    head = error if rows else f"no breakpoint is set; {error}"
    return table_result(COLUMNS, rows, head, [row_value(row) for row in found])


def _add(debugger: Debugger, argument: str, **kind: bool) -> CommandResult:
    row = debugger.add_breakpoint(argument, **kind)
    return _told(debugger, row)


def _told(debugger: Debugger, row: Breakpoint) -> CommandResult:
    """The breakpoint, with what is wrong with its condition as far as that shows at the node at hand. Other nodes have
    other gradients: only a name that does not exist is told."""
    stop = debugger.stop
    text = describe(row)
    if row.condition and stop is not None and stop.node is not None:
        try:
            debugger.evaluate(row.condition, at_node=True)
        except UnknownName as error:
            text += f"\n  tried here: {error}; where it raises it stops and shows the error"
        except CommandError:
            pass
    return CommandResult(text, row_value(row))


def _here(debugger: Debugger) -> str:
    stop = debugger.need_stop()
    if stop.node is None:
        raise CommandError(
            "no node is at hand to set a breakpoint on", "name one: break Mm*, break #12, break model.py:16"
        )
    return stop.node.unique_name


@command("break", "b", group="breakpoints", args="[SPEC]", completes="spec")
def break_(debugger: Debugger, argument: str) -> CommandResult:
    """Stop at the nodes that SPEC names; without SPEC at the node at hand, by its unique name.

    SPEC is a node name (`BmmBackward0`, `Bmm*`, `MmBackward0#3`), `#112` (the 112th node to run), `model.py:16`
    (the forward line), `module:layers.3.*`, `param:fc.*`, `nan`, `inf`, `nonfinite`, `backward`, `backward-end` or
    `error`. Suffixes: `before` (default) or `after`, `every N`, `ignore N`, `backward N` (only in the N-th backward),
    `if EXPR`. A spec that matches nothing yet is kept: the graph may change.
    """
    return _add(debugger, argument or _here(debugger))


@command("tbreak", "tb", group="breakpoints", args="[SPEC]", completes="spec")
def tbreak(debugger: Debugger, argument: str) -> CommandResult:
    """Like `break`, but for one hit only."""
    return _add(debugger, argument or _here(debugger), temporary=True)


@command("trace", group="breakpoints", args="SPEC", completes="spec")
def trace(debugger: Debugger, argument: str) -> CommandResult:
    """Print one line at each node that SPEC names, and do not stop."""
    return _add(debugger, need(argument, "what to trace", "trace param:fc.*"), trace=True)


@command("condition", group="breakpoints", args="N [EXPR]", completes="breakpoint")
def condition(debugger: Debugger, argument: str) -> CommandResult:
    """Make breakpoint N stop only where EXPR is true; without EXPR, always.

    EXPR sees what `print` sees at the node: grad_outputs, saved, node, index, norm(t), nonfinite(t). One that
    raises stops there and shows the error.
    """
    number, _, expression = need(argument, "the breakpoint's number", "condition 1 index > 10").partition(" ")
    row = debugger.change_breakpoint(numbers_of(number, "condition 1 index > 10")[0], condition=expression.strip())
    return _told(debugger, row)


@command("ignore", group="breakpoints", args="N COUNT", completes="breakpoint")
def ignore(debugger: Debugger, argument: str) -> CommandResult:
    """Let breakpoint N pass its next COUNT hits."""
    words = argument.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):
        raise CommandError("expected a breakpoint and a count", "for example: ignore 1 10")
    row = debugger.change_breakpoint(int(words[0]), ignore=int(words[1]))
    return CommandResult(f"Breakpoint {row.id} passes its next {words[1]} hits", row_value(row))


def _switch(debugger: Debugger, argument: str, on: bool) -> CommandResult:
    word = "enabled" if on else "disabled"
    if argument == "error":
        debugger.set_error_stops(on)
        return CommandResult(f"{word}: stop at an exception inside backward")
    numbers = numbers_of(argument, "disable 1 2") if argument else [row.id for row in debugger.breakpoints]
    for number in numbers:
        debugger.change_breakpoint(number, enabled=on)
    return CommandResult(f"{word}: {', '.join(map(str, numbers)) or 'no breakpoint is set'}", numbers)


@command("enable", group="breakpoints", args="[N… | error]", completes="breakpoint")
def enable(debugger: Debugger, argument: str) -> CommandResult:
    """Switch breakpoints on again; all of them without numbers. `enable error`: stop at exceptions in backward."""
    return _switch(debugger, argument, True)


@command("disable", group="breakpoints", args="[N… | error]", completes="breakpoint")
def disable(debugger: Debugger, argument: str) -> CommandResult:
    """Switch breakpoints off and keep them; all of them without numbers. `disable error`: let exceptions pass."""
    return _switch(debugger, argument, False)


@command("delete", group="breakpoints", args="[N…]", completes="breakpoint")
def delete(debugger: Debugger, argument: str) -> CommandResult:
    """Remove breakpoints; all of them without numbers."""
    numbers = numbers_of(argument, "delete 1") if argument else [row.id for row in debugger.breakpoints]
    for number in numbers:
        debugger.breakpoint(number)
    for number in numbers:
        debugger.remove_breakpoint(number)
    return CommandResult(f"deleted: {', '.join(map(str, numbers)) or 'no breakpoint is set'}", numbers)


@command("commands", group="breakpoints", args="[N] [CMD; CMD…]", completes="breakpoint")
def commands(debugger: Debugger, argument: str) -> CommandResult:
    """Run commands each time breakpoint N stops: `commands 1 print norm(grad_outputs[0]); continue`.

    Without N the last breakpoint is meant. Without commands the prompt asks for them, one on each line, up to `end`;
    `commands 1 end` removes them. Commands are separated by `;` or line ends; a `;` inside quotes or brackets stays.
    """
    first, _, rest = argument.strip().partition(" ") if argument[:1].isdigit() else ("", "", argument)
    head, newline, tail = first.partition("\n")
    if newline:
        first, rest = head, f"{tail} {rest}"
    found = debugger.breakpoints
    if not found:
        raise CommandError("no breakpoint is set", "`break SPEC` sets one")
    number = int(first) if first.isdigit() else found[-1].id
    lines = tuple(line for line in split_commands(rest) if line != "silent")
    if not lines:
        row = debugger.breakpoint(number)
        text = "\n".join(row.commands) or f"breakpoint {number} has no commands"
        return CommandResult(text, list(row.commands))
    keep = tuple(line for line in lines if line != "end")
    row = debugger.change_breakpoint(number, commands=keep)
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
