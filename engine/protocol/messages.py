"""Every message of the wire, as a dataclass in one registry (L1). No behaviour here.

The protocol is the Debug Adapter Protocol (same envelope, same framing) plus ``adbg/*``. The agent in the
debuggee is the DAP *server*; a front end is the *client*. DAP fields keep their camelCase names, adbg's own
are snake_case. ``codec.py`` reads and writes these; ``tests/engine/protocol/schema.json`` is a committed snapshot of
them.

Order of a session: (agent dials out: event ``adbg/hello``) -> ``initialize`` -> ``setFunctionBreakpoints`` ... ->
``configurationDone`` (the script starts) -> events. A request that needs the paused point fails with
``NotStopped`` while the program runs. A request names its thread, or leaves ``threadId`` 0 for the one that stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from adbg.engine.types import (
    Contribution,
    GraphRow,
    NodeInfo,
    NodeStop,
    SlotView,
    SourceLine,
    TensorMeta,
    TensorView,
)

PROTOCOL_VERSION = 1
MAX_MESSAGE = 32 << 20  # bytes; a larger one is refused before it is read

T = TypeVar("T")
REQUESTS: dict[str, tuple[type, type]] = {}  # command -> (arguments, response body)
EVENTS: dict[str, type] = {}


def request(command: str, body: type) -> Callable[[type[T]], type[T]]:
    """Register an arguments class for ``command`` whose response body is ``body``."""

    def register(cls: type[T]) -> type[T]:
        REQUESTS[command] = (cls, body)
        cls.COMMAND = command  # type: ignore[attr-defined]
        return cls

    return register


def event(name: str) -> Callable[[type[T]], type[T]]:
    """Register the body class of event ``name``."""

    def register(cls: type[T]) -> type[T]:
        EVENTS[name] = cls
        cls.EVENT = name  # type: ignore[attr-defined]
        return cls

    return register


@dataclass(frozen=True, slots=True)
class Empty:
    """A body without fields."""


# ------------------------------------------------------------------ start and end of a session


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework in the debuggee. ``capabilities`` is ``backends.base.Capabilities`` as a mapping."""

    name: str
    version: str
    capabilities: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Who the agent lives in."""

    pid: int
    rank: int
    argv: list[str]
    python: str
    cwd: str
    run_dir: str  # "" when nothing is recorded
    frameworks: list[Framework] = field(default_factory=list)
    protocol: int = PROTOCOL_VERSION
    main: bool = True  # False: a Python child of the program that adbg launched


@event("adbg/hello")
@dataclass(frozen=True, slots=True)
class Hello:
    """First message of an agent that dials out: proves that it was launched by this front end."""

    token: str
    process: ProcessInfo


@dataclass(frozen=True, slots=True)
class InitializeBody:
    supportsConfigurationDoneRequest: bool = True
    supportsFunctionBreakpoints: bool = True
    supportsConditionalBreakpoints: bool = True
    supportsHitConditionalBreakpoints: bool = True
    supportsSetVariable: bool = True
    supportsSetExpression: bool = True
    supportsTerminateRequest: bool = True
    supportsStepBack: bool = False
    exceptionBreakpointFilters: list[dict[str, Any]] = field(default_factory=list)
    adbg: ProcessInfo | None = None


@request("initialize", InitializeBody)
@dataclass(frozen=True, slots=True)
class Initialize:
    """``token`` must be the session's; ``adbg`` true asks for the adbg/* events."""

    adapterID: str = "adbg"
    clientID: str = ""
    token: str = ""
    adbg: bool = False
    stacks: bool | None = None  # forward stacks and module paths; None keeps the agent's setting


@request("configurationDone", Empty)
@dataclass(frozen=True, slots=True)
class ConfigurationDone:
    """Breakpoints are set; the script may start. ``stop_on_entry``: stop (reason entry) at the first backward's
    begin."""

    stop_on_entry: bool = False


@request("disconnect", Empty)
@dataclass(frozen=True, slots=True)
class Disconnect:
    """Detach: disarm everything, resume, forget the client. ``terminateDebuggee``: end the program too."""

    terminateDebuggee: bool = False


