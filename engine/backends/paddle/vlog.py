"""Paddle's VLOG levels, at run time and put back. Any thread under the GIL.

glog binds a VLOG site to its module's level, or to the global one, when the site runs for the first time (measured on
3.3.1): a module's own level has no effect on a site that ran before. So every module of the eager engine gets a level
of its own right after the import, before the first operator; from then on it follows at any time, and the global level
is set together with all of them. What the script asks for by ``paddle.base.core.set_vlog_level`` (``vlog_guard`` too)
is therefore passed to these modules as well: the attribute is wrapped, and stays so after a detach, or the script's own
levels would no longer reach them.
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Mapping
from typing import Any

from adbg.engine.backends.base import NativeVlog
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
# They report every change of a level themselves (pybind at level 3, glog at 1): silent unless asked for by name.
_QUIET = ("vlog_is_on", "pybind")


class PaddleVlog(NativeVlog):
    """Three layers: what the script set, what the user set over it, and what regions raise on top. None of them holds
    while adbg itself is at work (``quiet``)."""

    def __init__(self, core: Any) -> None:
        self._set = getattr(core.set_vlog_level, "adbg_original", core.set_vlog_level)
        self._core = core
        first = os.environ.get("GLOG_v", "")  # noqa: SIM112  glog's own spelling
        level = int(first) if first.isdecimal() else 0
        modules = os.environ.get("GLOG_vmodule", "")  # noqa: SIM112
        self._script: dict[str, int] = {"*": level, **_modules_of(modules)}
        self._person: dict[str, int] | None = None
        self._raised: list[dict[str, int]] = []
        self._quiet = False  # adbg reads something: all levels are 0
        self._late = False  # ... and they must be put back, or changed meanwhile
        self._loud = False  # some level is not 0
        self._known = {*MODULES, *self._script} - {"*"}
        self._now: dict[str, int] = {"*": level}
        # A region's thread and the reader's change levels at once; one would put back what the other has just changed.
        self._lock = threading.RLock()
        for name in _QUIET:  # alone and first: the call's own VLOG sites bind to them
            self._now[name] = self._script.get(name, 0)
            self._set({name: self._now[name]})
        self._apply()
        self._wrap()

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
        known = {*MODULES, *_QUIET, "*"}
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

    def quiet(self, on: bool) -> None:
        """35 us a call while a level is on (a read of one tensor writes more than that takes), else 0.1."""
        self._quiet = on
        if self._loud if on else self._late:
            with self._lock:
                self._late = False
                self._apply()

    def restore(self) -> None:
        with self._lock:
            self._person = None
            self._raised.clear()
            self._apply()

    def abandon(self) -> None:
        self._lock = threading.RLock()
        self._quiet = False
        self.restore()

    @property
    def loud(self) -> bool:
        return self._loud

    @property
    def logging(self) -> bool:
        return bool(self._raised) or any((self._person or {}).values())

    # ---- levels as glog has them

    def _apply(self) -> None:
        wanted = {name: self._level(name) for name in ("*", *self._names())}
        self._late = self._late or self._quiet
        self._loud = any(wanted.values())
        changed = {name: level for name, level in wanted.items() if self._now.get(name) != level}
        if not changed:
            return
        self._now = wanted
        if "*" in changed:
            self._set({"*": changed.pop("*")})
        if changed:
            self._set(changed)

    def _names(self) -> set[str]:
        names = {*self._known, *self._script, *(self._person or {}), *_QUIET}
        for levels in self._raised:
            names.update(levels)
        self._known = names - {"*"}
        return self._known

    def _level(self, name: str) -> int:
        if self._quiet and name != "*":  # a change of the global level is itself a record (pybind.cc:3445)
            return 0
        level = _of(self._script if self._person is None else self._person, name)
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
                if "*" in own:
                    original(own["*"])
                    self._now["*"] = own["*"]
                self._apply()

        set_vlog_level.__doc__ = original.__doc__
        set_vlog_level.adbg_original = original  # type: ignore[attr-defined]
        self._core.set_vlog_level = set_vlog_level


def _of(levels: Mapping[str, int], name: str) -> int:
    if name in _QUIET:
        return levels.get(name, 0)
    return levels.get(name, levels.get("*", 0))


def _modules_of(text: str) -> dict[str, int]:
    """GLOG_vmodule: "backward=3,nodes=4"; parts that glog would pass over are passed over."""
    levels = {}
    for part in text.split(","):
        name, _, level = part.partition("=")
        if name.strip() and level.strip().isdecimal():
            levels[name.strip()] = int(level)
    return levels
