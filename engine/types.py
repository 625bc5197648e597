"""Values that cross rooms and the wire: frozen dataclasses and enums, which import nothing of adbg.

Field names are the wire names. Types that ``docs/json-lines.md`` describes have its texts in their annotations.
Floats may be nan/inf here; ``codec.to_json`` writes them as strings. ``index``, ``backward`` and ordinals count from 1.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, NamedTuple


class StopReason(str, enum.Enum):
    """Why a thread parked (the ``reason`` of a stop, as in the JSON lines contract)."""

    BREAKPOINT = "breakpoint"
    STEP = "step"
    PAUSE = "pause"
    NAN = "nan"
    INF = "inf"
    ERROR = "error"
    BACKWARD = "backward"
    ENTRY = "entry"


class SpecKind(str, enum.Enum):
    """What a breakpoint looks at."""

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


class Phase(str, enum.Enum):
    """Where a thread stands relative to what it stopped at."""

    BEFORE = "before"  # before the node runs: grad_outputs known, grad_inputs not yet
    AFTER = "after"  # after the node: both known
    BEGIN = "begin"  # a backward call: roots known, nothing run yet
    END = "end"  # end of a backward call
    ERROR = "error"  # an exception left the node
    PYTHON = "python"  # at a Python line: adbg.breakpoint()


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of Python."""

    file: Annotated[str, "an absolute path, or a pseudo name such as `<string>`"]
    line: Annotated[int, "counted from 1"]
    function: Annotated[str, "the function it is in"]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node (GradNode) of one backward graph.

    ``key`` identifies it within its graph (stable while the graph lives); ``seq`` is the order of recording
    (None for accumulate nodes); ``unique_name`` is ``name#k``, k counting the nodes of that name in order of
    recording, so it is the same from iteration to iteration.
    """

    key: int
    name: str
    unique_name: str
    seq: int | None = None
    module: str | None = None  # module path, "layers.0.attn"
    parameter: str | None = None  # of an accumulate node: "layers.0.attn.q.weight"
    forward: SourceLine | None = None  # innermost user line that made it
    accumulate: bool = False
    compiled: bool = False  # a whole compiled region (torch.compile) in one node


@dataclass(frozen=True, slots=True)
class Edge:
    """From a node to the producer it feeds: output ``slot`` of the node flows into ``to_slot`` of node ``to``."""

    slot: int
    to: int | None  # key; None where no gradient is needed
    to_slot: int = 0


class ValueState(str, enum.Enum):
    """Whether a value is there, and can be read and believed."""

    OK = "ok"
    UNDEFINED = "undefined"  # the framework has None there: no gradient flows
    NOT_KEPT = "not_kept"  # a gradient of a node that the program did not stop at
    NOT_YET = "not_yet"  # a gradient of a node that has not run
    KEPT = "kept"  # a copy of what was there when the program stood at that node
    NOT_HOOKED = "not_hooked"  # a gradient of a node that had no hook
    UNREAD = "unread"  # reading it would run a hook: checkpoint recomputes the forward, offloading copies back
    FREED = "freed"  # by an earlier backward through the same graph
    FREED_NOW = "freed_now"  # by the backward that runs, when the node had run
    CORRUPTED = "corrupted"  # changed in place since it was saved
    NO_DATA = "no_data"  # a tensor without elements to read: on the meta device, of a trace
    HIDDEN = "hidden"  # a gradient that the framework does not show; the note says why


_REMARKS = {
    ValueState.UNDEFINED: "undefined",
    ValueState.NOT_KEPT: "not kept: the program did not stop there",
    ValueState.NOT_YET: "not there yet: the node has not run",
    ValueState.KEPT: "as it was at the stop there",
    ValueState.NOT_HOOKED: "not kept: the node was not hooked",
    ValueState.UNREAD: "not read: unpacking runs a hook (checkpoint recomputes the forward, offloading copies it back)",
    ValueState.FREED: "freed: this graph was run backward already",
    ValueState.FREED_NOW: "freed as the node ran: this backward does not retain the graph",
    ValueState.CORRUPTED: "corrupted: is at version {version}; expected version {saved_at}",
    ValueState.NO_DATA: "no data",
    ValueState.HIDDEN: "not known",
}


def remark_of(state: ValueState, note: str = "", version: int | None = None, saved_at: int | None = None) -> str:
    """What there is to know of a value beside its shape; "" when all is well. In the engine because the agent writes
    texts of its own: dumps, DAP variables."""
    words = _REMARKS.get(state, "").format(version=version, saved_at=saved_at)
    return "; ".join(part for part in (words, note) if part)


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape first: never a value. ``shape`` is None where there is none: an undefined gradient, a freed tensor."""

    shape: tuple[int, ...] | None
    dtype: str = ""  # short: "f32", "bf16", "i64", as screen.md prints them
    device: str = ""
    nbytes: int = 0
    numel: int = 0
    layout: str = "strided"
    requires_grad: bool = False
    note: str = ""  # what no field has: "nested", "shape not kept"
    state: ValueState = ValueState.OK
    version: int | None = None  # of a corrupted tensor: how often it was changed in place
    saved_at: int | None = None  # of a corrupted tensor: its version when it was saved

    @property
    def remark(self) -> str:
        """State and note in words."""
        remark = remark_of(self.state, self.note, self.version, self.saved_at)
        return remark or ("undefined" if self.shape is None else "")


