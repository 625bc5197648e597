"""Groups of an optimizer whose rates are factors of its own one, and were given rates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adbg.engine.diagnosis.detector import OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.training.loop import LoopDetector, rate_commands
from adbg.engine.diagnosis.detectors.training.source import place
from adbg.engine.diagnosis.ledger import Optimizer
from adbg.engine.diagnosis.source import inside, nodes_of, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

_LARGEST = 0.1  # of the factors: where one group has the optimizer's own rate, the others are meant as parts of it
_STEPS = 20
_LIKE = 5.0  # times: a factor that is as large as the optimizer's own rate is a rate
_GROUP = "learning_rate"
_SMALL = 0.05  # a factor that may be a rate where another group has the optimizer's own one
_RATE = re.compile(r"(?:^|[\W_])(?:lr|rate)(?:$|[\W_])", re.I)
_FACTOR = re.compile(r"mult|factor|scale|ratio|decay|relative|coef|frac|percent|weight|gain", re.I)


@detector("zero-learning-rate")
class MultipliedRates(LoopDetector):
    """Paddle multiplies the ``learning_rate`` of a group by the optimizer's own one; torch's ``lr`` of a group stands
    in its place. Groups that were given rates (2e-3 and 1e-2, of an optimizer with 1e-2) train with 2e-5 and 1e-4.

    Evidence: the factors of the groups, the optimizer's own rate, and what they come to at the steps.
    Mistaken for: rates that fall from layer to layer, or a body that learns more slowly: where one group has a tenth of
    the optimizer's own rate, or more, only a factor like that rate which the source calls a rate, and does not compute
    (not told of others); an optimizer whose own rate is above 0.1 (not told: the factors bring it down).
    Cost: none.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._factors: dict[int, tuple[float, ...]] = {}

    def applied(self) -> bool:
        return bool(self._factors)

    def happens(self, event: OptimizerEvent, optimizer: Optimizer | None) -> None:
        if event.what == "stepped" and optimizer is not None and event.factors and optimizer.steps == 1:
            self._factors[optimizer.key] = tuple(event.factors)

    def end(self) -> None:
        for key, factors in self._factors.items():
            optimizer = self.ledger.optimizers[key]
            if optimizer.steps >= _STEPS and 0 < max(factors) < _LARGEST:
                self._judge(optimizer, factors)
            elif optimizer.steps >= _STEPS and 0 < min(factors) <= _SMALL:
                self._judge_one(optimizer, factors)

    def _judge_one(self, optimizer: Optimizer, factors: tuple[float, ...]) -> None:
        """One group was given a rate, and another one has the optimizer's own."""
        least, own = min(factors), max(optimizer.rates, key=lambda each: each[1])[1] / max(factors)
        if not 0 < own <= _LARGEST or not 1 / _LIKE <= least / own <= _LIKE:
            return
        named = (each for each in _given(optimizer.made) if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)))
        called = [each for each in named if _RATE.search(text := ast.unparse(each)) and not _FACTOR.search(text)]
        if optimizer.made is not None and called:
            line = SourceLine(optimizer.made.file, called[0].lineno, optimizer.made.function)
            self._tell(optimizer, factors, line, own)

    def _judge(self, optimizer: Optimizer, factors: tuple[float, ...]) -> None:
        high = max(optimizer.rates, key=lambda each: each[1])[1]
        own = high / max(factors)  # the highest that a schedule gave
        if not 0 < own <= _LARGEST or not any(1 / _LIKE <= each / own <= _LIKE for each in factors):
            return
        self._tell(optimizer, factors, self._given_at(optimizer.made), own)

    def _tell(self, optimizer: Optimizer, factors: tuple[float, ...], line: SourceLine | None, own: float) -> None:
        facts = self.facts
        low, high = max(optimizer.rates, key=lambda each: each[1])
        every = [f"{each:.3g}" for each in dict.fromkeys(factors)]
        given = ", ".join(every) if len(every) <= 4 else f"{len(every)} from {min(factors):.3g} to {max(factors):.3g}"
        come = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        facts.tell(
            Finding(
                0, "zero-learning-rate", "warning", 0.85,
                f"Paddle multiplies the learning rates of the groups of {optimizer.kind}, {given}, by its own one, "
                f"{own:.3g}: it trains with {come}"
                + (" at most" if max(factors) < _LARGEST else ""),
                cause=facts.cause(line or optimizer.made),
                evidence=[
                    f"the highest rates at its {optimizer.steps} steps are {come}",
                    f"{optimizer.kind} was made at {place(optimizer.made)} with a learning rate of {own:.3g}; "
                    f"'{_GROUP}' of a group multiplies it (in torch, 'lr' of a group takes its place)",
                    "divide them by the optimizer's own rate: 1.0 for a group that is to have that",
                ],
                next=rate_commands(self, optimizer),
            )
        )  # fmt: skip

    @staticmethod
    def _given_at(made: SourceLine | None) -> SourceLine | None:
        """The first group that has a rate, in the function that makes the optimizer, else the only one of the file."""
        scope = scope_at(made.file, made.line) if made is not None else None
        if made is None or scope is None:
            return None
        for nodes, several in ((inside(scope), True), (nodes_of(made.file), False)):
            lines = sorted(
                key.lineno for node in nodes if isinstance(node, ast.Dict) for key in node.keys
                if isinstance(key, ast.Constant) and key.value == _GROUP
            )  # fmt: skip
            if lines and (several or len(lines) == 1):
                return SourceLine(made.file, lines[0], made.function if several else "")
        return None


def _given(made: SourceLine | None) -> Iterator[ast.expr]:
    """The rates of groups in the function that makes the optimizer."""
    scope = scope_at(made.file, made.line) if made is not None else None
    for node in inside(scope) if scope is not None else ():
        for key, value in zip(node.keys, node.values) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == _GROUP:
                yield value
