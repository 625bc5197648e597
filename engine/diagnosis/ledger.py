"""The training loop as far as it was seen: optimizers, what they hold, and the norm of each gradient before and after
every backward and every step. Shared by the detectors of ``detectors/training``; one of them enters what it
is told.

Norms are taken in the first ten iterations and around the sampled ones: what a loop does wrong it does in each. A
gradient costs 5 us on torch and 20 on Paddle there, four times an iteration.
"""

from __future__ import annotations

import collections
import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from adbg.engine.backends.base import ModuleCall, OptimizerEvent
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.variables import UNKNOWN, Variable, variable_of
from adbg.engine.outside import suppress
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

FIRST = 10  # iterations that are followed closely
_MOST_FOLLOWED = 100  # after these
_LOOKS = 4  # that many iterations after a change
_MOST_HELD = 600  # tensors of one optimizer whose gradients are followed
_MOST_OPTIMIZERS = 32  # from then on those that are gone are forgotten
_MOST_MOMENTS = 256
_NAMED = 4  # steps of an optimizer at which names are asked anew: modules are only being met


@dataclass(slots=True)
class Moment:
    """Something happened. ``what``: "backward", "forward", or what an ``OptimizerEvent`` is."""

    what: str
    line: SourceLine | None
    iteration: int
    optimizer: int = 0  # its id
    scheduler: int = 0


@dataclass(slots=True, eq=False)  # equality of weak references is that of tensors
class Held:
    """A tensor that an optimizer holds, between two of its steps.

    ``begun``, ``ended``: norm of the gradient as the last backward began and ended, None for no gradient. ``cleared``:
    a backward found it cleared since the last step. ``received``: a backward added to it since. ``stale``: steps in a
    row whose gradient had that of the step before in it, and ``norms`` of these. ``name`` says whose it is where
    several models are trained ("generator.0.weight"); commands want ``path`` ("0.weight").
    """

    ref: weakref.ref[Any]
    name: str
    shape: tuple[int, ...]
    named: bool  # a module has it under that name
    begun: float | None = None
    ended: float | None = None
    after: float | None = None  # after the last step
    cleared: bool = True
    received: bool = False
    stale: int = 0
    total: int = 0  # backwards that added to it
    frozen: int = 0  # steps in a row that left it alone, for it took no gradient
    norms: list[float] = field(default_factory=list)
    at_step: float | None = None
    path: str = ""


@dataclass(slots=True, eq=False)
class Optimizer:
    """``blind``: not every backward since its last step was followed. ``rates``: (lowest, highest) at each step.
    ``followed``: steps of which every backward was, ``at_once``: the last one is such. ``rewound``: steps that were
    undone before the next one, after a backward that ran with what they had made. ``stepped``: the last iteration in
    which it stepped."""

    key: int
    ref: weakref.ref[Any] | None
    kind: str
    made: SourceLine | None
    held: list[Held]
    step_line: SourceLine | None = None
    steps: int = 0
    stepped: int = 0
    followed: int = 0
    at_once: bool = False
    blind: bool = True
    rewound: int = 0
    first_rate: float | None = None
    rates: list[tuple[float, float]] = field(default_factory=list)
    variable: Variable = UNKNOWN  # where it steps first


@dataclass(slots=True, eq=False)
class Seen:
    """An outermost module that ran."""

    ref: weakref.ref[Any]
    kind: str
    parameters: frozenset[int]  # ids
    training: bool
    regular: str  # the kind of a part that works otherwise in evaluation: Dropout, BatchNorm; "" for none
    variable: Variable = UNKNOWN  # where it was called first
    means: dict[str, float] = field(default_factory=dict)  # BatchNorm with frozen weights: norm of its mean, first seen
    parts: list[weakref.ref[Any]] = field(default_factory=list)  # those that die are replaced, maybe


