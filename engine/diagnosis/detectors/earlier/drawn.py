"""Samples of a distribution that let no gradient through, where they are to: ``sample()`` for ``rsample()``."""

from __future__ import annotations

import ast
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.axes.noise import DRAWS
from adbg.engine.diagnosis.detectors.earlier.graphless import weights_of
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.graphs.flow import LEAVES_GRAPH
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.training.leaves import tensors_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import local
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_DEEP = 40  # frames between an operator and the line of the program's
_MOST = 256  # draws that are remembered
#: Of what the density of a sample is computed.
_DENSITIES = frozenset({"sub", "subtract", "log"})
#: What makes a deviation, and what scales noise by it.
_SCALES = frozenset(
    {"exp", "sqrt", "softplus", "mul", "multiply", "div", "divide", "truediv", "abs", "scale", "clip", "clamp"}
)
_TIMES = frozenset({"mul", "multiply", "div", "divide", "truediv", "scale"})
_REDUCED = frozenset({"mean", "sum", "std", "var", "max", "min", "norm", "amax", "amin"})
_JOINED = frozenset({"cat", "concat", "concatenate", "stack", "hstack"})
_DISCRETE = frozenset({"Bernoulli", "Categorical", "Geometric", "Poisson", "Binomial", "Multinomial"})


@dataclass(slots=True)
class _Draw:
    """What ``sample()`` gave, or a line that draws by itself (``kind`` ""). ``weights``: ids of the parameters that the
    distribution is made of."""

    line: SourceLine
    kind: str
    of: tuple[weakref.ref[Any], ...]  # distributions
    weights: dict[int, str] = field(default_factory=dict)
    uses: dict[int, SourceLine | None] = field(default_factory=dict)  # by address of the node that was made of it
    loss: SourceLine | None = None
    used: SourceLine | None = None  # that of them that is in the loss
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class _Noise:
    """Made under no_grad: random numbers, or a deviation to scale them by; ``weights``: of that, as in ``_Draw``."""

    weights: dict[int, str]
    random: bool


