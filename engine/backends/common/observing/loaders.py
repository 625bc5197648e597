"""A tap for diagnosis, of either framework: loaders that begin to go through their data set, and the batches that a
function of the program's puts together of samples."""

from __future__ import annotations

import contextlib
import functools
import os
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from adbg.engine.backends.base import LoaderEvent, Need, Tap, Watcher
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.outside import suppress

_BATCHES = 3  # of each function, whose samples are handed over


class LoadersTap(Tap):
    """``loader``: the class whose ``__iter__`` begins a pass; ``fetcher``: the one whose ``fetch`` gives a batch;
    ``signals``: (module, name) of the function by which the process of a worker gets its handlers of fatal signals.
    There it is told that one begins, when they are in place, and nothing else."""

    need = Need.LOADERS

    def __init__(
        self,
        frames: FrameFilter,
        stand_ins: StandIns,
        unseen: Callable[[], AbstractContextManager[Any]],
        loader: Any,
        fetcher: Any,
        signals: tuple[Any, str] = (None, ""),
    ) -> None:
        self._frames = frames
        self._stand_ins = stand_ins
        self._unseen = unseen
        self._loader, self._fetcher = loader, fetcher
        self._watcher: Watcher | None = None
        self._process = 0
        self._signals = signals
        self._worker_begins: Callable[[], None] | None = None
        self._asked_at_forks = False
        self._seen: dict[int, int] = {}  # batches, by the code of the function

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._process = os.getpid()
        self._seen = {}
        self._worker_begins = watcher.worker_begins
        if not self._asked_at_forks and hasattr(*self._signals):
            self._asked_at_forks = True  # once: Python takes none back
            os.register_at_fork(after_in_child=self._in_child)
        if self._loader is not None:
            self._stand_ins.put(self._loader, "__iter__", self._begins)
        if self._fetcher is not None:
            self._stand_ins.put(self._fetcher, "fetch", self._fetching, self._fetched)

    def take_out(self) -> None:
        if os.getpid() == self._process:  # not where adbg leaves a child that has been forked
            self._worker_begins = None
        self._watcher = None
        self._stand_ins.restore()

    def _tell(self, event: LoaderEvent) -> None:
        if self._watcher is not None:
            with self._unseen():
                self._watcher.loader(event)

    def _in_child(self) -> None:
        """The child may become a worker: whatever else it does, it calls no such function."""
        tell, (owner, name) = self._worker_begins, self._signals
        if tell is None or os.getppid() != self._process:  # a child of a rank that was forked: its own tap tells
            return
        original = getattr(owner, name)

        def set_handlers(*args: Any, **kwargs: Any) -> Any:
            setattr(owner, name, original)
            try:
                return original(*args, **kwargs)
            finally:
                with suppress(Exception):
                    tell()

        setattr(owner, name, set_handlers)

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        loader = args[0]
        if os.getpid() != self._process:
            return None
        event = LoaderEvent("begins", getattr(loader, "dataset", None), self._frames.live_line(frame))
        event.loader = id(loader)
        event.workers = int(getattr(loader, "num_workers", 0) or 0)
        event.persistent = bool(getattr(loader, "persistent_workers", getattr(loader, "_persistent_workers", False)))
        event.seeds = getattr(loader, "worker_init_fn", None)
        self._tell(event)
        return None

    def _fetching(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        """Has the function remember what it is given, for the time of this call."""
        fetcher = args[0]
        function = getattr(fetcher, "collate_fn", None)
        code = _code(function)
        if code is None or os.getpid() != self._process or self._frames.user_file(code.co_filename) is None:
            return None
        if self._seen.get(id(code), 0) >= _BATCHES:
            return None
        self._seen[id(code)] = self._seen.get(id(code), 0) + 1
        given: list[Any] = []
        fetcher.collate_fn = _remembering(function, given)
        return fetcher, function, code, given

    def _fetched(self, told: Any, result: Any, error: BaseException | None) -> None:
        fetcher, function, code, given = told
        fetcher.collate_fn = function
        if error is None and given:
            event = LoaderEvent("collated", fetcher.dataset, None)
            event.collates, event.samples, event.result = code, given[0], result
            self._tell(event)


def _remembering(function: Any, given: list[Any]) -> Callable[[Any], Any]:
    def collate(samples: Any) -> Any:
        given.append(list(samples) if type(samples) is list else samples)  # it may sort them in place
        try:
            return function(samples)
        except BaseException as error:
            strip_own(error, (collate.__code__,))
            raise

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(collate, function)
    return collate


def _code(function: Any) -> types.CodeType | None:
    """Of a function, a method, an object that is called, a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        function = next((vars(each)["__call__"] for each in type(function).__mro__ if "__call__" in vars(each)), None)
    code = getattr(function, "__code__", None)
    return code if isinstance(code, types.CodeType) else None
