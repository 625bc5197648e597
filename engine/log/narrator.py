"""VLOG for frameworks that have none of their own: records in glog's grammar, written by adbg itself.

Called on autograd threads, between the framework's nodes; says what Paddle's engine says at the same place and level,
so that one panel folds both. Modules and levels:

    calls     3 which call, from where    4 its roots and size    5 create_graph, thread
    backward  3 begin, every node ("NAME(#index) Preparing"), end    4 begin run, pending nodes
    nodes     3 error    4 gradients: shape, dtype    5 device, bytes, module, parameter    6 unique name, forward line
    pylayer   3 custom Functions begin and end

A record is indented by one TAB per nested backward, and one more inside a custom Function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from adbg.engine.backends.base import Backend, BackwardCall
from adbg.engine.errors import CommandError
from adbg.engine.glog import format_record, parse_levels
from adbg.engine.outside import suppress
from adbg.engine.types import NodeInfo, TensorMeta

_NO_NODE: tuple[BackwardCall | None, int, NodeInfo] = (None, 0, NodeInfo(0, "", ""))
MODULES = ("calls", "backward", "nodes", "pylayer")


class Narrator:
    """Writes VLOG records through ``write`` (one record with its newline per call). Levels may change at any time."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._wanted: dict[str, int] = {"*": 0}
        self._raised: list[dict[str, int]] = []
        self._calls = self._backward = self._nodes = self._pylayer = 0
        self.enabled = False  # any level of 3 or more is on: ask this before anything else
        self._here = threading.local()

    def set_levels(self, text: str) -> dict[str, int]:
        """ "6", "backward=6,nodes=5", "*=3", "off" (all), "" to only ask. Returns the levels ("*" the global one).

        As in glog a module's own level holds whatever the global one is; a module may be a glob. Raises CommandError.
        """
        changes = parse_levels(text)
        for name in changes:
            if name != "*" and not any(fnmatchcase(module, name) for module in MODULES):
                raise CommandError(
                    f"no VLOG module {name!r}", f"modules: {', '.join(MODULES)}; example: vlog backward=6"
                )
        wanted = {"*": 0} if text.strip().lower() == "off" else dict(self._wanted)
        wanted.update(changes)
        self._wanted = wanted
        self._apply()
        return dict(wanted)

    def raise_levels(self, levels: Mapping[str, int]) -> None:
        """At least these levels until ``lower_levels`` of the same."""
        self._raised.append(dict(levels))
        self._apply()

    def lower_levels(self, levels: Mapping[str, int]) -> None:
        if dict(levels) in self._raised:
            self._raised.remove(dict(levels))
            self._apply()

    def _apply(self) -> None:
        self._calls, self._backward, self._nodes, self._pylayer = (self._level(module) for module in MODULES)
        self.enabled = max(self._calls, self._backward, self._nodes, self._pylayer) >= 3

    def _level(self, module: str) -> int:
        return max([_level_in(self._wanted, module), *(_level_in(levels, module) for levels in self._raised)])

    @property
    def wants_nodes(self) -> bool:
        """True when node records are on, so that every node must be hooked."""
        return max(self._backward, self._nodes, self._pylayer) >= 3

    # ---------------------------------------------------------------- records

    def backward_begin(self, call: BackwardCall) -> None:
        self._here.depth = call.depth
        if self._calls >= 3:
            at = f" at {call.location.file}:{call.location.line}" if call.location else ""
            self._say("calls", 3, f"Run in Backward: {call.entry} #{call.number}{at}")
        if self._calls >= 4:
            self._say("calls", 4, f"roots {', '.join(call.root_names)}; {call.count()} nodes")
        if self._calls >= 5:
            self._say("calls", 5, f"create_graph {call.create_graph}; thread {call.thread}")
        if self._backward >= 3:
            self._say("backward", 3, "=================RunBackward: Start Backward =================")
            self._say("backward", 3, f"RunBackward: Start_up_ops's size is {len(call.roots())}")

    def node_begin(
        self, call: BackwardCall, key: int, index: int, grad_outputs: Sequence[Any], backend: Backend
    ) -> None:
        info = call.describe(key)
        here = self._here
        here.depth, here.node = call.depth, (call, key, info)
        node = f"{info.name}(#{index})"
        if self._backward >= 3:
            self._say("backward", 3, f"{node} Preparing ")
        if self._backward >= 4:
            self._say("backward", 4, f"{node} begin run ")
        nodes = self._nodes
        if nodes >= 4:
            self._say("nodes", 4, f"{node} grad_outputs: {_gradients(grad_outputs, backend, nodes >= 5)}")
        if nodes >= 5 and (info.module or info.parameter):
            self._say("nodes", 5, f"{node} {_belongs(info)}")
        if nodes >= 6:
            line = (
                f"; forward {info.forward.file}:{info.forward.line} in {info.forward.function}" if info.forward else ""
            )
            self._say("nodes", 6, f"{node} is {info.unique_name}{line}")
        if call.is_custom(key):
            here.depth = call.depth + 1
            if self._pylayer >= 3:
                self._say("pylayer", 3, f"Running PyLayer {info.name}")

    def node_end(
        self,
        call: BackwardCall,
        key: int,
        index: int,
        grad_inputs: Sequence[Any],
        backend: Backend,
        us: float | None = None,
    ) -> None:
        here = self._here
        last_call, last_key, info = getattr(here, "node", _NO_NODE)
        if last_call is not call or last_key != key:  # something nested ran in between
            info = call.describe(key)
        here.node = _NO_NODE
        if self._pylayer >= 3 and call.is_custom(key):
            here.depth = call.depth + 1
            self._say("pylayer", 3, f"Finish PyLayer {info.name}")
        here.depth = call.depth
        node = f"{info.name}(#{index})"
        if self._nodes >= 4:
            took = f" in {us:.0f} us" if us is not None else ""
            self._say("nodes", 4, f"{node} grad_inputs: {_gradients(grad_inputs, backend, self._nodes >= 5)}{took}")
        if self._backward >= 4:
            for edge in call.edges(key):
                if edge.to is not None:
                    self._say("backward", 4, f"{node} Found pending node: {call.describe(edge.to).unique_name}")

    def backward_end(self, call: BackwardCall, error: BaseException | None = None) -> None:
        self._here.depth = call.depth
        if error is not None and max(self._backward, self._nodes) >= 3:
            first = next(iter(str(error).splitlines()), "")
            text = f"{type(error).__name__} left {call.entry} #{call.number}: {first}"
            self._write(format_record(text, "nodes", 3, call.depth, "W"))
        if self._backward >= 3:
            self._say("backward", 3, "=================RunBackward: Finish Backward =================")
        self._here.depth = max(call.depth - 1, 0) + (call.depth > 0)

    def _say(self, module: str, level: int, text: str) -> None:
        self._write(format_record(text, module, level, getattr(self._here, "depth", 0)))


def _level_in(levels: Mapping[str, int], module: str) -> int:
    globs = [level for name, level in levels.items() if name != "*" and fnmatchcase(module, name)]
    return levels.get(module, globs[-1] if globs else levels.get("*", 0))


def _gradients(values: Sequence[Any], backend: Backend, full: bool) -> str:
    texts = []
    for value in values:
        text = "?"
        with suppress(Exception):  # a gradient that the framework cannot describe must not end the backward
            text = "undefined" if value is None else _meta_text(backend.meta(value), full)
        texts.append(text)
    return ", ".join(texts) or "none"


def _meta_text(meta: TensorMeta, full: bool) -> str:
    if meta.shape is None:
        return meta.remark
    text = f"{list(meta.shape)} {meta.dtype}"
    return f"{text} {meta.device} {meta.nbytes} B" if full else text


def _belongs(info: NodeInfo) -> str:
    """ "module layers.0.attn, parameter layers.0.attn.q.weight"."""
    parts = [f"module {info.module}" if info.module else "", f"parameter {info.parameter}" if info.parameter else ""]
    return ", ".join(part for part in parts if part)