@request("terminate", Empty)
@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM to the program, after everything was disarmed and resumed."""


# ------------------------------------------------------------------ breakpoints


@dataclass(frozen=True, slots=True)
class BreakpointRequest:
    """``name`` is a whole spec of cli.md with its suffixes ("Bmm* after if norm(grad_outputs[0]) > 1 every 2").

    ``condition`` and ``hitCondition`` come from DAP clients and from the ``condition``/``ignore`` commands and are
    applied on top; ``hitCondition`` is "N" (ignore the first N-1 hits), "% N" (every N).
    ``id`` is chosen by the client and kept across calls, so that hit counts survive a changed list.
    """

    name: str
    id: int = 0
    condition: str = ""
    hitCondition: str = ""
    enabled: bool = True
    temporary: bool = False
    trace: bool = False  # a tracepoint: emits adbg/trace, does not stop


@dataclass(frozen=True, slots=True)
class BreakpointState:
    """``verified`` false: the spec is bad (message says why). ``matches``: nodes matching in the graph at hand,
    None when no graph is at hand. A good spec that matches nothing is kept and ``message`` names the closest names."""

    id: int
    verified: bool
    message: str = ""
    spec: str = ""  # normalised
    matches: int | None = None
    hits: int = 0
    enabled: bool = True
    temporary: bool = False
    trace: bool = False


@dataclass(frozen=True, slots=True)
class Breakpoints:
    breakpoints: list[BreakpointState]


@request("setFunctionBreakpoints", Breakpoints)
@dataclass(frozen=True, slots=True)
class SetFunctionBreakpoints:
    """Replaces the whole list (DAP); entries are matched by ``id`` to keep their hit counts. Works while running:
    a changed list acts from the next node hook at a stop, else from the next backward call."""

    breakpoints: list[BreakpointRequest]


@request("setExceptionBreakpoints", Breakpoints)
@dataclass(frozen=True, slots=True)
class SetExceptionBreakpoints:
    """filters among nan, inf, nonfinite, error, backward. ``error`` is on until a client says otherwise."""

    filters: list[str]


# ------------------------------------------------------------------ going on


@dataclass(frozen=True, slots=True)
class ContinueBody:
    allThreadsContinued: bool = True


@request("continue", ContinueBody)
@dataclass(frozen=True, slots=True)
class Continue:
    threadId: int = 0


@request("next", Empty)
@dataclass(frozen=True, slots=True)
class Next:
    """Next node on this level (over nested backward calls); past the last one, into the next backward."""

    threadId: int = 0


@request("stepIn", Empty)
@dataclass(frozen=True, slots=True)
class StepIn:
    """Next node, into nested backward calls."""

    threadId: int = 0


@request("stepOut", Empty)
@dataclass(frozen=True, slots=True)
class StepOut:
    """``finish``: to the end of the enclosing PyLayer / nested backward (stops behind that node), or of this
    backward."""

    threadId: int = 0


@request("pause", Empty)
@dataclass(frozen=True, slots=True)
class Pause:
    """Stop at the next node."""

    threadId: int = 0


@request("adbg/after", Empty)
@dataclass(frozen=True, slots=True)
class After:
    """Run the node at hand and stop behind it."""

    threadId: int = 0


@request("adbg/until", Empty)
@dataclass(frozen=True, slots=True)
class Until:
    """Run until a node that matches ``spec`` (breakpoint grammar) comes, once."""

    spec: str
    threadId: int = 0


# ------------------------------------------------------------------ looking: DAP


@dataclass(frozen=True, slots=True)
class ThreadState:
    id: int
    name: str
    adbg: str = ""  # "stopped", "running", "waiting" (parked behind another one)


@dataclass(frozen=True, slots=True)
class ThreadsBody:
    threads: list[ThreadState]


@request("threads", ThreadsBody)
@dataclass(frozen=True, slots=True)
class Threads:
    pass


@dataclass(frozen=True, slots=True)
class Source:
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """``kind``: "node" (frame 0), "enclosing" (the nodes around it, innermost first), "forward" (Python frames that
    made the node, innermost first; no locals), "live" (Python frames of the stopped thread, innermost first;
    locals)."""

    id: int
    name: str
    line: int = 0
    column: int = 0
    source: Source | None = None
    kind: str = "live"
    locals: bool = False


@dataclass(frozen=True, slots=True)
class StackTraceBody:
    stackFrames: list[StackFrame]
    totalFrames: int
    note: str = ""  # why there is no forward stack, when there is none


@request("stackTrace", StackTraceBody)
@dataclass(frozen=True, slots=True)
class StackTrace:
    """Works while the program runs too: then live frames only (of ``threadId``, or the main thread)."""

    threadId: int = 0
    startFrame: int = 0
    levels: int = 0  # 0: all


@dataclass(frozen=True, slots=True)
class Scope:
    name: str  # "Gradients", "Saved tensors", "Attributes", "Locals", "Globals"
    variablesReference: int
    expensive: bool = False


@dataclass(frozen=True, slots=True)
class ScopesBody:
    scopes: list[Scope]


@request("scopes", ScopesBody)
@dataclass(frozen=True, slots=True)
class Scopes:
    frameId: int


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    value: str
    type: str = ""
    variablesReference: int = 0
    evaluateName: str = ""
    indexedVariables: int = 0
    adbg: TensorMeta | None = None


@dataclass(frozen=True, slots=True)
class VariablesBody:
    variables: list[Variable]


@request("variables", VariablesBody)
@dataclass(frozen=True, slots=True)
class Variables:
    """References live until the program goes on. A tensor is never expanded unasked."""

    variablesReference: int
    start: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class SetVariableBody:
    value: str
    type: str = ""


@request("setVariable", SetVariableBody)
@dataclass(frozen=True, slots=True)
class SetVariable:
    variablesReference: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class EvaluateBody:
    """``result`` is the text; ``value`` is set for numbers, strings, bools, None and short lists of them."""

    result: str
    type: str = ""
    variablesReference: int = 0
    value: Any = None
    tensor: TensorMeta | None = None


@request("evaluate", EvaluateBody)
@dataclass(frozen=True, slots=True)
class Evaluate:
    """``context``: "repl"/"watch"/"hover" evaluate an expression; "statement" executes Python statements in the frame
    (``!``) and returns what they printed. ``frameId`` 0: the innermost live frame, and the node's names."""

    expression: str
    frameId: int = 0
    context: str = "repl"


