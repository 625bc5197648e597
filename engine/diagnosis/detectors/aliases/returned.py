"""A custom function that gives back the tensor it was given, which the program still reads under its old name."""

from __future__ import annotations

from dataclasses import dataclass

from adbg.engine.backends.base import FunctionCall, OperatorCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.aliases.stale_names import Before, names_before, read_as
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name, result_line
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.graphs.marks import Marks
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine


@dataclass(frozen=True, slots=True)
class _GivenBack:
    function: type
    argument: int
    result: int
    before: tuple[Before, ...]
    line: SourceLine | None


@dataclass(frozen=True, slots=True)
class _Read:
    of: _GivenBack
    name: str
    at: SourceLine


@detector("function-contract")
class GivenBack(Detector):
    """The forward of a PyLayer returns the tensor that it was given (``return x``), and the caller goes on to read that
    tensor under its old name: ``device_head(Reverse.apply(feat))`` and then ``odour_head(feat)``. Paddle takes the
    function as one that works in place: the tensor is the function's result from there on, and the gradient of all
    that reads it afterwards goes through the function's backward. torch gives a new tensor, unless ``mark_dirty`` says
    otherwise: of that nothing is told.

    Evidence: that both are one object, the line that reads it afterwards and the name there, and the norms of what the
    function's backward was given and returned.
    Mistaken for: a name that is given the result (``x = Reverse.apply(x)``), what reads the tensor before (both not
    told), a backward that returns what it is given, which changes nothing (not told).
    Cost: a comparison of objects per call of a custom function; where one is given back, a look at the variables of up
    to 12 functions, and in sampled iterations at what reads that tensor.
    """

    needs = Need.FUNCTIONS
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._given: Marks[_GivenBack] = Marks()
        self._read: dict[type, _Read] = {}
        self._done: set[type] = set()

    def function(self, call: FunctionCall) -> None:
        if call.error is not None or call.function in self._done or self.facts.backend.name != "paddle":
            return  # torch gives the same object only where ``mark_dirty`` says so
        if call.phase == "backward":
            read = self._read.get(call.function)
            # What is only looked at (``float(x.norm())`` for a log) has no gradient: no node of its line ran.
            if read is not None and self.facts.made_in(read.at.file, read.at.line, read.at.line):
                self._judge(read, call)
            elif read is not None:
                del self._read[call.function]  # another line may read it, too
            return
        results = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
        for number, result in enumerate(results):
            argument = next((at for at, each in enumerate(call.arguments) if each is result), None)
            if argument is not None and self._returned_alone(call, argument):
                before = tuple(names_before(result))
                if before:
                    given = _GivenBack(call.function, argument, number, before, call.line)
                    self._given.put(result, given, call.function.__name__, call.line)

    def _returned_alone(self, call: FunctionCall, argument: int) -> bool:
        """Its forward wrote nothing there: that Paddle takes it as in place is one step of the version."""
        before = call.versions[argument] if argument < len(call.versions) else None
        return before is not None and self.facts.backend.version_of(call.arguments[argument]) == before + 1

    def operator(self, call: OperatorCall) -> None:
        if call.error is not None or call.in_backward or not call.grad_mode:
            return
        for operand in call.operands:
            known = self._given.of(operand)
            if known is None or known.what.function in self._read:
                continue
            found = read_as(operand, known.what.before, bends=True)
            if found is not None and any(self.facts.backend.meta(each).requires_grad for each in call.results):
                self._read[known.what.function] = _Read(known.what, *found)

    def _judge(self, read: _Read, call: FunctionCall) -> None:
        """``call`` is of its backward: does that change anything?"""
        backend = self.facts.backend
        results = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
        tensors = [at for at, each in enumerate(call.arguments) if backend.is_tensor(each)]
        if read.of.result not in tensors or not results:
            return
        given = call.arguments[read.of.result]
        returned = results[min(read.of.argument, len(results) - 1)]
        if returned is given or not backend.is_tensor(returned):
            return
        one, other = (values.numbers(backend, each) for each in (given, returned))
        if one is not None and other is not None and list(one.flat) == list(other.flat):
            return
        self._done.add(read.of.function)
        self._tell(read, f"norm {backend.norm(given):.4g}", f"norm {backend.norm(returned):.4g}")

    def _tell(self, read: _Read, given: str, returned: str) -> None:
        facts, of = self.facts, read.of
        name, argument = of.function.__name__, argument_name(of.function, of.argument)
        message = (
            f"{name}.forward returns {argument} itself, no new tensor: {read.name}, which {place(read.at)} reads after "
            f"it, is the result of {name} too, and its gradient goes through {name}.backward; return a copy"
        )
        evidence = [
            f"{name}.apply at {place(of.line)} gave back the tensor that it was given, one object, named {read.name}",
            f"it is read as {read.name} at {place(read.at)}: {facts.text_of(read.at)}",
            f"{name}.backward was given a gradient of {given} for all that reads it, and returned one of {returned}",
        ]
        cause = result_line(of.function, of.result, "forward")
        facts.tell(
            Finding(
                0, "function-contract", "error", 0.9, message, iteration=facts.iteration + 1, forward=of.line,
                cause=facts.cause(cause), evidence=evidence, next=[f"b *{name}*", "info node"],
            )
        )  # fmt: skip
