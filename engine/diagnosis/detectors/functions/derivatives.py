"""Custom functions whose backward is not the derivative of their forward."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from adbg.engine.backends.base import FunctionCall, SlotCheck
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.functions.effects import has_effects, plain_code
from adbg.engine.diagnosis.detectors.functions.orders import exchanged, renamed_at, returned_at, unpacked_at
from adbg.engine.diagnosis.detectors.functions.shared import adds_once, kept_intermediate, shared_line
from adbg.engine.diagnosis.detectors.functions.surrogates import rounds, surrogate
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.detectors.numbers.own_backward import unwritten
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import function_named, line_of_result, parameters_of
from adbg.engine.outside import own
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import SourceLine

_SAMPLES = 3  # calls of one function that are checked
_FUNCTIONS = 50
_APART = 5e-2  # of two second derivatives; in double they agree to 1e-4
_LEAST = 1e-4
_GIVEN = 10  # calls of a backward whose gradient is looked at


def result_line(function: type, place: int, method: str = "backward", factor: bool = False) -> SourceLine | None:
    """Where a function's backward makes what it returns at ``place``; see ``line_of_result``."""
    code = plain_code(function, method)
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    if code is None or tree is None:
        return None
    return SourceLine(
        os.path.abspath(code.co_filename), line_of_result(code.co_filename, tree, place, factor), code.co_name
    )


def argument_name(function: type, place: int, method: str = "forward") -> str:
    """ "x" for argument 0 of ``forward(ctx, x)``."""
    code = plain_code(function, method)
    tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
    names = list(parameters_of(tree)) if tree is not None else []
    names = names[1:] if names[:1] and names[0] in ("ctx", "self", "context", "cls") else names
    return names[place] if place < len(names) else f"argument {place}"


class _Seen:
    """One custom function of the program's."""

    def __init__(self, function: type, line: SourceLine | None) -> None:
        self.function = function
        self.line = line
        self.samples: list[Any] = []
        self.probe: Any = None
        self.missing: set[int] = set()
        self.checked = False
        self.backwards = 0
        self.wrong: set[int] = set()  # places of gradients, also of those that the program does not need
        self.right: set[int] = set()
        self.kept: list[Any] = []  # samples, until it is known whether its backward is differentiated itself
        self.inner = False  # a gradient of what it was given goes on to parameters
        self.attributes: set[str] = set()  # of its context, which are tensors
        self.given: float | None = None  # to its backward: the gradient of a single number, where that is not 1


