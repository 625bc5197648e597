"""Gradients that shrink or grow from layer to layer."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.sizes.sizes import Place, Size, size_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import line_naming
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.types import SourceLine

LEAST = 4  # nodes of one kind, one after the other
_RATIO = 1e-5  # between the first and the last of them
_SURE = 1e-7
_ALONE = 0.9  # share of the factors that are fixed: nothing that is learned makes the gradient shrink
_SCALES = frozenset({"mul", "multiply", "scale", "div", "divide"})
_SAME_WAY = 0.8  # share of steps from one to the next that go the same way
_KINDS = (-1, "vanishing"), (1, "exploding")
# And by at least that factor in the middle. An LSTM or a plain recurrent net of usual initialisation passes on half of
# what it gets from step to step, and learns: only what shrinks faster is told.
_STEPS = {-1: -math.log(0.35), 1: math.log(1.4)}


@dataclass(slots=True)
class _Chain:
    """What the nodes of one operator, from the loss to the input, showed by iteration."""

    iterations: list[int] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)  # -1: shrinks, 1: grows, 0: neither
    norms: list[Sequence[float]] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    begins: Place | None = None
    ends: Place | None = None
    backward: int = 0
    modules: frozenset[str] = frozenset()  # the nodes', where the same line made all of them
    steps: bool = False  # one layer that is applied again and again
    born: SourceLine | None = None  # where most of these were made: their model may be gone as the program ends


@detector("vanishing", "exploding")
class Depth(Detector):
    """Gradients that vanish or explode on their way from the loss to the first layers: the layer where it begins, and
    the factor from layer to layer.

    Evidence: the norms at nodes of the same operator, from the loss to the input, by iteration.
    Mistaken for: single small layers, heads that are initialised with zeros and frozen layers do not count: at least
    four nodes of one operator have to go the same way by a factor of 100,000 in every iteration that was looked at. A
    leaky integrator, whose own constant factor makes it forget (a note). What one of many iterations does (a note).
    Depth that grows with each iteration is a
    consequence of a history that is never cut off.
    Cost: two norms a node, in sampled iterations.
    """

    gradients = True

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._sizes: dict[int, list[Size]] = {}
        self._chains: dict[str, _Chain] = {}
        self._acts: dict[str, tuple[float, int, Place]] = {}  # op -> log of all factors, nodes, its first node
        self._constant: dict[str, float] = {}  # op -> log of the factors of those whose other operand is fixed
        facts.with_depth = lambda: frozenset(kind for way, kind in _KINDS if self._usable(way))

    def backward_begin(self, running: Running) -> None:
        if self.facts.sampled and len(running.chain) == 1:
            self._sizes = {running.serial: []}

    def node_end(self, visit: Visit) -> None:
        here = self._sizes.get(visit.running.serial)
        if here is not None and self.facts.sampled and not visit.running.call.is_accumulate(visit.key):
            here.append(size_of(visit))

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        sizes = self._sizes.pop(running.serial, None)
        if not sizes or error is not None:
            return
        kinds: dict[str, list[Size]] = {}
        for size in sizes:
            if size.entering > 0 and math.isfinite(size.entering):
                kinds.setdefault(size.op, []).append(size)
        for op, nodes in kinds.items():
            if len(nodes) >= LEAST:
                self._judge(running, op, nodes, sizes)
        if any(chain.ways[-1:] not in ([], [0]) for chain in self._chains.values()):
            self._weigh(running, kinds)

    def _weigh(self, running: Running, kinds: dict[str, list[Size]]) -> None:
        """What each operator does to the norm, on the average of its nodes."""
        for op, nodes in kinds.items():
            factors = {
                size.key: math.log(leaving / size.entering) for size in nodes
                if (leaving := max((each or 0.0 for each in size.leaving), default=0.0)) > 0 and math.isfinite(leaving)
            }  # fmt: skip
            if len(factors) >= LEAST:
                line = _line_of(running, nodes)
                own = [size for size in nodes if line is None or _forward(running, size) == line]
                self._acts[op] = (sum(factors.values()), len(factors), _place(running, own[0]))
                fixed = [factor for key, factor in factors.items() if op in _SCALES and _fixed(running, key)]
                self._constant[op] = sum(fixed)

    def _judge(self, running: Running, op: str, nodes: list[Size], every: Sequence[Size]) -> None:
        # The branches of a sum get the same gradient: h @ w + x @ u is one step of depth, not two.
        nodes = [size for place, size in enumerate(nodes) if not place or size.entering != nodes[place - 1].entering]
        if len(nodes) < LEAST:
            return
        norms = [size.entering for size in nodes]
        way = _way(norms)
        chain = self._chains.setdefault(op, _Chain())
        chain.iterations.append(self.facts.iteration)
        chain.ways.append(way)
        chain.nodes.append(len(nodes))
        if not way:
            return
        chain.norms.append(norms if len(norms) <= 8 else norms[:: -(-len(norms) // 8)])
        chain.backward = running.call.number
        line = _line_of(running, nodes)
        begin = next(size for size in nodes[_begin(norms, way) :] if line is None or _forward(running, size) == line)
        chain.steps = _one_layer(running, every, len(nodes))
        chain.begins, chain.ends = (_place(running, size) for size in (begin, nodes[-1]))
        alone = all(_forward(running, size) == line for size in nodes)
        names = [running.call.describe(size.key).module or "" for size in nodes] if alone else []
        modules = frozenset(names if len(set(names)) == len(names) else ())
        if modules != chain.modules:
            chain.modules, chain.born = modules, self._made(modules)

    def end(self) -> None:
        for way, kind in _KINDS:
            usable = self._usable(way)
            if not usable:
                continue
            # The operator with most nodes; one finding, for the others show the same.
            op, chain = max(usable, key=lambda each: (each[0] not in ("t", "transpose", "view"), abs(_total(each[1]))))
            self._tell(kind, op, chain)

    def _usable(self, way: int) -> list[tuple[str, _Chain]]:
        """The chains that went that way in every iteration that was looked at."""
        return [
            (op, chain) for op, chain in self._chains.items() if chain.ways and all(each == way for each in chain.ways)
        ]

    def _tell(self, kind: str, op: str, chain: _Chain) -> None:
        assert chain.begins is not None and chain.ends is not None
        ratio = math.exp(_total(chain))
        looked = len(set(chain.iterations))
        extreme = min(ratio, 1 / ratio) <= _SURE
        once = 0.55 if self.facts.iteration <= 2 else 0.45  # a derivative that is taken once is no training
        confidence = (0.85 if extreme else 0.7) if looked >= 2 else once
        at = chain.begins
        evidence = [
            f"iteration {iteration}: norms into {op} nodes from the loss to the input: "
            + ", ".join(f"{n:.3g}" for n in norms)
            for iteration, norms in list(zip(chain.iterations, chain.norms))[:4]
        ]
        act = self._strongest(kind)
        if act is not None:
            total, count, place = act
            evidence.append(
                f"each {place.op} passes on {math.exp(total / count):.3g} times the norm that it gets ({count} nodes)"
            )
        cause, made = act[2].forward if act is not None else at.forward, ""
        if (born := self._born(op, chain, act)) is not None:
            evidence.append(f"all of these layers run in line {cause.line if cause is not None else 0}")
            cause, made = born, "made "
        evidence.append(
            f"it begins at {at.unique}"
            + (f" of {at.module}" if at.module else "")
            + f" and goes on to {chain.ends.unique}"
        )
        forgets = act is not None and self._constant.get(act[2].op, 0.0) <= _ALONE * _total(chain)
        if kind == "vanishing" and chain.steps and forgets:
            confidence = 0.4
            evidence.append("one layer runs at every step, and its fixed factor alone does that: right if what lies "
                            "further back is to be forgotten")  # fmt: skip
        if looked < 2:
            evidence.append("one iteration was looked at: more would tell whether it stays so")
        verb = "vanish" if kind == "vanishing" else "explode"
        line = cause if made else at.forward
        text = Facts.text_of(line) if line is not None else ""
        self.facts.tell(Finding(
            id=0, kind=kind, severity="warning", confidence=confidence,
            message=f"gradients {verb} with depth, by a factor of {ratio:.2g} from {at.unique} to {chain.ends.unique}"
            + (f", {made}in `{text}`" if text else ""),
            node=FoundAt(op, at.unique, at.module, None), backward=chain.backward, forward=at.forward,
            cause=self.facts.cause(cause),
            evidence=evidence, next=[f"b {at.unique}", f"b {chain.ends.unique}"], victim_of=self._grown(chain),
        ))  # fmt: skip

    def _grown(self, chain: _Chain) -> int | None:
        """The finding that each backward runs through all earlier iterations, where that is what makes it so deep."""
        rises = all(later > earlier for earlier, later in itertools.pairwise(chain.nodes))
        told = (each.id for each in self.facts.findings.values() if each.kind == "graph-grows")
        return next(told, None) if rises and len(chain.nodes) > 1 else None

    def _born(self, op: str, chain: _Chain, act: tuple[float, int, Place] | None) -> SourceLine | None:
        """Where most of the layers were made, if one line runs all of them and does not say what they are:
        ``return self.net(x)``, ``loss = net(x).mean()``. The only line of its file that makes such activations, else
        the one that makes their parameters."""
        line = act[2].forward if act is not None else None
        if act is None or line is None or act[2].op == op or act[2].op in Facts.text_of(line).lower():
            return None
        if (only := line_naming(line.file, act[2].op)) is not None:
            return only
        return chain.born

    def _made(self, modules: frozenset[str]) -> SourceLine | None:
        """The line that made the parameters of most of them."""
        found: collections.Counter[SourceLine] = collections.Counter()
        for name, value in self.facts.backend.parameters():
            born = self.facts.born(value) if name.rpartition(".")[0] in modules else None
            if born is not None:
                found[born] += 1
        return found.most_common(1)[0][0] if found else None

    def _strongest(self, kind: str) -> tuple[float, int, Place] | None:
        """The operator that shrinks, or grows, gradients most."""
        way = -1 if kind == "vanishing" else 1
        found = max(self._acts.values(), key=lambda each: each[0] * way, default=None)
        return found if found is not None and found[0] * way > 0 else None


def _forward(running: Running, size: Size) -> SourceLine | None:
    return running.call.describe(size.key).forward


def _fixed(running: Running, key: int) -> bool:
    """Whether a product has one operand that gradients go to: the other is a number, or a tensor that stays."""
    return sum(edge.to is not None for edge in running.call.edges(key)) == 1


def _one_layer(running: Running, every: Sequence[Size], depth: int) -> bool:
    """Whether one parameter is used at each step of a chain: an operator may be there twice a step."""
    call, found = running.call, collections.Counter[int]()
    for size in every:
        found.update({edge.to for edge in call.edges(size.key) if edge.to is not None and call.is_accumulate(edge.to)})
    return max(found.values(), default=0) >= max(LEAST, 0.4 * depth)


def _place(running: Running, size: Size) -> Place:
    info = running.call.describe(size.key)
    return Place(size.op, info.unique_name, info.module, info.forward)


def _line_of(running: Running, nodes: Sequence[Size]) -> SourceLine | None:
    """The line that made most of them."""
    return collections.Counter(_forward(running, size) for size in nodes).most_common(1)[0][0]


def _way(norms: Sequence[float]) -> int:
    """-1 where they shrink from the first to the last, 1 where they grow, 0 else."""
    steps = [math.log(later / earlier) for earlier, later in itertools.pairwise(norms)]
    total = sum(steps)
    if abs(total) < -math.log(_RATIO):
        return 0
    way = -1 if total < 0 else 1
    same = sum(step * way > 0 for step in steps) / len(steps)
    middle = sorted(step * way for step in steps)[len(steps) // 2]
    # One drop is one layer, not depth: without the largest step it is still there.
    rest = abs(total) - max(step * way for step in steps)
    return way if same >= _SAME_WAY and middle >= _STEPS[way] and rest >= -0.5 * math.log(_RATIO) else 0


def _begin(norms: Sequence[float], way: int) -> int:
    for place, (earlier, later) in enumerate(itertools.pairwise(norms)):
        if math.log(later / earlier) * way >= _STEPS[way]:
            return place
    return 0


def _total(chain: _Chain) -> float:
    totals = [math.log(norms[-1] / norms[0]) for norms in chain.norms if norms[0] > 0 and norms[-1] > 0]
    return sorted(totals)[len(totals) // 2] if totals else 0.0
