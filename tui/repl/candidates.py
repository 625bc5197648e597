"""What can stand where the cursor is: commands, node names, modules, files, breakpoint numbers, names in the frame.

One ``Candidates`` serves the REPL and the app's console. It may ask the agent (names are cached for a stop), so it
runs on a worker thread; what the agent cannot answer at the moment is left out silently: a completion is never an
error.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from adbg.engine.errors import AdbgError
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import GraphRow
from adbg.tui.commands.table import TABLE, Command, resolve, split
from adbg.tui.debugger.debugger import Debugger, State

SPEC_WORDS = ("nan", "inf", "nonfinite", "backward", "backward-end", "error", "module:", "param:")
SUFFIXES = ("before", "after", "if", "every", "ignore", "backward")
EXPRESSION_NAMES = ("grad_outputs", "grad_inputs", "saved", "node", "index", "norm(", "stats(", "nonfinite(")
OPERATORS = ("and", "or", "in", "not in", "is", "is not", "if", "else", "for")
MOST = 400  # candidates
LARGEST_GRAPH = 20_000  # nodes; of a larger graph only the names that the agent lists are offered
PATIENCE = 1.0  # seconds
# "model.layers[0]." and what is typed of the attribute; in front of it nothing that the chain continues
_CHAIN = re.compile(r"""(?<![\w.\])}'"])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[(?:-?\d+|'[^'\]]*'|"[^"\]]*")\])*)\.(\w*)$""")


@dataclass(frozen=True, slots=True)
class Candidate:
    """``text`` replaces the last ``length`` characters before the cursor; ``meta`` explains it in a few words."""

    text: str
    length: int
    meta: str = ""


@dataclass(slots=True)
class Names:
    """What can be named at one stop."""

    nodes: dict[str, str]
    modules: set[str]
    parameters: set[str]
    lines: dict[str, str]  # "model.py:16" -> example node


