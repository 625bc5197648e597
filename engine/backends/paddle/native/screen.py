"""The watch for numbers that are not finite, left to the extension as long as all are finite.

A call whose plan asks for nothing else, and in whose graph nothing needs Python, is watched in C++. At the first
gradient that is not finite (or cannot be read there) Python is entered and takes over: the hooks of ``hooks.py`` are
placed on the nodes still to run, and what was found is reported as they report it. Runs on the thread of the call.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import HookPlan
from adbg.engine.backends.common.hooking import SCREEN_OUT, Hooks
from adbg.engine.backends.common.shield import aborting
from adbg.engine.backends.paddle.graph import COMPILED, root_addresses
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.native.watch import NativeWatch
from adbg.engine.backends.paddle.slots import replaced_slots
from adbg.engine.backends.paddle.tensors import stands_in
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.call import PaddleCall
    from adbg.engine.backends.paddle.hooks import PaddleHooks


class NativeScreen:
    """Of one call. The extension holds its hooks while it watches, and nothing else here does: no cycle.

    Attributes:
        alone: the plan that came took no node but for this watch.
    """

    def __init__(self) -> None:
        self.alone = False
        self._watch: NativeWatch | None = None  # while it is on
        self._plan: HookPlan | None = None
        self._over = False  # the hooks have taken over

    def takes(self, hooks: PaddleHooks, plan: HookPlan) -> bool:
        """Whether ``plan`` is done with. Otherwise the hooks take all of it."""
        if self._watch is not None:
            if self._plan is None and plan.screen:
                self._plan, hooks.hooked = plan, 1
            if plan is self._plan:
                return True
            self._take_over(hooks)
            return False
        if not plan.screen or plan.every or plan.indices or self._over:
            return False
        watch = self._possible(hooks.call)
        if watch is None or any(hooks.flags):
            return False
        nodes = replace(plan, screen=False)
        if nodes.name is None or nodes.info is not None or not self._no_names(hooks, nodes):
            Hooks.hook(hooks, nodes)
        self.alone = not any(hooks.flags)
        if not self.alone or not self._begin(hooks, watch, plan):
            Hooks.hook(hooks, HookPlan(screen=True))
        return True

    def _no_names(self, hooks: PaddleHooks, plan: HookPlan) -> bool:
        graph = hooks.graph
        return plan.name is None or graph.services.passes(plan.name, graph.kinds())

    def _possible(self, call: PaddleCall) -> NativeWatch | None:
        noted, survey = core(), call.survey()
        if noted is None or call.parent is not None or call.wanted:
            return None
        if survey is None or survey.kinds is None or not survey.kinds.isdisjoint(COMPILED):
            call.kinds()  # classes that were not met before are learned, for the next time
            return None
        return noted.watch

    def _begin(self, hooks: PaddleHooks, watch: NativeWatch, plan: HookPlan) -> bool:
        found = functools.partial(aborting, hooks._entry_point.abort, self.found, hooks)
        count = watch.start(root_addresses(hooks.call.root_values()), found)
        if count:
            self._watch, self._plan, hooks.hooked = watch, plan, count
        return count > 0

    def adopt(self, watch: NativeWatch) -> None:
        """It is on since the call began, and has found something."""
        self._watch = watch

    def stop(self) -> list[int]:
        """Addresses of the nodes that ran while it was on."""
        watch, self._watch = self._watch, None
        return watch.stop() if watch is not None else []

    def _take_over(self, hooks: PaddleHooks, running: int | None = None) -> None:
        """The hooks go on from here. ``running``: the node that is about to run."""
        if self._watch is None:
            return
        ran, plan = self.stop(), self._plan
        self._over = True
        hooks.hooked = 0
        hooks._prepare()
        addresses = hooks.graph.addresses()
        for address in ran:
            hooks.ran[addresses[address]] = 1
        hooks.running = running
        Hooks.hook(hooks, plan if plan is not None and not self.alone else HookPlan(screen=True))

    def found(
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
