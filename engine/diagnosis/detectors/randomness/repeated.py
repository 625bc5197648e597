"""Random numbers that a training draws over and over again: its generator is seeded anew, or set back, in a loop."""

from __future__ import annotations

from typing import Any

from adbg.engine.backends.base import OperatorCall, OptimizerEvent
from adbg.engine.diagnosis.detector import Detector, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain
from adbg.engine.diagnosis.detectors.randomness.reseeding import seeded_in_loop
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 2000  # looks at the generator
_OFTEN = 7  # backwards that begin with one state
_DRAWS = frozenset({
    "randn_like", "rand_like", "randn", "rand", "normal", "gaussian", "uniform", "bernoulli", "dropout", "randperm",
    "randint", "multinomial", "poisson", "exponential", "randint_like", "standard_normal",
})  # fmt: skip
_REWINDS = 2  # one may be meant: a second phase that begins as the first one did


@detector("repeated-random")
class RepeatedRandom(Detector):
    """Masks, permutations and noise of a training are the same again and again: something seeds the global generator in
    each epoch (a preview, a validation with fixed numbers, a data set), so that the model sees the same draws again.

    Evidence: the state of the framework's generator as each backward begins, which is that of an earlier backward again
    though numbers were drawn in between, twice or more; the line that seeds it inside of a loop.
    Mistaken for: several models that are trained from one seed each (another optimizer begins anew, so that nothing is
    told where two of them take turns), a program that draws nothing, or that seeds before each forward where no line in
    a loop is seen that does (all states are alike: not told), generators of one's own, a data set that seeds with the
    number of a sample (no line in a loop: a note). Of numbers that are repeated on purpose (the same noise for several
    losses) it is a warning.
    Cost: 9 us a backward on torch, 51 on Paddle (which gives its state as text), for 2,000 of them.
    """

    needs = Need.STEPS
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._looks = self._same = 0
        self._drawn: tuple[str, SourceLine | None] | None = None
        self._location: SourceLine | None = None
        self._told = False
        self._stepped = 0  # the optimizer that stepped last
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._seen: dict[int, int] = {}  # state -> the iteration whose backward began with it
        self._last: int | None = None
        self._before = 0  # the iteration that the last state was that of; 0: a new one
        self._rewinds: list[tuple[int, int]] = []  # (iteration, the earlier one that it begins like)

    def applied(self) -> bool:
        return len(self._seen) > 1

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "made" or (event.what == "stepped" and id(event.optimizer) != self._stepped):
            self._begin_anew()
        if event.what == "stepped":
            self._stepped = id(event.optimizer)

    def backward_begin(self, running: Running) -> None:
        if self._told or self._looks >= _MOST or len(running.chain) > 1:
            return
        self._looks += 1
        state = self.facts.backend.keeping.random_state()
        if state is None or state == self._last:  # nothing was drawn, or it is seeded in each forward
            self._same += state is not None
            self._location = running.call.location
            return
        self._last = state
        now = self.facts.iteration
        before = self._seen.setdefault(state, now)
        if before == now:
            self._before = 0
            return
        if not self._before or before < self._before:
            self._rewinds.append((now, before))
        self._before = before
        if len(self._rewinds) >= _REWINDS:
            self._tell(running.call.location)

    def operator(self, call: OperatorCall) -> None:
        own = call.keywords.get("generator") is not None or not call.grad_mode
        if plain(call.name) in _DRAWS and not own and self._drawn is None and self.facts.iteration:
            self._drawn = call.name, line_of(call.lines)

    def end(self) -> None:
        """The state was the same at each backward, though numbers are drawn: the same ones, each time."""
        found = seeded_in_loop(self._location.file) if self._location is not None else None
        if self._told or self._same < _OFTEN or len(self._seen) > 1 or self._drawn is None or found is None:
            return
        facts, (name, line) = self.facts, self._drawn
        facts.tell(
            Finding(
                0, "repeated-random", "warning", 0.8,
                f"each iteration draws the same numbers: `{found[1]}` at {place(found[0])} seeds the global generator "
                f"before {name} at {place(line)}; seed it once, or give that a generator of its own",
                iteration=facts.iteration, cause=facts.cause(found[0]),
                evidence=[f"the generator's state is the same as {self._same + 1} backwards begin",
                          f"{name} at {place(line)} draws numbers in each of them"],
                next=[f"b {place(line)}"],
            )
        )  # fmt: skip

    def _tell(self, location: SourceLine | None) -> None:
        self._told = True
        facts, (now, before) = self.facts, self._rewinds[-1]
        found = seeded_in_loop(location.file) if location is not None else None
        how = f": `{found[1]}` at {place(found[0])} does that in each round of a loop" if found is not None else ""
        advice = "; give that a generator of its own, or set the state back behind it" if found is not None else ""
        facts.tell(
            Finding(
                0, "repeated-random", "warning" if found is not None else "note", 0.8 if found is not None else 0.45,
                "the global generator is set back while the model is trained, so that masks, permutations and noise "
                f"are those of earlier iterations again{how}{advice}",
                iteration=now, cause=facts.cause(found[0]) if found is not None else None,
                evidence=[
                    f"the backward of iteration {each} begins with the state of the generator that iteration {earlier} "
                    "had" for each, earlier in self._rewinds
                ] + [f"between iterations {before} and {now} numbers were drawn: {len(self._seen)} states were seen"],
                next=[f"b {place(found[0])}"] if found is not None else ["info params"],
            )
        )  # fmt: skip
