"""Samples of a diffusion that are noised by the rate of one step, not by that of all steps so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_PICKS = frozenset({"getitem", "gather", "index_select", "take", "take_along_axis", "select", "embedding", "slice"})
_KEEPS = frozenset({"reshape", "view", "unsqueeze", "squeeze", "expand", "to", "cast", "float", "contiguous", "clone"})
_NOISE = frozenset({"randn", "randn_like", "normal", "gaussian", "standard_normal"})


@dataclass(frozen=True, slots=True)
class _Rate:
    """``stage``: "rates" (of single steps, of which products were taken), "rest" (1 less these), "root" (of the rest).
    ``picked``: where those of some steps were."""

    stage: str
    picked: SourceLine | None
    product: SourceLine | None


@detector("loss-input")
class NoisedByOneStep(Detector):
    """``sqrt(alphas[t]) * x + sqrt(1 - alphas[t]) * noise`` with the rates of single steps, where the program takes
    their products (``cumprod``) as well: a sample of step t has hardly any noise, and the model never meets what it
    starts from when it samples.

    Evidence: the line that takes the products of the very tensor, and the one that multiplies noise by the root of 1
    less its elements.
    Mistaken for: a step of the sampler, which runs under ``no_grad`` (not told).
    Cost: in sampled iterations a look at each operator's name.
    """

    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._rates: Marks[_Rate] = Marks()
        self._noise: Marks[None] = Marks()
        self._told = False
        self._any = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.results:
            return
        name, result = plain(call.name), call.results[0]
        if name in _NOISE:
            self._noise.put(result, None, name, None)
        if not call.operands:
            return
        if name == "cumprod" and not call.operands[0].requires_grad:
            self._any = True
            self._rates.put(call.operands[0], _Rate("rates", None, line_of(call.lines)), name, None)
            return
        if not self._any:
            return
        known = next((found for each in call.operands if (found := self._rates.of(each)) is not None), None)
        if known is not None:
            self._follow(call, name, known.what, result)

    def _follow(self, call: OperatorCall, name: str, rate: _Rate, result: Any) -> None:
        if name in _PICKS:
            made = _Rate(rate.stage, line_of(call.lines), rate.product)
        elif name in _KEEPS:
            made = rate
        elif name in ("rsub", "sub", "subtract", "scale") and rate.stage == "rates" and len(call.operands) == 1:
            made = _Rate("rest", rate.picked, rate.product)
        elif name == "sqrt" and rate.stage == "rest":
            made = _Rate("root", rate.picked, rate.product)
        elif name in ("mul", "multiply") and rate.stage == "root" and len(call.operands) == 2:
            noise = next((each for each in call.operands if self._noise.of(each) is not None), None)
            if noise is not None and rate.picked is not None and call.grad_mode:
                self._tell(call, rate)
            return
        else:
            return
        self._rates.put(result, made, call.name, line_of(call.lines))

    def _tell(self, call: OperatorCall, rate: _Rate) -> None:
        if self._told:
            return
        self._told = True
        facts, line = self.facts, line_of(call.lines)
        picked = rate.picked
        message = (
            f"{place(line)} noises by the rates of single steps, of {place(picked)}: {place(rate.product)} takes their "
            "products up to each step, which are meant here"
        )
        evidence = [
            f"{place(line)}: {facts.text_of(line) if line is not None else ''}",
            f"{place(rate.product)} takes the products of the tensor whose elements are used: "
            f"{facts.text_of(rate.product) if rate.product is not None else ''}",
            f"noise of {shape(call.results[0])} is multiplied by the root of 1 less them, where gradients are recorded",
        ]
        facts.tell(
            Finding(
                0, "loss-input", "error", 0.88, message, None, None, facts.iteration + 1, line, facts.cause(picked),
                evidence, [f"list {place(picked)}"],
            )
        )  # fmt: skip
