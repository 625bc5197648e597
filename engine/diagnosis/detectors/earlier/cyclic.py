"""Gradients that keep the graph of a backward with ``create_graph``, and with it the tensors that they are of: a cycle
of references, which nothing but ``.grad = None`` breaks."""

from __future__ import annotations

import weakref
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_LOOKS = 4  # backwards after which there was more each time
_SURE = 12  # of a tensor that every iteration uses: gradients of several batches may be summed on purpose
_MOST = 500  # tensors that are remembered
_SUMS = 4  # of one backward, whose gradients are looked into
_NODES = 10_000  # of such a gradient


@detector("graph-kept")
class GraphGradients(Detector):
    """``loss.backward(create_graph=True)`` leaves gradients that have a graph, which refers to the tensors that they
    are gradients of: a cycle. Memory grows where they are not set to None: of an input that a penalty had take
    gradients, a new one each time, which lives on with its graph; of a parameter whose gradient is never cleared.

    Evidence: tensors of earlier iterations that are alive, only for their ``.grad`` has a graph, one or more in
    addition in each of four backwards; or the number of nodes of earlier iterations in the graph of the same gradient,
    which grows over twelve.
    Mistaken for: ``autograd.grad(create_graph=True)``, which leaves no ``.grad``; gradients that are set to None after
    the step, as optimizers of second order want it (less at a later look: taken back).
    Cost: in backwards with ``create_graph`` a look at each leaf's gradient; nothing in others.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._kept: dict[int, tuple[Any, int]] = {}  # by id: a leaf, and its last iteration
        self._counts: list[int] = []  # of those of earlier iterations that are alive with a graph, look by look
        self._older: dict[int, list[int]] = {}  # by id: nodes of earlier iterations in the graph of its gradient
        self._mark: int | None = None
        self._told, self._since, self._next = 0, 0, 0

    def applied(self) -> bool:
        return bool(self._kept)

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        call, backend = running.call, self.facts.backend
        if not call.create_graph or call.entry != "backward" or len(running.chain) > 1 or error is not None:
            return
        leaves = {id(leaf): leaf for leaf in self._leaves(call)}
        self._kept = {key: each for key, each in self._kept.items() if self._holds(each[0]())}
        gone = [self._kept[key][0]() for key in self._kept.keys() - leaves.keys()]
        grew = not self._counts or len(gone) > self._counts[-1]
        self._counts = [*(self._counts if grew else ()), len(gone)]
        for leaf in leaves.values():
            if self._holds(leaf) and len(self._kept) < _MOST:
                self._kept[id(leaf)] = weakref.ref(leaf), self.facts.iteration
        sums = self._sums(leaves)
        if len(self._counts) > _LOOKS:
            self._tell_leaves(call.location, gone, len(self._counts) - 1)
        elif sums is not None and len(self._older[id(sums)]) > _SURE:
            self._tell_sums(call.location, sums)
        elif self._told and not grew and sums is None:
            self.facts.take_back(self._told)
            self._told = self._next = 0
        self._mark = backend.made_so_far()

    def _leaves(self, call: Any) -> list[Any]:
        every = [each.value for key in call.order() if call.is_accumulate(key) for each in call.saved(key)]
        return [each for each in every if self.facts.backend.is_tensor(each)]

    def _holds(self, leaf: Any) -> bool:
        gradient = self.facts.backend.gradient_of(leaf) if leaf is not None else None
        return gradient is not None and self.facts.backend.has_graph(gradient)

    def _sums(self, leaves: dict[int, Any]) -> Any:
        """Of the first few leaves, which every iteration uses: the one whose gradient gains most."""
        longest: Any = None
        if self._mark is None:
            return None
        for key, leaf in list(leaves.items())[:_SUMS]:
            gradient = self.facts.backend.gradient_of(leaf)
            here = self._holds(leaf)
            older = self.facts.backend.older_nodes(gradient, self._mark, _NODES) if here else 0
            before = self._older.get(key, [])
            self._older[key] = [*(before if before and older > before[-1] else ()), older] if older else []
            if older and (longest is None or len(self._older[key]) > len(self._older[id(longest)])):
                longest = leaf
        self._older = {key: each for key, each in self._older.items() if key in leaves}
        return longest

    # ---- telling

    def _tell_leaves(self, line: SourceLine | None, gone: list[Any], over: int) -> None:
        shapes = {str(list(self.facts.shape(each))) for each in gone if each is not None}
        some = self.facts.some(sorted(shapes))
        counts = ", ".join(map(str, self._counts[-5:]))
        message = (
            f"{len(gone)} tensors of earlier iterations live on, for backward(create_graph=True) has left them a .grad "
            "with a graph that refers to them: a cycle, and memory grows; use autograd.grad for the gradient that is "
            "computed with, or set .grad to None"
        )
        self._tell(line, message, [
            f"tensors of earlier backwards whose .grad has a graph, backward by backward: {counts}",
            f"no operator of the graph at hand takes them; they are {some}",
        ], 0.93)  # fmt: skip

    def _tell_sums(self, line: SourceLine | None, leaf: Any) -> None:
        name = self.facts.title_of(leaf) or f"a leaf {list(self.facts.shape(leaf))}"
        older = self._older[id(leaf)]
        message = (
            f".grad of {name} keeps the graphs of all earlier backwards: backward(create_graph=True) adds a gradient "
            "with a graph to it each time, and memory grows; set .grad to None after the step, or use autograd.grad"
        )
        told = ", ".join(map(str, older[-5:]))
        evidence = [f"nodes of earlier iterations in the graph of that gradient, backward by backward: {told}"]
        self._tell(line, message, evidence, 0.9)

    def _tell(self, line: SourceLine | None, message: str, evidence: list[str], sure: float) -> None:
        """Anew with the counts of twice as many iterations."""
        now = self.facts.iteration
        if now < self._next:
            return
        self._since, self._next = self._since if self._told else now, 2 * now
        self._told = self.facts.tell(
            Finding(
                self._told, "graph-kept", "error", sure, message, cause=self.facts.cause(line), forward=line,
                evidence=evidence, next=["info backwards", "info memory"], iteration=self._since,
            )
        )  # fmt: skip
