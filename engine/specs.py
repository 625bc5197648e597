"""The grammar of breakpoint specs (cli.md), parsed into values (L2, stdlib only; pure functions, any thread).

::

    SPEC    = HEAD { SUFFIX }
    HEAD    = NAME | "op:" NAME | "#" N | FILE ":" LINE | "module:" GLOB | "param:" GLOB
            | "nan" | "inf" | "nonfinite" | "backward" [N] | "backward-end" | "error"
            | "'" FILE ":" LINE "'"                              (quotes: for a path with spaces)
    SUFFIX  = "before" | "after" | "every" N | "ignore" N | "backward" N | "if" EXPR

Suffixes come in any order, each at most once. EXPR is a Python expression. It reaches to the end of the text; suffixes may
follow it, and then EXPR is the longest text that is a Python expression with nothing but suffixes behind it. So
``if a > 1 every 2`` has the condition ``a > 1``, and in ``if b if a else after`` the last word is a variable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adbg.engine.types import NodeInfo, Phase, SourceLine


class SpecKind(str, enum.Enum):
    """What a spec looks at."""

    NAME = "name"
    INDEX = "index"
    LINE = "line"
    MODULE = "module"
    PARAMETER = "parameter"
    NAN = "nan"
    INF = "inf"
    NONFINITE = "nonfinite"
    BACKWARD = "backward"
    BACKWARD_END = "backward-end"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Spec:
    """One parsed spec. ``phase`` None: as the kind has it (nodes: before; nan, inf, nonfinite: wherever it shows first)."""

    kind: SpecKind
    pattern: str = ""  # name, file, module or parameter glob
    number: int = 0  # of INDEX: position; of LINE: line
    phase: Phase | None = None
    condition: str = ""
    every: int = 1
    ignore: int = 0
    backward: int = 0  # 0: in all backward calls

    @property
    def of_node(self) -> bool:
        """True for kinds that name nodes of a graph (a row can be marked, matches can be counted)."""
        raise NotImplementedError

    def normalised(self) -> str:
        """The spec as text; parsing it gives the same spec."""
        raise NotImplementedError


def parse_spec(text: str) -> Spec:
    """Raises CommandError naming the bad part, what was expected and an example."""
    raise NotImplementedError


def short_names(name: str) -> tuple[str, ...]:
    """Names under which a person may know a framework name: itself first ("BmmBackward0", "BmmBackward", "Bmm")."""
    raise NotImplementedError


def name_matches(pattern: str, name: str, unique_name: str = "", fold: bool = False) -> bool:
    """The one place that decides whether a name pattern takes a node. ``fold``: ignore case."""
    raise NotImplementedError


def spec_matches(spec: Spec, info: NodeInfo, stack: Sequence[SourceLine], index: int, fold: bool = False) -> bool:
    """True when ``spec`` (of a node kind) takes this node, whatever its phase, condition and counts."""
    raise NotImplementedError


def closest_names(wanted: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like ``wanted`` (compared by their short forms too), best first; [] when none is like it."""
    raise NotImplementedError
