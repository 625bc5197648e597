"""Gradients of a scaled loss that are stepped as they are."""

from __future__ import annotations

import ast
from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OperatorCall, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, shape
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers.values import few_numbers
from adbg.engine.diagnosis.source import nodes_of
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_LEAST = 2.0  # of a factor
_STEPS = 2


@detector("loss-scale")
class LossScale(Detector):
    """``scaler.scale(loss).backward()``, and then ``optimizer.step()`` in the place of ``scaler.step(optimizer)``: the
    gradients are as many times as large as the loss was scaled, and nothing divides them again.

    Evidence: the line that scales, the factor, and the steps that no unscaling came before.
    Mistaken for: a scaler that is switched off (a factor of 1), ``unscale_`` before a step of the program's own, losses
    that the program multiplies itself: not told.
    Cost: in sampled iterations a look at each product of two numbers.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS
    calls = False

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._scaled: Marks[float] = Marks()
        self._factor = 0.0  # of the last backward, as long as nothing has unscaled
        self._line: SourceLine | None = None
        self._steps = 0
        self._any = self._told = False

    def applied(self) -> bool:
        return self._any

    def operator(self, call: OperatorCall) -> None:
        if self._told or call.error is not None or call.in_backward:
            return
        if "unscale" in call.name:
            self._factor = 0.0
            return
        if (
            plain(call.name) not in ("mul", "multiply", "scale")
            or not call.results
            or not call.results[0].requires_grad
        ):
            return
        line, result = line_of(call.lines), call.results[0]
        if line is None or any(size != 1 for size in shape(result)) or not _calls(line, ("scale",), 1):
            return
        factor = self._factor_of(call)
        if factor >= _LEAST:
            self._any = True
            self._scaled.put(result, factor, call.name, line)

    def _factor_of(self, call: OperatorCall) -> float:
        for each in call.operands:
            read = few_numbers(self.facts.backend, each, 1) if not each.requires_grad else None
            if read is not None and read.flat:
                return float(read.flat[0])
        numbers = [each for each in (*call.arguments, *call.keywords.values()) if type(each) in (int, float)]
        return float(numbers[0]) if numbers else 0.0

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) > 1 or not self.facts.sampled:
            return
        self._factor, self._line = 0.0, None
        for root in running.call.root_values():
            known = self._scaled.of(root)
            if known is not None:
                self._factor, self._line = known.what, known.line

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "step" or not self._factor or self._told or event.line is None:
            return
        if _calls(event.line, ("step", "minimize"), 1) or not _calls(event.line, ("step",), 0):
            self._factor = 0.0  # the scaler's own step
            return
        self._steps += 1
        if self._steps >= _STEPS:
            self._told = True
            self._tell(event.line, type(event.optimizer).__name__)
        self._factor = 0.0

    def _tell(self, line: SourceLine, kind: str) -> None:
        facts, scaled, factor = self.facts, self._line, self._factor
        message = (
            f"{kind} steps at {place(line)} with gradients of a loss that {place(scaled)} made {factor:g} times as "
            "large: nothing divides them again; call scaler.step(optimizer), then scaler.update()"
        )
        evidence = [
            f"{place(scaled)}: {facts.text_of(scaled) if scaled is not None else ''}",
            f"{place(line)}: {facts.text_of(line)}",
            f"in {self._steps} iterations no unscaling came between backward and step",
        ]
        facts.tell(
            Finding(
                0, "loss-scale", "error", 0.92, message, None, None, facts.iteration, line, facts.cause(line), evidence,
                ["b backward-end", "info params"],
            )
        )  # fmt: skip


def _calls(line: SourceLine, names: tuple[str, ...], arguments: int) -> bool:
    """Whether a method of that name is called on the line, with at least one argument, or with none at all."""
    for node in nodes_of(line.file):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
            given = len(node.args) + len(node.keywords)
            if node.lineno <= line.line <= (node.end_lineno or 0) and (given > 0) is (arguments > 0):
                return True
    return False
