"""One framework: what the engine asks of it."""

from __future__ import annotations

import abc
import contextlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from adbg.engine.backends.base.collectives import CollectiveTaps
from adbg.engine.backends.base.forward import ForwardTimer
from adbg.engine.backends.base.graph import CreationWatch, Graph
from adbg.engine.backends.base.hooks import BackwardCall, HookSink
from adbg.engine.backends.base.native import Aids, NativeVlog
from adbg.engine.backends.base.observing import Keeping, Observation, Watcher
from adbg.engine.errors import Unsupported
from adbg.engine.protocol.messages import Allocator, GroupTimeout
from adbg.engine.types import SourceLine, TensorMeta, TensorStats, TensorWindow


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
class DoctorLine:
    """One line of ``adbg doctor``: ``status`` is "ok", "off", "missing" or "limit"."""

    status: str
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DumpDialect:
    """The words of the dump files, whose formats are Paddle's for every framework. Texts for ``str.format``."""

    stack_note: str = (
        "Note : If you want to see the call stack information of each Node, please make sure that forward stacks are "
        "on (adbg: stacks on) before the forward runs.\n"
    )
    stack_title: str = "GradNodeBase {name} ptr : {address:#x} call stack: \n"
    op_label: str = "{op}\nGradNode: {address:#x}"  # of a node in a forward graph


def _in_sight() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def _as_given(on: bool) -> None: ...  # most frameworks have no such classes