class Candidates:
    """Candidates for a command line of ``debugger``."""

    def __init__(self, debugger: Debugger) -> None:
        self._debugger = debugger
        self._names: tuple[object, Names] | None = None
        self._saved: tuple[object, list[tuple[str, str]]] | None = None
        self._locals: tuple[object, list[str]] | None = None
        self._attributes: tuple[object, list[tuple[str, str]]] | None = None

    def of(self, line: str) -> list[Candidate]:
        """For the text before the cursor, the likeliest first."""
        return list(_first(self._candidates(line.lstrip()), MOST))

    def _candidates(self, line: str) -> Iterator[Candidate]:
        line = line.removeprefix(":")
        word, argument = split(line)
        bare = line == word and not line.startswith(("!", "?"))
        if bare:
            yield from _commands(word)
            return
        try:
            row = resolve(word)
        except AdbgError:
            return
        if row.name == "info" and argument and " " in argument:
            yield from self._nodes(_last_word(argument))
            return
        yield from self._arguments(row, argument if line[-1:] != " " or not argument else argument + " ")

    def _arguments(self, row: Command, argument: str) -> Iterator[Candidate]:
        last = _last_word(argument)
        kind = row.completes
        if kind == "spec":
            yield from self._specs(argument, last)
        elif kind == "node":
            yield from self._nodes(last)
        elif kind == "breakpoint":
            yield from self._breakpoints(argument, last)
        elif kind in ("expression", "statement"):
            yield from self._expression(argument)
        elif kind == "command":
            yield from _commands(last)
        elif kind == "info":
            from adbg.tui.commands.information import SUBJECTS

            yield from _starting(last, SUBJECTS.items())
        elif kind == "dump":
            words = argument.split(" ")
            yield from (
                _starting(last, [(w, "") for w in ("graph", "stack", "grads")]) if len(words) < 2 else _files(last)
            )
        elif kind == "diagnose":
            from adbg.tui.debugger.findings.kinds import kinds

            yield from _starting(last, [(word, "") for word in ("start", "stop", "deep", *kinds())])
        elif kind == "file":
            yield from self._lines(last)
        elif kind == "process":
            yield from _starting(last, [(str(p.number), p.title) for p in self._debugger.processes])
        elif kind == "rank":
            ranks, _, line = argument.partition(" ")
            if line or argument.endswith(" "):
                yield from self._candidates(line.lstrip()) if ranks != "diff" else ()
            else:
                known = [(str(rank), process.title) for rank, process in self._debugger.ranks.connected().items()]
                yield from _starting(last, [*known, ("all", "every rank"), ("diff", "params, grads or buffers")])
        elif kind == "vlog":
            yield from _starting(last, [(w, "") for w in ("0", "3", "4", "5", "6", "off")])

    # ------------------------------------------------------------------ kinds

    def _specs(self, argument: str, last: str) -> Iterator[Candidate]:
        if re.search(r"\bif\b", argument):
            yield from self._expression(argument.rpartition("if ")[2])
            return
        if " " in argument.strip() or argument.endswith(" "):
            yield from _starting(last, [(word, "") for word in SUFFIXES])
            return
        names = self.names()
        if last.startswith("module:"):
            yield from _starting(last, [(f"module:{name}", "") for name in sorted(names.modules)])
        elif last.startswith("param:"):
            yield from _starting(last, [(f"param:{name}", "") for name in sorted(names.parameters)])
        else:
            yield from _starting(last, names.nodes.items())
            yield from _starting(last, [(word, "") for word in SPEC_WORDS])
            yield from _starting(last, names.lines.items())

    def _nodes(self, last: str) -> Iterator[Candidate]:
        yield from _starting(
            last, ((name, meta) for name, meta in self.names().nodes.items() if "#" in name or "#" in meta)
        )

    def _lines(self, last: str) -> Iterator[Candidate]:
        yield from _starting(last, self.names().lines.items())
        yield from _files(last)

    def _breakpoints(self, argument: str, last: str) -> Iterator[Candidate]:
        if " " in argument.strip():
            yield from self._expression(argument.partition(" ")[2])
            return
        yield from _starting(last, [(str(row.id), row.spec) for row in self._debugger.settings.breakpoints])

    def _expression(self, text: str) -> Iterator[Candidate]:
        subscript = re.search(r"\bsaved\[['\"]?\w*$", text)
        if subscript:
            yield from _starting(subscript[0].replace('"', "'"), self.saved())
            return
        if _in_string(text):
            return
        if chain := _CHAIN.search(text):
            yield from _starting(chain[2], _worth(chain[2], self.attributes(chain[1])))
            return
        match = re.search(r"(?<!\w)[A-Za-z_]\w*$", text)
        last = match[0] if match else ""
        before = text[: len(text) - len(last)].rstrip()
        if before.endswith("."):
            return
        if _is_operand(before):  # an operator follows, never a name
            yield from _starting(last, [(word, "") for word in OPERATORS] if last else [])
            return
        yield from _starting(last, [(name, "") for name in EXPRESSION_NAMES if name != last])
        if last and "saved".startswith(last):
            yield from _starting(last, self.saved())
        yield from _starting(last, [(name, "local") for name in self.locals()])
        if last:
            yield from _starting(last, [(word, "") for word in keyword.kwlist])

    # ------------------------------------------------------------------ asked from the agent

    def _place(self) -> object:
        process = self._debugger.current
        return None if process is None else (process.number, process.stop_serial, process.view.frame)

    def names(self) -> Names:
        """Names in the current graph; while the program runs, those of the last stop."""
        place = self._place()
        if self._names is not None and (self._names[0] == place or self._debugger.state is not State.STOPPED):
            return self._names[1]
        found = Names({}, set(), set(), {})
        try:
            self._read_names(found)
        except AdbgError:
            return found
        self._names = (place, found)
        return found

    def _read_names(self, found: Names) -> None:
        view = self._debugger.view
        body: protocol.InfoBody = view.request(protocol.Info("names"), PATIENCE)
        for row in body.rows:
            found.nodes.setdefault(str(row[0]), " ".join(str(cell) for cell in row[1:]))
        if view.graph_page(1, 1).total <= LARGEST_GRAPH:
            for node in view.graph_structure():
                _learn(found, node)

    def saved(self) -> list[tuple[str, str]]:
        """(expression, meta) of what the current node saved: ("saved['other']", "f32 [8,24,1]")."""
        place = self._place()
        if self._saved is not None and self._saved[0] == place:
            return self._saved[1]
        if self._debugger.state is not State.STOPPED:
            return []
        try:
            body: protocol.NodeBody = self._debugger.view.request(protocol.Node(), PATIENCE)
        except AdbgError:
            return []
        found = [(slot.expression, str(slot.meta.shape) if slot.meta else slot.text) for slot in body.saved]
        self._saved = (place, found)
        return found

    def attributes(self, expression: str) -> list[tuple[str, str]]:
        """(name, its type where the object itself holds it) behind the dot of ``expression``."""
        place = (self._place(), expression)
        if self._attributes is not None and self._attributes[0] == place:
            return self._attributes[1]
        if self._debugger.state is not State.STOPPED:
            return []
        view = self._debugger.view
        try:
            body: protocol.AttributesBody = view.request(protocol.Attributes(expression, view.frame_id()), PATIENCE)
        except AdbgError:
            return []
        found = [(each.name, each.type) for each in body.attributes]
        self._attributes = (place, found)
        return found

    def locals(self) -> list[str]:
        """Names of the selected frame's locals."""
        place = self._place()
        if self._locals is not None and self._locals[0] == place:
            return self._locals[1]
        names: list[str] = []
        try:
            names = self._read_locals()
        except AdbgError:
            return names
        self._locals = (place, names)
        return names

    def _read_locals(self) -> list[str]:
        if self._debugger.state is not State.STOPPED:
            return []
        view = self._debugger.view
        frames = view.frames()
        identity = view.frame_id() or next((f.id for f in frames if f.locals), 0)
        if not identity:
            return []
        scopes: protocol.ScopesBody = view.request(protocol.Scopes(identity), PATIENCE)
        names: list[str] = []
        for scope in scopes.scopes:
            if scope.name == "Locals":
                body: protocol.VariablesBody = view.request(protocol.Variables(scope.variablesReference), PATIENCE)
                names += [variable.name for variable in body.variables]
        return names


