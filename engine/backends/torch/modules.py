"""Where in the model a node is made: a per-thread stack of the modules being run, module paths and parameter names.

The hooks here run in the script's forward, on its threads; paths and names are read from any thread. Nothing here keeps
a module or a parameter alive: a module often holds the last loss, and with it a whole graph.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from adbg.engine.backends.common.modules import SeenModules
from adbg.engine.backends.torch import private

_is_compiling = torch.compiler.is_compiling
_FRUITLESS = 3
_MOST = 10_000  # entries kept before those of dead modules are dropped


class ModulePlace:
    """What is known of one module: its path in the outermost module that ran it."""

    __slots__ = ("fruitless", "path", "ref")

    def __init__(self, module: torch.nn.Module) -> None:
        self.ref = weakref.ref(module)
        self.path: str | None = None
        self.fruitless = 0  # how often a search below it did not find the module that ran


class RunningModules(threading.local):
    """The modules this thread is inside of, as a linked list (place, outer): a node made now keeps ``frame`` in one
    assignment."""

    frame: Any = None


class Modules(SeenModules):
    """Module paths and parameter names, learned while the script runs its modules."""

    kind = torch.nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.running = RunningModules()
        self._places: dict[int, ModulePlace] = {}
        self._handles: list[Any] = []
        self._asked: Any = None  # torch's own _has_any_global_hook while ours is in its place
        self._most = _MOST
        self.ran_natively: Callable[[], Iterable[Any]] = tuple  # outermost modules that the extension saw run
        self.runs_natively: Callable[[], bool] = bool  # it sees them now

    def refresh(self) -> None:
        known = {id(root) for root in (reference() for reference in self._roots) if root is not None}
        for root in self.ran_natively():
            if id(root) not in known:
                self._learn(root)
        super().refresh()

    def _followed(self) -> bool:
        return bool(self._handles) or self.runs_natively()

    # ---- the hooks

    def watch(self) -> None:
        """Follow every module's forward from now on: 2-3 us a module call, for torch takes the long way when a hook is
        there."""
        if self._handles:
            return
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        self._asked = private.has_any_global_hook
        if self._asked is not None:
            torch.nn.modules.module._has_any_global_hook = self._has_hooks_of_the_script

    def unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._asked is not None:
            torch.nn.modules.module._has_any_global_hook = self._asked
            self._asked = None

    def _has_hooks_of_the_script(self) -> bool:
        """A model made by torch.compile warns of global hooks at every call: it must not warn of ours."""
        own = {handle.id for handle in self._handles}
        module: Any = torch.nn.modules.module
        names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
        return any(key not in own for name in names for key in getattr(module, "_global" + name, ()))

    def _enter(self, module: Any, args: Any) -> None:
        if _is_compiling():
            return  # a side effect here would break the compiled graph (x4 breaks without this line)
        place = self._places.get(id(module))
        if place is None or place.ref() is not module or place.path is None:
            place = self._new_place(module)
        running = self.running
        running.frame = (place, running.frame)

    def _leave(self, module: Any, args: Any, result: Any) -> None:
        if _is_compiling():
            return
        running = self.running
        frame = running.frame
        # Usually the first. More are left over when a KeyboardInterrupt skipped a module's hook; none of this module is
        # there when the watch began inside its forward.
        while frame is not None:
            place, outer = frame
            if place.ref() is module:
                running.frame = outer
                return
            frame = outer

    # ---- paths

    def _new_place(self, module: torch.nn.Module) -> ModulePlace:
        """Find ``module`` below the outermost module that is running. One made on the fly is not there and is called by
        its type; after a few of those the search (1 us a module of the model) is given up for that outermost module."""
        outermost: ModulePlace | None = None
        frame = self.running.frame
        while frame is not None:
            outermost, frame = frame
        above = outermost.ref() if outermost is not None else None
        if above is None or outermost is None:
            self._learn(module)
        elif outermost.fruitless < _FRUITLESS:
            self._learn(above)
        place = self._places.get(id(module))
        if place is None or place.ref() is not module:
            place = self._places[id(module)] = ModulePlace(module)
        if place.path is None:
            place.path = type(module).__name__
            if outermost is not None:
                outermost.fruitless += 1
        return place

    def _name_parts(self, root: Any) -> None:
        for path, module in list(root.named_modules()):
            place = self._places.get(id(module))
            if place is None or place.ref() is not module:
                place = self._places[id(module)] = ModulePlace(module)
            if not place.path or path:
                place.path = path

    def _prune(self) -> None:
        if len(self._places) + len(self._names) > self._most:
            # list(): another thread may be learning at the same time
            self._places = {key: place for key, place in list(self._places.items()) if place.ref() is not None}
            self._names = {key: entry for key, entry in list(self._names.items()) if entry[0]() is not None}
            self._most = max(_MOST, 2 * (len(self._places) + len(self._names)))