@dataclass(frozen=True, slots=True, repr=False)
class TensorStats:
    """Statistics over all elements, or over ``sampled`` of ``numel`` of them (``sampled`` None: exact).

    ``min``/``max``/``mean``/``std`` are over the finite elements; ``norm`` is the 2-norm over the same.
    ``histogram`` has equal bins from ``min`` to ``max``; the six counts add up to the elements looked at.
    """

    numel: int
    sampled: int | None
    min: float
    max: float
    mean: float
    std: float
    norm: float
    neg_inf: int
    negative: int
    zero: int
    positive: int
    pos_inf: int
    nan: int
    histogram: tuple[int, ...] = ()

    @property
    def all_finite(self) -> bool:
        """Whether ``norm`` and the moments are over all elements that were looked at."""
        return not (self.neg_inf or self.pos_inf or self.nan)

    @property
    def none_finite(self) -> bool:
        """Whether there are elements, and no moments of any."""
        return 0 < self.neg_inf + self.pos_inf + self.nan >= (self.sampled or self.numel)

    def __repr__(self) -> str:
        """One line without the histogram: "12 elements  min -1  max 2  mean 0.5  std 1  norm 3  negative 4  ..."."""
        looked = f"{self.numel:,} elements" + ("" if self.sampled is None else f" ({self.sampled:,} sampled)")
        figures = ("min", "max", "mean", "std", "norm")
        parts = [looked] if self.all_finite else [looked, "of the finite:"]
        parts += [f"{name} {getattr(self, name):.4g}" for name in figures]
        parts += [f"{name} {getattr(self, name):,}" for name in ("negative", "zero", "positive")]
        spoilt = (("nan", self.nan), ("inf", self.pos_inf), ("-inf", self.neg_inf))
        parts += [f"{name} {count:,}" for name, count in spoilt if count]
        return "  ".join(parts)


