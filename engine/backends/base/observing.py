"""What diagnosis wants told of a running program beside its backwards: neutral events, the same for every framework.

Tensors, modules, optimizers and contexts are handed over as they are, for the time of the call only: whoever is told
keeps none of them (``id`` and ``Backend.storages`` are what may be kept). Lines are the user's.
"""

from __future__ import annotations

import abc
import enum
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base.graph import Graph
from adbg.engine.types import SourceLine


class Need(enum.Flag):
    """What a detector wants told. Each is a tap of its own in a backend; none that nobody needs is put in."""

    NOTHING = 0
    STEPS = enum.auto()  # optimizers: construction, step, zero_grad, clipping, schedulers
    MODULES = enum.auto()  # forward of the outermost module; every module's own where ``every_module`` is asked
    OPERATORS = enum.auto()  # every operator that the user's code calls: operands, results. Costs most
    FUNCTIONS = enum.auto()  # custom functions: apply's arguments and results, backward's
    HOOKS = enum.auto()  # tensor and module hooks that the script registers, and what they change
    LOADERS = enum.auto()  # loaders of data: each pass, and what a function of the program's makes of samples
    RECOMPUTES = enum.auto()  # regions that a checkpoint runs again in backward, where that computes something else


@dataclass(slots=True)
class OperatorCall:
    """One operator as the user's code called it, after it ran.

    ``operands`` are all tensors among its arguments (containers are looked into), ``versions`` their version counters
    right before the call (None where there is none), ``results`` its tensors. ``lines``: user frames, innermost first.
    """

    name: str  # "add_", "matmul", "__setitem__", "sum"
    operands: tuple[Any, ...]
    versions: tuple[int | None, ...]
    results: tuple[Any, ...]
    lines: tuple[SourceLine, ...]
    grad_mode: bool
    in_backward: bool = False
    arguments: tuple[Any, ...] = ()  # as called
    keywords: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None  # it raised: then there are no results


@dataclass(slots=True)
class OptimizerEvent:
    """``what``: "made", "step" (about to), "stepped", "zeroed" (zero_grad returned; of a module: no optimizer),
    "clipped" (gradients of ``tensors`` were clipped by the framework's own function: ``norm`` before, ``limit``; no
    tensors: it was given an iterator), "scheduler" (a learning-rate scheduler was made), "scheduled" (one stepped),
    "loaded" (a module's weights were written from a state dict; ``missing``: names of the module's that were not in it,
    ``unexpected``: names in it that the module has not; ``given``: what it has for each of ``tensors``, where it is a
    dict), "listed" (a module was asked for its state dict)."""

    what: str
    optimizer: Any  # None where none is known
    tensors: Sequence[Any]  # what it holds; of a module its parameters
    line: SourceLine | None
    rates: Sequence[float] = ()  # learning rates of its groups
    norm: float | None = None
    limit: float | None = None
    scheduler: Any = None
    frozen: Sequence[int] = ()  # places in ``tensors`` of those that take no gradient, and that a step leaves alone so
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    given: Sequence[Any] = ()
    factors: Sequence[float] = ()  # of its groups, where their rates multiply the optimizer's own one
    decides: Any = None  # the program's function that it asks, by a tensor's own name, whether the tensor decays


@dataclass(slots=True)
class ModuleCall:
    """The forward of a module, before (``results`` None) and after. ``outermost``: no other module's forward is
    running on this thread."""

    module: Any
    path: str
    training: bool
    outermost: bool
    arguments: tuple[Any, ...]
    results: Any
    line: SourceLine | None
    grad_mode: bool
    mode_line: SourceLine | None = None  # where train() or eval() set its mode last, as far as that was seen
    mode_number: int = 0  # how many times train() and eval() were called so far, on anything
    # Modules that were last put in evaluation by eval(), and say by now that they train: their flag was assigned, with
    # the line of that eval(). Not of this call alone.
    assigned: tuple[tuple[Any, SourceLine | None], ...] = ()


@dataclass(slots=True)
class FunctionCall:
    """A custom function (autograd.Function, PyLayer). ``phase``: "forward" after its forward, "backward" after its
    backward; of a backward ``arguments`` are the incoming gradients and ``results`` what it returned, as returned."""

    phase: str
    function: type
    context: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: Any
    line: SourceLine | None
    error: BaseException | None = None
    versions: tuple[int | None, ...] = ()  # of ``arguments`` before it ran, where they are tensors
    probe: Probe | None = None  # of a forward: checks its derivative on copies


