"""Commands about frames and source lines."""

from __future__ import annotations

import ast
import linecache
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.names import file_matches
from adbg.engine.places import parse_lines, parsed
from adbg.engine.protocol.messages import StackFrame
from adbg.engine.types import SourceLine
from adbg.tui.commands.table import CommandResult, choice_of, command, count_of, no_argument
from adbg.tui.text.formatting import file_text, source_text
from adbg.tui.text.starting_frames import fold_text, folded

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

_AROUND = 5  # lines on either side
HEADS = {
    "enclosing": "inside the backward of",
    "forward": "made by the forward call (no locals: those frames are gone)",
    "live": "running now",
}


def frame_text(frame: StackFrame) -> str:
    """ "forward  model.py:16"."""
    if frame.source is None or not frame.line:
        return frame.name
    return f"{frame.name}  {file_text(frame.source.path or frame.source.name)}:{frame.line}"


def _file_of(frame: StackFrame) -> str:
    return frame.source.path if frame.source is not None else ""


@command("where", "bt", "w", group="stack", args="[all [-v] [native|python]]", completes="")
def where(debugger: Debugger, argument: str) -> CommandResult:
    """Print the stack: the node (frame 0), the nodes around it, the forward call that made it, the live Python stack.

    While the program runs, only the live frames are shown: of the main thread, or of the one that `thread N` chose.
    `where all` shows every thread and what it waits for, also of a process that hangs (see `threads`).
    """
    word, _, rest = argument.strip().partition(" ")
    if word == "all":
        from adbg.tui.commands.threads import where_all

        return where_all(debugger, rest)
    no_argument(argument, "where")
    view = debugger.view
    view.read_thread()
    frames = view.frames()
    process = debugger.current
    selected = view.frame if view.chosen is not None or view.stop is not None else -1
    lines, kind = [], ""
    if view.chosen is not None:
        lines.append(f"thread {view.chosen.number}  {view.chosen.name}")
    for number, count in folded([(_file_of(frame), frame.name) for frame in frames], selected):
        frame = frames[number]
        if frame.kind != kind:
            kind = frame.kind
            if kind in HEADS:
                lines.append(f"  {HEADS[kind]}:")
        text = frame_text(frame) if count == 1 else f"… {fold_text(count)}"
        lines.append(f"{'▸' if number == selected else ' '} {number:>2}  {text}")
    if process is not None and process.view.frames_note:
        lines.append(f"  {'no forward stack: ' if frames else ''}{process.view.frames_note}")
    rows = tuple((number, f.kind, f.name, _file_of(f), f.line, f.locals) for number, f in enumerate(frames))
    value = [dict(zip(("frame", "kind", "name", "file", "line", "locals"), row)) for row in rows]
    return CommandResult("\n".join(lines) or "no stack", value)


def _selected(debugger: Debugger, index: int) -> CommandResult:
    frame = debugger.view.select_frame(index)
    text = f"▸ {index:>2}  {frame_text(frame)}"
    if frame.source is not None and frame.line:
        source = source_text(frame.source.path, frame.line, mark=False).strip()
        text += f"\n      {source}" if source else ""
    return CommandResult(text, {"frame": index, "name": frame.name, "kind": frame.kind})


def _move(debugger: Debugger, argument: str, sign: int) -> CommandResult:
    debugger.view.need_frames()
    process = debugger.current
    count = count_of(argument)
    now = process.view.frame if process is not None else 0
    last = len(debugger.view.frames()) - 1
    there = max(0, min(now + sign * count, last))
    edge = "outermost" if sign > 0 else "innermost"
    if there == now:
        raise CommandError(f"already at the {edge} frame, {now}", f"frames are 0 to {max(0, last)}: `where` shows them")
    result = _selected(debugger, there)
    if there != now + sign * count:
        end = f"\n  frame {there} is the {edge}: there are no {count} frames beyond frame {now}"
        result = replace(result, text=result.text + end)
    return result


@command("up", "u", group="stack", args="[N]", repeats=True)
def up(debugger: Debugger, argument: str) -> CommandResult:
    """Select the caller's frame: expressions see its names.

    The locals of a forward frame are gone: names of its module are seen, others are refused.
    """
    return _move(debugger, argument, 1)


@command("down", "d", group="stack", args="[N]", repeats=True)
def down(debugger: Debugger, argument: str) -> CommandResult:
    """Select the called frame."""
    return _move(debugger, argument, -1)


