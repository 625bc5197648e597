"""BatchNorm that was trained, and then frozen by its weights alone: its running statistics go on."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MODULES, _LOOKS, _PARTS = 2000, 16, 64
_STEPS = 8  # forwards in which it was trained, and in which it is frozen
_MOVED = 0.1  # of the norm of the running mean: batches of the same data move it by less
_BEYOND = 2.0  # times what it moved by while its weights were trained


@dataclass(slots=True)
class _Norm:
    path: str
    part: weakref.ref[Any]
    weights: list[weakref.ref[Any]]
    trained: int = 0  # forwards in training mode in which its weights took gradients
    frozen: int = 0  # and did not, after that
    toggled: bool = False  # they took them again: a discriminator
    evaluated: bool = False  # it ran in evaluation mode after that
    last: float = 0.0  # norm of the running mean at the last look while it was trained
    usual: float = 0.0  # by how much that changed from look to look
    before: float = 0.0  # as it was frozen
    now: float = 0.0  # and later: the module may be gone at the end


@detector("wrong-mode")
class FrozenNorms(Detector):
    """An encoder that was trained, and whose parameters are then frozen for another task; but its BatchNorm runs in
    training mode, and its running statistics become those of the new data. What was learnt before does not fit them.

    Evidence: that its weights took gradients and take none since, the norm of its running mean then and later, which
    moved by more than while they were trained; it runs in evaluation mode afterwards.
    Mistaken for: statistics that are meant to follow the new data; weights that are frozen from time to time, as those
    of a discriminator (not told); a part that was frozen from the beginning (a note of another detector's).
    Cost: at each forward of an outermost module a look at the flags of its BatchNorm layers, and at every eighth one
    the norms of their running means.
    """

    needs = Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._outer: dict[int, tuple[weakref.ref[Any], list[_Norm]]] = {}  # by id of the outermost module
        self._norms: dict[int, _Norm] = {}  # by id: one layer may be reached by two modules
        self._line: SourceLine | None = None

    def applied(self) -> bool:
        return bool(self._norms)

    def module_begin(self, call: ModuleCall) -> None:
        if not call.outermost:
            return
        known = self._outer.get(id(call.module))
        if known is None or known[0]() is not call.module:
            if len(self._outer) >= _LOOKS or not call.training:
                return
            known = self._outer[id(call.module)] = weakref.ref(call.module), list(self._norms_of(call.module))
        for norm in known[1]:
            part = norm.part()
            if part is None or norm.toggled:
                continue
            if not part.training:
                norm.evaluated = norm.evaluated or norm.frozen >= _STEPS
            elif call.grad_mode:
                self._forward(norm, part, call)

    def _forward(self, norm: _Norm, part: Any, call: ModuleCall) -> None:
        """In training mode."""
        torch = self.facts.backend.name == "torch"
        weights = [each for ref in norm.weights if (each := ref()) is not None]
        if any(each.requires_grad if torch else not each.stop_gradient for each in weights):
            norm.toggled = norm.frozen > 0
            norm.trained += 1
            if not norm.trained % _STEPS:
                mean = self._mean(part)
                norm.usual = max(norm.usual, abs(mean - norm.last)) if norm.trained > _STEPS else 0.0
                norm.last = mean
        elif norm.trained >= _STEPS:
            norm.frozen += 1
            if norm.frozen == 1:
                norm.before = self._mean(part)
            elif not norm.frozen % _STEPS:
                norm.now = self._mean(part)
            if self._line is None:
                self._line = call.mode_line or call.line

    def _norms_of(self, module: Any) -> Iterator[_Norm]:
        backend, found = self.facts.backend, []
        with suppress(Exception):  # a property of the program's
            torch = backend.name == "torch"
            named = module.named_modules() if torch else module.named_sublayers(include_self=True)
            for path, part in itertools.islice(named, _MODULES):
                weights = [each for each in _weights(part) if backend.is_tensor(each)]
                if weights:
                    found.append((path, part, weights))
        for path, part, weights in found[:_PARTS]:
            known = self._norms.get(id(part))
            if known is None or known.part() is not part:
                known = _Norm(path, weakref.ref(part), [weakref.ref(each) for each in weights])
                self._norms[id(part)] = known
            yield known

    def _mean(self, part: Any) -> float:
        mean = getattr(part, "running_mean", getattr(part, "_mean", None))
        return self.facts.backend.norm(mean) if mean is not None else 0.0

    def end(self) -> None:
        moved: list[tuple[str, float, float]] = []
        frozen = 0
        for norm in self._norms.values():
            if norm.toggled or not norm.evaluated or norm.frozen < 2 * _STEPS:
                continue
            if abs(norm.now - norm.before) > max(_MOVED * max(norm.now, norm.before), _BEYOND * norm.usual):
                moved.append((norm.path, norm.before, norm.now))
                frozen = max(frozen, norm.frozen)
        if not moved:
            return
        facts = self.facts
        facts.tell(
            Finding(
                0, "wrong-mode", "warning", 0.75,
                f"{facts.some([path for path, _, _ in moved])}: the weights were trained and are frozen now, but the "
                "running statistics go on, for it runs in training mode: what was learnt with the old ones does not "
                "fit them; call eval() of the frozen part after train()",
                cause=facts.cause(self._line),
                evidence=[
                    *[f"norm of the running mean of {path}: {before:.4g} as it was frozen, {now:.4g} later"
                      for path, before, now in moved[:3]],
                    f"{frozen} forwards in training mode since then, the mode set at {place(self._line)}",
                ],
            )
        )  # fmt: skip


def _weights(part: Any) -> list[Any]:
    """Of a BatchNorm with running statistics."""
    if "BatchNorm" not in type(part).__name__ or getattr(part, "running_mean", getattr(part, "_mean", None)) is None:
        return []
    return [each for each in (getattr(part, "weight", None), getattr(part, "bias", None)) if each is not None]
