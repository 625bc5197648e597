"""Checkpointed regions that compute something else when they are run again in backward."""

from __future__ import annotations

import ast
import os

from adbg.engine.backends.base import RecomputeCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.functions.regions import FRAMEWORKS, GENERATORS, Region, read_region
from adbg.engine.diagnosis.source import assigned_before, inside, scope_at
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_RANDOM = (
    "dropout",
    "rand",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
    "exponential",
    "gumbel",
    "rrelu",
    "poisson",
)
_Origin = tuple[SourceLine, str]  # a line, and what it does


@detector("recompute-differs")
class RecomputeDiffers(Detector):
    """A region under a checkpoint (torch.utils.checkpoint, fleet.utils.recompute) computes something else when it is
    run again in backward, so that the gradients belong to other values than the loss: random numbers that are not
    restored (preserve_rng_state=False, Python's or NumPy's own), state that the first pass changed, another mode. On
    PyTorch also a number that each pass changes and that the region computes with, where no operator differs.

    Evidence: the first operator whose value differs between the two passes, with both norms; or the attribute, with its
    values after both passes. The cause is the only place in the source of the region, and of what it calls, that draws
    numbers of Python's or NumPy's, or changes what it reads; the call of the checkpoint where there are several.
    Mistaken for: kernels that are not deterministic differ by less than 1e-4 and are not told; counters that no
    operator is given are not told; nor are statistics that each pass moves on (those of a BatchNorm), where nothing
    that a gradient goes through differs.
    Cost: the norm of each result of a checkpointed region, in the sampled iterations.
    """

    sampled = Need.RECOMPUTES | Need.OPERATORS

    def recompute(self, call: RecomputeCall) -> None:
        facts = self.facts
        if call.changed is not None:
            self._tell_changed(call, *call.changed)
            return
        unrestored = call.keywords.get("preserve_rng_state") is False
        name = call.second[0] or call.first[0]
        random = any(word in name for word in _RANDOM)
        by_operator = call.at is not None
        cause: SourceLine | None = (
            call.line if (unrestored and (random or not by_operator)) or not by_operator else call.at
        )
        origin: _Origin | None = None
        if not unrestored and not random and not call.inputs_differ:
            drawn = _drawn(call.at) if call.at is not None else None
            region = read_region(call.function) if drawn is None else Region()
            origin = self._origin(call, region)
            unsure = len(region.drawn) + len(region.changed) > 1
            cause = drawn or (origin[0] if origin is not None else call.line if unsure else cause)
        where = _place(call.line)
        what = f"{name} at line {call.at.line}" if call.at is not None else name
        why = (
            "its random numbers are not restored (preserve_rng_state=False)"
            if unrestored and (random or not by_operator)
            else "what it was given was changed in place meanwhile" if call.inputs_differ
            else origin[1] if origin is not None
            else "random numbers of Python or NumPy, or state that the first pass changed, are not restored"
        )  # fmt: skip
        facts.tell(
            Finding(
                0, "recompute-differs", "error", 0.93,
                f"the region checkpointed at {where} computes something else when backward runs it again: "
                f"{why}; the first "
                f"to differ is {what}",
                iteration=max(1, facts.iteration), forward=call.line, cause=facts.cause(cause),
                evidence=[
                    f"first pass: {call.first[0] or 'nothing more'}, norm {call.first[1]:.8g}",
                    f"second pass: {call.second[0]}, norm {call.second[1]:.8g}",
                    f"{call.place} results before it are the same in both passes",
                ],
                next=[*self._nodes(call), f"b {_place(cause)}"] if cause is not None else [],
            )
        )  # fmt: skip

    def _origin(self, call: RecomputeCall, region: Region) -> _Origin | None:
        """The one thing that the region does by which its passes may differ: random numbers before state, which may be
        of no use. The operator's own line where that has it."""
        # Paddle restores the generators of Python and NumPy that all share, where it restores its own.
        restored = self.facts.backend.name != "torch" and call.keywords.get("preserve_rng_state") is not False
        drawn = {line: text for line, text, shared in region.drawn if not (shared and restored)}
        if call.at in drawn:
            drawn = {call.at: drawn[call.at]}
        if len(drawn) == 1:
            ((line, text),) = drawn.items()
            return line, f"{text}() at {_place(line)} draws other numbers, which no checkpoint restores"
        changed = {name: set(lines) for name, lines in region.changed.items()}
        if drawn or len(changed) != 1:
            return None
        ((name, lines),) = changed.items()
        if call.at is not None and f".{name.rpartition('.')[2]}" in self.facts.text_of(call.at):
            return call.at, f"{name}, which the first pass changed, is not restored"
        line = min(lines, key=lambda each: each.line)
        return line, f"the first pass changed {name} at {_place(line)}, which is not restored"

    def _nodes(self, call: RecomputeCall) -> list[str]:
        """Only the older way of a checkpoint makes a node of the region."""
        reentrant = self.facts.backend.name == "torch" and call.keywords.get("use_reentrant") is True
        return ["b *Checkpoint*"] if reentrant else []

    def _tell_changed(self, call: RecomputeCall, name: str, first: float, second: float) -> None:
        facts = self.facts
        facts.tell(
            Finding(
                0, "recompute-differs", "warning", 0.85,
                f"the region checkpointed at {_place(call.line)} runs twice in each iteration, and both passes change "
                f"{name}, which {call.first[0]} at {_place(call.at)} computes with: the next iteration finds another "
                "value than without the checkpoint",
                iteration=max(1, facts.iteration), forward=call.line, cause=facts.cause(call.at),
                evidence=[
                    f"{name} is {first:g} after the first pass, and {second:g} after the second one, in backward",
                    f"{call.first[0]} in the first pass: norm {call.first[1]:.8g}; the second pass ended before it, "
                    "or came to the same",
                ],
                next=[f"b {_place(call.at)}"] if call.at is not None else [],
            )
        )  # fmt: skip


def _drawn(line: SourceLine) -> SourceLine | None:
    """Where a variable that the line takes is given numbers of Python's or NumPy's own generator."""
    scope = scope_at(line.file, line.line)
    for node in inside(scope) if scope is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno == line.line:
            found = assigned_before(line.file, line.line, node.id)
            if found is None or found[0] >= line.line:
                continue
            calls = [ast.unparse(each.func) for each in ast.walk(found[1]) if isinstance(each, ast.Call)]
            if any(GENERATORS.search(each) and not FRAMEWORKS.match(each) for each in calls):
                return SourceLine(line.file, found[0], line.function)
    return None


def _place(line: SourceLine | None) -> str:
    return f"{os.path.basename(line.file)}:{line.line}" if line is not None else "an unknown line"