@request("setExpression", SetVariableBody)
@dataclass(frozen=True, slots=True)
class SetExpression:
    """``set TARGET = EXPR``. Targets: grad_outputs[i] (before the node), grad_inputs[i] (after it), Python names."""

    expression: str
    value: str
    frameId: int = 0


# ------------------------------------------------------------------ looking: adbg


@dataclass(frozen=True, slots=True)
class GraphBody:
    """A page of the graph at hand in (predicted) execution order. ``version`` changes when the graph is another one."""

    version: int
    backward: int
    total: int
    here: int  # index of the node at hand; 0 at the begin; total + 1 at the end
    rows: list[GraphRow]
    depth: int = 0
    note: str = ""  # "walk capped at 30,000 of this graph: ..."


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
    the last one, the number of paths (``paths`` 0: too many to be counted exactly), and the first non-finite node."""

    path: list[int]
    total: int  # nodes of the graph
    ancestors: int = 0
    contributions: list[int] = field(default_factory=list)
    paths: int = 1
    paths_log10: float = 0.0
    nonfinite: int = 0


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
    """``index`` (execution order) or ``name`` (unique name, or a name that only one node has); both empty: the node at
    hand."""

    index: int = 0
    name: str = ""


@request("adbg/tensor", TensorView)
@dataclass(frozen=True, slots=True)
class Tensor:
    """Meta of a value, and on request statistics and a window. ``node`` (index) reads ``saved``, ``grad_outputs`` of
    another node than the one at hand, as far as they are there. ``slice`` is Python index text, "" the first 2-D
    plane."""

    expression: str
    node: int = 0
    stats: bool = True
    exact: bool = False
    bins: int = 16
    window: bool = False
    slice: str = ""
    rows: int = 16
    cols: int = 64
    frameId: int = 0


@dataclass(frozen=True, slots=True)
class VlogBody:
    """``regions`` as asked for; ``file``: where fd 2 goes while a framework logs there, "" when it does not."""

    levels: dict[str, int]  # "*" is the global level
    regions: list[str] = field(default_factory=list)
    file: str = ""


@request("adbg/vlog", VlogBody)
@dataclass(frozen=True, slots=True)
class Vlog:
    """``levels``: "6", "backward=6,nodes=5", "off" (regions too), or "" to only ask. ``at`` ("FILE:A-B") has them only
    while these forward lines run; with ``backward`` only while the nodes run that were made there."""

    levels: str = ""
    at: str = ""
    backward: bool = False


@dataclass(frozen=True, slots=True)
class AidRow:
    """One of a framework's own debugging aids. ``note``: what this build does with it."""

    framework: str
    name: str
    value: str
    values: str
    what: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class AidsBody:
    aids: list[AidRow]


