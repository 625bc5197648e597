"""The watch for numbers that are not finite, left to the extension as long as all are finite.

A call whose plan asks for nothing else, and in whose graph nothing needs Python, is watched in C++. At the first
gradient that is not finite (or cannot be read there) Python is entered and takes over: the hooks of ``hooks.py`` are
placed on the nodes still to run, and what was found is reported as they report it. Runs on the thread of the call.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.common.hooking import SCREEN_OUT
from adbg.engine.backends.common.shield import aborting
from adbg.engine.backends.paddle.graph import COMPILED
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.native.watch import NativeWatch
from adbg.engine.backends.paddle.slots import replaced_slots
from adbg.engine.backends.paddle.tensors import stands_in
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.hooks import PaddleHooks


class NativeScreen:
    """Of one call. The extension holds its hooks while it watches, and nothing else here does: no cycle."""

    def __init__(self) -> None:
        self._watch: NativeWatch | None = None  # while it is on
        self._plan: HookPlan | None = None

    def takes(self, hooks: PaddleHooks, plan: HookPlan) -> bool:
        """Whether ``plan`` is done with: the extension watches. Otherwise the hooks take all of it."""
        if self._watch is not None:
            if plan is self._plan:
                return True
            self._take_over(hooks)
            return False
        noted = core()
        watch = noted.watch if noted is not None else None
        if watch is None or not plan.screen or plan.every or plan.indices or plan.info is not None:
            return False
        return self._no_names(hooks, plan) and self._begin(hooks, watch, plan)

    def _no_names(self, hooks: PaddleHooks, plan: HookPlan) -> bool:
        graph = hooks.graph
        return plan.name is None or graph.services.passes(plan.name, graph.kinds())

    def _begin(self, hooks: PaddleHooks, watch: NativeWatch, plan: HookPlan) -> bool:
        call, native = hooks.call, symbols.native()
        survey = call.survey()
        if hooks.flags or call.parent is not None or call.wanted or native is None:
            return False
        if survey is None or survey.kinds is None or not survey.kinds.isdisjoint(COMPILED):
            call.kinds()  # classes that were not met before are learned, for the next time
            return False
        roots = [native.leaf_node(tensor) for tensor in call.root_values()]
        found = functools.partial(aborting, hooks._entry_point.abort, self._found, hooks)
        count = watch.start(list(dict.fromkeys(roots)), found)
        if not count:
            return False
        self._watch, self._plan = watch, plan
        hooks.hooked = count
        return True

    def stop(self) -> list[int]:
        """Addresses of the nodes that ran while it was on."""
        watch, self._watch = self._watch, None
        return watch.stop() if watch is not None else []

    def _take_over(self, hooks: PaddleHooks, running: int | None = None) -> None:
        """The hooks go on from here. ``running``: the node that is about to run."""
        if self._watch is None:
            return
        ran = self.stop()
        hooks.hooked = 0
        hooks._prepare()
        addresses = hooks.graph.addresses()
        for address in ran:
            hooks.ran[addresses[address]] = 1
        hooks.running = running
        hooks._want_screen()
        hooks._rest()

    def _found(
        self, hooks: PaddleHooks, address: int, outgoing: list[Any] | None, incoming: list[Any]
    ) -> list[Any] | None:
        if hooks._entry_point.top() is not hooks.call:
            return None
        try:
            key = hooks.graph.addresses()[address]
            self._take_over(hooks, key if outgoing is None else None)
            if outgoing is None:
                return hooks._begin(key, tuple(incoming))
            hooks.flags[key] |= SCREEN_OUT
            given = tuple(outgoing)
            replaced = hooks._end(key, given, tuple(incoming))
            return replaced_slots(given, replaced, stands_in) if replaced is not None else None
        except own(Exception):
            return None
        except BaseException as error:
            _raise_next(hooks, error)
            raise


def _raise_next(hooks: PaddleHooks, error: BaseException) -> None:
    """What ended a stop comes out of Paddle by a hook in front of the node that is next, whichever it is; where none
    is, the entry raises it."""
    native = symbols.native()
    for key, node in enumerate(hooks.graph.walk()) if native is not None and hooks.flags else ():
        if native is not None and not hooks.ran[key]:
            hooks._handles.append((node, native.place(node, 0, 0, functools.partial(_raise, error))))


def _raise(error: BaseException, _: Any) -> None:
    raise error
