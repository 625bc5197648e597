"""The program's own hooks, each behind a stand-in that tells what it made of a gradient. Runs where the hook would."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from adbg.engine.backends.base import HookCall, Watcher
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_MOST_COUNTED = 1_000  # hooks on one object: counted at each registration


def code_of(hook: Any) -> Any:
    """What tells two registrations of the same hook: its code, or its type."""
    plain = getattr(hook, "func", hook)
    return (
        getattr(plain, "__code__", None) or getattr(getattr(plain, "__func__", None), "__code__", None) or type(plain)
    )


def alike(hooks: Mapping[Any, Any], hook: Any) -> int:
    """How many of ``hooks`` are registrations of the same hook; 0 where there are too many to count each time."""
    if len(hooks) > _MOST_COUNTED:
        return 0
    same = code_of(_plain(hook))
    return sum(code_of(_plain(each)) is same for each in hooks.values())


def _plain(hook: Any) -> Any:
    return hook._hook if isinstance(hook, ToldHook) else hook


class Told:
    """Whom hooks tell now; nobody once the tap is out, though stand-ins stay where they were registered."""

    watcher: Watcher | None = None


class ToldHook:
    """Stands in for one hook. A copy or a pickle of it is the hook itself."""

    __slots__ = ("__dict__", "_calls", "_hook", "_measures", "_node", "_on", "_registered", "_told", "_what")

    def __init__(
        self, hook: Any, what: str, registered: SourceLine | None, on: str, told: Told, measures: Measures,
        node: int = 0,
    ) -> None:  # fmt: skip
        self._hook = hook
        self._node = node
        self._what = what
        self._registered = registered
        self._on = on
        self._told = told
        self._measures = measures
        self._calls = 0
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(hook, name):
                with suppress(Exception):
                    self.__dict__[name] = getattr(hook, name)
        self.__dict__["__wrapped__"] = hook

    def __call__(self, *args: Any) -> Any:
        watcher = self._told.watcher
        self._calls += 1
        if watcher is None or not self._is_measured():
            return self._run(args)
        before: Any = None
        with suppress(Exception):
            before = self._measures.hidden(functools.partial(self._before, args))
        result = self._run(args)
        if before is not None:
            with suppress(Exception):
                self._measures.hidden(functools.partial(self._tell, watcher, before, args, result))
        return result

    def _before(self, args: tuple[Any, ...]) -> tuple[Any, Any, Any, Any]:
        """(gradients, their versions, their norms, whether others have them) as the hook is handed them."""
        before = self._measures.gradient(self._what, args)
        versions = [self._measures.version(each) for each in before]
        shared = [self._measures.shared(each) if self._what == "tensor" else False for each in before]
        return before, versions, [self._measures.norm(each) for each in before], shared

    def _run(self, args: tuple[Any, ...]) -> Any:
        try:
            return self._hook(*args)
        except BaseException as error:
            strip_own(error)
            watcher = self._told.watcher
            if watcher is not None:
                with suppress(Exception):
                    watcher.hook(
                        HookCall(self._what, self._hook, None, None, False, self._registered, self._on, error=error)
                    )
            raise

    def _is_measured(self) -> bool:
        calls = self._calls
        return calls <= 3 or (calls >= 8 and calls & (calls - 1) == 0)

    def _tell(self, watcher: Watcher, known: tuple[Any, Any, Any, Any], args: tuple[Any, ...], result: Any) -> None:
        """Of a module's hook one gradient after another. ``known``: what ``_before`` returned."""
        before, versions, norms, shared = known
        now = self._measures.gradient(self._what, args)
        given = result if isinstance(result, (tuple, list)) else (result,)
        for place, each in enumerate(before):
            if each is None:
                continue
            after = (
                given[place] if result is not None and place < len(given) and given[place] is not None else now[place]
            )
            moved = after is each and self._measures.version(each) != versions[place]
            call = HookCall(
                self._what, self._hook, each, after, moved, self._registered, self._on, norms[place],
                shared=shared[place], node=self._node,
            )  # fmt: skip
            watcher.hook(call)

    def __reduce__(self) -> Any:
        return _same, (self._hook,)


def _same(hook: Any) -> Any:
    return hook


class Measures:
    """What a framework says of gradients."""

    def __init__(
        self, norm: Callable[[Any], float], version: Callable[[Any], Any], hidden: Callable[[Callable[[], Any]], Any],
        is_tensor: Callable[[Any], bool], shared: Callable[[Any], bool] = lambda value: False,
    ) -> None:  # fmt: skip
        """``shared``: whether the engine holds a gradient for another branch as well."""
        self.shared = shared
        self.norm = norm
        self.version = version
        self.hidden = hidden
        self._is_tensor = is_tensor

    def gradient(self, what: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients that a hook of that kind may change."""
        if what == "accumulate":
            return (getattr(args[0], "grad", None),)
        if what == "module backward":
            given = args[1] if len(args) > 1 else ()
            return tuple([each if self._is_tensor(each) else None for each in given or ()])
        return (args[0],)


__all__ = ["Measures", "Told", "ToldHook", "alike", "code_of"]
