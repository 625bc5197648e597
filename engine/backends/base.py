"""What the engine asks of a framework, and what a framework reports (L2: no framework, no numpy here).

A backend only *reports* (through ``HookSink``) and *answers*. It never decides to stop: the session does. What a
framework cannot do is a ``Capabilities`` flag that is off and an ``Unsupported`` that says why, never a silent no-op.

Life of a call, all on the thread that runs backward:

    call = BackwardCall(...)                # the backend's wrapper around the framework's entry point
    sink.backward_begin(call)               # the session may call call.hook(plan), read call.order(), park
    ... sink.node_begin / node_end ...      # only for the nodes that the plan selected; the session may park and
                                            # call call.hook(wider plan) there: it holds for the nodes still to come
    sink.backward_end(call, error)          # hooks are still there, the graph is alive; then every hook is removed

Cost contract: while ``arm(False)`` the wrapper passes straight through (one attribute test, an increment, a try).
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from adbg.engine.errors import Unsupported
from adbg.engine.types import (
    BriefCall,
    Edge,
    NodeInfo,
    SourceLine,
    TensorMeta,
    TensorStats,
    TensorWindow,
    ValueState,
    remark_of,
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this framework build can do; shown by ``adbg doctor`` and ``info capabilities``, greys out what is off."""

    pre_hooks: bool = False  # stop before any node
    post_hooks: bool = False  # stop behind any node
    edit_grad_outputs: bool = False
    edit_grad_inputs: bool = False
    saved_tensors: bool = False
    forward_stacks: bool = False
    module_paths: bool = False
    nested_backward: bool = False
    execution_order: bool = False  # predicted before the run
    contributions: bool = False  # parts of a summed gradient
    native_vlog: bool = False  # the framework writes glog records itself


@dataclass(frozen=True, slots=True)
class HookPlan:
    """Which nodes of a call to hook. A node is hooked when any of the clauses takes it.

    ``name`` is asked once per distinct framework name in the graph (the backend caches it: one dict lookup a node);
    ``info`` is asked for every node not taken yet, with a ``NodeInfo`` that has at least the fields in ``needs``
    ("unique_name", "module", "parameter", "forward_stack"): the slow path, only for specs that need it.
    ``forward_stack`` is handed as a tuple of SourceLine, innermost first.
    ``indices`` are positions in the execution order, from 1. ``every`` takes all.
    """

    every: bool = False
    name: Callable[[str], bool] | None = None
    info: Callable[[NodeInfo, Sequence[SourceLine]], bool] | None = None
    needs: frozenset[str] = frozenset()
    indices: frozenset[int] = frozenset()
    post: bool = True  # report node_end too
    contributions: bool = False  # keep the parts of summed gradients into nodes taken by name/info/indices/every
    screen: bool = False  # non-finite watch: see below

    # ``screen`` is the hot path of the nan/inf/nonfinite breakpoints: the backend hooks whatever it must so that every
    # gradient is looked at (outputs of every node; incoming ones at roots, where several consumers are summed, and
    # where the backend knows that they may be other ones than were passed on), screens with ``norm`` inside its own
    # hook, and calls the sink for a node taken by nothing else only when the norm is not finite.

    @property
    def empty(self) -> bool:
        return not (self.every or self.name or self.info or self.indices or self.screen)


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A saved tensor or attribute of a node. ``value`` is None where its state is unread or freed; of a corrupted one
    it is the changed tensor. ``note``: why it cannot be read, where no state says so."""

    name: str
    value: Any
    note: str = ""
    state: ValueState = ValueState.OK
    version: int | None = None  # of a corrupted tensor, as in ``TensorMeta``
    saved_at: int | None = None

    @property
    def remark(self) -> str:
        """State and note in words."""
        return remark_of(self.state, self.note, self.version, self.saved_at)


@dataclass(frozen=True, slots=True)
class Part:
    """One consumer's contribution to slot ``slot`` of a node's incoming gradient."""

    slot: int
    from_key: int
    value: Any


class Graph(abc.ABC):
    """A walked graph. Keys are small ints, stable while the object lives; nothing here keeps framework nodes alive
    longer than the graph itself lives (dropping many node wrappers can overflow the C stack: torch_touched.py)."""

    note: str = ""  # what is missing ("walk capped at 30,000 nodes: ..."), for the UI
    left_out: Sequence[Any] = ()  # values given to ``graph_of`` whose graphs a backward has used up

    def add_note(self, text: str) -> None:
        """One thing more that is missing."""
        self.note = f"{self.note}; {text}" if self.note else text

    @abc.abstractmethod
    def count(self) -> int:
        """Nodes that will execute."""

    @abc.abstractmethod
    def order(self) -> Sequence[int]:
        """Keys in the order in which the engine executes them (predicted; exact on one CPU thread)."""

    @abc.abstractmethod
    def roots(self) -> Sequence[int]: ...

    @abc.abstractmethod
    def describe(self, key: int) -> NodeInfo: ...

    def name(self, key: int) -> str:
        """The framework's name alone: what ``describe`` gives, for less."""
        return self.describe(key).name

    @abc.abstractmethod
    def edges(self, key: int) -> Sequence[Edge]:
        """Towards the producers: where this node's grad_inputs flow."""

    @abc.abstractmethod
    def saved(self, key: int) -> Sequence[SavedValue]: ...

    @abc.abstractmethod
    def attributes(self, key: int) -> Mapping[str, str]:
        """Non-tensor facts a person wants: dim, keepdim, alpha; of an accumulate node its parameter's shape."""

    @abc.abstractmethod
    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        """Shape and dtype of every incoming gradient slot, known before it runs. Empty when the framework cannot
        tell."""

    @abc.abstractmethod
    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        """User frames that made the node, innermost first, and why there are none."""

    @abc.abstractmethod
    def node(self, key: int) -> Any:
        """The framework's own node object, for expressions (``node``)."""

    def is_custom(self, key: int) -> bool:
        """PyLayer / autograd.Function."""
        return False

    def context(self, key: int) -> Any:
        """``ctx`` of a custom node, as its forward and backward have it: in torch that is the node.

        Raises:
            CommandError: the framework does not give it away here.
        """
        return self.node(key)

    def address(self, key: int) -> int:
        """A number that tells this node object from any other alive: Paddle's pointer, else the id of the object."""
        node = self.node(key)
        pointer = getattr(node, "node_ptr", None)
        return int(pointer()) if callable(pointer) else id(node)

    def read_all_stacks(self) -> None:  # noqa: B027
        """The stacks of all nodes are about to be asked for: a backend may read them together for less."""

    def names(self) -> Iterable[str]:
        """Distinct framework names in the graph, for completion and closest matches."""
        return sorted({self.describe(key).name for key in self.order()})


