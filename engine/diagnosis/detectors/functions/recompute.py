"""Checkpointed regions that compute something else when they are run again in backward."""

from __future__ import annotations

import ast
import os
import re

from adbg.engine.backends.base import RecomputeCall
from adbg.engine.diagnosis.detector import Detector, Need, detector
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
# ``random.gauss``, ``np.random.rand``, ``self.rng.normal``, ``default_rng(0).random``
_GENERATORS = re.compile(
    r"(?:^|[._])(?:rng|random|default_rng|RandomState|generator)\b.*\.\w+$|^(?:randint|uniform|gauss)$"
)
_FRAMEWORKS = re.compile(r"(?:torch|paddle|F|nn)\.")


@detector("recompute-differs")
class RecomputeDiffers(Detector):
    """A region under a checkpoint (torch.utils.checkpoint, fleet.utils.recompute) computes something else when it is
    run again in backward, so that the gradients belong to other values than the loss: random numbers that are not
    restored (preserve_rng_state=False, Python's or NumPy's own), state that the first pass changed, another mode. On
    PyTorch also a number that each pass changes and that the region computes with, where no operator differs.

    Evidence: the first operator whose value differs between the two passes, with both norms; or the attribute, with its
    values behind both passes.
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
        if not unrestored and not random and not call.inputs_differ and cause is not None and by_operator:
            cause = _drawn(cause) or cause
        where = _place(call.line)
        what = f"{name} at line {call.at.line}" if call.at is not None else name
        why = (
            "its random numbers are not restored (preserve_rng_state=False)"
            if unrestored and (random or not by_operator)
            else "what it was given was changed in place meanwhile" if call.inputs_differ
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
                next=[*self._nodes(call), f"b {cause.file}:{cause.line}"] if cause is not None else [],
            )
        )  # fmt: skip

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
                    f"{name} is {first:g} behind the first pass, and {second:g} behind the second one, in backward",
                    f"{call.first[0]} in the first pass: norm {call.first[1]:.8g}; the second pass ended before it, "
                    "or came to the same",
                ],
                next=[f"b {call.at.file}:{call.at.line}"] if call.at is not None else [],
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
            if any(_GENERATORS.search(each) and not _FRAMEWORKS.match(each) for each in calls):
                return SourceLine(line.file, found[0], line.function)
    return None


def _place(line: SourceLine | None) -> str:
    return f"{os.path.basename(line.file)}:{line.line}" if line is not None else "an unknown line"