class Ledger:
    """``moments``: the last of them, in order."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.optimizers: dict[int, Optimizer] = {}
        self.modules: dict[int, Seen] = {}
        self.moments: collections.deque[Moment] = collections.deque(maxlen=_MOST_MOMENTS)
        self.backwards = 0  # outermost ones that add to .grad
        self.close = True
        self.until = 0  # iterations up to this one are followed: something changes
        self._followed = 0  # iterations, for the sake of new optimizers
        self.backward_line: SourceLine | None = None
        self.feeder: Any = None  # the detector that enters events

    @classmethod
    def of(cls, facts: Facts) -> Ledger:
        known = facts.shared.get(cls)
        if known is None:
            known = facts.shared[cls] = cls(facts)
            facts.titled = known.title
        return known

    # ---- what detectors pass on

    def backward_begin(self, running: Running) -> None:
        if not accumulates(running):
            return
        iteration = self.facts.iteration
        self.close = self.facts.sampled or iteration <= FIRST or self._fresh()
        self.backward_line = running.call.location
        self.backwards += 1
        self.moments.append(Moment("backward", running.call.location, iteration))
        for optimizer in self.optimizers.values():
            optimizer.blind = optimizer.blind or not self.close
            if self.close:
                for held in optimizer.held:
                    held.begun = self.norm(held)
                    if not held.begun or (not held.received and held.begun != held.after):
                        held.cleared = True

    def follow(self, iterations: int) -> None:
        """Have the next ones followed closely."""
        self.until = max(self.until, self.facts.iteration + iterations)

    def _fresh(self) -> bool:
        """An optimizer steps its first times, or backward reaches other weights: a phase begins, after a pre-training.
        Not without end, where each iteration makes a new one."""
        wanted = self.facts.iteration <= self.until or any(each.steps < FIRST for each in self.optimizers.values())
        if wanted and self._followed < _MOST_FOLLOWED:
            self._followed += 1
            return True
        return False

    def backward_end(self, running: Running) -> None:
        if not accumulates(running) or not self.close:
            return
        for optimizer in self.optimizers.values():
            for held in optimizer.held:
                held.ended = self.norm(held)
                if held.ended and held.ended != held.begun:
                    held.received = True
                    held.total += 1

    def module_begin(self, call: ModuleCall) -> None:
        if not call.outermost:
            return
        what = "forward" if call.grad_mode else "look"
        self.moments.append(Moment(what, call.line, self.facts.iteration + 1, id(call.module)))
        known = self.modules.get(id(call.module))
        if known is None or known.ref() is not call.module:
            self.modules[id(call.module)] = self._module(call)
        else:
            known.training = call.training

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "listed":  # no moment of training
            return
        key = id(event.optimizer) if event.optimizer is not None else 0
        scheduler = id(event.scheduler) if event.scheduler is not None else 0
        self.moments.append(Moment(event.what, event.line, self.facts.iteration, key, scheduler))
        if event.optimizer is None:
            return
        known = self.optimizers.get(key)
        if known is None or event.what == "made" or (known.ref is not None and known.ref() is not event.optimizer):
            known = self.optimizers[key] = self._meet(event)
        if event.what == "step":
            self._step(known, event)
        elif event.what == "stepped":
            self._stepped(known)

    # ---- entries

    def _meet(self, event: OptimizerEvent) -> Optimizer:
        if len(self.optimizers) >= _MOST_OPTIMIZERS:  # meta learning makes one a task
            alive = {key: each for key, each in self.optimizers.items() if each.ref is None or each.ref() is not None}
            self.optimizers = alive
        kind = type(event.optimizer).__name__
        ref = None
        with suppress(TypeError):
            ref = weakref.ref(event.optimizer)
        made = event.line if event.what == "made" else None
        found = Optimizer(id(event.optimizer), ref, kind, made, self._hold(kind, event.tensors))
        found.first_rate = max(event.rates, default=None)
        return found

    def _hold(self, kind: str, tensors: Iterable[Any]) -> list[Held]:
        held = []
        every = list(tensors)
        for place, tensor in enumerate(every):
            self.facts.places[id(tensor)] = f"{kind} params[{place}]"
        stride = max(1, math.ceil(len(every) / _MOST_HELD))
        for tensor in every[::stride]:
            name = self.facts.name_of(tensor)
            named = name != self.facts.places[id(tensor)]
            held.append(Held(weakref.ref(tensor), name, self.facts.shape(tensor), named))
        return held

    def _step(self, known: Optimizer, event: OptimizerEvent) -> None:
        known.step_line = event.line
        known.stepped = self.facts.iteration
        if not known.steps:
            known.variable = variable_of(event.optimizer, event.line)
            if known.variable.name and len(self.optimizers) > 1:
                known.kind = f"{known.variable.name} ({type(event.optimizer).__name__})"
        if len(known.rates) < 100_000 and event.rates:
            known.rates.append((min(event.rates), max(event.rates)))
        ids = [id(held.ref()) for held in known.held]
        if len(event.tensors) <= _MOST_HELD and ids != [id(tensor) for tensor in event.tensors]:  # a group was added
            before = {id(held.ref()): held for held in known.held}
            known.held = [before.get(id(held.ref()), held) for held in self._hold(known.kind, event.tensors)]
        frozen = {id(event.tensors[place]) for place in event.frozen}
        for held in known.held:
            tensor = held.ref()
            held.frozen = held.frozen + 1 if id(tensor) in frozen else 0
            if tensor is not None and (not held.named or known.steps < _NAMED):
                name = self.facts.name_of(tensor)
                held.named = bool(name) and name != self.facts.places.get(id(tensor))
                held.path = name if held.named else ""
                held.name = self.title(tensor, name) or held.name
            held.at_step = self.norm(held) if self.close else None

    def _stepped(self, known: Optimizer) -> None:
        known.steps += 1
        known.at_once = not known.blind
        known.followed += known.at_once
        for held in known.held:
            if not known.blind and held.received:
                held.stale = 0 if held.cleared else held.stale + 1
                if held.at_step is not None:
                    held.norms.append(held.at_step)
                    del held.norms[:-6]
            held.cleared = held.received = False
            held.after = self.norm(held) if self.close else None
        known.blind = not self.close

    def _module(self, call: ModuleCall) -> Seen:
        module = call.module
        ids: frozenset[int] = frozenset()
        regular = ""
        means: dict[str, float] = {}
        parts: list[weakref.ref[Any]] = []
        with suppress(Exception):  # a property of the user's that raises
            ids = frozenset(map(id, module.parameters()))
            every = list(module.modules() if hasattr(module, "modules") else module.sublayers(include_self=True))
            regular = next((name for each in every if (name := _regular(each))), "")
            if call.training:
                means = {path: self.facts.backend.norm(mean) for path, mean in _frozen_means(module)}
            parts = [weakref.ref(each, self._gone) for each in every if each is not module]
        variable = variable_of(module, call.line) if ids else UNKNOWN
        return Seen(weakref.ref(module), type(module).__name__, ids, call.training, regular, variable, means, parts)

    def _gone(self, _: weakref.ref[Any]) -> None:
        """A part of a module died, wherever it was collected: another may have taken its place."""
        self.until = self.facts.iteration + _LOOKS

    # ---- questions

    def title(self, tensor: Any, name: str) -> str:
        """``name`` of a parameter, and whose it is where several modules run, or it is "bias" alone: by the program's
        variable, else by the class of the module."""
        whole = self.owner(tensor)
        if whole is None or name == self.facts.places.get(id(tensor)):
            return name
        if all(seen.parameters <= whole.parameters for seen in self.modules.values()):
            return name if "." in name or not whole.variable.name else f"{whole.variable.short}.{name}"
        return f"{whole.variable.short or whole.kind}.{name}"

    def norm(self, held: Held) -> float | None:
        tensor = held.ref()
        gradient = self.facts.backend.gradient_of(tensor) if tensor is not None else None
        return self.facts.backend.norm(gradient) if gradient is not None else None

    def statistics(self, seen: Seen) -> Iterator[tuple[str, float, float]]:
        """(path, norm of the running mean as it was first seen, and now) of BatchNorm with frozen weights."""
        with suppress(Exception):
            for path, mean in _frozen_means(seen.ref()):
                if path in seen.means:
                    yield path, seen.means[path], self.facts.backend.norm(mean)

    def left_behind(self, whole: Any, of: Any) -> list[str]:
        """Paths in ``of`` of what works otherwise in evaluation within ``whole``, a part of it or all of it, where all
        of that is in evaluation mode; else none."""
        with suppress(Exception):
            inner = {id(part) for _, part in _parts(whole)}
            every = [(path, part) for path, part in _parts(of) if id(part) in inner and _regular(part)]
            if not any(part.training for _, part in every):
                return [path for path, _ in every if path]
        return []

    def only_frozen(self, seen: Seen) -> bool:
        """Whether all that is in evaluation mode, and works otherwise in it, is BatchNorm with frozen weights."""
        with suppress(Exception):
            every = [part for _, part in _parts(seen.ref()) if not part.training and _regular(part)]
            return bool(every) and all(map(_frozen_norm, every))
        return False

    def owner(self, tensor: Any) -> Seen | None:
        """The largest outermost module that holds a parameter."""
        holding = [seen for seen in self.modules.values() if id(tensor) in seen.parameters]
        return max(holding, key=lambda seen: len(seen.parameters), default=None)

    def since_backward(self) -> list[Moment]:
        """Moments after the last backward, in order."""
        found: list[Moment] = []
        for moment in reversed(self.moments):
            if moment.what == "backward":
                break
            found.append(moment)
        return found[::-1]


def accumulates(running: Running) -> bool:
    """An outermost call that adds to ``.grad``."""
    return len(running.chain) == 1 and running.call.entry == "backward"


def _regular(module: Any) -> str:
    kind = type(module).__name__
    if "Dropout" in kind:
        probability = getattr(module, "p", 1)
        return kind if not isinstance(probability, (int, float)) or probability > 0 else ""
    return kind if "BatchNorm" in kind else ""


def _frozen_means(module: Any) -> Iterator[tuple[str, Any]]:
    """(path, running mean) of each BatchNorm in training mode whose own weights take no gradient."""
    for path, part in _parts(module):
        mean = getattr(part, "running_mean", getattr(part, "_mean", None))
        if mean is not None and part.training and _frozen_norm(part):
            yield path, mean


def _parts(module: Any) -> Iterable[tuple[str, Any]]:
    """(path, module) of a module and all within it."""
    parts = module.named_modules() if hasattr(module, "named_modules") else module.named_sublayers(include_self=True)
    return cast("Iterable[tuple[str, Any]]", parts)


def _frozen_norm(part: Any) -> bool:
    weights = [value for value in (getattr(part, "weight", None), getattr(part, "bias", None)) if value is not None]
    return "BatchNorm" in type(part).__name__ and bool(weights) and all(_takes_none(value) for value in weights)


def _takes_none(tensor: Any) -> bool:
    return getattr(tensor, "requires_grad", True) is False or getattr(tensor, "stop_gradient", False) is True
