"""Custom functions that break the rules of their framework without an exception."""

from __future__ import annotations

import ast
import functools
import math
import os
from typing import Any

from adbg.engine.backends.base import FunctionCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.functions.attributes import Attributes, Replaced
from adbg.engine.diagnosis.detectors.functions.derivatives import argument_name
from adbg.engine.diagnosis.detectors.functions.writes import line_with, writes_to
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_FILLERS = frozenset({"append", "extend", "insert", "update", "setdefault"})


@detector("function-input-overwritten", "function-keeps-output", "silent-overwrite")
class Contract(Detector):
    """The forward of a custom function writes into a tensor that it was given without saying so (``mark_dirty``), or
    keeps its result as an attribute of ``ctx``: result and node then keep each other, and the graph is never freed.
    "silent-overwrite": a tensor, or an array of NumPy's, that forward kept as an attribute of ``ctx``, which no version
    guards as it does what is saved by ``save_for_backward``, is overwritten before the backward that reads it: a buffer
    that calls share. Or it keeps it on its class, on a module or in a global name, by itself or by what it calls of the
    program's, where a later call sets it anew.

    Evidence: the version of the argument before and after forward; the attribute of ``ctx``; of one that was
    overwritten, its version and norm at the end of forward and as backward begins; of what is kept elsewhere, that it
    is what the last of several calls left, with other values. Without that it is a note.
    Mistaken for: running statistics, which need no gradient and may be written to; other parts of memory that calls
    share, which is told apart by the values; what backward itself writes to (a sum), and single numbers; elsewhere what
    is made of itself, and what backward sets, only prints or takes the shape of.
    Cost: a look at the versions per call of a custom function; in sampled iterations a sum over the bytes of what it
    keeps.
    """

    needs = Need.FUNCTIONS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._seen: set[type] = set()
        self._told: set[tuple[type, str]] = set()
        self._attributes = Attributes(facts)
        self._replaced: list[tuple[Replaced, int, FoundAt, SourceLine | None]] = []  # told after that backward

    def applied(self) -> bool:
        return bool(self._seen)

    def function(self, call: FunctionCall) -> None:
        if call.phase != "forward":
            return
        # A checkpoint applies it again within the backward, right before it is needed, and may break off after what it
        # saves: then it reads its own.
        self._replaced = [each for each in self._replaced if each[0].function is not call.function]
        if call.error is not None:
            return
        self._seen.add(call.function)
        results = call.results if isinstance(call.results, (tuple, list)) else (call.results,)
        if self.facts.sampled:
            self._attributes.keep_elsewhere(call, results)
        backend = self.facts.backend
        if not any(backend.is_tensor(each) and backend.has_graph(each) for each in results):
            return
        name = call.function.__name__
        for place, (value, before) in enumerate(zip(call.arguments, call.versions)):
            if before is None or backend.version_of(value) == before or any(each is value for each in results):
                continue
            if not backend.meta(value).requires_grad:
                continue
            argument = argument_name(call.function, place)
            self._tell(
                call, "function-input-overwritten", "error", 0.9, argument,
                f"{name}.forward writes into its input {argument} and neither marks it with ctx.mark_dirty nor "
                "returns it: gradients are computed of the value that it had before",
                [f"{argument} is at version {backend.version_of(value)} after {name}.forward, at {before} before it"],
                writes_to(call.function, argument),
            )  # fmt: skip
        kept = getattr(call.context, "__dict__", None)
        # Where the context is the node itself: Paddle lets go of a context as its backward has run.
        own_node = backend.node_address(call.context) is not None
        for attribute, value in list(kept.items()) if isinstance(kept, dict) and own_node else ():
            if any(backend.is_tensor(each) and any(each is result for result in results) for each in _held(value)):
                filled = line_with(call.function, functools.partial(_fills, attribute))
                self._tell(
                    call, "function-keeps-output", "warning", 0.88, attribute,
                    f"{name}.forward keeps its own result as ctx.{attribute}: the result and its node keep each "
                    "other, and the graph is never freed; use ctx.save_for_backward",
                    [f"ctx.{attribute} {'holds' if filled is not None else 'is'} what forward returned"],
                    filled or line_with(call.function, functools.partial(_sets, attribute)),
                )  # fmt: skip
        if self.facts.sampled and isinstance(kept, dict):
            self._attributes.keep(call, kept, results)

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) > 1:
            return
        facts, call = self.facts, running.call
        self._replaced = [
            (found, call.number, *facts.node(call, found.key)) for found in self._attributes.replaced(running)
        ]
        for changed in self._attributes.changed(running):
            name = changed.function.__name__
            line = line_with(changed.function, functools.partial(_sets, changed.attribute))
            if (changed.function, f"silent-overwrite {changed.attribute}") in self._told:
                continue
            self._told.add((changed.function, f"silent-overwrite {changed.attribute}"))
            facts = self.facts
            node, forward = facts.node(running.call, changed.key)
            guard = "" if changed.array else ": ctx.save_for_backward would have raised"
            facts.tell(
                Finding(
                    0, "silent-overwrite", "error", 0.9,
                    f"ctx.{changed.attribute}, which {name}.forward kept for its backward, is overwritten before "
                    f"backward reads it{guard}; keep {'an array' if changed.array else 'a tensor'} of its own for each "
                    "call",
                    node=node, backward=running.call.number, forward=forward or changed.line,
                    cause=facts.cause(line or changed.line), evidence=changed.evidence,
                    next=[f"b {node.unique_name}" if node.unique_name else f"b '*{name}*'"],
                )
            )  # fmt: skip

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if len(running.chain) == 1:
            waiting, self._replaced = self._replaced, []
            for each in waiting:
                self._tell_replaced(*each)

    def _tell_replaced(self, found: Replaced, backward: int, node: FoundAt, forward: SourceLine | None) -> None:
        place, name, facts = found.place, found.function.__name__, self.facts
        if (found.function, place.name) in self._told:
            return
        self._told.add((found.function, place.name))
        if found.by is found.function:
            evidence = [
                f"{name} was applied {found.calls} times before backward {backward}: each call set "
                f"{place.name}, and all of their backwards read what the last one left",
            ]
        else:
            evidence = [
                f"{found.by.__name__}, which was applied before backward {backward}, too, set {place.name} last"
            ]
        before, now = found.norms
        if math.isfinite(before) and math.isfinite(now) and before != now:
            at = f" at {os.path.basename(found.line.file)}:{found.line.line}" if found.line is not None else ""
            evidence.append(f"its norm was {before:.6g} as the call{at} ended, and is {now:.6g} as backward begins")
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.9,
                f"{name}.forward keeps {place.name} where all of its calls share it, and a later call sets it anew: "
                f"{node.unique_name or 'backward'} computes with the values of another call; keep it on ctx "
                "(ctx.save_for_backward)",
                node=node, backward=backward, forward=forward or found.line, cause=facts.cause(place.line),
                evidence=evidence, next=[f"b {node.unique_name}" if node.unique_name else f"b '*{name}*'"],
            )
        )  # fmt: skip

    def end(self) -> None:
        for (function, name), seen in self._attributes.elsewhere.items():
            if (function, name) in self._told or not seen.differs:
                continue
            called = function.__name__
            self.facts.tell(
                Finding(
                    0, "silent-overwrite", "note", 0.3,
                    f"{called}.forward keeps {name} where all of its calls share it: right as long as no other call "
                    "comes before the backward that reads it, as was so here; on ctx each call has its own",
                    forward=seen.line, cause=self.facts.cause(seen.place.line),
                    evidence=[f"{called}.backward reads {name}, which forward sets on anything but ctx"],
                    next=[f"b *{called}*"],
                )
            )  # fmt: skip

    def _tell(
        self, call: FunctionCall, kind: str, severity: str, confidence: float, what: str, message: str,
        evidence: list[str], line: SourceLine | None,
    ) -> None:  # fmt: skip
        if (call.function, f"{kind} {what}") in self._told:
            return
        self._told.add((call.function, f"{kind} {what}"))
        facts = self.facts
        facts.tell(
            Finding(
                0, kind, severity, confidence, message, forward=call.line, cause=facts.cause(line or call.line),
                evidence=evidence, next=[f"b *{call.function.__name__}*"],
            )
        )  # fmt: skip


def _held(value: Any) -> list[Any]:
    """What an attribute holds, one container deep."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _fills(attribute: str, node: ast.AST) -> bool:
    """``ctx.cache["y"] = y``, ``ctx.kept.append(y)``."""
    if isinstance(node, ast.Assign):
        found = [each.value for each in node.targets if isinstance(each, ast.Subscript)]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLERS:
        found = [node.func.value]
    else:
        return False
    return any(isinstance(each, ast.Attribute) and each.attr == attribute for each in found)


def _sets(attribute: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(each, ast.Attribute) and each.attr == attribute and isinstance(each.ctx, ast.Store)
        for target in node.targets for each in ast.walk(target)
    )  # fmt: skip
