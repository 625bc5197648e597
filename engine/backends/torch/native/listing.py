"""Hooks on nodes that Python never touches: a C++ hook of the extension's in their lists of hooks, which calls Python.

It calls it as torch calls a hook of Python's, through one that was made for a node of our own: torch makes the tensors,
checks what is returned and lets exceptions pass. What it does not tell is the node; that is the one which the engine
runs, asked of the extension by its key. So a graph of any size can be hooked, and is freed as without adbg: a node that
``register_hook`` was called on has a Python object as long as it lives (``touched.py``).

The functions here run on the engine's threads.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from adbg.engine.backends.torch.native import screen
from adbg.engine.backends.torch.native.core import Core, apart
from adbg.engine.backends.torch.native.running import Hooks, RunningCalls
from adbg.engine.backends.torch.native.walk import CoreWalk

Gradients = tuple[Any, ...]


class Listed(Hooks, Protocol):
    """The hooks of a call that has some in lists."""

    def running_key(self) -> int | None: ...

    def before(self, key: int, grad_outputs: Gradients) -> Gradients | None: ...

    def after(self, key: int, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None: ...


_listed: RunningCalls[Listed] = RunningCalls("torch_hooked", lambda hooks: hooks.running_key())
_donors: list[Any] = []  # kept for good: their hooks are called


def begin(core: Core, hooks: Listed) -> bool:
    """Whether nodes of this call's graph can be hooked so. Under the GIL."""
    if core.module is None or screen.compiled():
        return False
    if not _donors:
        _donors.append(apart(_donor, core.module))
        if not _donors[0]:
            core.failed["hooks"] = "the lists of hooks were not found in a node"
    if not _donors[0]:
        return False
    _listed.add(core, hooks)
    return True


def end(core: Core, walk: CoreWalk | None, hooks: Listed) -> None:
    """The call is over."""
    if _listed.remove(core, hooks) and walk is not None:
        walk.unhook()


def abandon(core: Core) -> None:
    _listed.abandon(core)


def _donor(module: Any) -> bool:
    node: Any = getattr(torch._C, "_functions").UndefinedGrad()  # noqa: B009  (not in the hints)
    after, before = node.register_hook(_after), node.register_prehook(_before)
    return bool(module.torch_hooking(node, before.hooks_dict_ref(), after.hooks_dict_ref()))


def _before(grad_outputs: Gradients) -> Gradients | None:
    found = _listed.of_node()
    return found[0].before(found[1], grad_outputs) if found is not None else None


def _after(grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None:
    found = _listed.of_node()
    return found[0].after(found[1], grad_inputs, grad_outputs) if found is not None else None
