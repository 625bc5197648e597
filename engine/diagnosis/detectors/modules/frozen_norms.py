"""BatchNorm that was trained, and then frozen by its weights alone: its running statistics go on."""

from __future__ import annotations

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
_MOVED = 0.01  # of the norm of the running mean


@dataclass(slots=True)
class _Norm:
    path: str
    part: weakref.ref[Any]
    trained: int = 0  # forwards in training mode in which its weights took gradients
    frozen: int = 0  # and did not, after that
    toggled: bool = False  # they took them again: a discriminator
    before: float = 0.0  # norm of the running mean as it was frozen
    now: float = 0.0  # and later: the module may be gone at the end


@detector("wrong-mode")
class FrozenNorms(Detector):
    """An encoder that was trained, and whose parameters are then frozen for another task; but its BatchNorm runs in
    training mode, and its running statistics become those of the new data. What was learnt before does not fit them.

    Evidence: that its weights took gradients and take none since, the norm of its running mean then and at the end.
    Mistaken for: statistics that are meant to follow the new data; weights that are frozen from time to time, as those
    of a discriminator (not told); a part that was frozen from the beginning (a note of another detector's).
    Cost: at each forward of an outermost module a look at the flags of its BatchNorm layers, 1 us each.
    """

    needs = Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._norms: dict[int, tuple[weakref.ref[Any], list[_Norm]]] = {}  # by id of the outermost module
        self._line: SourceLine | None = None

    def applied(self) -> bool:
        return any(norms for _, norms in self._norms.values())

    def module_begin(self, call: ModuleCall) -> None:
        if not (call.outermost and call.grad_mode):
            return
        known = self._norms.get(id(call.module))
        if known is None or known[0]() is not call.module:
            if len(self._norms) >= _LOOKS:
                return
            known = self._norms[id(call.module)] = weakref.ref(call.module), list(self._norms_of(call.module))
        for norm in known[1]:
            part = norm.part()
            if part is None or not part.training or norm.toggled:
                continue
            if any(self.facts.backend.meta(each).requires_grad for each in _weights(part)):
                norm.toggled = norm.frozen > 0
                norm.trained += 1
            elif norm.trained >= _STEPS:
                norm.frozen += 1
                if norm.frozen == 1:
                    norm.before = self._mean(part)
                elif not norm.frozen % _STEPS:
                    norm.now = self._mean(part)
                if self._line is None:
                    self._line = call.mode_line or call.line

    def _norms_of(self, module: Any) -> Iterator[_Norm]:
        torch = self.facts.backend.name == "torch"
        with suppress(Exception):  # a property of the program's
            named = module.named_modules() if torch else module.named_sublayers(include_self=True)
            norms = [(path, part) for (path, part), _ in zip(named, range(_MODULES)) if _weights(part)]
            yield from (_Norm(path, weakref.ref(part)) for path, part in norms[:_PARTS])

    def _mean(self, part: Any) -> float:
        mean = getattr(part, "running_mean", getattr(part, "_mean", None))
        return self.facts.backend.norm(mean) if mean is not None else 0.0

    def end(self) -> None:
        moved: list[tuple[str, float, float]] = []
        frozen = 0
        for norm in (each for _, norms in self._norms.values() for each in norms):
            if norm.toggled or norm.frozen < _STEPS:
                continue
            if abs(norm.now - norm.before) > _MOVED * max(norm.now, norm.before):
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