@dataclass(frozen=True, slots=True)
class SlotCheck:
    """What a numeric check says of one argument of a custom function, over random directions.

    ``pairs``: (numeric, by its backward) directional derivatives. ``smooth``: two step sizes agree along most
    directions; by these it ``agrees``. ``identity``: forward gives that argument back as it is. ``flat``: where the two
    differ, the forward does not depend on the argument (straight-through). ``missing``: its backward gave None.
    ``unwritten``: the gradient has values of memory that nothing was written to. ``nonlinear``: its backward is not
    linear in the gradient that it is given;
    ``constant``: it gives the same whatever it is given. ``lone``: what the function gives is a single number.
    ``asked``: the program needs that gradient; of a function with a wrong one the others are looked at, too.
    """

    place: int
    pairs: tuple[tuple[float, float], ...]
    agrees: bool
    smooth: bool
    identity: bool
    flat: bool
    missing: bool
    unwritten: bool
    precision: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # of gradient and argument, where they differ
    nonlinear: bool = False
    constant: bool = False
    lone: bool = False
    asked: bool = True


class Probe(abc.ABC):
    """Runs a custom function again, on copies, out of sight of all taps; random numbers go on as if it had not."""

    @abc.abstractmethod
    def sample(self, call: FunctionCall) -> Any:
        """Copies of what the function was given; None where it is too large, or nothing of it can be checked."""

    @abc.abstractmethod
    def check(self, function: type, sample: Any) -> Sequence[SlotCheck]:
        """Raises whatever the function raises."""

    @abc.abstractmethod
    def check_again(self, function: type, sample: Any) -> Sequence[tuple[float, float]]:
        """(numeric, by the graph of its backward) second derivatives along random directions where both of two step
        sizes agree; empty where it cannot be told. Raises whatever the function raises."""


@dataclass(slots=True)
class HookCall:
    """A hook of the script's ran. ``what``: "tensor", "module backward", "accumulate"; "registered": it was registered,
    and has not run yet. ``before`` and ``after`` are the gradients; the same object where it returned None and changed
    nothing in place. Where it changed one in place, ``norm_before`` is what its norm was (the first calls and every
    power of two are measured)."""

    what: str
    hook: Any
    before: Any
    after: Any
    changed_in_place: bool
    registered: SourceLine | None
    on: str  # parameter or module, "" where not known
    norm_before: float | None = None
    target: int = 0  # id of the tensor or module that it is registered on, where that lives on: a leaf, a module
    alive: int = 0  # hooks of the same code that are registered there now
    error: BaseException | None = None  # it raised: then there is neither ``before`` nor ``after``
    shared: bool = False  # somebody else has the very tensor ``before``, too: another branch, or the caller
    node: int = 0  # address of the node that made the tensor that it is registered on; 0: not known


@dataclass(slots=True)
class RecomputeCall:
    """A checkpointed region was run again in backward, and computes something else than in its first pass: ``place``-th
    of its operators (or results) is the first that differs. ``line``: where the checkpoint was called."""

    function: Any
    line: SourceLine | None
    place: int
    first: tuple[str, float]  # operator and the norm of its result in the first pass; "" where there was none
    second: tuple[str, float]
    at: SourceLine | None  # where the program calls that operator
    keywords: dict[str, Any] = field(default_factory=dict)  # of the checkpoint
    inputs_differ: bool = False  # it was handed other values the second time: something changed them in place
    # An attribute that each pass changes, with its values behind both, where no operator was seen to differ: a second
    # pass ends at the last tensor that is needed. ``at`` is then the line of the first pass that computes with it.
    changed: tuple[str, float, float] | None = None


@dataclass(slots=True)
class LoaderEvent:
    """``what``: "begins" (a pass through ``dataset``, in this process; ``loader``: its id, ``workers``: processes that
    load, ``persistent``: they stay for the next pass, ``seeds``: the program's function that each of them runs first),
    "collated" (``collates``, the code of a function of the program's, made ``result`` of ``samples``; the first few of
    each, in this process alone)."""

    what: str
    dataset: Any
    line: SourceLine | None
    loader: int = 0
    workers: int = 0
    persistent: bool = False
    seeds: Any = None
    collates: types.CodeType | None = None
    samples: Any = None
    result: Any = None


