"""Generators that a data set keeps, and that each worker of a loader has a copy of."""

from __future__ import annotations

import dis
import random
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.source import assigned
from adbg.engine.outside import own
from adbg.engine.own_files import is_library
from adbg.engine.protocol.messages import Finding

_DEEP = 3  # data sets that one wraps another
_MOST = 64  # attributes of each
_WORKER = "get_worker_info"


@detector("repeated-random")
class CopiedGenerators(Detector):
    """A data set keeps a generator (``self.rng = np.random.default_rng(seed)``) and draws of it in ``__getitem__``, and
    a loader with workers goes through it: each worker gets a copy as each pass begins, which nobody moves on here. All
    workers draw the same numbers, and each epoch draws those of the first one again.

    Evidence: the state of the generator as two passes begin, which is the same; how many workers there are.
    Mistaken for: a function for workers (``worker_init_fn``), which may seed them; a data set that asks which worker it
    is in, or seeds or renews the generator itself; a generator that only ``__init__`` uses; workers that stay
    (``persistent_workers``), whose copies go on: not told.
    Cost: a look at the attributes of the data set as a loader begins.
    """

    needs = Need.LOADERS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._states: dict[int, tuple[Any, dict[str, str]]] = {}  # by data set, of each generator as a pass began
        self._told: set[str] = set()
        self._any = False

    def applied(self) -> bool:
        return self._any

    def loader(self, event: LoaderEvent) -> None:
        self._any = True
        if event.what != "begins" or not event.workers or event.persistent or event.seeds is not None:
            return
        ref, before = self._states.get(id(event.dataset), (None, {}))
        if ref is None or ref() is not event.dataset:  # a loader may be made anew for each pass
            try:
                ref, before = weakref.ref(event.dataset), {}
            except TypeError:
                return
            self._states[id(event.dataset)] = ref, before
        for holder, name, generator in _generators(event.dataset):
            kind = type(holder)
            key = f"{kind.__qualname__}.{name}"
            state = _state(generator)
            same = bool(state) and before.get(key) == state
            before[key] = state
            if same and key not in self._told and _draws(kind, name):
                self._told.add(key)
                self._tell(event, kind, name)

    def _tell(self, event: LoaderEvent, kind: type, name: str) -> None:
        code = next((each.__code__ for each in _methods(kind)), None)
        line = assigned(code.co_filename, name, kind.__name__) if code is not None else None
        where = f" (made at {place(line)})" if line is not None else ""
        several = f"its {event.workers} workers draw the same numbers, and " if event.workers > 1 else ""
        self.facts.tell(
            Finding(
                0, "repeated-random", "warning", 0.9,
                f"the loader of {place(event.line)} copies '{name}' of its {kind.__name__}{where} to {event.workers} "
                f"workers as each pass begins, and it is where it was: {several}each pass draws those of the first",
                None, None, self.facts.iteration, event.line, self.facts.cause(line or event.line),
                [
                    f"the state of '{name}' in this process is the same as two passes begin; what workers draw of "
                    "their copies is forgotten with them",
                    f"make it in each worker, by its own seed (worker_init_fn, or as the first sample is asked for: "
                    f"{_WORKER}().seed), or draw by the number of the sample and of the epoch",
                ],
                [f"b {place(event.line)}"],
            )
        )  # fmt: skip


def _generators(dataset: Any) -> Iterator[tuple[Any, str, Any]]:
    """(who has it, its name, a generator) of a data set, what it wraps, and what it applies."""
    todo, depth = [dataset], 0
    while todo and depth < _DEEP:
        holders, todo, depth = todo, [], depth + 1
        for holder in holders:
            kept = getattr(holder, "__dict__", None)
            if type(kept) is not dict:
                continue
            for name, value in list(kept.items())[:_MOST]:
                if _is_generator(value):
                    yield holder, name, value
                elif not is_library(getattr(_module_of(value), "__file__", None) or "<built in>"):
                    todo.append(value)
                elif name in ("dataset", "datasets", "transform", "transforms"):
                    todo += value if isinstance(value, (list, tuple)) else [value]


def _module_of(value: Any) -> types.ModuleType | None:
    return sys.modules.get(type(value).__module__)


def _is_generator(value: Any) -> bool:
    kind = type(value)
    numpy = kind.__module__.startswith("numpy.random") and kind.__name__ in ("Generator", "RandomState")
    return numpy or type(value) is random.Random or (kind.__name__, kind.__module__) == ("Generator", "torch._C")


def _state(generator: Any) -> str:
    try:
        if isinstance(generator, random.Random):
            return str(hash(generator.getstate()))
        if hasattr(generator, "bit_generator"):
            return repr(generator.bit_generator.state)
        kept = generator.get_state()
        return repr(kept.tolist() if hasattr(kept, "tolist") else kept)
    except own(Exception):
        return ""


def _methods(kind: type) -> Iterator[types.FunctionType]:
    for base in kind.__mro__:
        yield from (each for each in vars(base).values() if isinstance(each, types.FunctionType))


def _draws(kind: type, name: str) -> bool:
    """A method but the constructor uses it, and none asks which worker it is in."""
    methods = [each.__code__ for each in _methods(kind)]
    others = [code for code in methods if code.co_name != "__init__"]
    if any({_WORKER, "manual_seed", "seed"} & {*code.co_names} for code in others) or _renewed(kind, name):
        return False
    return any(name in code.co_names and code.co_name != "__init__" for code in methods)


def _renewed(kind: type, name: str) -> bool:
    """A method but the constructor gives the attribute another generator."""
    stores = [
        instruction.argval for each in _methods(kind) if each.__code__.co_name != "__init__"
        for instruction in dis.get_instructions(each.__code__) if instruction.opname == "STORE_ATTR"
    ]  # fmt: skip
    return name in stores
