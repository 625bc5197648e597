"""What training changed is computed as after less before, and both are the weights of now."""

from __future__ import annotations

from typing import Any

from adbg.engine.diagnosis.detector import Detector, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.aliases.loaded import Loaded, keeping, what_is_loaded
from adbg.engine.diagnosis.detectors.aliases.restored import in_one_memory
from adbg.engine.diagnosis.detectors.earlier.holding import is_of, running_frames, value_in
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import assigned_before
from adbg.engine.frames import forget_stack
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine


@detector("silent-overwrite")
class NothingBetween(Detector):
    """Weights are loaded that were computed of how far training has moved them (``before[k] + rate * (after[k] -
    before[k])``: Reptile, Lookahead, federated averaging), and ``before`` is a ``state_dict()`` whose tensors are the
    weights themselves: training moved them too, the difference is 0, and what is loaded is what was there.

    Evidence: the names of both in that line, and that each of their tensors lies in the memory of the same weight.
    Mistaken for: copies (``clone()``, ``deepcopy``: other memory), weights that no step came before, or two models that
    share some of their weights (all have to).
    Cost: at each call that loads weights a look at the source, and at the memory of what two of its names hold.
    """

    needs = Need.STEPS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._stepped: SourceLine | None = None
        self._steps = 0  # since weights were loaded last
        self._seen = False
        self._told: set[SourceLine] = set()

    def applied(self) -> bool:
        return self._seen

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "stepped":
            self._stepped = event.line
            self._steps += 1
        elif event.what == "loaded" and event.line is not None and event.line not in self._told:
            self._seen = True
            if self._steps:
                self._look(event, event.line)
            self._steps = 0

    def _look(self, event: OptimizerEvent, line: SourceLine) -> None:
        frame = next((each for each in running_frames() if is_of(each, line)), None)
        if frame is None:
            return
        here = Loaded(frame, line.line, "")
        handed = what_is_loaded(line)
        forget_stack()
        for loaded in (here, handed) if handed is not None else (here,):
            for difference, later, earlier in loaded.differences():
                before = _tensors(value_in(earlier, loaded.frame))
                after = _tensors(value_in(later, loaded.frame))
                if before and self._are_the_weights(event, before, after):
                    kept = _kept(loaded, earlier) or difference
                    self._tell(line, difference, (later, earlier), kept, len(before))
                    return

    def _are_the_weights(self, event: OptimizerEvent, before: dict[Any, Any], after: dict[Any, Any]) -> bool:
        backend = self.facts.backend
        shared = [key for key in before if key in after]
        if not shared or any(not backend.is_tensor(each[key]) for key in shared for each in (before, after)):
            return False
        kept = {at for key in shared for at, _ in backend.storages(before[key])}
        own = {at for each in event.tensors for at, _ in backend.storages(each)}
        return bool(own) and own <= kept and all(in_one_memory(backend, before[key], after[key]) for key in shared)

    def _tell(
        self, line: SourceLine, difference: SourceLine, names: tuple[str, str], kept: SourceLine, count: int
    ) -> None:
        facts, (later, earlier) = self.facts, names
        self._told.add(line)
        message = (
            f"{place(line)} loads weights that do not move: {later} and {earlier} at {place(difference)} are both the "
            f"weights themselves, so that their difference is 0; the steps at "
            f"{place(self._stepped)} have changed {earlier}, too; keep a copy (copy.deepcopy, or clone() of each)"
        )
        evidence = [
            f"{place(kept)} keeps it: {facts.text_of(kept)}",
            f"{place(difference)} takes the difference: {facts.text_of(difference)}",
            f"the {count} tensors of {earlier} and those of {later} lie in the memory of the parameters",
        ]
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.93, message, iteration=facts.iteration, forward=line,
                cause=facts.cause(kept), evidence=evidence, next=[f"b {place(kept)}", f"b {place(difference)}"],
            )
        )  # fmt: skip


def _tensors(held: Any) -> dict[Any, Any]:
    """By key, or by place. Only of dicts and lists, which run no code of the program's as they are read."""
    if (isinstance(held, dict) and type(held).__iter__ is dict.__iter__) or type(held).__name__ == "OrderedDict":
        return dict(held)
    return dict(enumerate(held)) if type(held) in (list, tuple) else {}


def _kept(loaded: Loaded, earlier: str) -> SourceLine | None:
    """The line that kept them, if need be in the function that was called for it."""
    made = assigned_before(loaded.file, loaded.at, earlier)
    if made is None:
        return None
    function = loaded.frame.f_code.co_name
    kept = keeping(loaded.file, made[1], function)
    return kept.line if kept is not None else SourceLine(loaded.file, made[0], function)