class Backend(abc.ABC):
    """One framework. Made once by the registry after the script imported the framework; ``install`` puts the hooks in,
    ``uninstall`` leaves no trace of them."""

    name: ClassVar[str]
    version: str = ""
    clearing: ClassVar[str] = "zero_grad()"  # how a user of it clears gradients
    rate_of: ClassVar[str] = '{}.param_groups[0]["lr"]'  # an expression for the learning rate of an optimizer
    reducer_kind: ClassVar[type | None] = None  # the class of what ``reducer`` names
    reduces_by: ClassVar[str] = ""  # its attribute that says whether the next backward averages
    #: The number of parameters that such a wrapper was made to reduce; None where it does not tell. Any thread.
    reduced_by: Callable[[Any], int | None] = staticmethod(lambda wrapper: None)
    #: The parameters that such a wrapper met in its module as it was made; empty where it does not tell. Any thread.
    met_by: Callable[[Any], Sequence[Any]] = staticmethod(lambda wrapper: ())
    dump_dialect: ClassVar[DumpDialect] = DumpDialect()
    records: Callable[[], bool] = staticmethod(lambda: True)  # whether autograd does, on this thread, now
    capabilities: Capabilities = Capabilities()
    late = False
    #: Around work of adbg's own on a thread of the program: what the program put in the framework's way (classes of
    #: tensors, modes) is not asked, and sees none of it.
    unseen = staticmethod(_in_sight)
    #: On: no value is read through code of the program's (a class of tensors that handles its own operators) from here
    #: on: what it keeps stands for it. Off: as the class gives it.
    read_unseen = staticmethod(_as_given)
    under_way = False  # a backward ran as a late one was made: its own nodes cannot be hooked from outside

    @abc.abstractmethod
    def install(self, sink: HookSink) -> None: ...

    @abc.abstractmethod
    def uninstall(self) -> None: ...

    def prepare(self, late: bool) -> None:
        """Once, before it is installed, on the thread that made it. ``late``: the program may be using the framework at
        this moment, on other threads. What runs an operator then waits for a moment on a thread of the program."""
        self.late = late

    def leave(self) -> None:
        """After ``uninstall``: this backend is not used again, and the process runs on without adbg."""
        self.uninstall()

    def abandon(self, trains: Callable[[], None] | None = None) -> None:
        """``uninstall`` in a forked child, where locks may be held by threads that are not here: never waits for
        one. ``trains`` is called once, on the thread that does it, as this process begins to train (makes an optimizer,
        joins a process group, calls backward): where another backend may come in."""
        self.uninstall()

    @abc.abstractmethod
    def arm(self, armed: bool) -> None:
        """False: backward passes straight through, only counted (``error`` post-mortem stays: it costs a try).
        True: every call is reported. Called from the reader thread: an atomic flag."""

    def watch_iterations(self, tell: Callable[[bool], None] | None, who: str = "") -> None:
        """``tell(True)`` as an outermost backward begins, ``tell(False)`` as it ends, on its thread, armed or not;
        None: no more. Each ``who`` has one. It costs a call each, where arming walks the graph."""
        raise Unsupported(f"{self.name} does not tell of backward calls that are not armed")

    def watch_phases(self, tell: Callable[[str, bool, SourceLine | None], None] | None) -> None:
        """``tell(phase, begins, line)`` on its thread as a "forward" (the outermost call of a module), a step of the
        "optimizer" or the wait for "data" of the framework's loader begins (True) and ends; ``line``: the user's that
        waits. None: no more, and everything of the framework's is as it was. Costs something per module and step: for
        as long as it is measured. ``tell`` must not raise."""
        raise Unsupported(f"{self.name} does not tell of the parts of a training step")

    def forward_timer(self) -> ForwardTimer | None:
        """The same object each time; None where the framework has no way to time the operators of a forward."""
        return None

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

    def copied(self, value: Any) -> Any:
        """A copy of a gradient in the host's memory, without its graph: for what is shown later."""
        return self.adopt(value, value, "grad_outputs[0]")

    @abc.abstractmethod
    def text(self, value: Any) -> str:
        """How the user sees the value (framework's repr, long ones elided)."""

    def gradient_of(self, parameter: Any) -> Any:
        """The gradient that a parameter has accumulated; None while it has none."""
        return parameter.grad

    def version_of(self, value: Any) -> int | None:
        """The counter that in-place operations on a tensor move; None where it has none."""
        return None

    def feed_bits(self, value: Any, put: Callable[[memoryview], object]) -> None:
        """``put`` the bytes of all elements of a tensor, in C order and in pieces of some MB; valid until ``put``
        returns. Numbers are not converted: NaNs keep their payload, zeros their sign.

        Raises:
            Unsupported: there are no bytes to read.
        """
        raise Unsupported(f"{self.name} does not give the bytes of a tensor")

    def part_of(self, value: Any) -> str:
        """What this rank holds of a tensor that is spread over ranks ("Shard(dim=0)"); "" where it holds all of it."""
        return ""

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

    def node_at(self, frame: types.FrameType, innermost: types.FrameType) -> tuple[str, SourceLine | None] | None:
        """The node whose Python code begins with ``frame``, and the forward line that made it where that is kept; None
        for any other frame. Of a thread that runs, and is at ``innermost``: asked on another one."""
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

    def collectives(self) -> CollectiveTaps | None:
        """The same object each time; None where the framework has no collectives. ``install`` puts its taps in once
        there is a process group, ``uninstall`` takes them out."""
        return None

    def rank(self) -> int | None:
        """Rank of this process in the framework's process group; None while it is in none. Asked per outermost call."""
        return None

    def group_timeouts(self) -> Sequence[GroupTimeout]:
        """How long the collectives of each process group of this process wait. On any thread."""
        return ()

    def set_group_timeout(self, group: str, backend: str, seconds: float) -> None:
        """For the collectives that begin from now on."""
        raise Unsupported(f"{self.name} has no way to set the time-out of a process group", "")

    def world(self) -> int | None:
        """Ranks in the framework's process group; None while this process is in none. Any thread."""
        return None

    def collectives_begun(self) -> int | None:
        """Sequence number of the last collective of the default process group: the same on every rank at the same place
        of the program. None without a group, and where the framework does not number them. Any thread."""
        return None

    def reducer(self) -> str:
        """The wrapper that reduces gradients between ranks within backward ("DistributedDataParallel"), "" for
        none."""
        return ""

    def error_text(self, error: BaseException) -> str:
        """As ``BackwardCall.error_text``, of an exception of the forward."""
        return f"{type(error).__name__}: {error}"

    def rerun(self, graph: Graph, key: int, grads: Sequence[Any], times: int) -> None:
        """Run the function of a node ``times`` times over these incoming gradients, outside the engine: nothing is
        accumulated, no hook runs, what was saved for it stays, random numbers go on as if it had not.

        Raises:
            Unsupported: the framework, or this node, cannot be run so.
        """
        raise Unsupported(f"{self.name} has no way to run a node by itself", "profile a backward instead")

    def memory(self) -> Mapping[str, float]:
        """Bytes by name ("rss", "cuda_allocated", ...)."""
        return {}

    def allocators(self) -> Sequence[Allocator]:
        """The framework's own allocators, one a device in use. Any thread."""
        return ()

    def storages(self, value: Any) -> Sequence[tuple[int, int]]:
        """(where it lies, bytes) of every memory that a tensor keeps: two tensors that are views of one have the same.
        None of a tensor without data. No operator runs."""
        return ()

    def has_graph(self, value: Any) -> bool:
        """Whether a tensor was made by a node, which it keeps alive."""
        return not value.is_leaf

    def made_so_far(self) -> int | None:
        """A mark of this moment for ``older_nodes``, on the thread that makes the graphs. None where there is none."""
        return None

    def older_nodes(self, value: Any, mark: int, most: int) -> int:
        """How many nodes of the graph that a tensor keeps were made before ``mark``, of ``most`` that are looked at.
        While a backward ends: where a framework does not number its nodes, those outside the graphs of this backward
        and of losses of earlier ones."""
        return 0

    #: What tensors and optimizers keep, where no backward runs.
    keeping = Keeping()

    def custom_contexts(self) -> Iterable[tuple[str, Sequence[Any]]]:
        """(name, what it saved) of every living context of a custom function, where ``Graph.saved`` has it not."""
        return ()

    def node_address(self, value: Any) -> int | None:
        """``Graph.address`` of a node object of the framework's; None of anything else."""
        return None

    def observe(self, watcher: Watcher) -> Observation:
        """What the program does beside its backwards is told to ``watcher``, once ``Observation.want`` says what of it.
        On a thread of the program. Costs nothing until then."""
        return Observation((), watcher)

    def optimized(self) -> Iterable[tuple[str, Any]]:
        """(its place: "SGD params[3]", tensor) of what the program's optimizers hold. At a stop only."""
        return ()

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """(name, parameter) of the modules seen so far."""
        return ()

    def weights(self) -> Iterable[tuple[str, Any]]:
        """The parameters that ranks share: without running statistics, which Paddle has among them."""
        return self.parameters()

    def buffers(self) -> Iterable[tuple[str, Any]]:
        """(name, buffer) of the modules seen so far, with running statistics that are among the parameters."""
        return ()