class BackwardCall(Graph):
    """One running call of the framework's backward."""

    number: int  # 1, 2, ... over all calls, nested ones too, in order of beginning
    thread: int  # threading.get_ident() of the caller
    parent: BackwardCall | None  # the call whose node made this one
    parent_key: int | None  # that node in it
    depth: int  # 0 at top level
    entry: str  # "backward" or "grad"
    create_graph: bool
    root_names: tuple[str, ...]
    location: SourceLine | None  # the user's line that called backward

    @abc.abstractmethod
    def hook(self, plan: HookPlan) -> int:
        """Hook the nodes that the plan takes and that are not hooked yet; returns how many nodes are hooked now.
        May be called at begin, and again on the parked thread (then it acts on nodes still to run, and gives the node
        at hand a post hook)."""

    @abc.abstractmethod
    def unhook(self) -> None: ...

    @abc.abstractmethod
    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        """Parts of the summed gradients flowing into ``key`` as far as they were kept, and why some are missing."""

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        """After an exception: (key, evidence) of the nodes that may have failed, most likely first. Works without any
        hook having been there."""
        return ()

    def original_error(self, error: BaseException) -> BaseException:
        """The exception as Python raised it, where the framework made another one of it (Paddle: an OSError)."""
        return error

    def error_text(self, error: BaseException) -> str:
        """Type and message of what went wrong, without what only pads it (C++ stacks, repeated Python ones)."""
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True)
class Stray:
    """A node that the forward made and that a graph does not have: its op has no part in the loss. ``text`` is what is
    known of it: a name, or the source text of its line."""

    text: str
    stack: tuple[SourceLine, ...] = ()  # user frames, innermost first

    @property
    def forward(self) -> SourceLine | None:
        return self.stack[0] if self.stack else None