def _worth(typed: str, names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the private names, unless one is begun."""
    return [each for each in names if typed.startswith("_") or not each[0].startswith("_")]


def _in_string(text: str) -> bool:
    """The end of ``text`` is in a string or a comment."""
    quote = ""
    at = 0
    while at < len(text):
        if quote and text[at] == "\\":
            at += 1
        elif quote and text.startswith(quote, at):
            at += len(quote) - 1
            quote = ""
        elif not quote and text[at] in "'\"":
            quote = text[at] * 3 if text.startswith(text[at] * 3, at) else text[at]
            at += len(quote) - 1
        elif not quote and text[at] == "#":
            return True
        at += 1
    return bool(quote)


def _is_operand(text: str) -> bool:
    """``text`` ends where Python expects an operator: behind a name, a number, a string or a closing bracket."""
    word = re.search(r"\w+$", text)
    if word is None:
        return text[-1:] in tuple(")]}'\"")
    return not keyword.iskeyword(word[0]) or word[0] in ("None", "True", "False")


def _learn(found: Names, row: GraphRow) -> None:
    found.nodes[row.unique_name] = f"#{row.index}" + (f" {row.parameter}" if row.parameter else "")
    found.nodes.setdefault(row.name, "every one")
    if row.parameter:
        found.parameters.add(row.parameter)
    path = row.module
    while path:
        found.modules.add(path)
        path = path.rpartition(".")[0]
    if row.forward is not None:
        found.lines.setdefault(f"{os.path.basename(row.forward.file)}:{row.forward.line}", row.unique_name)


def _first(items: Iterable[Candidate], count: int) -> Iterator[Candidate]:
    seen: set[str] = set()
    for item in items:
        if item.text not in seen:
            seen.add(item.text)
            yield item
            if len(seen) >= count:
                return


def _last_word(argument: str) -> str:
    return "" if argument.endswith(" ") else argument.rpartition(" ")[2]


def _starting(last: str, items: Iterable[tuple[str, str]]) -> Iterator[Candidate]:
    """Those that begin with ``last``: as written, then without regard to case."""
    pairs = list(items)
    folded = last.lower()
    for text, meta in pairs:
        if text.startswith(last):
            yield Candidate(text, len(last), meta)
    for text, meta in pairs:
        if not text.startswith(last) and text.lower().startswith(folded):
            yield Candidate(text, len(last), meta)


def _commands(last: str) -> Iterator[Candidate]:
    rows = TABLE.commands()
    yield from _starting(last, [(row.name, row.summary) for row in rows])


def _files(last: str) -> Iterator[Candidate]:
    """Files and folders, as a shell offers them."""
    folder, _, start = os.path.expanduser(last).rpartition("/")
    where = (folder + "/") if "/" in last else ""
    try:
        entries = sorted(os.scandir(where or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
            yield Candidate(where + entry.name + ("/" if entry.is_dir() else ""), len(last))
