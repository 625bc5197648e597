"""Exceptions that leave a backward: what a custom function gave back that the framework refuses, what its own code or a
hook raised, and operators that fail."""

from __future__ import annotations

import re
from typing import Any

from adbg.engine.backends.base import FunctionCall, HookCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.errors.caught import is_left_on_purpose
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name, result_line
from adbg.engine.diagnosis.detectors.functions.orders import returned_many
from adbg.engine.diagnosis.values import is_users, line_in, steps_of
from adbg.engine.graph.index import index_of
from adbg.engine.outside import by_handler
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_COUNT = re.compile(r"returned an incorrect number of gradients \(expected (\d+), got (\d+)\)")
_SHAPE = re.compile(r"invalid gradient at index (\d+) - got (\[.*?\]) but expected shape compatible with (\[.*?\])")
_KIND = re.compile(r"invalid gradient at index (\d+) - (.*)")
_NONE = re.compile(r"expected (?:Variable|Tensor) or None|must be (?:list or tuple|Tensor)", re.I)
_OF_OTHERS = ("second time", "TensorWrappers of", "is at version", "Its version is", "does not require grad")
_EXPECTED = re.compile(r"expected (\(.*?\)), got (.*?)(?:;|$)")
_PART = re.compile(r"\w+ \[[^\]]*\]|None|undefined")


