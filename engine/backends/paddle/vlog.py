"""Paddle's VLOG levels, at run time and put back. Any thread under the GIL.

While nobody asks adbg for a level, glog is as the script has it: its own levels and Paddle's ``backward_vlog_guard``
work as without adbg. The global level is written where it is (``native.sites``), for Paddle's ``set_vlog_level`` makes
a record of every change. A module's level goes through Paddle, and the sites that ran before are made to look for it.
What the script asks for meanwhile is noted, and holds when adbg's levels are gone.
"""

from __future__ import annotations

import ctypes
import difflib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import NativeVlog
from adbg.engine.backends.paddle.native.sites import LogSites
from adbg.engine.glog import parse_levels
from adbg.engine.outside import suppress

# Source files with VLOG sites that ran in the 34 logs of a training step; the others follow the global level only.
MODULES = (
    "accumulation_node", "allocator_facade", "amp_auto_cast", "api", "backward", "backward_api_base", "backward_api",
    "context_pool", "conv2d_fwd_function", "conv2d_nodes", "custom_device_op_list", "dygraph_functions", "eager",
    "eager_math_op_patch", "eager_method", "eager_op_function", "eager_properties", "eager_py_layer", "eager_utils",
    "elementwise_grad_base", "global_utils", "grad_node_info", "grad_tensor_holder", "imperative", "layout_autotune",
    "matmul_kernel_impl", "memcpy", "multiply_fwd_func", "multiply_node", "nodes", "op_call_stack", "ops_api",
    "py_layer_node", "tensor_method", "tensor_utils", "tensor_wrapper", "tracer", "utils",
)  # fmt: skip