@dataclass(frozen=True, slots=True)
class TensorWindow:
    """A 2-D view of a slice. ``values`` is rows x cols of the slice itself when it fits, else of block maxima of |x|.

    ``row_range`` and ``col_range`` are the half-open ranges of the last two dimensions shown.
    """

    slice: str  # normalised, "[0, 0:64, 0:256]"
    shape: tuple[int, ...]  # shape of the slice
    values: tuple[tuple[float, ...], ...]
    reduced: str  # "exact" or "max|x| per block of 4x8"
    row_range: tuple[int, int] = (0, 0)
    col_range: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class TensorView:
    """What a panel shows of one value: meta always, the rest as asked. ``text``: of one that is no tensor."""

    expression: str
    meta: TensorMeta | None
    stats: TensorStats | None = None
    window: TensorWindow | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class SlotView:
    """One gradient slot or one saved tensor of a node: an expression that reads it, and its meta."""

    name: str  # "grad_outputs[0]", "self", "mat2"
    expression: str  # "grad_outputs[0]", "saved['self']"
    meta: TensorMeta | None
    edge: str = ""  # the neighbour at the other end: "#112 ViewBackward0"
    norm: float | None = None
    text: str = ""  # a saved value that is not a tensor: "alpha = 1"


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one consumer gave to a summed gradient (``SlotView`` of the part, beside the node it came from)."""

    slot: int
    from_node: str
    meta: TensorMeta | None
    norm: float | None


class Role(str, enum.Enum):
    """Which values of a node a finding is about."""

    GRAD_OUTPUTS = "grad_outputs"
    GRAD_INPUTS = "grad_inputs"
    SAVED = "saved"
    LEAF = "leaf"  # a parameter, or another leaf: it was so before the forward pass
    ROOT = "root"  # what backward was called on: the loss


class Origin(str, enum.Enum):
    """Where non-finite numbers come from."""

    MADE_HERE = "made_here"  # by this node: every gradient that flowed into it is finite
    PASSED_ON = "passed_on"  # what flowed into this node was not finite already
    BETWEEN = "between"  # after the nodes ``after``, which passed on finite gradients: in their sum, a hook, in place
    FORWARD = "forward"  # the forward pass left them in a saved tensor
    UNKNOWN = "unknown"  # given to backward, or not every gradient was looked at


@dataclass(frozen=True, slots=True)
class Evidence:
    """One gradient or saved tensor with non-finite numbers at a stop, and where they come from."""

    role: Annotated[
        Role,
        "whose: a gradient that flowed in, one that leaves, a tensor saved by the forward pass, a leaf of the graph, "
        "or a root of it (the loss)",
    ]
    name: Annotated[str, "`grad_inputs[0]`; of a saved tensor `self`; of a leaf its path, where it has one"]
    numel: Annotated[int, "elements it has"]
    nan: Annotated[int, "how many are NaN"]
    inf: Annotated[int, "how many are infinite, of either sign"]
    origin: Annotated[
        Origin,
        "made by this node (all that flowed in is finite), passed on, made between the nodes `after` and this one, "
        "left by the forward pass, or unknown (given to backward, or not every gradient was checked)",
    ] = Origin.UNKNOWN
    slot: Annotated[int | None, "of a gradient: its position"] = None
    parameter: Annotated[str, "path of the parameter that a saved tensor is; else empty"] = ""
    pos_inf: Annotated[int | None, "how many are +inf; null: none is infinite, or not counted by sign"] = None
    neg_inf: Annotated[int | None, "how many are -inf; likewise"] = None
    after: Annotated[tuple[str, ...], "of the origin `between`: unique names of the nodes that gave the gradient"] = ()
    others: Annotated[int, "how many more gave it"] = 0
    summed: Annotated[bool, "they gave parts of a sum, which may have made it"] = False
    node: Annotated[
        str,
        "unique name of the node that saved the tensor, or that has the leaf (empty: the node of the stop); of a "
        "gradient that was passed on, the node that made the numbers, where it is known",
    ] = ""
    index: Annotated[int | None, "position of `node` in the execution order"] = None
    forward: Annotated[SourceLine | None, "the forward line of `node`"] = None
    unseen: Annotated[
        bool,
        "the framework does not show what one of the nodes `after` gave: it may have made it. Of a gradient that "
        "leaves: what flowed in is not known, the node wrote over it",
    ] = False


@dataclass(frozen=True, slots=True)
class NodeStop:
    """The stop itself: everything the JSON line ``stopped`` carries, plus what the UI needs to place it."""

    reason: StopReason
    phase: Phase
    thread: int
    backward: int  # 0 where no backward runs (adbg.breakpoint())
    index: int  # position in the execution order, 0 at begin, total + 1 at the end
    total: int
    depth: int  # nesting of backward in backward
    rank: int
    breakpoints: tuple[int, ...] = ()
    node: NodeInfo | None = None
    enclosing: tuple[str, ...] = ()  # unique names of the enclosing nodes, outermost first
    location: SourceLine | None = None  # live Python line: of the backward call, or of adbg.breakpoint()
    message: str = ""  # what has no field of its own: the exception, a condition's error
    iteration: int = 0  # outermost backward calls begun so far
    elapsed_us: float | None = None  # time of the node (phase after)
    truncated: bool = False  # the graph has more nodes than ``total``: the walk was cut, and the rest runs unseen
    evidence: tuple[Evidence, ...] = ()  # what is not finite at the node, what leaves it first
    why: str = ""  # what says that this node failed, and why: ``message`` has it at its end, in brackets

    @property
    def nearest(self) -> int:
        """``index`` of a node that there is: at the end of a backward its last one, 0 where it begins."""
        return min(self.index, self.total)


LOST_STATUS = 125  # adbg's word for "it is not known how the program ended"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the program ended: ``code``, or the ``signal`` that killed it, or neither, where it is not known: its keeper
    was killed, or it is a program that adbg attached to and its agent is gone (``reason`` says how)."""

    code: int | None = None
    signal: int | None = None
    reason: str = ""

    @property
    def status(self) -> int:
        """As a shell counts: the code, 128 + signal number, or 125 when it is not known. 0 of an attached program,
        whose status is not adbg's."""
        if self.code is not None:
            return self.code
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.reason else LOST_STATUS

    @property
    def signal_name(self) -> str:
        """ "SIGSEGV"; "signal 64" where it has no name; "" where no signal killed it."""
        if self.signal is None:
            return ""
        import signal  # not where the agent imports this module: 1 ms

        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class BriefCall(NamedTuple):
    """An outermost backward call that is counted and announced, but not hooked: no breakpoint can take its nodes. A
    named tuple: it is made for every call of a job under a breakpoint that takes nothing there (0.3 us, a dataclass
    1.2)."""

    number: int
    nodes: int
    roots: tuple[str, ...]
    entry: str
    iteration: int
    thread: int
    file: str
    line: int


