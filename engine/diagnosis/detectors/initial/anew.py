"""Weights that begin anew in every forward."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, writes
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_ITERATIONS = 3
_LINES = 64
_MOST = 4096  # tensors whose making is remembered in one iteration


@dataclass(slots=True)
class _Weight:
    ref: weakref.ref[Any]
    iteration: int
    shape: tuple[int, ...]
    last: int  # the iteration that used it last
    got: bool = False  # a gradient: it is in the graph of a backward


@dataclass(slots=True)
class _Line:
    """Where such weights are made. ``gone``: iterations of those that got a gradient, and were used in no later one:
    what a module of Paddle's held lives until Python collects its cycles."""

    used: SourceLine | None
    now: list[_Weight] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    kept: bool = False  # somebody writes to one of them: then it is somebody's


@detector("not-optimized")
class Anew(Detector):
    """A forward makes a layer, or a parameter, each time that it runs (``nn.Linear(...)(x)``, ``nn.Parameter(...)`` in
    ``forward``): it gets a gradient, no optimizer has it, and the next forward has new ones with other random numbers.

    Evidence: in how many iterations the line made weights that got a gradient, belonged to no module and no optimizer,
    and were used by no later forward.
    Mistaken for: tensors that the program updates by hand, or gives an optimizer of their own, in the same iteration
    (adversarial noise, latent codes, adapted weights): what something writes to, or a later forward uses, is not told,
    nor what is made outside of a ``forward``.
    Cost: in sampled iterations a look at each operator's operands, and where memory lies that is made of nothing.
    """

    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._lines: dict[SourceLine, _Line] = {}
        self._made: dict[int, SourceLine] = {}  # lines of a forward, by where the memory lies
        self._seen: dict[int, tuple[weakref.ref[Any], _Weight | None]] = {}
        self._told: set[SourceLine] = set()

    def applied(self) -> bool:
        return bool(self._lines)

    def operator(self, call: OperatorCall) -> None:
        if call.in_backward or call.error is not None:
            return
        written = writes(call)
        for each in written:
            if self._is_seen(each):
                self._keep(each)
        if not call.operands or written:
            self._makes(call, [*call.results, *written])
        if self._made and any(each.requires_grad and not each.is_leaf for each in call.results):
            for each in call.operands:
                if "Param" not in type(each).__name__ or not each.is_leaf or not each.requires_grad:
                    continue
                if not self._is_seen(each):
                    self._seen[id(each)] = weakref.ref(each), self._first_use(each, call)
                elif (weight := self._seen[id(each)][1]) is not None:
                    weight.last = self.facts.iteration + 1

    def _makes(self, call: OperatorCall, made: list[Any]) -> None:
        line = next((each for each in call.lines if each.function == "forward"), None)
        if line is None or len(self._made) >= _MOST:
            return
        for each in made:
            for where, _ in self.facts.backend.storages(each):
                self._made[where] = line

    def _is_seen(self, value: Any) -> bool:
        known = self._seen.get(id(value))
        return known is not None and known[0]() is value

    def _keep(self, leaf: Any) -> None:
        for known in self._lines.values():
            known.kept = known.kept or any(each.ref() is leaf for each in known.now)

    def _first_use(self, leaf: Any, call: OperatorCall) -> _Weight | None:
        """What an optimizer has is none of these. One that a module keeps is used again."""
        facts = self.facts
        if id(leaf) in facts.places or len(self._lines) >= _LINES:
            return None
        line = next((self._made[at] for at, _ in facts.backend.storages(leaf) if at in self._made), None)
        if line is None:
            return None
        known, iteration = self._lines.setdefault(line, _Line(line_of(call.lines))), facts.iteration + 1
        known.now.append(_Weight(weakref.ref(leaf), iteration, facts.shape(leaf), iteration))
        return known.now[-1]

    def backward_begin(self, running: Running) -> None:
        """It goes through them: what has a graph was made of them. Nobody but that graph has them by now, in Paddle
        not even as objects of Python's."""
        if running.call.entry == "backward" and len(running.chain) == 1:
            for known in self._lines.values():
                for each in known.now:
                    each.got = True

    def iteration_end(self) -> None:
        """The forward of the next one has run: what it used of this one is known."""
        if not self._seen and not self._lines:
            return
        self._made.clear()
        if not self.facts.sampled:  # what it uses is not told
            self._seen = {}
        for line, known in self._lines.items():
            for each in known.now:
                if each.got and each.last == each.iteration <= self.facts.iteration:
                    known.gone.add(each.iteration)
                    known.shapes += [each.shape] if each.shape not in known.shapes else []
            known.now = [each for each in known.now if each.iteration > self.facts.iteration]
            if len(known.gone) >= _ITERATIONS and not known.kept and line not in self._told:
                self._told.add(line)
                self._tell(line, known)

    def end(self) -> None:
        self.iteration_end()

    def _tell(self, line: SourceLine, known: _Line) -> None:
        facts = self.facts
        sizes = facts.some([str(list(each)) for each in known.shapes])
        message = (
            f"{place(line)} makes weights of {sizes} anew in every forward: no optimizer has them, and the next "
            "forward begins with others; make them once, where the module is made"
        )
        iterations = ", ".join(map(str, sorted(known.gone)))
        evidence = [
            f"{place(line)}: {facts.text_of(line)}",
            f"in iterations {iterations} backward went through them, and the next forward had others",
            f"used at {place(known.used)}",
        ]
        facts.tell(
            Finding(
                0, "not-optimized", "error", 0.92, message, None, None, facts.iteration, line, facts.cause(line),
                evidence, [f"b {place(line)}", "info params"],
            )
        )  # fmt: skip