@detector("wrong-derivative", "uninitialised", "missing-gradient", "function-contract")
class WrongDerivative(Detector):
    """The backward of a custom function (autograd.Function, PyLayer) is not the derivative of its forward, returns
    memory that nothing was written to, or gives None for an input that its result depends on.

    Evidence: directional derivatives of the forward by finite differences, with two step sizes, beside what the
    backward gives, on copies of what the function was really given; the same with fresh memory filled with NaN, and
    with zeros. Gradients in the wrong order are told as such: along the same directions, what is given for one input
    is what the forward changes by with the other. Of a function whose gradient is differentiated itself (a backward
    went through what its backward computed), how that gradient changes along a direction beside what the graph of its
    backward says: what forward computed and saved is a constant there.
    Mistaken for: a straight-through estimator, any function whose forward rounds, or one whose forward is the identity
    (a gradient that is scaled, clipped or reversed on purpose) is a note, and so
    is None for what such an estimator rounds to (a codebook). An approximation that is meant is a warning:
    of a function that names itself so (surrogate, straight-through, guided), whose backward is not linear in the
    gradient that it is given, as every derivative is, or that iterates to a fixed point in forward and not in backward.
    A loss that leaves out the gradient of a loss, 1, is a note: nothing may multiply it.
    Functions that do more than compute, or call what may (print, log, write to what their calls share, call a method of
    an object that others have), are not run again. Random numbers of the framework, of Python and of NumPy are as if
    nothing had been run.
    Cost: copies of the arguments of the first three calls of each function, and the number that its backward is given
    in the first ten where that is a single one; the check runs when the program ends, or
    at a stop where it is asked for. Of more than 200,000 elements it is only looked whether all memory is written to,
    up to 4 million elements in all.
    """

    needs = Need.FUNCTIONS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._seen: dict[type, _Seen] = {}
        self._why = ""
        self._last: Any = None  # the function whose backward ran last

    def applied(self) -> bool:
        return bool(self._seen)

    def why_not(self) -> str:
        return self._why

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None and self._last in self._seen:  # run again it would fail again, and be logged again
            self._seen[self._last].checked = True

    def function(self, call: FunctionCall) -> None:
        if call.phase == "backward":
            self._last = call.function
            self._note_given(call)
        if call.error is not None or call.phase != "forward" or call.probe is None:
            return
        seen = self._seen.get(call.function)
        if seen is None:
            if len(self._seen) >= _FUNCTIONS:
                return
            seen = self._seen[call.function] = _Seen(call.function, call.line)
        if len(seen.samples) < _SAMPLES and not seen.checked:
            self._note_kept(seen, call)
            if has_effects(call.function):
                seen.checked = True
                self._why = f"{call.function.__name__} does more than compute: it was not run again"
                return
            sample = call.probe.sample(call)
            if sample is not None:
                seen.probe = call.probe
                seen.samples.append(sample)

    def _note_given(self, call: FunctionCall) -> None:
        """To a backward, in its first calls: one that is given more than a single number is told of in any case."""
        seen, backend = self._seen.get(call.function), self.facts.backend
        if seen is None or seen.backwards >= _GIVEN:
            return
        seen.backwards += 1
        given = [each for each in call.arguments if backend.is_tensor(each)]
        if len(given) == 1 and math.prod(self.facts.shape(given[0])) == 1:
            read = values.numbers(backend, given[0])
            if read is not None and math.isfinite(read.flat[0]) and read.flat[0] != 1.0:
                seen.given = read.flat[0]

    def _note_kept(self, seen: _Seen, call: FunctionCall) -> None:
        facts, backend = self.facts, self.facts.backend
        given = [each for each in call.arguments if backend.is_tensor(each) and backend.meta(each).requires_grad]
        seen.inner = seen.inner or any(backend.has_graph(each) or facts.is_named(each) for each in given)
        kept = getattr(call.context, "__dict__", {})
        seen.attributes |= {name for name, each in kept.items() if backend.is_tensor(each)}

    def _is_differentiated(self, seen: _Seen) -> bool:
        """A backward went through a node that its own backward made, and what it lacks there would reach parameters."""
        code = plain_code(seen.function, "backward")
        tree = function_named(code.co_filename, code.co_firstlineno) if code is not None else None
        if code is None or tree is None or not seen.inner:
            return False
        return self.facts.made_in(os.path.abspath(code.co_filename), tree.lineno, tree.end_lineno or tree.lineno)

    def at_stop(self, point: PausedPoint) -> None:
        self.end()

    def end(self) -> None:
        for seen in list(self._seen.values()):
            if not seen.checked:
                self._check(seen)
            if seen.kept and not seen.wrong and self._is_differentiated(seen):
                samples, seen.kept = seen.kept, []
                self._differentiate(seen, samples)

    def _check(self, seen: _Seen) -> None:
        seen.checked = True
        samples, seen.samples = seen.samples, []
        calls: list[Sequence[SlotCheck]] = []
        for sample in samples:
            try:
                with self.facts.backend.user_mode():
                    calls.append(seen.probe.check(seen.function, sample))
            except own(Exception) as error:
                self._why = f"{seen.function.__name__} cannot be run again: {type(error).__name__}"
        found: dict[int, list[SlotCheck]] = {}
        others: dict[int, list[SlotCheck]] = {}
        for check in (each for call in calls for each in call):
            (found if check.asked else others).setdefault(check.place, []).append(check)
        seen.wrong = {place for place, checks in [*found.items(), *others.items()] if _are_wrong(checks)}
        seen.right = {place for place, checks in found.items() if all(each.agrees for each in checks)}
        told = self._tell_exchanged(seen, [[each for each in call if each.asked] for call in calls])
        straight = {place for place, checks in found.items() if any(_is_straight(check) for check in checks)}
        for place, checks in found.items():
            if place not in told:
                self._judge(seen, place, checks, bool(straight - {place}))
        seen.kept = samples if found else []

    # ---- telling

    def _judge(self, seen: _Seen, place: int, checks: Sequence[SlotCheck], straight: bool) -> None:
        """``straight``: another input is given the gradient where the forward does not depend on it."""
        name, argument = seen.function.__name__, argument_name(seen.function, place)
        if any(check.unwritten for check in checks):
            self._tell(
                seen, "uninitialised", "error", 0.93, place, next(check for check in checks if check.unwritten),
                f"{name}.backward returns memory that nothing was written to: the gradient of {argument} is "
                f"whatever lay "
                "there",
                ["with fresh memory filled with NaN the gradient has NaN; filled with zeros it is finite"],
            )  # fmt: skip
            return
        odd = next((check for check in checks if check.shapes is not None), None)
        if odd is not None and odd.shapes is not None:
            got, wanted = list(odd.shapes[0]), list(odd.shapes[1])
            self._tell(
                seen, "function-contract", "error", 0.95, place, odd,
                f"{name}.backward returns a gradient of shape {got} for {argument}, which has shape {wanted}",
                [f"{argument} {wanted}, its gradient {got}: the framework takes it as it is"],
            )  # fmt: skip
            return
        if not _are_wrong(checks):
            return
        wrong = [check for check in _usable(checks) if not check.agrees]
        check = wrong[0]
        none = check.missing or not any(analytic for each in wrong for _, analytic in each.pairs)
        if none and straight:
            given = "none" if check.missing else "zeros"
            self._tell(
                seen, "missing-gradient", "note", 0.4, place, check,
                f"{name}.backward gives {argument} {given} and passes the gradient straight on, as a quantizer does "
                f"whose {argument} another loss trains; if none does, it stays as it is", [],
            )  # fmt: skip
        elif check.missing:
            self._tell(
                seen, "missing-gradient", "error", 0.93, place, check,
                f"{name}.backward returns None as the gradient of {argument}, but its result depends on {argument}", [],
            )  # fmt: skip
        elif all(each.constant for each in wrong):
            self._tell_unused(seen, place, wrong)
        elif check.identity:
            self._tell(
                seen, "wrong-derivative", "note", 0.4, place, check,
                f"{name} gives {argument} back as it is, and its backward changes the gradient: on purpose, as a "
                "scaled, clipped or reversed gradient is, or a mistake; whether the training means it decides", [],
            )  # fmt: skip
        elif check.flat:
            self._tell(
                seen, "wrong-derivative", "note", 0.35, place, check,
                f"{name} passes a gradient where its forward does not depend on {argument}: a straight-through "
                "estimator does so on purpose", [],
            )  # fmt: skip
        else:
            self._tell_wrong(seen, place, wrong)

    def _differentiate(self, seen: _Seen, samples: Sequence[Any]) -> None:
        """Its backward is right, and the program differentiates that: what forward computed and saved is a constant
        there."""
        pairs: list[tuple[float, float]] = []
        for sample in samples:
            try:
                with self.facts.backend.user_mode():
                    pairs += seen.probe.check_again(seen.function, sample)
            except own(Exception) as error:
                self._why = f"{seen.function.__name__} cannot be differentiated again: {type(error).__name__}"
                return
        wrong = [(one, two) for one, two in pairs if abs(one - two) > _APART * max(abs(one), abs(two), _LEAST)]
        if len(wrong) < 2 or len(wrong) * 2 < len(pairs):
            return
        name, saved = seen.function.__name__, kept_intermediate(seen.function, seen.attributes)
        what = f"{saved[0]}, which forward computed," if saved is not None else "what forward computed and kept"
        evidence = [
            f"random direction {n}: the gradient changes by {numeric:.6g} (finite differences), the graph of its "
            f"backward says {analytic:.6g}" for n, (numeric, analytic) in enumerate(wrong[:3], 1)
        ]  # fmt: skip
        self._send(
            seen, "wrong-derivative", "error", 0.92,
            f"{name} is differentiated twice, and its second derivative is incomplete: {what} is a constant to its "
            "backward; save the inputs, and compute it of them there",
            saved[1] if saved is not None else result_line(seen.function, 0), evidence,
        )  # fmt: skip

    def _tell_exchanged(self, seen: _Seen, calls: Sequence[Sequence[SlotCheck]]) -> frozenset[int]:
        """One finding of all inputs that were given each other's gradients; their places."""
        orders = [exchanged(checks) for checks in calls]
        given = max(orders, key=len, default={})
        # A call in which the two came to the same proves nothing.
        if not given or any(
            not check.agrees and check.smooth and order.get(check.place) != given[check.place]
            for order, checks in zip(orders, calls) for check in checks if check.place in given
        ):  # fmt: skip
            return frozenset()
        name, places = seen.function.__name__, sorted(given)
        of = {place: argument_name(seen.function, place) for place in places}
        shown = Facts.some([of[place] for place in places])
        told = next(checks for order, checks in zip(orders, calls) if order == given)
        by = {check.place: check for check in told}
        evidence = [
            f"what it returns for {of[place]} is the derivative by {of[given[place]]}: in random direction 1 its "
            f"backward says {by[place].pairs[0][1]:.6g} for {of[place]}, and the forward changes by "
            f"{by[place].pairs[0][0]:.6g} with {of[place]}, by {by[given[place]].pairs[0][0]:.6g} with "
            f"{of[given[place]]} (finite differences, {by[place].precision})"
            for place in places[:4]
        ]
        taken = unpacked_at(seen.function)
        how = f"returns the gradients of {shown} in the wrong order: each is right, for another of them"
        if taken is not None:
            how = f"gives {shown} each other's gradients: it takes what forward saved in another order"
            evidence.append(f"forward saves {', '.join(taken[1])}; backward takes {', '.join(taken[2])}")
        self._send(
            seen, "wrong-derivative", "error", 0.95, f"{name}.backward {how}",
            taken[0] if taken is not None else returned_at(seen.function) or result_line(seen.function, places[0]),
            evidence,
        )  # fmt: skip
        return frozenset(places)

    def _tell_unused(self, seen: _Seen, place: int, wrong: Sequence[SlotCheck]) -> None:
        name, argument = seen.function.__name__, argument_name(seen.function, place)
        how = f"{name}.backward does not use the gradient that it is given: "
        evidence = [f"a gradient of the other sign, three times as large, gives {argument} the same"]
        if seen.given is not None:
            evidence.append(f"the training gives it {seen.given:g}, not the 1 of a whole loss")
        if seen.given is None and all(each.lone for each in wrong):
            how += f"right as long as {name} is the whole loss, whose gradient is 1, and nothing multiplies it"
            self._tell(seen, "wrong-derivative", "note", 0.4, place, wrong[0], how, evidence)
        else:
            how += f"what {argument} gets is the same whatever the loss is; multiply by it"
            self._tell(seen, "wrong-derivative", "error", 0.93, place, wrong[0], how, evidence)

    def _tell_wrong(self, seen: _Seen, place: int, wrong: Sequence[SlotCheck]) -> None:
        name, argument = seen.function.__name__, argument_name(seen.function, place)
        stepped = rounds(seen.function)
        if stepped and not seen.right:  # what steps, and gives another input its derivative, stands in for nothing
            self._tell(
                seen, "wrong-derivative", "note", 0.4, place, wrong[0],
                f"{name}.backward does not give the derivative of {name}.forward by {argument}: that one calls "
                f"{stepped}(), so that another is meant; a comparison with the formula decides it", [],
            )  # fmt: skip
            return
        times, why = _factor(wrong), surrogate(seen.function, wrong)
        how = f"gives {times} times the derivative" if times else "does not give the derivative"
        message = f"{name}.backward {how} of {name}.forward by {argument}"
        if why:
            message += ": wrong, unless the approximation is meant"
        self._tell(
            seen, "wrong-derivative", "warning" if why else "error", 0.7 if why else 0.93, place, wrong[0], message,
            [why] if why else [],
        )  # fmt: skip

    def _tell(
        self, seen: _Seen, kind: str, severity: str, confidence: float, place: int, check: SlotCheck, message: str,
        evidence: list[str],
    ) -> None:  # fmt: skip
        cause = unwritten(seen.function) if kind == "uninitialised" else None
        taken = unpacked_at(seen.function) if kind == "wrong-derivative" and severity == "error" else None
        if taken is not None:
            cause = taken[0]
            evidence = [*evidence, f"forward saves {', '.join(taken[1])}; backward takes {', '.join(taken[2])}"]
        renamed = renamed_at(seen.function) if kind == "wrong-derivative" and severity == "error" else None
        if cause is None and renamed is not None:
            cause = renamed[0]
            evidence = [*evidence, f"forward saves {renamed[1]}, which it computed; backward takes it for {renamed[2]}"]
        shared = shared_line(seen.function, seen.wrong, seen.right) if kind == "wrong-derivative" else None
        if cause is None and shared is not None:
            of = Facts.some([argument_name(seen.function, each) for each in sorted(seen.wrong)])
            evidence = [*evidence, f"the gradients of {of} are all wrong, and all are made of what this line computes"]
        cause = cause or shared or result_line(seen.function, place, factor=kind == "wrong-derivative")
        once = adds_once(cause)
        evidence = [*evidence, once] if once else evidence
        evidence = [*evidence, *[
            f"random direction {n}: the forward changes by {numeric:.6g} (finite differences, {check.precision}), its "
            f"backward says {'None' if check.missing else format(analytic, '.6g')}"
            for n, (numeric, analytic) in enumerate(check.pairs if kind != "uninitialised" else (), 1)
        ]]  # fmt: skip
        self._send(seen, kind, severity, confidence, message, cause, evidence)

    def _send(
        self, seen: _Seen, kind: str, severity: str, confidence: float, message: str, cause: SourceLine | None,
        evidence: list[str],
    ) -> None:  # fmt: skip
        facts = self.facts
        node = FoundAt(name=f"{seen.function.__name__}Backward" if facts.backend.name == "torch" else None)
        following = [f"b *{seen.function.__name__}* after", "info node"]
        facts.tell(
            Finding(
                0, kind, severity, confidence, message, node=node, iteration=1, forward=seen.line,
                cause=facts.cause(cause), evidence=evidence, next=following,
            )
        )  # fmt: skip