class CreationWatch(abc.ABC):
    """Which nodes are made from its making on until ``close``."""

    @abc.abstractmethod
    def close(self) -> None:
        """No node made from now on belongs to it. Repeated calls are harmless."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of everything kept."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Forget what was made so far: a backward that had none of it ended."""

    @abc.abstractmethod
    def holds(self, graph: Graph, key: int) -> bool:
        """Whether that node was made while it was open, on its thread."""

    @abc.abstractmethod
    def strays(self, graph: Graph) -> tuple[Sequence[Stray], str]:
        """Nodes made while it was open that ``graph`` does not have, and what of this cannot be known."""


class HookSink(Protocol):
    """Implemented by the session. None of these may raise into the engine, save what a person asked for (kill)."""

    def backward_begin(self, call: BackwardCall) -> None: ...

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Before a node. A returned tuple replaces the gradients (already adopted: checked and cloned); None keeps
        them."""

    def node_end(
        self, call: BackwardCall, key: int, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]
    ) -> tuple[Any, ...] | None: ...

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None: ...

    # Instead of these, for a call that is not nested, where a backend knows the framework names of its nodes early:

    def passes_over(self, kinds: frozenset[str]) -> bool:
        """Whether nothing can be of interest in a call whose nodes have these names. Asked at its begin, often: hand in
        the same set again for the same kinds. True: ``brief_begin`` and ``brief_end`` tell of it, and nothing else; if
        it turns out later that it is looked into all the same (an exception, ``breakpoint()`` in a node), the methods
        above come too."""

    def brief_begin(self, call: BriefCall) -> None: ...

    def brief_end(self, number: int, us: float, error: BaseException | None) -> None: ...

    # Optional: ``node_warning(call, key, grad_outputs, text)`` before a node of which the framework would die; it may
    # stop, and answers as ``node_begin`` does. It may come for a call whose begin was not reported (nothing armed).


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One line of ``adbg doctor``: ``status`` is "ok", "off", "missing" or "limit"."""

    status: str
    what: str
    detail: str = ""


class Backend(abc.ABC):
    """One framework. Made once by the registry after the script imported the framework; ``install`` puts the hooks in,
    ``uninstall`` leaves no trace of them."""

    name: ClassVar[str]
    version: str = ""
    capabilities: Capabilities = Capabilities()

    @abc.abstractmethod
    def install(self, sink: HookSink) -> None: ...

    @abc.abstractmethod
    def uninstall(self) -> None: ...

    def abandon(self) -> None:
        """``uninstall`` in a forked child, where locks may be held by threads that are not here: never waits for
        one."""
        self.uninstall()

    @abc.abstractmethod
    def arm(self, armed: bool) -> None:
        """False: backward passes straight through, only counted (``error`` post-mortem stays: it costs a try).
        True: every call is reported. Called from the reader thread: an atomic flag."""

    @property
    @abc.abstractmethod
    def backward_count(self) -> int:
        """Backward calls begun so far, armed or not."""

    @property
    @abc.abstractmethod
    def iteration(self) -> int:
        """Outermost backward calls begun so far."""

    @abc.abstractmethod
    def set_stacks(self, on: bool) -> None: ...

    @abc.abstractmethod
    def doctor(self) -> Sequence[DoctorLine]: ...

    # ---- tensors

    @abc.abstractmethod
    def is_tensor(self, value: Any) -> bool: ...

    @abc.abstractmethod
    def meta(self, value: Any) -> TensorMeta: ...

    @abc.abstractmethod
    def stats(self, value: Any, exact: bool = False, bins: int = 16) -> TensorStats:
        """Exact up to 1,000,000 elements or when asked, else over a strided sample of at most that many."""

    @abc.abstractmethod
    def window(self, value: Any, slice_text: str, rows: int, cols: int) -> TensorWindow:
        """Raises CommandError for a bad slice, saying which dimension is out of range."""

    @abc.abstractmethod
    def norm(self, value: Any) -> float:
        """2-norm of all elements (nan/inf when any is): the screen for non-finite values and the figure to display."""

    @abc.abstractmethod
    def nonfinite(self, value: Any) -> tuple[int, int]:
        """(NaN elements, infinite elements), exact. Cheap when all is finite (screened by ``norm``)."""

    @abc.abstractmethod
    def adopt(self, old: Any, new: Any, where: str) -> Any:
        """``new`` (tensor or number) checked against ``old`` (shape, dtype, device) and cloned, ready to be handed to
        the engine. Raises CommandError saying what the framework would refuse, and why."""

    @abc.abstractmethod
    def text(self, value: Any) -> str:
        """How a person sees the value (framework's repr, long ones elided)."""

    @abc.abstractmethod
    def user_mode(self) -> contextlib.AbstractContextManager[None]:
        """Evaluate user expressions here: grad mode on, as in user code; restored afterwards."""

    @abc.abstractmethod
    def helpers(self) -> Mapping[str, Any]:
        """norm(t), stats(t), nonfinite(t) and the framework module under its usual name, for expressions."""

    @abc.abstractmethod
    def graph_of(self, values: Iterable[Any]) -> Graph | None:
        """The graph that the given tensors have so far (``adbg.breakpoint()``); None when none of them has one.

        Graphs that a finished backward has used up (it did not retain them) are left out, unless there is no other: the
        loss of the last iteration would take the first numbers of all names. ``left_out`` tells.
        """

    def at_hand(self) -> tuple[BackwardCall, int | None] | None:
        """The call in one of whose nodes the calling thread runs Python code, and that node (None: it cannot be told
        which). A call that was not reported, for nothing was armed, is reported from now on: its end will be."""
        return None

    def watch_creation(self) -> CreationWatch:
        """Follow which nodes the calling thread makes from now on (``holds``), and what any thread makes (``strays``).

        Raises:
            Unsupported: the framework does not tell; a region is then known by its source lines alone.
        """
        raise Unsupported(f"{self.name} does not tell when a node is made", "the lines of the region are used instead")

    def native_vlog(self) -> NativeVlog | None:
        """The same object each time; None where the framework has no VLOG of its own."""
        return None

    def aids(self) -> Aids | None:
        """The same object each time; None where the framework has none."""
        return None

    def rank(self) -> int | None:
        """Rank of this process in the framework's process group; None while it is in none. Asked per outermost call."""
        return None

    def memory(self) -> Mapping[str, float]:
        """Bytes by name ("rss", "cuda_allocated", ...)."""
        return {}

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """(name, parameter) of the modules seen so far."""
        return ()


