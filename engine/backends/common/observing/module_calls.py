"""The tap for forwards of outermost modules, and for where their mode was set. Runs on the program's threads."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from adbg.engine.backends.base import ModuleCall, Need, Tap, Watcher
from adbg.engine.backends.common.observing.stand_ins import StandIns
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_MOST = 20_000  # modules of which it is kept where their mode was set
_MOST_EVALUATED = 256  # modules of which it is kept that eval() was called of them last


class Modules(Protocol):
    """Those seen so far."""

    def meet(self, module: Any, inner: bool) -> None: ...

    def met(self, module: Any) -> bool: ...


class _Inside(threading.local):
    def __init__(self) -> None:
        self.modules = 0  # whose forward runs on this thread
        self.mode: SourceLine | None = None  # of the train() or eval() that runs
        self.setting = False

    def leave(self) -> None:
        """One that nothing was told of has ended."""
        self.modules = max(self.modules - 1, 0)


class ModuleCalls(Tap):
    """A framework's own tap names the class, and how to compute unseen."""

    need = Need.MODULES
    kind: ClassVar[Any]
    setters: ClassVar[tuple[str, ...]] = ("train", "eval")

    def __init__(
        self,
        frames: FrameFilter,
        modules: Modules,
        stand_ins: StandIns,
        unseen: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._frames = frames
        self._meet, self._met = modules.meet, modules.met
        self._stand_ins = stand_ins
        self._unseen = unseen
        self._inside = _Inside()
        self._modes: dict[int, tuple[weakref.ref[Any], SourceLine | None]] = {}
        self._evaluated: dict[int, tuple[weakref.ref[Any], SourceLine | None]] = {}
        self._number = 0
        self._watcher: Watcher | None = None

    def put_in(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._inside = _Inside()
        self._stand_ins.put(self.kind, "__call__", self._begins, self._ended, self._within)
        for name in self.setters:
            self._stand_ins.put(self.kind, name, getattr(self, f"_{name}_begins"), self._mode_ended)

    def take_out(self) -> None:
        self._watcher = None
        self._stand_ins.restore()

    def grad_mode(self) -> bool:
        raise NotImplementedError

    # ---- forwards

    def _begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        inside = self._inside
        inside.modules += 1
        if inside.modules > 1:
            with suppress(Exception):
                self._meet(args[0], True)
            return inside
        try:
            call = self._call(args, frame)
            watcher = self._watcher
            if watcher is not None:
                self._meet(args[0], False)
                with self._unseen():
                    watcher.module_begin(call)
        except BaseException:  # its end is not told then
            inside.modules = 0
            raise
        return call

    def _within(self, args: tuple[Any, ...]) -> Callable[[], None] | None:
        """Nearly all calls are of parts that were met, inside another module: nothing is told of these. Looks up, and
        runs no code of the program's."""
        inside = self._inside
        if not inside.modules or not args or not self._met(args[0]):
            return None
        inside.modules += 1
        return inside.leave

    def _ended(self, told: Any, result: Any, error: BaseException | None) -> None:
        if isinstance(told, _Inside):
            told.leave()
            return
        # The outermost: whatever an exception or a Ctrl-C left of those within is over.
        self._inside.modules = 0
        watcher = self._watcher
        if watcher is None or error is not None:
            return
        told.results = result
        with self._unseen():
            watcher.module_end(told)

    def _call(self, args: tuple[Any, ...], frame: types.FrameType) -> ModuleCall:
        module = args[0]
        known = self._modes.get(id(module))
        line = known[1] if known is not None and known[0]() is module else None
        each = [(part(), where) for part, where in list(self._evaluated.values())]
        assigned = tuple((part, where) for part, where in each if part is not None and part.training)
        return ModuleCall(
            module, type(module).__name__, bool(module.training), True, args[1:], None, self._frames.live_line(frame),
            self.grad_mode(), line, self._number, assigned,
        )  # fmt: skip

    # ---- train() and eval()

    def _train_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return self._mode_begins(args[0], bool(args[1] if len(args) > 1 else kwargs.get("mode", True)), frame)

    def _eval_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        return self._mode_begins(args[0], False, frame)

    def _mode_begins(self, module: Any, training: bool, frame: types.FrameType) -> Any:
        """These call themselves for every module below: the line of the outermost call is everyone's."""
        inside = self._inside
        outermost = not inside.setting
        if outermost:
            inside.setting, inside.mode = True, self._frames.live_line(frame)
            self._number += 1
            with suppress(Exception):  # a method of the user's that raises: its call ends all the same
                self._evaluate(module, training)
        if len(self._modes) > _MOST:
            self._modes = {key: known for key, known in list(self._modes.items()) if known[0]() is not None}
        self._modes[id(module)] = weakref.ref(module), inside.mode
        return outermost

    def _evaluate(self, module: Any, training: bool) -> None:
        if not training:
            self._evaluated.pop(id(module), None)  # the youngest last
            self._evaluated[id(module)] = weakref.ref(module), self._inside.mode
            if len(self._evaluated) > _MOST_EVALUATED:
                self._evaluated.pop(next(iter(self._evaluated)))
        elif self._evaluated:
            todo, met = [module], {id(module)}
            while todo:
                part = todo.pop()
                self._evaluated.pop(id(part), None)
                inner = [each for each in part.children() if id(each) not in met]
                met.update(map(id, inner))
                todo += inner

    def _mode_ended(self, outermost: Any, result: Any, error: BaseException | None) -> None:
        if outermost:
            self._inside.setting = False