@command("frame", group="stack", args="[N]")
def frame(debugger: Debugger, argument: str) -> CommandResult:
    """Select frame N (0 is the node); without N, show the selected frame."""
    debugger.view.need_frames()
    process = debugger.current
    if not argument:
        return _selected(debugger, process.view.frame if process is not None else 0)
    if not argument.isdigit():
        raise CommandError(f"expected a frame number, got {argument!r}", "`where` shows the numbers")
    return _selected(debugger, int(argument))


@command("frames", group="stack", args="[all|user]")
def frames(debugger: Debugger, argument: str) -> CommandResult:
    """Show the framework's own frames too (`frames all`), or the user's alone (`frames user`, the default).

    With `frames all` stacks, source lines, `break FILE:LINE` and `capture` take lines inside torch or paddle like those
    of the script. Without an argument, say what is shown.
    """
    if argument:
        debugger.settings.show_frames(choice_of(argument, ("all", "user"), "frames") == "all")
    all_ = debugger.settings.all_frames
    text = "all frames but adbg's are shown" if all_ else "user frames are shown; `frames all` adds the framework's"
    return CommandResult(text, {"frames": "all" if all_ else "user"})


@command("list", "l", group="stack", args="[FILE:]LINE | FIRST,LAST | [CLASS.]FUNCTION | [N]", completes="file")
def list_(debugger: Debugger, argument: str) -> CommandResult:
    """Show source lines around a line; by default that of the selected frame, or the forward line of the node.

    FIRST,LAST and FUNCTION are looked for in the file of that line.
    """
    line, after = _line_to_list(debugger, argument), _AROUND
    around = _AROUND
    if "," in argument:
        around, after = 0, int(argument.partition(",")[2]) - line.line
    text = source_text(line.file, line.line, before=around, after=after, mark=not argument or argument.isdigit())
    if not text:
        raise CommandError(
            f"{file_text(line.file)}:{line.line} cannot be read", "the file may be on another machine or deleted"
        )
    return CommandResult(f"{file_text(line.file)}\n{text}", {"file": line.file, "line": line.line})


def _on_disk(debugger: Debugger, file: str) -> str:
    """The file of a frame that ``file`` is the end of ("torch/nn/functional.py"), else the script of that name, where
    there is none here: findings name files so."""
    if os.path.exists(file):
        return file
    frames = debugger.view.frames() if debugger.stop is not None else ()
    known = [frame.source.path for frame in frames if frame.source is not None]
    known += [os.path.abspath(word) for word in debugger.program.command if word.endswith(".py")]
    return next((path for path in known if file_matches(file, path)), file)


def _line_to_list(debugger: Debugger, argument: str) -> SourceLine:
    if ":" in argument:
        lines = parse_lines(argument, "list model.py:16")
        return SourceLine(_on_disk(debugger, lines.file), lines.first, "")
    here = debugger.view.source_line()
    if here is None:
        raise CommandError("no source line is known here", "`where` shows the stack, `--stacks` records forward stacks")
    if not argument:
        return here
    first, comma, last_wanted = argument.partition(",")
    if comma:
        lines = parse_lines(f"{here.file}:{first.strip()}-{last_wanted.strip()}", "list 20,30")
        return SourceLine(here.file, lines.first, "")
    if not argument.isdigit():
        return _function_to_list(here.file, argument)
    last = len(linecache.getlines(here.file))
    if last and int(argument) > last:
        raise CommandError(f"{file_text(here.file)} has only {last} lines")
    return SourceLine(here.file, int(argument), "")


def _function_to_list(file: str, name: str) -> SourceLine:
    """Where ``def NAME``, or ``class NAME``, stands in a file; of a method with or without its class."""
    found: list[tuple[str, int]] = []

    def look(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                path = f"{inside}{child.name}"
                if f".{path}".endswith(f".{name}"):
                    found.append((path, child.lineno))
                look(child, f"{path}.")
            else:
                look(child, inside)

    try:
        look(parsed("".join(linecache.getlines(file))), "")
    except (SyntaxError, ValueError, RecursionError):
        found = []
    if len(found) == 1:
        return SourceLine(file, found[0][1], name)
    if not found:
        raise CommandError(
            f"no function {name!r} in {file_text(file)}", "for example: list 20, list 20,30, list model.py:20"
        )
    some = ", ".join(path for path, _ in found[:5])
    raise CommandError(f"{len(found)} functions are called {name!r}: {some}", "name one of them")