class NativeVlog(abc.ABC):
    """Levels of the VLOG that a framework writes to fd 2 itself. Any thread under the GIL."""

    @abc.abstractmethod
    def set_levels(self, text: str) -> dict[str, int]:
        """ "6", "dygraph_functions=6,nodes=5", "off", "" to only ask. Returns what a person set ("*" the global level).
        Raises CommandError."""

    def effect(self, levels: Mapping[str, int]) -> str:
        """What a person should know of ``levels``, in a line: what they change in the program's results, modules that
        nothing logs; "" for nothing."""
        return ""

    @abc.abstractmethod
    def raise_levels(self, levels: Mapping[str, int]) -> None:
        """At least these levels until ``lower_levels`` of the same; may nest."""

    @abc.abstractmethod
    def lower_levels(self, levels: Mapping[str, int]) -> None: ...

    @abc.abstractmethod
    def quiet(self, on: bool) -> None:
        """No record at all while ``on``, whatever the levels are: what adbg asks the framework is not the script's
        doing. Called twice per hook, by the thread that has the turn."""

    @abc.abstractmethod
    def restore(self) -> None:
        """The script's own levels again."""

    def abandon(self) -> None:
        """``restore`` in a forked child, where locks may be held by threads that are not here."""
        self.restore()

    @property
    @abc.abstractmethod
    def loud(self) -> bool:
        """Some level is not 0, on anybody's word."""

    @property
    @abc.abstractmethod
    def logging(self) -> bool:
        """adbg has a level of it on."""


@dataclass(frozen=True, slots=True)
class Aid:
    """One of a framework's own debugging aids, switchable at run time. ``note`` says what this build does with it."""

    name: str
    value: str  # as it is now
    values: str  # what it takes: "off | 0 | 1 | 2 | 3"
    what: str
    note: str = ""


class Aids(abc.ABC):
    """A framework's own debugging aids. Any thread under the GIL."""

    @abc.abstractmethod
    def list(self) -> Sequence[Aid]: ...

    @abc.abstractmethod
    def set(self, name: str, value: str) -> Aid:
        """Raises CommandError: no such aid or value; Unsupported: not in this build."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Everything as the script had it."""


@dataclass
class Registry:
    """Backends by the top-level module whose import brings them in: filled by ``backends/__init__``."""

    factories: dict[str, Callable[[], Backend]] = field(default_factory=dict)

    def register(self, module: str, factory: Callable[[], Backend]) -> None:
        self.factories[module] = factory