class Watcher:
    """Whoever is told. On the thread of the event, between two steps of the program's own; must not raise; what it
    computes runs with the framework's gradient mode off and out of sight of other taps (``Observation.hidden``)."""

    @property
    def deaf(self) -> bool:
        """Operators need not be told for now. An optimizer's step has twice those of a forward."""
        return False

    def operator(self, call: OperatorCall) -> None: ...

    def composite(self, call: OperatorCall) -> None:
        """A function that is several operators here and one elsewhere (a loss of Paddle's), after these were told."""

    def optimizer(self, event: OptimizerEvent) -> None: ...

    def module_begin(self, call: ModuleCall) -> None: ...

    def module_end(self, call: ModuleCall) -> None: ...

    def function(self, call: FunctionCall) -> None: ...

    def hook(self, call: HookCall) -> None: ...

    def recompute(self, call: RecomputeCall) -> None: ...

    def loader(self, event: LoaderEvent) -> None: ...

    def worker_begins(self) -> None:
        """In the process of a loader's worker, before its first batch: nothing else is told there."""


class Tap(abc.ABC):
    """One need, served by standing in for something of the framework's. ``put_in`` and ``take_out`` run on a thread of
    the program between two of its statements; after ``take_out`` everything of the framework's is as it was.
    ``problem``: why it tells nothing any more in this process, "" where it does."""

    need: Need
    problem: str = ""

    @abc.abstractmethod
    def put_in(self, watcher: Watcher) -> None: ...

    @abc.abstractmethod
    def take_out(self) -> None: ...


class Observation:
    """The taps of one backend that are in for ``watcher``. ``want`` may be called again at any time on a thread of the
    program: taps are put in and taken out as needed, so that costly ones are in for sampled iterations only."""

    def __init__(self, taps: Sequence[Tap], watcher: Watcher) -> None:
        self._taps = taps
        self._watcher = watcher
        self._in: list[Tap] = []

    @property
    def served(self) -> Need:
        """What this framework can tell."""
        served = Need.NOTHING
        for tap in self._taps:
            served |= tap.need
        return served

    def why_not(self, needs: Need) -> str:
        """Why some of ``needs`` is not told, or no longer; "" where all is."""
        return next((tap.problem for tap in self._taps if tap.problem and tap.need & needs), "")

    def want(self, needs: Need) -> None:
        """Have exactly the taps in that serve ``needs``."""
        for tap in self._taps:
            wanted = bool(tap.need & needs)
            if wanted and tap not in self._in:
                self._in.append(tap)
                tap.put_in(self._watcher)
            elif not wanted and tap in self._in:
                self._in.remove(tap)
                tap.take_out()

    def close(self) -> None:
        self.want(Need.NOTHING)


class Keeping:
    """What tensors and optimizers keep; asked where no backward runs. This one knows of nothing."""

    def forward_mark(self) -> int | None:
        """A mark of this moment of a forward, for ``nodes_before``; None where nodes are not numbered when made."""
        return None

    def own_name(self, tensor: Any) -> str:
        """What the framework itself calls a parameter, whatever module has it; "" where it gives no names."""
        return ""

    def used_up_mark(self) -> int | None:
        """As ``forward_mark``, of the moment in which the last backward of this thread began that freed its graph,
        whether or not anybody watched it; None where that is not known."""
        return None

    def number_of(self, graph: Graph, key: int) -> int | None:
        """The place of a node among all that forwards made, as ``forward_mark`` counts; None where it is not known."""
        return None

    def finite(self, values: Sequence[Any]) -> bool:
        """Whether the 2-norm of each is finite, where that costs less than each norm; False where it is not known."""
        return False

    def nodes_before(self, value: Any, mark: int, most: int) -> int:
        """How many nodes of the graph that a tensor keeps were made before ``mark``, leaves' own not counted: at any
        time. Of ``most`` that are looked at: as many, or all but leaves, where the graph has more."""
        return 0

    def optimizer_state(self, optimizer: Any, tensor: Any) -> tuple[float | None, Mapping[str, Any]]:
        """Of a tensor that an optimizer holds: the ``eps`` that is added to what it divides by, None where there is no
        such number or it is not added in the type of that; and what the optimizer keeps for it, by name. No operator
        runs."""
        return None, {}

    def random_state(self) -> int | None:
        """A digest of where the generator of CPU random numbers stands: another one after each number that is drawn,
        the same one where it is set back. None where that is not known. No operator runs."""
        return None
