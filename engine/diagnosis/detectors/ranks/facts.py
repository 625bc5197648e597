"""Facts of one rank of a job. No rank is asked here what another one has: that would take a collective of adbg's in the
program."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OptimizerEvent, detector
from adbg.engine.diagnosis.detectors.ranks.sources import seeded_by_rank, use_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.sampling import is_sampled
from adbg.engine.diagnosis.source import tree_of
from adbg.engine.diagnosis.values import is_users, line_in, steps_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding, FoundAt, RankFacts
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 256 << 20  # bytes that are hashed of one iteration; 0.3 s
_NOT_REDUCED = (  # of torch, of Paddle
    "Expected to have finished reduction in the prior iteration",
    "Please set find_unused_parameters=True to traverse backward graph",
)
_INDICES = re.compile(r"did not receive grad for rank (\d+)\s*:\s*([\d ]+)")


@detector("drifted-parameters", "unused-in-rank", "uneven-batches")
class RanksApart(Detector):
    """Ranks of one job that go apart. "drifted-parameters": parameters that were the same on all ranks and are not any
    more, or that never were although all ranks use the same gradients. "unused-in-rank": parameters that got no
    gradient on some ranks only, such as those of a branch that was not taken there; DistributedDataParallel raises then
    on one rank, and the others wait. "uneven-batches": a rank that ended after fewer iterations, while others waited
    for it in a collective.

    Evidence: hashes of every parameter and of the gradients that each step used, of the same iteration of each rank,
    compared by the front end; how many iterations each rank ran. Counted from the first forward of the wrapper that
    averages gradients: a rank may have trained alone before.
    Mistaken for: jobs whose ranks hold different parts of a model (told is only where all that differs was the same
    before; biases of zeros and scales of ones are no evidence), and averaging every few steps (a note where no rank
    ever had the gradient of another; taken back when parameters are the same again).
    Cost: nothing in a job of one process; else a hash of up to 256 MB of parameters and gradients in iterations 1 to 3,
    8, 10, 11, 16, 20 and so on. No collective is run.
    """

    needs = Need.STEPS | Need.MODULES

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._line: SourceLine | None = None
        self._step: OptimizerEvent | None = None
        self._schedule: SourceLine | None = None
        self._gradients: dict[str, str] = {}
        self._failed = ""
        self._world = 0
        self._wrapper = ""  # its class, once it ran
        self._before = 0  # backwards until then
        self._seeded: SourceLine | None = None
        self._made: SourceLine | None = None  # the first optimizer
        self._loaded: SourceLine | None = None
        self._loaded_ids: frozenset[int] = frozenset()  # of the parameters
        self._root: Callable[[], Any] = lambda: None  # the outermost module that ran last, held weakly

    def applied(self) -> bool:
        return self._world > 1

    def _many(self) -> bool:
        if not self._world:
            self._world = world_of(self.facts.backend)
        return self._world > 1

    # ---- what happens

    def module_begin(self, call: ModuleCall) -> None:
        if call.outermost and call.grad_mode and self._root() is not call.module:
            with suppress(TypeError):
                self._root = weakref.ref(call.module)
            kind = self.facts.backend.reducer_kind
            if not self._wrapper and kind is not None and issubclass(type(call.module), kind):
                self._wrapper, self._before = type(call.module).__name__, self.facts.iteration
                self._step, self._gradients = None, {}

    def backward_begin(self, running: Running) -> None:
        if len(running.chain) == 1:
            if self._line is None and self._many():
                self._seeded = self._seeded_before()
            self._line = running.call.location

    def _seeded_before(self) -> SourceLine | None:
        """Not what is seeded so once the weights are made, as is right."""
        found, made = seeded_by_rank(sys._getframe(2)), self._made
        if found is None:
            return None
        seeded, by = found
        same = made is not None and (by.file, by.function) == (made.file, made.function)
        return None if same and made is not None and by.line > made.line else seeded

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is not None and len(running.chain) == 1:
            self._failed = running.call.error_text(error).split("\n", 1)[0][:300]

    def optimizer(self, event: OptimizerEvent) -> None:
        if event.what == "made" and self._made is None:
            self._made = event.line
        if event.what == "scheduled":
            self._schedule = event.line
        if event.what == "loaded" and not (self._wrapper and self._step):
            self._loaded, self._loaded_ids = event.line, frozenset(map(id, event.tensors))
        if event.what != "step" or not self._looks() or not self._many():
            return
        if self._step is None:  # what the ranks began with
            self._share("iteration", *self._hashed(), self._iteration - 1)
        self._step = replace(event, optimizer=None, tensors=())  # nothing is kept alive
        backend = self.facts.backend
        left = _MOST
        for name, parameter in self._weights():
            if left > 0 and backend.meta(parameter).requires_grad:
                gradient = backend.gradient_of(parameter)
                self._gradients[name], size, _ = self._hash(gradient) if self._has(gradient) else ("", 0, False)
                left -= size

    def _weights(self) -> list[tuple[str, Any]]:
        """Each by its longest name: a part that ran alone has a shorter one."""
        found: dict[int, tuple[str, Any]] = {}
        for name, parameter in self.facts.backend.weights():
            if len(name) >= len(found.get(id(parameter), ("", None))[0]):
                found[id(parameter)] = name, parameter
        return list(found.values())

    def _looks(self) -> bool:
        return self.facts.deep or is_sampled(self.facts.iteration - self._before)

    @property
    def _iteration(self) -> int:
        return self.facts.before + self.facts.iteration - self._before

    def iteration_end(self) -> None:
        if self._looks() and not self._failed and self._many():  # a step that did not take place is none to compare
            self._share("iteration", *self._hashed(), self._iteration)
        self._gradients = {}

    def end(self) -> None:
        if self._many():
            self._share("end", {}, [], self._iteration)

    def _hashed(self) -> tuple[dict[str, str], list[str]]:
        """By name; and the names of those with one value in all elements."""
        left = _MOST
        found: dict[str, str] = {}
        constant: list[str] = []
        for name, parameter in self._weights():
            if left > 0:
                found[name], size, alike = self._hash(parameter)
                constant += [name] * alike
                left -= size
        return found, constant

    def _share(self, what: str, parameters: dict[str, str], constant: list[str], iteration: int) -> None:
        facts, step = self.facts, self._step
        facts.share(
            RankFacts(
                what=what,
                world=self._world,
                iteration=iteration,
                parameters=parameters,
                gradients=self._gradients,
                rates=list(step.rates) if step is not None else [],
                backward=facts.cause(self._line),
                step=facts.cause(step.line) if step is not None else None,
                schedule=facts.cause(self._schedule),
                loop=facts.cause(_loop_around(self._line)),
                uses={name: used for name in self._without() if (used := facts.cause(self._use(name))) is not None},
                failed=self._failed,
                constant=constant,
                wrapper=self._wrapper,
                loaded=facts.cause(self._loaded),
                loaded_names=[name for name, each in self._weights() if id(each) in self._loaded_ids],
                seeded=facts.cause(self._seeded),
            )
        )

    def _without(self) -> list[str]:
        return [name for name, each in self._gradients.items() if not each][:8]

    def _has(self, gradient: Any) -> bool:
        """Zeros are none: Paddle clears gradients to them."""
        return gradient is not None and self.facts.backend.norm(gradient) != 0

    def _hash(self, tensor: Any) -> tuple[str, int, bool]:
        """Of all its bytes, how many they are, and whether all elements are the same; ("?", 0, False) where they
        cannot be read."""
        backend = self.facts.backend
        found, size, constant, first = hashlib.blake2b(digest_size=8), 0, True, b""
        with suppress(Exception):
            meta = backend.meta(tensor)
            width = max(1, meta.nbytes // max(1, meta.numel))

            def put(piece: memoryview) -> None:
                nonlocal size, constant, first
                size += piece.nbytes
                found.update(piece)
                if constant:
                    first = first or bytes(piece[:width])
                    constant = _repeats(piece, first)

            backend.feed_bits(tensor, put)
            return found.hexdigest(), size, constant
        return "?", 0, False

    # ---- an exception of the wrapper's

    def uncaught(self, error: BaseException) -> None:
        text = self.facts.backend.error_text(error)
        self._failed = self._failed or text.split("\n", 1)[0][:300]
        if not any(words in text for words in _NOT_REDUCED):
            return
        facts, backend = self.facts, self.facts.backend
        indices = _INDICES.search(text)
        rank = indices[1] if indices is not None else backend.rank()
        rank = _environment("RANK", "PADDLE_TRAINER_ID") if rank is None else rank
        trained = [(name, each) for name, each in self._weights() if backend.meta(each).requires_grad]
        if indices is not None:
            places = [int(each) for each in indices[2].split()]
            names = [trained[place][0] for place in places if place < len(trained)]
        else:
            names = [name for name, each in trained if not self._has(backend.gradient_of(each))]
        if not names or len(names) == len(trained):
            return
        used = self._use(names[0])
        called = next((line_in(error, frame) for frame, _ in reversed(steps_of(error)) if is_users(frame)), None)
        shown = facts.some(names)
        where = f": `{facts.text_of(used)}` did not run there" if used is not None else ""
        evidence = [
            text.strip().split("\n", 1)[0][:400],
            f"without a gradient on rank {rank}: {', '.join(names)}",
        ]
        evidence.append(f"in iteration {facts.before + facts.iteration}, whose gradients the other ranks wait for")
        id = facts.tell(
            Finding(
                0, "unused-in-rank", "error", 0.95 if used is not None else 0.85,
                f"{shown} got no gradient on rank {rank}, and the gradients are averaged over all ranks{where}; "
                "use it in every iteration, or say find_unused_parameters=True",
                FoundAt(parameter=names[0]), forward=called, cause=facts.cause(used or called), evidence=evidence,
                next=["info params", f"b param:{names[0]}"],
            )
        )  # fmt: skip
        for known in list(facts.findings.values()):
            if known.kind == "operator-error" and any(
                words in each for each in known.evidence for words in _NOT_REDUCED
            ):
                facts.tell(replace(known, victim_of=id))

    def _use(self, name: str) -> SourceLine | None:
        """The line of the forward that uses a parameter."""
        root = self._root()
        return use_of(root, name) if root is not None else None


def _repeats(piece: memoryview, element: bytes) -> bool:
    """Bytes that are nothing but one element again and again. Weights that are not end at the first few."""
    few = bytes(piece[:256])
    return few == (element * 256)[: len(few)] and bytes(piece) == element * (len(piece) // len(element))


def world_of(backend: Backend) -> int:
    """How many ranks the job has; 0: it is no job."""
    return backend.world() or _environment("WORLD_SIZE", "PADDLE_TRAINERS_NUM")


def _environment(*names: str) -> int:
    """As launchers tell it, where the framework does not."""
    return next((int(text) for name in names if (text := os.environ.get(name, "")).isdigit()), 0)


def _loop_around(line: SourceLine | None) -> SourceLine | None:
    """The innermost loop of the statement at a line."""
    tree = tree_of(line.file) if line is not None else None
    if tree is None or line is None:
        return None
    found = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)) and node.lineno < line.line <= (node.end_lineno or 0):
            found = node if found is None or node.lineno > found.lineno else found
    return SourceLine(line.file, found.lineno, line.function) if found is not None else None
