"""The grammar of breakpoint specs (cli.md), parsed into values. Pure functions, any thread.

::

    SPEC    = HEAD { SUFFIX }
    HEAD    = NAME | "op:" NAME | "#" N | FILE ":" LINE | "module:" GLOB | "param:" GLOB
            | "nan" | "inf" | "nonfinite" | "backward" [N] | "backward-end" | "error"
            | "'" FILE ":" LINE "'"                              (quotes: for a path with spaces)
    SUFFIX  = "before" | "after" | "every" N | "ignore" N | "backward" N | "rank" RANKS | "if" EXPR
    RANKS   = N { "," N } | N "-" N, mixed: 0,2-3

Suffixes come in any order, each at most once. EXPR is a Python expression. It reaches to the end of the text; suffixes
may follow it, and then EXPR is the longest text that is a Python expression with nothing but suffixes behind it. So
``if a > 1 every 2`` has the condition ``a > 1``, and in ``if b if a else after`` the last word is a variable.

"backward-begin" means "backward". What a name or a path takes is decided in ``names``.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from adbg.engine.errors import CommandError
from adbg.engine.names import (
    closest_names,
    file_matches,
    is_address,
    name_matches,
    path_matches,
    ranks_of,
    ranks_text,
    short_names,
)
from adbg.engine.outside import own
from adbg.engine.places import parse_lines, parsed
from adbg.engine.types import NodeInfo, Phase, SourceLine, SpecKind

__all__ = [
    "Spec",
    "SpecKind",
    "closest_names",
    "name_matches",
    "parse_spec",
    "short_names",
    "spec_matches",
    "syntax_problem",
]


_NODE_KINDS = frozenset({SpecKind.NAME, SpecKind.INDEX, SpecKind.LINE, SpecKind.MODULE, SpecKind.PARAMETER})
_WATCH_KINDS = frozenset({SpecKind.NAN, SpecKind.INF, SpecKind.NONFINITE})
_WORDS = {kind.value: kind for kind in SpecKind if kind not in _NODE_KINDS}
_WORDS["backward-begin"] = SpecKind.BACKWARD  # beside "backward-end" people type it, and no node has such a name
_PREFIXES = {"op": SpecKind.NAME, "module": SpecKind.MODULE, "param": SpecKind.PARAMETER}


@dataclass(frozen=True, slots=True)
class Spec:
    """One parsed spec. ``phase`` None: as the kind has it (nodes: before; nan, inf, nonfinite: either)."""

    kind: SpecKind
    pattern: str = ""  # name, file, module or parameter glob
    number: int = 0  # of INDEX: position; of LINE: line
    phase: Phase | None = None
    condition: str = ""
    every: int = 1
    ignore: int = 0
    backward: int = 0  # 0: in all backward calls
    ranks: tuple[int, ...] = ()  # (): on all of them

    @property
    def of_node(self) -> bool:
        """True for kinds that name nodes of a graph (a row can be marked, matches can be counted)."""
        return self.kind in _NODE_KINDS

    @property
    def of_values(self) -> bool:
        """True for nan, inf and nonfinite: every gradient must be screened."""
        return self.kind in _WATCH_KINDS

    @property
    def head(self) -> str:
        """The normalised spec without its suffixes."""
        if self.kind is SpecKind.INDEX:
            return f"#{self.number}"
        if self.kind is SpecKind.LINE:
            text = f"{self.pattern}:{self.number}"
            return f"'{text}'" if " " in text else text
        if self.kind is SpecKind.MODULE:
            return f"module:{self.pattern}"
        if self.kind is SpecKind.PARAMETER:
            return f"param:{self.pattern}"
        if self.kind is SpecKind.NAME:
            reserved = self.pattern.lower() in _WORDS
            return f"op:{self.pattern}" if reserved else self.pattern
        return str(self.kind.value)

    def normalised(self) -> str:
        """The spec as text; parsing it gives the same spec."""
        parts = [self.head]
        if self.phase is not None and not (self.of_node and self.phase is Phase.BEFORE):
            parts.append(self.phase.value)
        if self.backward:
            parts.append(f"backward {self.backward}")
        if self.ranks:
            parts.append(f"rank {ranks_text(self.ranks)}")
        if self.ignore:
            parts.append(f"ignore {self.ignore}")
        if self.every > 1:
            parts.append(f"every {self.every}")
        if self.condition:
            parts.append(f"if {self.condition}")
        return " ".join(parts)


def spec_matches(spec: Spec, info: NodeInfo, stack: Sequence[SourceLine], index: int, fold: bool = False) -> bool:
    """True when ``spec`` (of a node kind) takes this node, whatever its phase, condition and counts."""
    if spec.kind is SpecKind.NAME:
        return name_matches(spec.pattern, info.name, info.unique_name, fold)
    if spec.kind is SpecKind.INDEX:
        return spec.number == index
    if spec.kind is SpecKind.LINE:
        return any(frame.line == spec.number and file_matches(spec.pattern, frame.file) for frame in stack)
    if spec.kind is SpecKind.MODULE:
        return info.module is not None and path_matches(spec.pattern, info.module)
    if spec.kind is SpecKind.PARAMETER:
        return info.parameter is not None and path_matches(spec.pattern, info.parameter)
    return False


# ------------------------------------------------------------------ parsing

_HEADS = (
    "a node name (Bmm, Bmm*, MmBackward0#3), #N, FILE:LINE, module:GLOB, param:GLOB, "
    "nan, inf, nonfinite, backward, backward-end or error"
)
_SUFFIXES = "before, after, if EXPR, every N, ignore N, backward N or rank N,N"
_NAME = re.compile(r"[\w:*?\[\]!<>.,\-]*[\w*?\]](#[\d*?\[\]!\-]+)?\Z")
_TAIL = re.compile(r"\s+(?:before|after|(?:every|ignore|backward)\s+\d+|rank\s+\d[\d,\-]*)\s*\Z")


def parse_spec(text: str) -> Spec:
    """Raises CommandError naming the bad part, what was expected and an example."""
    stripped = text.strip()
    if not stripped:
        raise CommandError("no breakpoint given", f"expected {_HEADS}; example: Bmm* after")
    head, rest = _split_head(stripped)
    suffixes = _Suffixes(stripped)
    kind, pattern, number = _parse_head(stripped, head)
    if kind is SpecKind.BACKWARD and (count := re.match(r"\s+(\d+)(?=\s|\Z)", rest)):
        rest = f" backward {count[1]}{rest[count.end() :]}"
    suffixes.parse(rest)
    if suffixes.phase is not None and kind not in _NODE_KINDS | _WATCH_KINDS:
        other = "backward-end" if kind is SpecKind.BACKWARD else "backward"
        hint = (
            "an error has one place only"
            if kind is SpecKind.ERROR
            else f"the other end of a backward call is {other!r}"
        )
        raise CommandError(
            f"bad breakpoint {stripped!r}: {suffixes.phase.value!r} does not go with {kind.value!r}", hint
        )
    if kind in _NODE_KINDS and suffixes.phase is Phase.BEFORE:
        suffixes.phase = None
    counts = (suffixes.every, suffixes.ignore, suffixes.backward, suffixes.ranks)
    return Spec(kind, pattern, number, suffixes.phase, suffixes.condition, *counts)


def _bad(spec: str, problem: str, expected: str, example: str) -> CommandError:
    return CommandError(f"bad breakpoint {spec!r}: {problem}", f"expected {expected}; example: {example}")


def _split_head(text: str) -> tuple[str, str]:
    """The head (quotes kept) and what follows it."""
    if text[0] in "'\"":
        end = text.find(text[0], 1)
        if end < 0:
            raise _bad(text, f"the quote {text[0]} is not closed", "'FILE:LINE'", "'my model.py:16'")
        return text[: end + 1], text[end + 1 :]
    head = text.split(None, 1)[0]
    return head, text[len(head) :]


def _parse_head(spec: str, head: str) -> tuple[SpecKind, str, int]:
    if head[0] in "'\"":
        return _parse_line(spec, head[1:-1])
    lowered = head.lower()
    if head in _WORDS or (lowered in _WORDS and _WORDS[lowered] in _WATCH_KINDS):
        return _WORDS[lowered], "", 0
    if head == "if" or lowered in ("before", "after", "every", "ignore"):
        raise _bad(spec, f"begins with {head!r}", _HEADS, "Bmm* after if index > 10 every 2")
    if head[0] == "#":
        if not head[1:].isdecimal() or int(head[1:]) == 0:
            raise _bad(spec, f"invalid node number {head!r}", "#N, counted from 1 in execution order", "#112")
        return SpecKind.INDEX, "", int(head[1:])
    if head.isdecimal():
        problem = f"{head!r} alone is neither a node nor a line"
        raise _bad(spec, problem, f"#{head} (a node) or FILE:{head} (a line)", f"model.py:{head}")
    if is_address(head):
        problem = f"{head} is the address of a node of one graph, which later graphs do not have"
        raise _bad(spec, problem, "a name; `info node 0x…` and `break 0x…` at a stop find the node's", "PowGradNode#2")
    prefix, colon, pattern = head.partition(":")
    if colon and prefix in _PREFIXES and not pattern.startswith(":"):
        if not pattern:
            raise _bad(spec, f"nothing after {head!r}", f"a name or glob after {head}", f"{head}{_EXAMPLES[prefix]}")
        return _parse_pattern(spec, _PREFIXES[prefix], pattern)
    if colon and "::" not in head:
        return _parse_line(spec, head)
    if head.endswith(".py"):
        raise _bad(spec, f"{head!r} has no line", "FILE:LINE", f"{head}:16")
    return _parse_pattern(spec, SpecKind.NAME, head)


_EXAMPLES = {"op": "Bmm", "module": "layers.3.*", "param": "fc.*"}


def _parse_pattern(spec: str, kind: SpecKind, pattern: str) -> tuple[SpecKind, str, int]:
    if kind is SpecKind.NAME and not _NAME.match(pattern):
        raise _bad(spec, f"invalid node name {pattern!r}", _HEADS, "BmmBackward0, Bmm*, MmBackward0#3")
    return kind, pattern, 0


def _parse_line(spec: str, text: str) -> tuple[SpecKind, str, int]:
    with contextlib.suppress(CommandError):
        lines = parse_lines(text)
        if lines.first == lines.last:
            return SpecKind.LINE, lines.file, lines.first
    file, _, line = text.rpartition(":")
    prefix = text.partition(":")[0]
    if (close := difflib.get_close_matches(prefix, _PREFIXES, 1, 0.5)) and "." not in prefix:
        raise _bad(spec, f"unknown prefix '{prefix}:'", "op:, module: or param:", f"{close[0]}:{_EXAMPLES[close[0]]}")
    raise _bad(spec, f"invalid line number {line!r}", "FILE:LINE, counted from 1", f"{file or 'model.py'}:16")


@dataclass(slots=True)
class _Suffixes:
    """Suffixes of ``spec`` as they are read."""

    spec: str
    phase: Phase | None = None
    condition: str = ""
    every: int = 1
    ignore: int = 0
    backward: int = 0
    ranks: tuple[int, ...] = ()
    seen: set[str] = field(default_factory=set)

    def parse(self, rest: str) -> None:
        while rest := rest.strip():
            word = re.match(r"\w+", rest)
            name = word[0] if word else rest.split()[0]
            rest = rest[len(name) :]
            self._once("before or after" if name in ("before", "after") else name)
            if name in ("before", "after"):
                self.phase = Phase(name)
            elif name == "if":
                rest = self._condition(rest)
            elif name in ("every", "ignore", "backward"):
                rest = self._number(name, rest)
            elif name == "rank":
                rest = self._ranks(rest)
            else:
                raise self._unknown(name)

    def _once(self, name: str) -> None:
        if name in self.seen:
            raise CommandError(
                f"bad breakpoint {self.spec!r}: {name} is given twice", "give it once; example: Bmm* every 10"
            )
        self.seen.add(name)

    def _unknown(self, name: str) -> CommandError:
        close = difflib.get_close_matches(
            name.lower(), ("before", "after", "if", "every", "ignore", "backward", "rank"), 1
        )
        problem = f"unexpected {name!r}" + (f", did you mean {close[0]!r}?" if close else "")
        return _bad(self.spec, problem, _SUFFIXES, "Bmm* after if norm(grad_outputs[0]) > 1 every 10")

    def _number(self, name: str, rest: str) -> str:
        words = rest.split(None, 1)
        least = 0 if name == "ignore" else 1
        if not words or not words[0].isdecimal() or int(words[0]) < least:
            got = repr(words[0]) if words else "nothing"
            raise _bad(
                self.spec, f"{name!r} needs a number, got {got}", f"{name} N with N at least {least}", f"Bmm* {name} 3"
            )
        setattr(self, name, int(words[0]))
        return words[1] if len(words) > 1 else ""

    def _ranks(self, rest: str) -> str:
        words = rest.split(None, 1)
        found = ranks_of(words[0]) if words else None
        if not found:
            got = repr(words[0]) if words else "nothing"
            raise _bad(self.spec, f"'rank' needs ranks, got {got}", "rank N, rank N,N or rank N-N", "Bmm* rank 0,2")
        self.ranks = found
        return words[1] if len(words) > 1 else ""

    def _condition(self, rest: str) -> str:
        text = rest.strip()
        if not text:
            raise _bad(self.spec, "nothing after 'if'", "a Python expression", "Bmm* if norm(grad_outputs[0]) > 1")
        ends = [len(text)]
        while tail := _TAIL.search(text, 0, ends[-1]):
            ends.append(tail.start())
        problem = ""
        for end in ends:
            problem = syntax_problem(text[:end])
            if not problem:
                self.condition = text[:end]
                return text[end:]
        shown = text[: ends[-1]]
        raise _bad(
            self.spec, f"the condition {shown!r} is not a Python expression: {problem}", "if EXPR", "Bmm* if index > 10"
        )


def syntax_problem(expression: str) -> str:
    """Why ``expression`` is not a Python expression; "" when it is one."""
    try:
        parsed(expression.strip(), mode="eval")
    except SyntaxError as error:
        return error.msg or "invalid syntax"
    except own(ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""
