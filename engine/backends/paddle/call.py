"""One running backward call of Paddle's engine: a graph, its hooks, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.base import BackwardCall, HookPlan, HookSink, Part
from adbg.engine.backends.common.hooking import HAS_POST
from adbg.engine.backends.paddle.calls.written import Written, begin
from adbg.engine.backends.paddle.failures import error_text, flowed_in, suspects
from adbg.engine.backends.paddle.graph import PaddleGraph, Services
from adbg.engine.backends.paddle.hooks import PaddleHooks
from adbg.engine.backends.paddle.native.core import core
from adbg.engine.backends.paddle.stacks import framework_name
from adbg.engine.node_batch import NodeBatch
from adbg.engine.types import SourceLine

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.entry import EngineEntry


class PaddleCall(PaddleGraph, BackwardCall):
    """See ``BackwardCall``."""

    def __init__(
        self,
        entry_point: EngineEntry,
        sink: HookSink,
        services: Services,
        roots: Sequence[Any],
        *,
        number: int,
        parent: PaddleCall | None,
        parent_key: int | None,
        depth: int,
        entry: str,
        create_graph: bool,
        inputs: Sequence[Any],
        location: SourceLine | None,
    ) -> None:
        super().__init__(roots, services)
        self.wanted = tuple(inputs)
        self.number = number
        self.thread = threading.get_ident()
        self.parent = parent
        self.parent_key = parent_key
        self.depth = depth
        self.entry = entry
        self.create_graph = create_graph
        self.location = location
        self.origin: BaseException | None = None
        self.last: tuple[int, int] = (0, 0)  # address and place of the node that began last, as the extension saw it
        self._entry_point = entry_point
        self._sink = sink
        self._hooks: PaddleHooks | None = None
        self._written: Written | None = None
        self._root_names: tuple[str, ...] | None = None

    @property
    def root_names(self) -> tuple[str, ...]:  # type: ignore[override]
        if self._root_names is None:
            survey = self.survey()
            named = survey.roots if survey is not None else None
            if named is None:
                named = tuple(dict.fromkeys(framework_name(root.name()) for root in self.root_nodes))
            self._root_names = named
        return self._root_names

    @property
    def reached(self) -> bool:
        """A hook fired: the engine ran nodes of this call."""
        return self._hooks is not None and any(self._hooks.ran)

    @property
    def hooks(self) -> PaddleHooks:
        """Made when first needed, dropped at the end: they hold this call."""
        if self._hooks is None:
            self._hooks = PaddleHooks(self, self._sink, self._entry_point)
        return self._hooks

    @property
    def only_screened(self) -> bool:  # type: ignore[override]
        return self._hooks is not None and self._hooks.screen.alone

    def hook(self, plan: HookPlan) -> int:
        return self.hooks.hook(plan)

    def collect(self, norms: bool = True) -> bool:
        if self._written is None:
            self._written = begin(self, norms)
        return self._written is not None

    def collected(self, start: int | None = None) -> NodeBatch | None:
        written = self._written
        if written is None:
            return None
        return written.take(self) if start is None else written.so_far(start)

    def stood(self, ns: int) -> None:
        noted = core()
        if noted is not None:
            noted.module.stood(ns)

    def twin(self, shapes: bool) -> Hashable:
        return self._written.twin(shapes) if self._written is not None else None

    def finish(self) -> None:
        """The call is over: no hook, no node, no tensor is kept."""
        if self._written is not None:
            self._written.end()
            self._written = None
        if self._hooks is not None:
            self._hooks.clear()
        self._hooks = None
        self.origin = None
        self.release()

    # ---- answers

    def contributions(self, key: int) -> tuple[Sequence[Part], str]:
        return self.hooks.parts.of(key, self.consumers(key), key in self.roots())

    def original_error(self, error: BaseException) -> BaseException:
        return self.origin if self.origin is not None else error

    def error_text(self, error: BaseException) -> str:
        return error_text(error, self.origin)

    def flowed_in(self, key: int, error: BaseException) -> Sequence[Any] | None:
        return flowed_in(self, key, self.origin) if self.origin is not None else None

    def failed_nodes(self, error: BaseException) -> Sequence[tuple[int, str]]:
        self.walk()
        hooks = self.hooks
        running = hooks.running
        if running is not None and hooks.flags and not hooks.flags[running] & HAS_POST and not self.is_custom(running):
            running = None  # without a hook behind it, it may well have run
        return suspects(self, error, self.origin, running, hooks.returned, self._began_last())

    def _began_last(self) -> int | None:
        """The operator that began last, where the extension saw it. ``paddle.grad`` runs on copies of the nodes, which
        have their places."""
        address, place = self.last
        key = self.addresses().get(address)
        if key is None and place:
            stacks, nodes = self.services.stacks, self.walk()
            key = next((other for other, node in enumerate(nodes) if stacks.mark(node)[1] == place), None)
        return key if key is not None and not self.is_custom(key) else None