class PaddleVlog(NativeVlog):
    """Three layers: what the script set, what the user set over it, and what regions raise on top. None of them holds
    while adbg itself is at work (``quiet``)."""

    def __init__(self, core: Any, sites: LogSites | None = None) -> None:
        self._set = getattr(core.set_vlog_level, "adbg_original", core.set_vlog_level)
        self._core = core
        self._sites = sites
        self._environment = _environment()
        level = sites.levels[0] if sites is not None else self._environment.get("*", 0)
        self._script: dict[str, int] = {**self._environment, "*": level}
        self._person: dict[str, int] | None = None
        self._raised: list[dict[str, int]] = []
        self._second = sites.levels[1:] if sites is not None else ()  # what the script has in the other copies of glog
        self._held: tuple[int, ...] | None = None  # the global levels meanwhile, while adbg reads something
        self._modules: dict[str, int] = {name: level for name, level in self._script.items() if name != "*"}
        self._by_module = ctypes.c_int32(any(self._modules.values()))  # some module has a level
        self._silent = False
        self._yields = False  # to the script, which reads the log itself
        self._making: list[int] = []  # levels of ``begin_nodes``
        self._asked: set[str] = set()  # modules that adbg gave a level
        self._at_a_stop = False  # levels were changed there, perhaps in a node around which Paddle puts its own back
        self._global = ctypes.c_int32(level)  # where there are no ``sites``
        self._variables = sites.variables if sites is not None else [self._global]
        self._busy = bool(self._modules)  # adbg has a level on, or a module has one
        # A region's thread and the reader's change levels at once; one would put back what the other has just changed.
        self._lock = threading.RLock()
        self._wrap()

    @property
    def environment(self) -> Mapping[str, int]:
        return self._environment

    # ---- what the user asks

    def set_levels(self, text: str) -> dict[str, int]:
        changes = parse_levels(text)
        with self._lock:
            if changes == {"*": 0} and not any(self._script.values()):
                self._person = None  # nothing to silence; a vlog_guard of the script's own works on
                self._apply()
            elif changes:
                wanted = {"*": 0} if "*" in changes else dict(self._person or {})
                self._person = {**wanted, **changes}
                self._apply()
            return dict(self._person) if self._person is not None else {"*": 0}

    def effect(self, levels: Mapping[str, int]) -> str:
        texts = []
        if levels.get("*", 0) >= 6:
            texts.append(
                "from vlog 6 on Paddle itself switches its unique names on: parameters are renamed at every step, so "
                "Adam and Momentum lose their state (vlog 5 has no such effect)"
            )
        known = {*MODULES, "pybind", "vlog_is_on", "*"}
        for name in sorted(set(levels) - known):
            close = ", ".join(difflib.get_close_matches(name, MODULES, 3, 0.5)) or "nodes, dygraph_functions, backward"
            texts.append(f"vlog {name}: no training step logs under that module; closest: {close}")
        return "; ".join(texts)

    def raise_levels(self, levels: Mapping[str, int]) -> None:
        with self._lock:
            self._raised.append(dict(levels))
            self._apply()

    def lower_levels(self, levels: Mapping[str, int]) -> None:
        with self._lock:
            with suppress(ValueError):
                self._raised.remove(dict(levels))
            self._apply()

    def begin_nodes(self, level: int) -> None:
        """By the guard that Paddle has for it, whose level holds from before the node's hooks to behind its edges.

        3.3.1 keeps the nodes' addresses for ever, so a node made later where a freed one was is told of too. That is
        left as it is: what the guard keeps has no function that takes out one address.
        """
        start = getattr(getattr(self._core, "eager", None), "_start_capture_backward_vlog_subgraph", None)
        if start is not None and self._sites is not None:
            self._making.append(level)
            start(level)

    def end_nodes(self) -> None:
        if self._making:
            self._making.pop()
            if self._making:
                self._core.eager._start_capture_backward_vlog_subgraph(self._making[-1])
            else:
                self._core.eager._stop_capture_backward_vlog_subgraph()

    def runs_at(self, levels: Mapping[str, int]) -> bool:
        held = self._held
        return held is not None and list(levels) == ["*"] and held[0] >= levels["*"]

    def quiet(self, on: bool) -> None:
        """0.5 us a call; 10 while a level is on (a read of one tensor writes more than that takes)."""
        self._silent = on
        if on:
            if self._held is None and (self._busy or any(level.value for level in self._variables)):
                with self._lock:
                    self._held = self._levels()
                    self._write([0] * len(self._held))
                    self._apply_modules()
                    if self._ours:  # Paddle's guard has put back what was before it, which may be older than ours
                        self._held = tuple(map(max, self._held, self._wanted()))
        elif self._held is not None:
            with self._lock:
                held, self._held = self._held, None
                self._apply_modules()
                self._write(held)

    def settle(self) -> None:
        """No guard of Paddle's is at work: put right what one has put back since levels changed at a stop."""
        if self._at_a_stop:
            with self._lock:
                self._at_a_stop = False
                self._apply()

    @property
    def silent(self) -> bool:
        """Nothing that runs now is the script's, or asked for by a person."""
        return self._silent

    def restore(self) -> None:
        with self._lock:
            self._person = None
            self._raised.clear()
            self._apply()

    def leave(self) -> None:
        """After ``restore``: Paddle's own function back; where somebody wrapped ours meanwhile, ours stays below it."""
        if self._core.set_vlog_level is self._wrapped:
            self._core.set_vlog_level = self._set

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self.quiet(False)
        self.restore()

    @property
    def loud(self) -> bool:
        held = self._held
        for level in self._variables if held is None else ():
            if level.value:
                return True
        return bool(held and any(held)) or any(self._modules.values())

    @property
    def words(self) -> Sequence[ctypes.c_int32]:
        return (*self._variables, self._by_module)

    @property
    def logging(self) -> bool:
        return bool(self._raised) or any((self._person or {}).values())

    # ---- levels as glog has them

    def _levels(self) -> tuple[int, ...]:
        return tuple([level.value for level in self._variables])

    def _write(self, levels: Sequence[int]) -> None:
        if self._sites is not None:
            self._sites.write(levels)
        elif levels[0] != self._global.value:
            self._set({"*": levels[0]})
            self._global.value = levels[0]

    def _wanted(self) -> tuple[int, ...]:
        level = self._level("*")
        if self._sites is None:
            return (level,)
        return (level, *(level if self._ours else other for other in self._second))

    def _apply(self) -> None:
        self._busy = self._ours or any(level for name, level in self._script.items() if name != "*")
        levels = self._wanted()
        if self._held is not None:
            self._held = levels
            self._at_a_stop = True
            return
        self._apply_modules()
        if self._levels() != levels:
            self._write(levels)

    @property
    def _ours(self) -> bool:
        return self._person is not None or bool(self._raised)

    def _apply_modules(self) -> None:
        """What adbg asks of Paddle here is in no log: the global level is 0 meanwhile."""
        asked = {name for levels in (self._person or {}, *self._raised) for name in levels} - {"*"}
        new = asked - self._asked
        names = {*self._modules, *asked}
        wanted = {name: 0 if self._held is not None else self._level(name) for name in names}
        changed = {name: level for name, level in wanted.items() if self._modules.get(name) != level}
        if changed or new:
            if self._sites is not None:
                self._sites.write([0] * len(self._sites.levels))
            self._modules.update(changed)
            self._by_module.value = any(self._modules.values())
            self._set(changed)
        if self._sites is not None and new:
            self._sites.ask_again()
        self._asked |= new
        if self._asked and not self._ours and self._held is None:
            if self._sites is not None:
                self._sites.follow()
            self._asked.clear()

    def _level(self, name: str) -> int:
        level = _of(self._script if self._person is None or self._yields else self._person, name)
        return max([level, *(_of(levels, name) for levels in self._raised)])

    # ---- what the script asks

    def _wrap(self) -> None:
        original = self._set

        def set_vlog_level(module_levels: Any) -> None:
            own = {"*": module_levels} if isinstance(module_levels, int) else module_levels
            if not isinstance(own, dict) or not all(isinstance(level, int) for level in own.values()):
                original(module_levels)  # refused as ever
                return
            with self._lock:
                self._script.update(own)
                self._yields = any(own.values()) and self.elsewhere()
                original(module_levels)
                self._modules.update({name: level for name, level in own.items() if name != "*"})
                self._by_module.value = any(self._modules.values())
                self._global.value = own.get("*", self._global.value)
                self._busy = self._ours or any(self._modules.values())
                if self._ours or self._asked or self._held is not None:
                    self._apply()

        set_vlog_level.__doc__ = original.__doc__
        set_vlog_level.adbg_original = original  # type: ignore[attr-defined]
        self._wrapped = self._core.set_vlog_level = set_vlog_level


def _of(levels: Mapping[str, int], name: str) -> int:
    return levels.get(name, levels.get("*", 0))


def _environment() -> dict[str, int]:
    """GLOG_v and GLOG_vmodule ("backward=3,nodes=4") as levels; parts that glog would pass over are passed over."""
    levels = {}
    level = os.environ.get("GLOG_v", "")  # noqa: SIM112  glog's own spelling
    if level.isdecimal():
        levels["*"] = int(level)
    for part in os.environ.get("GLOG_vmodule", "").split(","):  # noqa: SIM112
        name, _, level = part.partition("=")
        if name.strip() and level.strip().isdecimal():
            levels[name.strip()] = int(level)
    return levels
