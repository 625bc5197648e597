"""What a detector is, and which there are.

A detector is a class of one module in ``detectors/``: it names its kind, says what it needs, keeps plain values between
events (never a tensor, a node or a frame) and tells findings through ``facts.tell``. It imports no framework: what it
has to know of a tensor it asks ``facts.backend``. Methods run on the program's threads under adbg's care: what they
raise switches that detector off ("could not look"), and nothing else happens.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar, TypeVar

from adbg.engine.backends.base import (
    FunctionCall,
    HookCall,
    LoaderEvent,
    ModuleCall,
    Need,
    OperatorCall,
    OptimizerEvent,
    RecomputeCall,
    Watcher,
)
from adbg.engine.session.running_call import Running, Visit
from adbg.engine.session.stop_point import PausedPoint

if TYPE_CHECKING:
    from adbg.engine.diagnosis.facts import Facts

D = TypeVar("D", bound="type[Detector]")
_KNOWN: list[type[Detector]] = []


class Detector(Watcher):
    """Override what is wanted; what is not overridden costs nothing.

    Attributes:
        kinds: the kinds of findings that it can tell, the main one first.
        needs: taps that it wants in every iteration: cheap ones only. An instance may change its own from the next on,
            or, as a module begins or ends (``facts.other_needs``), at once.
        sampled: taps that it wants in the sampled iterations (1 to 3, 8, 10, 11, 16, ..., the first after a new
            optimizer; all with ``--deep``).
        gradients: it wants ``node_end`` of every node in the sampled iterations.
        screens: it wants every gradient of every backward looked at for NaN and infinity (``node_end`` of bad ones).
        calls: it wants ``backward_begin`` and ``backward_end`` of every call (sampled ones are told in any case).
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    needs: Need = Need.NOTHING
    sampled: ClassVar[Need] = Need.NOTHING
    gradients: ClassVar[bool] = False
    screens: ClassVar[bool] = False
    calls: ClassVar[bool] = True

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def why_not(self) -> str:
        """Why it could not look; "" where it could."""
        return ""

    def applied(self) -> bool:
        """Whether there was anything to look at: an optimizer, a custom function, ..."""
        return True

    def listens(self, event: str) -> bool:
        """Whether anything happens here on the event of that name."""
        return getattr(type(self), event) is not getattr(Detector, event)

    # ---- backwards; on the thread that runs them
    def backward_begin(self, running: Running) -> None: ...

    def node_begin(self, visit: Visit) -> None: ...

    def node_end(self, visit: Visit) -> None: ...

    def backward_end(self, running: Running, error: BaseException | None) -> None: ...

    def iteration_end(self) -> None:
        """The next outermost backward is about to begin, or the program ends: what belongs to ``facts.iteration`` is
        known, steps of optimizers included."""

    # ---- moments
    def uncaught(self, error: BaseException) -> None:
        """The program ends by this exception (of the forward, or of a backward: ``backward_end`` was told of that)."""

    def at_stop(self, point: PausedPoint) -> None:
        """Somebody asks at a stop: look at what is at hand there, too."""

    def at_error(self, running: Running, error: BaseException) -> None:
        """Somebody asks at a stop where that backward failed. Its begin may not have been told."""

    def end(self) -> None:
        """The program ends, or diagnosis is switched off: the last moment to tell."""

    def left(self) -> None:
        """Diagnosis is over, also where the front end has gone without a word. Tells nothing, raises nothing."""


def detector(*kinds: str) -> Callable[[D], D]:
    """Register a class: ``@detector("zero-grad")``."""

    def register(made: D) -> D:
        made.kinds = kinds
        _KNOWN.append(made)
        return made

    return register


def known() -> Iterator[type[Detector]]:
    """Every detector, loaded from the modules below ``detectors``, in the order of their names."""
    from adbg.engine.diagnosis import detectors

    for found in pkgutil.walk_packages(detectors.__path__, detectors.__name__ + "."):
        importlib.import_module(found.name)
    return iter(sorted(set(_KNOWN), key=lambda each: (each.__module__, each.kinds)))


__all__ = [
    "Detector", "FunctionCall", "HookCall", "LoaderEvent", "ModuleCall", "Need", "OperatorCall", "OptimizerEvent",
    "RecomputeCall", "detector", "known",
]  # fmt: skip
