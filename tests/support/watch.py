"""A sink that records what a backend reports, and a way to run a piece of code under it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from adbg.engine.backends.base import Backend, BackwardCall, HookPlan

EVERY = HookPlan(every=True)
B = TypeVar("B", bound=Backend)


@dataclass
class Seen:
    """One call as the sink saw it: plain values only, so that nothing is kept alive."""

    number: int
    depth: int
    entry: str
    roots: tuple[str, ...]
    parent: int | None
    enclosing: str | None
    thread: int
    location: Any
    note: str = ""
    hooked: int = 0
    order: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    error: str | None = None
    failed: list[tuple[str, str]] = field(default_factory=list)


class Watch:
    """The sink. ``before``/``after`` may answer a hook; ``begin``/``end`` look at a live call."""

    def __init__(self, plan: HookPlan = EVERY) -> None:
        self.plan = plan
        self.calls: list[Seen] = []
        self.open: dict[int, Seen] = {}
        self.begin: Callable[[BackwardCall], None] = lambda call: None
        self.end: Callable[[BackwardCall], None] = lambda call: None
        self.before: Callable[[BackwardCall, int, Any], Any] = lambda call, key, outs: None
        self.after: Callable[[BackwardCall, int, Any, Any], Any] = lambda call, key, ins, outs: None

    def _seen(self, call: BackwardCall) -> Seen:
        seen = Seen(
            call.number,
            call.depth,
            call.entry,
            tuple(call.root_names),
            call.parent.number if call.parent is not None else None,
            call.parent.describe(call.parent_key).unique_name
            if call.parent is not None and call.parent_key is not None
            else None,
            call.thread,
            call.location,
        )
        self.calls.append(seen)
        self.open[id(call)] = seen
        return seen

    def backward_begin(self, call: BackwardCall) -> None:
        seen = self._seen(call)
        self.begin(call)
        seen.hooked = call.hook(self.plan)
        seen.order = [call.describe(key).unique_name for key in call.order()]
        seen.note = call.note

    def node_begin(self, call: BackwardCall, key: int, grad_outputs: Any) -> Any:
        self.open[id(call)].begun.append(call.describe(key).unique_name)
        return self.before(call, key, grad_outputs)

    def node_end(self, call: BackwardCall, key: int, grad_inputs: Any, grad_outputs: Any) -> Any:
        self.open[id(call)].ended.append(call.describe(key).unique_name)
        return self.after(call, key, grad_inputs, grad_outputs)

    def backward_end(self, call: BackwardCall, error: BaseException | None) -> None:
        seen = self.open.get(id(call)) or self._seen(call)
        self.end(call)
        if error is not None:
            seen.error = f"{type(error).__name__}: {error}"
            seen.failed = [(call.describe(key).unique_name, why) for key, why in call.failed_nodes(error)]
        del self.open[id(call)]

    @property
    def last(self) -> Seen:
        return self.calls[-1]


@contextlib.contextmanager
def installed(backend: B, watch: Watch, armed: bool, stacks: bool) -> Iterator[B]:
    """The backend is in for the length of the block, and out without a trace afterwards."""
    backend.install(watch)
    try:
        backend.set_stacks(stacks)
        backend.arm(armed)
        yield backend
    finally:
        backend.uninstall()
