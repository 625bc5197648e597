"""Memory: what the process and its devices use, what the graph retains, and which variables keep what alive."""

from __future__ import annotations

from dataclasses import dataclass, field

from adbg.engine.protocol.messages.registry import event, request
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes; None where the system does not tell. ``uss``: what would be free again without this process."""

    rss: int | None = None
    peak_rss: int | None = None
    uss: int | None = None
    pss: int | None = None
    swap: int | None = None


@dataclass(frozen=True, slots=True)
class Allocator:
    """A framework's own allocator on one device, in bytes. ``reserved`` is what it has of the system; the rest of it
    than ``allocated`` is the fragmentation. ``note``: why there are no numbers."""

    framework: str
    device: str
    allocated: int | None = None
    reserved: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device as its driver sees it: all processes together, and this one (None: not told)."""

    device: str
    total: int
    used: int
    own: int | None = None


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """A node, and the bytes of saved tensors that can go once it has run: no node that runs later saved them too.
    ``held`` of them belong to parameters and other leaves, which stay without the graph. ``tensors``: their names."""

    index: int
    name: str
    bytes: int
    held: int = 0
    tensors: list[str] = field(default_factory=list)
    module: str | None = None
    parameter: str | None = None
    forward: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class SavedContexts:
    """What the living contexts of a PyLayer saved together; the framework does not say which nodes they are of."""

    name: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What the nodes of a graph saved, each memory counted once, however many nodes and views have it. ``bytes``: all
    but ``held``, which belongs to parameters and other leaves. ``rows``: the largest. Of ``nodes`` nodes ``freed`` have
    run and let go, ``unread`` saved something that must not be unpacked (checkpoint, offload), and ``hidden`` do not
    show what they saved; ``why_hidden`` has the reason."""

    nodes: int
    bytes: int
    held: int
    rows: list[RetainedRow]
    freed: int = 0
    unread: int = 0
    hidden: int = 0
    why_hidden: str = ""
    contexts: list[SavedContexts] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """At the end of an outermost backward. ``allocated``: by the framework's allocators, all devices; None without."""

    iteration: int
    rss: int
    allocated: int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """A variable that keeps something alive. ``path``: ``losses[3]``, ``self.history['loss'][0]``. ``kind``: "global",
    "local", "attribute", "other"; ``where``: the line where the variable is first given a value; ``filled`` the line
    that puts something into it, with its source text; ``others`` are further lines of that file that do. ``made``: of
    what a function keeps (a closure, a default), or an object that no variable leads to, the line that made that
    function or its class, with its text. ``count`` things of the kind asked for lie there, ``graphs`` of them keep a
    graph."""

    path: str
    kind: str
    where: SourceLine | None = None
    filled: SourceLine | None = None
    filled_text: str = ""
    thread: str = ""
    count: int = 1
    graphs: int = 0
    bytes: int = 0
    note: str = ""
    others: list[int] = field(default_factory=list)
    made: SourceLine | None = None
    made_text: str = ""


@dataclass(frozen=True, slots=True)
class Growth:
    """A variable that held more at each look. ``counts``: (iteration, tensors that it leads to), or where ``nodes``
    is true, (iteration, nodes of its graph that were there at the look before). ``ended``: the iteration at which it no
    longer held more than at the look before; 0 while it grows. ``sure``: it grew for long; before, it may be a window
    or a cache that is not full yet."""

    owner: Owner
    counts: list[tuple[int, int]]
    nodes: bool = False
    ended: int = 0
    sure: bool = True


@event("adbg/memoryGrows")
@dataclass(frozen=True, slots=True)
class MemoryGrows:
    """Told once of each variable, while the memory is watched, and once more when it is sure."""

    growth: Growth


@dataclass(frozen=True, slots=True)
class Course:
    """Memory over iterations, while it is watched. ``slope``: bytes of RSS an iteration over the later half of the
    samples, ``grows`` whether that is more than their noise. ``stacks``: forward stacks are on, which a kept node keeps
    with it, and which take more than the node. ``look_ms``: what the last search for growth took. ``free_heap``: bytes
    of the heap that nobody used at the first sample, and now; empty where that is not known. They are part of the RSS
    and no part of what the program keeps."""

    on: bool
    samples: list[MemorySample] = field(default_factory=list)
    slope: float | None = None
    grows: bool = False
    growths: list[Growth] = field(default_factory=list)
    look_ms: float | None = None
    stacks: bool = False
    free_heap: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Bytes in use before and after a node ran, and the highest that it is known to have come to."""

    index: int
    name: str
    before: int
    after: int
    highest: int
    module: str | None = None
    forward: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class NodesMemory:
    """Of the last outermost backward that was watched node by node. ``measure``: "rss", or "allocated" by the
    framework on its device. ``peak``: the node with the most in use; ``highest``: the same of all iterations watched;
    ``takers``: those that came highest over what was in use before them. ``within``: what a node took and gave back
    while it ran is part of its ``highest``."""

    on: bool
    measure: str = ""
    iteration: int = 0
    begun: int = 0
    peak: NodeMemory | None = None
    highest: NodeMemory | None = None
    takers: list[NodeMemory] = field(default_factory=list)
    within: bool = False


@dataclass(frozen=True, slots=True)
class MemoryBody:
    """``retained`` is None where no graph is at hand; then ``why_none`` says why. ``no_devices``: why ``devices`` is
    empty though the program uses one."""

    process: ProcessMemory
    allocators: list[Allocator]
    devices: list[DeviceMemory]
    course: Course
    nodes: NodesMemory
    retained: Retained | None = None
    why_none: str = ""
    no_devices: str = ""


@request("adbg/memory", MemoryBody)
@dataclass(frozen=True, slots=True)
class Memory:
    """``rows``: of the largest holders of the graph, at a stop; 0: leave the graph out. ``watch``: switch on or off the
    samples at the end of each iteration, ``by_node`` those at every node; None: as it is."""

    rows: int = 20
    watch: bool | None = None
    by_node: bool | None = None


@dataclass(frozen=True, slots=True)
class Saver:
    """A node that saved the memory asked about, under ``name``. ``root``: the variable that keeps its graph, "" for the
    graph of the backward that is stopped."""

    node: str
    index: int
    name: str
    root: str = ""
    forward: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class AliveBody:
    """``owners``: variables that lead to it; ``shared``: to other tensors of the same memory; ``graphs``: to tensors
    whose graph it is a part of. ``objects`` were looked at in ``ms`` ms; ``cut``: there are more."""

    what: str
    owners: list[Owner]
    shared: list[Owner] = field(default_factory=list)
    graphs: list[Owner] = field(default_factory=list)
    savers: list[Saver] = field(default_factory=list)
    bytes: int = 0
    objects: int = 0
    ms: float = 0.0
    cut: bool = False
    notes: list[str] = field(default_factory=list)


@request("adbg/alive", AliveBody)
@dataclass(frozen=True, slots=True)
class Alive:
    """What keeps the value of ``expression`` alive, or node number ``node`` of the graph here; without both, tensors
    that keep graphs other than this one."""

    expression: str = ""
    node: int = 0
    frameId: int = 0