class BriefRun(NamedTuple):
    """A ``BriefCall`` from its begin (``began``, epoch) on; ``us`` and ``error`` once it ended. ``told``: the front end
    has heard of its begin."""

    call: BriefCall
    began: float
    told: bool
    us: float = 0.0
    error: str = ""


class BriefRuns(NamedTuple):
    """Calls just alike, one behind the other: ``call`` is the first, numbers and iterations count on from it.
    ``nodes``: where every node is recorded, the rows of each call (``NodeBatch``); their graph is ``source``'s."""

    call: BriefCall
    began: tuple[float, ...]
    us: tuple[float, ...]
    nodes: tuple[bytes, ...] = ()
    source: int = 0


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One node of ``adbg/graph`` in execution order. ``edges`` are the indices (not keys) of the producers it feeds."""

    index: int
    key: int
    name: str
    unique_name: str
    state: str  # "done", "here", "todo"
    edges: tuple[int, ...] = ()
    accumulate: bool = False
    parameter: str | None = None
    module: str | None = None
    forward: SourceLine | None = None
    shape: tuple[int, ...] | None = None  # of grad_outputs[0]
    dtype: str = ""
    us: float | None = None
    norm: float | None = None  # of grad_outputs[0], once it was seen
    nonfinite: bool = False
    breakpoints: tuple[int, ...] = ()
    custom: bool = False  # PyLayer = autograd.Function
    compiled: bool = False
    region: str = ""  # in the last captured region: "inside", "boundary", "leaf"
    address: str = ""  # "0x55d0c4a3e2b0", as the framework's own log prints it