@detector("backward-error", "function-contract", "missing-gradient")
class BackwardError(Detector):
    """A backward raised an exception: the node that failed, the forward line that made it, and, of a custom function
    (autograd.Function, PyLayer) or a hook, the line that raised it or that gave back a gradient of the wrong number,
    shape or type.

    Evidence: what was expected and what was given back; the framework's own message.
    Mistaken for: what a signal handler of the program's raises meanwhile (a time-out) is none of backward's, and is
    not told; nor is an exception of a class of the program's own that the program catches by name, having raised it to
    leave backward. Others that it catches and goes on from are told as well.
    Cost: a call per run of a custom function.
    """

    needs = Need.FUNCTIONS | Need.HOOKS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        # The custom function whose backward ran last, what it gave, and which of that was None.
        self._last: tuple[type, str, list[bool]] | None = None
        self._gave_none: dict[type, list[int]] = {}  # places of arguments that it gave None for, of those that need one
        self._needed: dict[type, list[int]] = {}
        self._hook: tuple[str, SourceLine | None, str] | None = (
            None  # that raised: frameworks may only pass on its text
        )
        self._lines: dict[type, SourceLine | None] = {}

    def function(self, call: FunctionCall) -> None:
        backend = self.facts.backend
        if call.phase == "forward":
            self._lines[call.function] = call.line
            tensors = [at for at, each in enumerate(call.arguments) if backend.is_tensor(each)]
            self._needed[call.function] = [at for at in tensors if backend.meta(call.arguments[at]).requires_grad]
        elif call.error is None:
            given = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
            self._last = call.function, self._described(call.results), [each is None for each in given]
            places = self._needed.get(call.function, [])
            self._gave_none[call.function] = [at for at in places if at < len(given) and given[at] is None]

    def hook(self, call: HookCall) -> None:
        if call.error is None or by_handler(call.error):
            return
        frames = [frame for frame, _ in steps_of(call.error) if is_users(frame)]
        if frames:
            name = getattr(frames[0].f_code, "co_qualname", frames[0].f_code.co_name)
            text = self.facts.backend.error_text(call.error)
            self._hook = name, line_in(call.error, frames[-1]), text

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            self._hook = None
            self._gave_none.clear()

    def _described(self, results: Any) -> str:
        each = results if isinstance(results, (tuple, list)) else (results,)
        backend = self.facts.backend
        shown = []
        for value in each[:8]:
            meta = backend.meta(value) if backend.is_tensor(value) else None
            shown.append(f"{meta.dtype} {list(meta.shape or ())}" if meta is not None else type(value).__name__)
        return f"({', '.join(shown)})"

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is None or len(running.chain) > 1 or not isinstance(error, Exception):
            return
        call = running.call
        text = call.error_text(error)
        if any(words in text or words in str(error) for words in _OF_OTHERS):
            return
        original = call.original_error(error)
        if by_handler(error) or by_handler(original) or is_left_on_purpose(error):
            return
        suspects = call.failed_nodes(error)
        key = suspects[0][0] if suspects else None
        node, forward = self.facts.node(call, key) if key is not None else (None, None)
        evidence = [text.strip()[:500], *[why[:500] for _, why in suspects[:1]]]
        found = (
            self._raised(original, text)
            or self._of_hook(text)
            or self._contract(call, key, text, evidence)
            or self._starved(call, key)
        )
        name = node.unique_name if node is not None else "a node"
        following = ["b error", f"b {name}"] if node is not None else ["b error"]
        if found is not None:
            kind, cause, message, confidence = found
        else:
            kind, cause, confidence = "backward-error", forward, 0.6
            first = text.strip().split("\n", 1)[0]
            message = f"{name} failed in backward: {first[:200]}"
        self.facts.tell(
            Finding(
                0, kind, "error", confidence, message, node=node, backward=call.number, forward=forward,
                cause=self.facts.cause(cause), evidence=evidence, next=following, victim_of=self._recomputed(text),
            )
        )  # fmt: skip

    def _recomputed(self, text: str) -> int | None:
        """The finding that a region computes something else the second time, where a checkpoint says so by this."""
        if not re.search(r"checkpoint|recomput", text, re.I):
            return None
        return next((each.id for each in self.facts.findings.values() if each.kind == "recompute-differs"), None)

    def at_error(self, running: Running, error: BaseException) -> None:
        self.backward_end(running, error)

    def _raised(self, error: BaseException, told: str) -> tuple[str, SourceLine | None, str, float] | None:
        """By code of the user's that the engine called."""
        steps = steps_of(error)
        entered = [
            place for place, (frame, _) in enumerate(steps)
            if not is_users(frame) and str(frame.f_globals.get("__name__")).partition(".")[0] == self.facts.backend.name
        ]  # fmt: skip
        inside = [frame for frame, _ in steps[entered[0] + 1 :] if is_users(frame)] if entered else []
        if not inside and error.__traceback__ is not None and steps and self.facts.backend.name == "paddle":
            inside = [frame for frame, _ in steps if is_users(frame) and frame.f_code.co_name == "backward"]
        if not inside:
            return None
        line = line_in(error, inside[-1])
        where = inside[0].f_code.co_name
        owner = getattr(inside[0].f_code, "co_qualname", where)
        text = told.strip().split("\n", 1)[0][:200]
        return "backward-error", line, f"{owner} raised in backward: {text}", 0.92

    def _of_hook(self, text: str) -> tuple[str, SourceLine | None, str, float] | None:
        """A hook raised, and the framework made a message of it."""
        if self._hook is None:
            return None
        name, line, raised = self._hook
        return (
            "backward-error",
            line,
            f"{name} raised in backward: {raised.split(chr(10), 1)[0][:200] or text[:200]}",
            0.92,
        )

    def _starved(self, call: Any, key: int | None) -> tuple[str, SourceLine | None, str, float] | None:
        """An operator got no gradient to run on, for a custom function gave None for what it made."""
        if key is None or call.is_custom(key):
            return None
        for consumer, _ in index_of(call).consumers(call, key):
            name = call.describe(consumer).name if call.is_custom(consumer) else ""
            for function, places in self._gave_none.items():
                if name and function.__name__ in name and places:
                    argument = argument_name(function, places[0])
                    told = f"{function.__name__}.backward returns None as the gradient of {argument}, and "
                    told += f"{call.describe(key).unique_name}, which made it, cannot run without one"
                    return "missing-gradient", result_line(function, places[0]), told, 0.93
        return None

    def _contract(
        self, call: Any, key: int | None, text: str, evidence: list[str]
    ) -> tuple[str, SourceLine | None, str, float] | None:
        if self._last is None or (key is None and _NONE.search(text) is None):
            return None
        function, given, nones = self._last
        name = function.__name__
        if key is not None and (not call.is_custom(key) or name not in call.describe(key).name):
            return None
        evidence.append(f"{name}.backward returned {given}")
        if (found := _COUNT.search(text)) is not None:
            expected, got = int(found[1]), int(found[2])
            gradients = "1 gradient" if got == 1 else f"{got} gradients"
            arguments = "1 argument" if expected == 1 else f"{expected} arguments"
            what = f"{gradients}, but {name}.forward took {arguments}: one each, or None"
            return "function-contract", returned_many(function, nones), f"{name}.backward returns {what}", 0.95
        if (found := _SHAPE.search(text)) is not None:
            place = int(found[1])
            argument = argument_name(function, place)
            what = f"a gradient of shape {found[2]} for {argument}, which has shape {found[3]}"
            return "function-contract", result_line(function, place), f"{name}.backward returns {what}", 0.95
        if (found := _KIND.search(text)) is not None:
            place = int(found[1])
            what = f"a gradient for {argument_name(function, place)} that does not fit: {found[2][:160]}"
            return "function-contract", result_line(function, place), f"{name}.backward returns {what}", 0.95
        expected_got = next((found for why in evidence if (found := _EXPECTED.search(why)) is not None), None)
        if expected_got is not None:
            wanted, got_parts = _PART.findall(expected_got[1]), _PART.findall(expected_got[2])
            place = next((n for n, (one, two) in enumerate(zip(wanted, got_parts)) if one != two), 10_000)
            place = 10_000 if place < len(wanted) and wanted[place] == "None" else place  # the return is at fault
            what = f"{expected_got[2]} where {expected_got[1]} is expected"
            many = len(wanted) != len(got_parts)
            line = returned_many(function, nones) if many else result_line(function, place)
            return "function-contract", line, f"{name}.backward returns {what}", 0.93
        if _NONE.search(text):
            return "function-contract", result_line(function, 0), f"{name}.backward returns {given}: {text[:160]}", 0.9
        return None
