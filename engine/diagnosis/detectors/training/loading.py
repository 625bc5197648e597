"""Weights that were to be loaded."""

from __future__ import annotations

from collections.abc import Sequence

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.protocol.messages import Finding


@detector("not-loaded")
class NotLoaded(Detector):
    """A state dict of which nothing was loaded, without an error (strict=False, Paddle's set_state_dict): its names are
    not those of the model, mostly for a prefix ("module.") that one side has.

    Evidence: the names on both sides, and the prefix without which they are the same.
    Mistaken for: parts of a model that are loaded on purpose (some names are the same: not told), an empty dict (not
    told).
    Cost: none.
    """

    needs = Need.STEPS

    def __init__(self, facts: object) -> None:
        super().__init__(facts)  # type: ignore[arg-type]
        self._loaded = False

    def applied(self) -> bool:
        return self._loaded

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what != "loaded":
            return
        self._loaded = True
        if not event.unexpected or not event.tensors or len(event.missing) < len(event.tensors):
            return
        prefix, side = _prefix(event.missing, event.unexpected)
        evidence = [
            f"the model has {event.missing[0]!r}, the dict {event.unexpected[0]!r}",
            f"{len(event.missing)} names of the model are not in the dict, {len(event.unexpected)} there are unknown",
        ]
        if prefix:
            evidence.append(f"without the prefix {prefix!r} of {side} they are the same names")
        why = f": the names of {side} begin with {prefix!r}" if prefix else ": no name is the same"
        self.facts.tell(
            Finding(
                0, "not-loaded", "error", 0.93 if prefix else 0.85,
                f"nothing of the state dict was loaded{why}; the weights are what they were",
                cause=self.facts.cause(event.line), evidence=evidence,
            )
        )  # fmt: skip


def _prefix(missing: Sequence[str], unexpected: Sequence[str]) -> tuple[str, str]:
    """The prefix that one side has more, and which; ("", "") where none makes most names the same."""
    for longer, shorter, side in ((unexpected, missing, "the dict"), (missing, unexpected, "the model")):
        names = set(shorter)
        for name in longer[:3]:
            for at, letter in enumerate(name):
                if letter == "." and name[at + 1 :] in names:
                    prefix = name[: at + 1]
                    same = sum(each.startswith(prefix) and each[at + 1 :] in names for each in longer)
                    if 2 * same >= min(len(longer), len(shorter)):
                        return prefix, side
    return "", ""
