"""The command ``capture``: part of the backward graph, by the forward lines that made it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import adbg.tui.commands.graph  # noqa: F401  # its rows stand first in the reference, whoever imports this one
from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.tui.commands.places import checked_place
from adbg.tui.commands.table import CommandResult, command, table_result, words_of

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

_EXAMPLE = "for example: capture model.py:10-25 grads as attention"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\Z", re.IGNORECASE)
_AGREED = 1 << 30  # bytes that `grads!` agrees to
_ARGS = "[FILE:A-B [grads | grads! | grads=SIZE] [as NAME] [in DIR] | off [NAME]]"


@command("capture", group="graph", args=_ARGS, completes="file")
def capture(debugger: Debugger, argument: str) -> CommandResult:
    """Write the nodes that forward lines made, with their boundary and leaves, as Paddle's dump files and as SVG.

    If the current graph has such nodes, they are written at once; otherwise at the next backward that has some. `grads`
    reports the size of their gradients and writes nothing; `grads!` writes the gradients too, as the backward passes
    them (at most 1 GiB), and `grads=200MB` does so up to that size. `as NAME` names the folder; `in DIR` writes there
    instead of into the run directory. Without arguments, list the captures; `capture off` drops the pending ones.
    """
    words = words_of(argument)
    if not words:
        return _listing(debugger.view.request(protocol.Capture()).captures)
    if words[0] == "off":
        if len(words) > 2:
            raise CommandError("expected at most one name after `capture off`", "`capture` lists them")
        body = debugger.view.request(protocol.Capture(cancel=True, name=words[1] if len(words) > 1 else ""))
        return CommandResult(f"{len(body.captures)} dropped", [state.name for state in body.captures])
    request = _request(words)
    _, remark = checked_place(words[0], debugger.program.command, "capture model.py:10-25")
    (state,) = debugger.view.request(request, 600.0).captures
    if state.state in ("running", "done"):
        debugger.tell_marked()
    value = {
        "name": state.name, "region": state.region, "state": state.state, "files": state.files, "inside": state.inside,
        "boundary": state.boundary, "leaves": state.leaves, "strays": state.strays, "bytes": state.nbytes,
    }  # fmt: skip
    remarks = [remark] if remark and state.state == "waiting" else []
    return CommandResult("\n".join([*_lines(state, argument), *remarks]), value)


def _request(words: list[str]) -> protocol.Capture:
    """Raises CommandError for an unknown word."""
    region, rest = words[0], words[1:]
    grads, limit = False, 0
    given: dict[str, str] = {}
    while rest:
        word = rest.pop(0)
        if word in ("as", "in") and rest and word not in given:
            given[word] = rest.pop(0)
        elif word in ("grads", "grads!") or word.startswith("grads="):
            grads = True
            limit = 0 if word == "grads" else _AGREED if word == "grads!" else size_of(word.partition("=")[2])
        else:
            raise CommandError(f"unexpected {word!r} after the source lines", _EXAMPLE)
    directory = os.path.abspath(os.path.expanduser(given["in"])) if "in" in given else ""
    return protocol.Capture(region, grads, limit, given.get("as", ""), directory)


def size_of(text: str) -> int:
    """Bytes: "200MB", "1.5G", "64KiB", "4096"; k, M, G and T are powers of 1000, with an i of 1024."""
    match = _SIZE.match(text)
    if match is None:
        raise CommandError(f"invalid size {text!r}", "for example: grads=200MB")
    base = 1024 if match[3] else 1000
    size = int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    if size < 1:
        raise CommandError("the size must be at least 1 byte", "without `grads`, no gradients are written")
    return size


def _lines(state: protocol.CaptureState, argument: str) -> list[str]:
    if state.state == "waiting":
        return [f"{state.name}: {state.message}"]
    found = f"{state.inside} inside, {state.boundary} on the boundary, {state.leaves} leaves"
    strays = f", {state.strays} ops that do not contribute to the loss" if state.strays else ""
    head = f"{state.name}: nodes of {state.region}: {found}{strays}"
    if state.state == "asking":
        agreed = re.sub(r"(?<!\S)grads(?!\S)", "grads!", argument)
        return [head, f"{state.message}; nothing is written yet", f"to write them: capture {agreed}"]
    return [head, *([state.message] if state.message else []), *_wrote(state.files)]


def _wrote(files: list[str]) -> list[str]:
    """One line for all: they share their folder and their time stamp."""
    if not files:
        return []
    start = files[0].removesuffix("backward_graph.dot")
    return [f"wrote {start}*: " + ", ".join(file.removeprefix(start) for file in files)]


def _listing(states: list[protocol.CaptureState]) -> CommandResult:
    rows = [
        (s.name, s.region, s.state, s.inside, s.boundary, s.leaves, len(s.files), os.path.dirname((s.files or [""])[0]))
        for s in states
    ]
    columns = ("name", "region", "state", "inside", "boundary", "leaves", "files", "folder")
    head = f"{len(states)} capture{'s' * (len(states) != 1)}" if states else f"no captures; {_EXAMPLE}"
    return table_result(columns, rows, head, [s.name for s in states])
