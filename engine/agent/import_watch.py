"""Tells when a framework gets imported (any layer, stdlib only; runs on whatever thread imports).

A finder at ``sys.meta_path[0]`` costs every other import one dictionary lookup. For a watched name it asks the other
finders for the spec and puts ``exec_module`` on that loader *instance*, so that the loader keeps its type
(``importlib.resources``, ``inspect`` and code that looks at ``spec.loader`` see nothing new). It imports nothing
heavy: it also runs in every Python child of a program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.outside import own

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def watch(callbacks: Mapping[str, Callable[[], None]]) -> ImportWatcher | None:
    """Call ``callbacks[name]`` once, right after top-level module ``name`` finished importing; at once if it is
    imported already.

    The callback runs on the importing thread, and before the ``import`` statement returns. Other threads may import
    the module while it runs. What it raises is printed as one line and never breaks the import. An import that fails
    leaves the watch in place.

    Returns what watches the imports to come; None where there are none.
    """
    pending: dict[str, Callable[[], None]] = {}
    for name, callback in callbacks.items():
        module = sys.modules.get(name)
        if module is None:
            pending[name] = callback
        elif _importing(module):
            threading.Thread(target=_after_import, args=(name, callback), name="adbg-importwatch", daemon=True).start()
        else:
            _call(name, callback)
    if not pending:
        return None
    watcher = ImportWatcher(pending)
    sys.meta_path.insert(0, watcher)
    return watcher


class ImportWatcher:
    """The meta path finder behind ``watch``; leaves ``sys.meta_path`` with its last name."""

    def __init__(self, callbacks: Mapping[str, Callable[[], None]]) -> None:
        self._pending = dict(callbacks)
        self._lock = threading.Lock()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec as the other finders give it, its loader prepared; None for every name that is not watched."""
        if fullname not in self._pending:
            return None
        spec = self._next_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:  # no loader: a bare folder of that name, not the framework
            self._prepare(spec)
        return spec

    def _next_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        passed = False  # finders in front of this one were asked already
        for finder in list(sys.meta_path):
            if finder is self:
                passed = True
                continue
            if not passed:
                continue
            find_spec = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find_spec(fullname, path, target) if find_spec else None
            if spec is not None:
                return spec
        return None

    def _prepare(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or getattr(execute, "_adbg_watcher", None) is self:
            return

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if getattr(module, "__name__", None) == spec.name:
                self._restore(loader, spec, module)
                self._imported(spec.name, module)

        exec_module._adbg_watcher = self  # type: ignore[attr-defined]
        try:
            if isinstance(loader, type):  # a loader that is a class serves every module of its kind
                raise TypeError
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            spec.loader = _LoaderProxy(loader, exec_module)  # type: ignore[assignment]

    @staticmethod
    def _restore(loader: Any, spec: ModuleSpec, module: ModuleType) -> None:
        if isinstance(spec.loader, _LoaderProxy):
            spec.loader = loader
            module.__loader__ = loader
        elif "exec_module" in getattr(loader, "__dict__", ()):
            del loader.exec_module

    def leave(self) -> None:
        """No callback comes any more. An import that is under way goes on through this finder."""
        with self._lock:
            self._pending.clear()
            self._take_out()

    def abandon(self) -> None:
        """``leave`` in a forked child: whoever held the lock is not here."""
        self._pending.clear()
        self._take_out()

    def _take_out(self) -> None:
        try:
            sys.meta_path.remove(self)
        except own(ValueError):
            pass

    def _imported(self, name: str, module: ModuleType) -> None:
        with self._lock:
            callback = self._pending.pop(name, None)
            if not self._pending:
                self._take_out()
        if callback is None:
            return
        # The import system still holds this module's lock and would make any other thread that imports it wait for the
        # callback; the module is complete, so it is declared so a moment early.
        try:
            module.__spec__._initializing = False  # type: ignore[union-attr]
        except AttributeError:
            pass
        _call(name, callback)


class _LoaderProxy:
    """Stands for a loader that takes no attribute. Everything but ``exec_module`` is the loader's own."""

    def __init__(self, loader: Any, exec_module: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self.exec_module = exec_module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _importing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _after_import(name: str, callback: Callable[[], None]) -> None:
    """Import of ``name`` is under way on another thread: this waits for its lock."""
    try:
        __import__(name)
    except BaseException:  # the import failed: whoever repeats it is not watched, and is not hurt
        return
    _call(name, callback)


def _call(name: str, callback: Callable[[], None]) -> None:
    try:
        callback()
    except own(Exception) as error:  # never breaks an import
        _say(f"adbg: not watching {name}: {type(error).__name__}: {error}")


def _say(line: str) -> None:
    try:
        print(line, file=sys.__stderr__, flush=True)
    except own(OSError, ValueError, AttributeError):
        pass  # no stderr: no way to tell