@request("adbg/aids", AidsBody)
@dataclass(frozen=True, slots=True)
class Aids:
    """Switch the aid ``name`` to ``value`` and answer with it alone; both empty: all of them."""

    name: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class InfoBody:
    """A table for people and scripts: ``columns`` and ``rows`` of cells, ``text`` a line above it."""

    text: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)


@request("adbg/info", InfoBody)
@dataclass(frozen=True, slots=True)
class Info:
    """``what``: backward, breakpoints, threads, params, memory, capabilities, names (every node name at hand and
    seen)."""

    what: str


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


@dataclass(frozen=True, slots=True)
class RecordBody:
    recording: bool
    run_dir: str
    message: str = ""


@request("adbg/record", RecordBody)
@dataclass(frozen=True, slots=True)
class Record:
    on: bool | None = None  # None only asks


@request("adbg/stacks", Empty)
@dataclass(frozen=True, slots=True)
class Stacks:
    """Forward stacks and module paths of the nodes made from now on."""

    on: bool


# ------------------------------------------------------------------ events


@event("initialized")
@dataclass(frozen=True, slots=True)
class Initialized:
    pass


@event("stopped")
@dataclass(frozen=True, slots=True)
class Stopped:
    """DAP's fields, and ``adbg``: the stop in full."""

    reason: str
    threadId: int
    allThreadsStopped: bool = True
    description: str = ""
    text: str = ""
    hitBreakpointIds: list[int] = field(default_factory=list)
    adbg: NodeStop | None = None


@event("continued")
@dataclass(frozen=True, slots=True)
class Continued:
    threadId: int
    allThreadsContinued: bool = True


@event("output")
@dataclass(frozen=True, slots=True)
class Output:
    """What the agent itself has to say (category "console", "important"); program output travels through the keeper."""

    output: str
    category: str = "console"


@event("breakpoint")
@dataclass(frozen=True, slots=True)
class BreakpointChanged:
    """Sent when matches, hits, message or enabled of a breakpoint changed (a temporary one that was hit: reason
    "removed")."""

    reason: str
    breakpoint: BreakpointState


@event("adbg/backwardBegin")
@dataclass(frozen=True, slots=True)
class BackwardBegin:
    """Of every backward while something is armed; ``nodes`` is the number of nodes that will execute."""

    backward: int
    nodes: int
    roots: list[str]
    depth: int
    file: str = ""
    line: int = 0
    iteration: int = 0
    thread: int = 0


@event("adbg/backwardEnd")
@dataclass(frozen=True, slots=True)
class BackwardEnd:
    backward: int
    us: float
    error: str = ""
    depth: int = 0


@event("adbg/backwards")
@dataclass(frozen=True, slots=True)
class BackwardsRan:
    """Backward calls that ran to their ends and that nobody looked into, one after the other from the same line: the
    first one's begin, and what each took (us). The n-th one's ``backward`` and ``iteration`` are n - 1 higher."""

    first: BackwardBegin
    us: list[float]


@dataclass(frozen=True, slots=True)
class NodeRan:
    index: int
    us: float | None = None
    norm: float | None = None
    nonfinite: bool = False


@event("adbg/nodes")
@dataclass(frozen=True, slots=True)
class NodesRan:
    """Batched progress: nodes that ran since the last one."""

    backward: int
    nodes: list[NodeRan]


@event("adbg/trace")
@dataclass(frozen=True, slots=True)
class Trace:
    """A tracepoint was hit. ``text`` is one line: phase, node, slots with shape and norm."""

    breakpoint: int
    text: str
    stop: NodeStop


@event("adbg/process")
@dataclass(frozen=True, slots=True)
class ProcessChanged:
    """What the hello said is different now: a child learnt its rank, or records. Sent before the call it is for."""

    process: ProcessInfo


@event("adbg/framework")
@dataclass(frozen=True, slots=True)
class FrameworkLoaded:
    """The script imported a framework; the backend is in place."""

    framework: Framework