def _usable(checks: Sequence[SlotCheck]) -> list[SlotCheck]:
    """Those that tell anything: where all is 0, as behind a threshold that nothing passes, any factor agrees."""
    return [
        check for check in checks
        if check.smooth and _is_finite(check) and any(value for pair in check.pairs for value in pair)
    ]  # fmt: skip


def _are_wrong(checks: Sequence[SlotCheck]) -> bool:
    """At least half of those that tell anything."""
    usable = _usable(checks)
    wrong = sum(not check.agrees for check in usable)
    return 0 < len(usable) <= 2 * wrong


def _is_straight(check: SlotCheck) -> bool:
    return check.flat and not check.missing and not check.agrees


def _is_finite(check: SlotCheck) -> bool:
    """Of a derivative that is NaN or infinite there "nonfinite" tells, with the value that made it."""
    return all(math.isfinite(value) for pair in check.pairs for value in pair)


def _factor(checks: Sequence[SlotCheck]) -> str:
    """ "1.5" where the backward is a constant times the derivative."""
    ratios = [analytic / numeric for check in checks for numeric, analytic in check.pairs if abs(numeric) > 1e-6]
    if not ratios or max(ratios) - min(ratios) > 1e-3 * max(map(abs, ratios)):
        return ""
    middle = math.fsum(ratios) / len(ratios)
    return f"{middle:.4g}"
