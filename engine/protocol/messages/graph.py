"""The backward graph: pages of it, one node in full, parts of it as files."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import request
from adbg.engine.types import Contribution, GraphRow, NodeInfo, SlotView, SourceLine


@dataclass(frozen=True, slots=True)
class GraphBody:
    """A page of the current graph in (predicted) execution order. ``version`` changes when the graph is another one."""

    version: int
    backward: int
    total: int
    here: int  # index of the current node; 0 at the begin; total + 1 at the end
    rows: list[GraphRow]
    depth: int = 0
    note: str = ""  # "walk capped at 30,000 of this graph: ..."
    truncated: bool = False  # more nodes run than ``total``: see ``note``


@request("adbg/graph", GraphBody)
@dataclass(frozen=True, slots=True)
class Graph:
    """``backward`` 0: the innermost one. Rows ``start`` .. ``start + count`` - 1, counted from 1, or those of
    ``indices``."""

    start: int = 1
    count: int = 2000
    backward: int = 0
    indices: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FindBody:
    index: int


@request("adbg/find", FindBody)
@dataclass(frozen=True, slots=True)
class Find:
    """The node that ``text`` names: "#112", "112", a unique name, a parameter, or a name that only one node has."""

    text: str


@dataclass(frozen=True, slots=True)
class PathBody:
    """``path``: indices, in the direction of the gradient. From the roots also: how many nodes lie upstream, which feed
    the last one, the number of paths (``paths`` 0: too many to be counted exactly), the first node that was given a
    gradient that is not finite, and the first that passed one on (``maker``; 0: none, or not known). ``slots``: of each
    gradient that flows into the last node those that give parts of it, once for each part."""

    path: list[int]
    total: int  # nodes of the graph
    ancestors: int = 0
    contributions: list[int] = field(default_factory=list)
    paths: int = 1
    paths_log10: float = 0.0
    nonfinite: int = 0
    maker: int = 0
    slots: list[list[int]] = field(default_factory=list)


@request("adbg/path", PathBody)
@dataclass(frozen=True, slots=True)
class Path:
    """A shortest path of the gradient from node ``source`` (index; 0: the roots) to ``node``."""

    node: int
    source: int = 0


@dataclass(frozen=True, slots=True)
class NodeBody:
    """One node in full. ``grad_outputs`` flow into it, ``grad_inputs`` out of it (empty before it ran)."""

    node: NodeInfo
    state: str
    index: int
    grad_outputs: list[SlotView]
    grad_inputs: list[SlotView]
    saved: list[SlotView]
    attributes: dict[str, str] = field(default_factory=dict)
    consumers: list[int] = field(default_factory=list)  # indices of the nodes that feed this one
    producers: list[int] = field(default_factory=list)  # indices of the nodes it feeds
    contributions: list[Contribution] = field(default_factory=list)  # parts of summed grad_outputs, where more than one
    contributions_note: str = ""  # why there are none although several consumers feed a slot
    forward: list[SourceLine] = field(default_factory=list)  # innermost first
    forward_note: str = ""  # why there is none: "made before stacks were on"
    us: float | None = None


@request("adbg/node", NodeBody)
@dataclass(frozen=True, slots=True)
class Node:
    """``index`` (execution order) or ``name`` (unique name, or a name that only one node has); both empty: the
    current node."""

    index: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class DumpBody:
    files: list[str]


@request("adbg/dump", DumpBody)
@dataclass(frozen=True, slots=True)
class Dump:
    """``what``: graph (.dot), stack (.log), grads (.log), written into ``directory`` (made when missing)."""

    what: str
    directory: str


@dataclass(frozen=True, slots=True)
class CaptureState:
    """One capture. ``state``: "waiting" (for a backward with such nodes), "asking" (to be confirmed: nothing was
    written), "running" (graphs are written, gradients come), "done", "failed", "cancelled". ``nbytes`` is the estimate
    of ``gradients`` gradients, ``unknown`` of which have no shape yet."""

    name: str
    region: str
    state: str
    files: list[str] = field(default_factory=list)
    inside: int = 0
    boundary: int = 0
    leaves: int = 0
    strays: int = 0  # ops without a part in the loss
    gradients: int = 0
    nbytes: int = 0
    unknown: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class CaptureBody:
    captures: list[CaptureState]


@request("adbg/capture", CaptureBody)
@dataclass(frozen=True, slots=True)
class Capture:
    """Write the part of the backward graph that the forward lines ``region`` ("FILE:A-B") made, in Paddle's formats.

    At a stop whose graph has such nodes at once; else at the next backward that has. ``grads``: their gradients too, as
    the backward passes them, up to ``limit`` bytes; with ``limit`` 0 only the estimate is answered (state "asking").
    ``directory`` "": ``captures`` in the run directory, or ``adbg-captures``; the files go into a folder ``name``
    there. ``region`` "" lists the captures; ``cancel`` drops those that wait, or the one called ``name``.
    """

    region: str = ""
    grads: bool = False
    limit: int = 0
    name: str = ""
    directory: str = ""
    cancel: bool = False
