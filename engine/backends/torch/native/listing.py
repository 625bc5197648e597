"""Hooks on nodes that Python never touches: a C++ hook of the extension's in their lists of hooks, which calls Python.

It calls it as torch calls a hook of Python's, through one that was made for a node of our own: torch makes the tensors,
checks what is returned and lets exceptions pass. What it does not tell is the node; that is the one which the engine
runs, asked of the extension by its key. So a graph of any size can be hooked, and is freed as without adbg: a node that
``register_hook`` was called on has a Python object as long as it lives (``touched.py``).

The functions here run on the engine's threads.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import torch

from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.native.core import Core, apart
from adbg.engine.backends.torch.native.walk import CoreWalk

Gradients = tuple[Any, ...]


class Listed(Protocol):
    """The hooks of a call that has some in lists."""

    task: int | None

    def running_key(self) -> int | None: ...

    def before(self, key: int, grad_outputs: Gradients) -> Gradients | None: ...

    def after(self, key: int, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None: ...

    def is_mine(self, key: int) -> bool: ...


_listed: list[Listed] = []  # the calls that run, the latest last
_donors: list[Any] = []  # kept for good: their hooks are called


def begin(core: Core, hooks: Listed) -> bool:
    """Whether nodes of this call's graph can be hooked so. Under the GIL."""
    compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    if core.module is None or getattr(compiled, "compiled_autograd_enabled", False):
        return False
    if not _donors:
        _donors.append(apart(_donor, core.module))
        if not _donors[0]:
            core.failed["hooks"] = "the lists of hooks were not found in a node"
    if not _donors[0]:
        return False
    if not any(each is hooks for each in _listed):
        _listed.append(hooks)
        core.module.torch_hooked(1)
    return True


def end(core: Core, walk: CoreWalk | None, hooks: Listed) -> None:
    """The call is over. The hooks stay in its nodes, and do nothing, where another call runs that may share them: its
    thread may be reading these very lists."""
    place = next((place for place, each in enumerate(_listed) if each is hooks), None)
    if place is None:
        return
    del _listed[place]
    core.module.torch_hooked(-1)
    if walk is not None and not _listed:
        walk.unhook()


def abandon(core: Core) -> None:
    """In a forked child, where the calls of other threads never end."""
    while _listed:
        _listed.pop()
        core.module.torch_hooked(-1)


def _donor(module: Any) -> bool:
    node: Any = getattr(torch._C, "_functions").UndefinedGrad()  # noqa: B009  (not in the hints)
    after, before = node.register_hook(_after), node.register_prehook(_before)
    return bool(module.torch_hooking(node, before.hooks_dict_ref(), after.hooks_dict_ref()))


def _before(grad_outputs: Gradients) -> Gradients | None:
    task = private.task_id()
    for hooks in reversed(_listed):
        if hooks.task is None or hooks.task == task:
            key = hooks.running_key()
            if key is not None and hooks.is_mine(key):
                return hooks.before(key, grad_outputs)
    return None


def _after(grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None:
    task = private.task_id()
    for hooks in reversed(_listed):
        if hooks.task is None or hooks.task == task:
            key = hooks.running_key()
            if key is not None and hooks.is_mine(key):
                return hooks.after(key, grad_inputs, grad_outputs)
    return None