@detector("no-gradient")
class Drawn(Detector):
    """``sample()`` of a distribution that has ``rsample()``, whose result is decoded into the same loss that trains the
    distribution's parameters by another term (a divergence): ``sample()`` runs without gradients, so that what is made
    of it does not train them, and no gradient is missing. The same where the program draws by itself under no_grad,
    ``mean + deviation * randn()`` of what carries gradients.
    Evidence: the line of ``sample()``, the distribution, the line that takes the sample, the parameters that get a
    gradient by another term and that an optimizer steps.
    Mistaken for: actions and other samples whose density is asked for (``log_prob``), or that leave the graph; those
    of discrete distributions, straight-through estimators, samples of ``sample()`` under no_grad or that are detached:
    none is told.
    Cost: in sampled iterations a look at the stack at operators that run without gradients on what needs one.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._marks: Marks[_Draw] = Marks()
        self._draws: deque[_Draw] = deque(maxlen=_MOST)  # not judged yet
        self._scored: set[SourceLine] = set()  # lines whose samples were asked for their density
        self._told: dict[SourceLine, int] = {}
        self._noise: Marks[_Noise] = Marks()
        self._asked: dict[int, weakref.ref[Any]] = {}  # distributions, in this iteration
        self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward:
            return
        if not call.grad_mode:
            if call.results and any(each.requires_grad or self._marks.of(each) is not None for each in call.operands):
                self._draw(call)
            self._draw_by_hand(call)
        else:
            if plain(call.name) in _DENSITIES:
                self._density()
            for each in call.operands if self._draws else ():
                known = self._marks.of(each)
                if known is not None and known.what.line not in self._scored:
                    self._take(call, known.what, each)

    # ---- what is drawn

    def _draw(self, call: OperatorCall) -> None:
        line = line_of(call.lines)
        owners = list(_owners("sample"))
        if line is None or not owners or not all(map(_has_rsample, owners)):
            return
        draw = next((known.what for each in call.operands if (known := self._marks.of(each)) is not None), None)
        if draw is None or draw.line != line:
            if _without_gradients(line):
                return
            draw = _Draw(line, type(owners[0]).__name__, tuple(weakref.ref(each) for each in owners))
            self._draws.append(draw)
            if any((asked := self._asked.get(id(owner))) is not None and asked() is owner for owner in owners):
                self._scored.add(line)
            self._any = True
        draw.weights |= weights_of(self.facts, [each for each in call.operands if each.requires_grad])
        for result in call.results:
            self._marks.put(result, draw, call.name, line)

    def _draw_by_hand(self, call: OperatorCall) -> None:
        """``mean + deviation * noise`` of what carries gradients, where none is recorded."""
        name = plain(call.name)
        if name in DRAWS:
            for result in call.results:
                self._noise.put(result, _Noise({}, True), call.name, None)
            return
        known = [found for each in call.operands if (found := self._noise.of(each)) is not None]
        made = [each for each in call.operands if each.requires_grad and not each.is_leaf]
        if not made and not known:
            return
        scaled = {key: name for each in known for key, name in each.what.weights.items()}
        random = any(each.what.random for each in known)
        if name in ("add", "sub", "subtract", "rsub") and random and scaled and made:
            self._drawn_by_hand(call, scaled | weights_of(self.facts, made))
        elif name in (_TIMES if random else _SCALES):
            weights = scaled | weights_of(self.facts, made)
            for result in call.results:
                self._noise.put(result, _Noise(weights, random), call.name, None)

    def _drawn_by_hand(self, call: OperatorCall, weights: dict[int, str]) -> None:
        line = line_of(call.lines)
        if line is not None and weights:
            draw = _Draw(line, "", (), weights)
            self._draws.append(draw)
            self._any = True
            for result in call.results:
                self._marks.put(result, draw, call.name, line)

    def _density(self) -> None:
        """A distribution whose density is asked for, at its samples or at data, is trained by that."""
        for owner in _owners("log_prob"):
            if len(self._asked) < _MOST:
                self._asked[id(owner)] = weakref.ref(owner)
            self._scored.update(each.line for each in self._draws if any(ref() is owner for ref in each.of))

    def _take(self, call: OperatorCall, draw: _Draw, value: Any) -> None:
        name, graphs = plain(call.name), [each for each in call.results if each.requires_grad]
        if self._is_meant(call, name, draw, value):
            self._scored.add(draw.line)
        elif not graphs and name not in _REDUCED:
            for result in call.results:
                if "float" in str(result.dtype):
                    self._marks.put(result, draw, call.name, None)
        for result in graphs:
            address = self.facts.backend.node_address(result.grad_fn)
            if address is not None:
                draw.uses[address] = line_of(call.lines)

    def _is_meant(self, call: OperatorCall, name: str, draw: _Draw, value: Any) -> bool:
        """Its numbers leave the graph, its density is asked for, or it is compared with what it is drawn from."""
        if (call.name in LEAVES_GRAPH and not call.results) or name in ("detach", "data"):
            return True
        if next(_owners("log_prob"), None) is not None:
            return True
        others = [each for each in call.operands if each is not value and each.requires_grad and not each.is_leaf]
        layer = any(each.is_leaf and each.requires_grad for each in call.operands)  # a cell that takes a state, too
        if not others or layer or name in _JOINED:
            return False
        return bool(weights_of(self.facts, others).keys() & draw.weights.keys())

    # ---- what is trained

    def backward_begin(self, running: Running) -> None:
        call = running.call
        open_draws = [each for each in self._draws if each.uses and each.weights and each.line not in self._scored]
        if not open_draws or not self.facts.sampled or len(running.chain) > 1 or call.entry == "grad":
            return
        reached = set(map(id, tensors_of(call)))
        nodes = {call.address(key) for key in call.order()}
        for draw in open_draws:
            used = [line for address, line in draw.uses.items() if address in nodes]
            if used and draw.weights.keys() <= reached:
                draw.loss, draw.used = call.location, used[0]

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or not self._draws:
            return
        stepped = set(map(id, event.tensors))
        for draw in self._draws:
            draw.stepped = draw.stepped or (draw.used is not None and bool(stepped & draw.weights.keys()))

    def iteration_end(self) -> None:
        self._asked.clear()
        draws = list(self._draws)
        self._draws.clear()
        self._draws.extend(each for each in draws if each.used is None)  # those of this forward among them
        for draw in draws:
            if draw.line in self._scored:
                if draw.line in self._told:
                    self.facts.take_back(self._told.pop(draw.line))
            elif draw.stepped and draw.line not in self._told:
                self._told[draw.line] = self._tell(draw)

    def _tell(self, draw: _Draw) -> int:
        facts, names = self.facts, self.facts.some(list(draw.weights.values()))
        what = f"sample() of {draw.kind} at {place(draw.line)}" if draw.kind else f"what {place(draw.line)} draws"
        instead = "rsample() does" if draw.kind else "draw it where gradients are recorded"
        message = (
            f"{what} lets no gradient through: what {place(draw.used)} makes of "
            f"the sample trains {names} no further, and only other terms of the loss do; {instead}"
        )
        evidence = [
            f"{draw.kind} has rsample(), and is made of what depends on {names}"
            if draw.kind
            else f"{place(draw.line)} runs under no_grad, of a mean and a deviation that depend on {names}: "
            f"{facts.text_of(draw.line)}",
            f"the sample has no graph (requires_grad False), and an operator at {place(draw.used)} takes it: "
            f"{facts.text_of(draw.used) if draw.used is not None else ''}",
            f"the backward at {place(draw.loss)} begins at what is made of that; it gives {names} a gradient by "
            "another term, and an optimizer steps them",
            *(["log_prob of that distribution was not asked for"] if draw.kind else []),
        ]
        return facts.tell(
            Finding(0, "no-gradient", "warning", 0.8, message, None, None, None, draw.line, facts.cause(draw.line),
                    evidence, [f"b {place(draw.line)}"])
        )  # fmt: skip


def _owners(method: str) -> Iterator[Any]:
    """The framework's objects whose method of that name runs between the program's line and here."""
    frame: types.FrameType | None = sys._getframe(1)
    for _ in range(_DEEP):
        if frame is None or is_users(frame):
            return
        if frame.f_code.co_name == method:
            owner = local(frame, "self")
            if owner is not None and "distribution" in type(owner).__module__ + str(type(owner).__mro__):
                yield owner
        frame = frame.f_back


def _has_rsample(owner: Any) -> bool:
    says = getattr(owner, "has_rsample", None)
    if says is not None:
        return bool(says)
    own = getattr(type(owner), "rsample", None)
    return own is not None and own.__qualname__ != "Distribution.rsample" and type(owner).__name__ not in _DISCRETE


def _without_gradients(line: SourceLine) -> bool:
    """Whether it stands under no_grad in its function."""
    return any(
        isinstance(node, ast.With) and node.lineno <= line.line <= (node.end_lineno or 0)
        and any("no_grad" in ast.unparse(each) or "inference_mode" in ast.unparse(each) for each in node.items)
        for node in nodes_of(line.file)
    )  # fmt: skip
