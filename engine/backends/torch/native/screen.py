"""The non-finite watch without Python: the extension looks at every gradient, and comes here with a bad one.

It puts one C++ hook of its own into the nodes' lists of hooks, where torch's own C++ hooks stand that call Python. What
is finite it passes on. Anything else it hands to such a hook of torch's, taken over from a node that was made for it:
torch itself makes the Python tensors, checks what is returned and lets exceptions pass. The two functions at the end
are what that hook calls, on the engine's threads.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import torch

from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.native.core import Core, apart
from adbg.engine.backends.torch.native.running import Hooks, RunningCalls
from adbg.engine.backends.torch.native.walk import CoreWalk
from adbg.engine.outside import own

Gradients = tuple[Any, ...]


class Screened(Hooks, Protocol):
    """The hooks of a call that is watched."""

    def key_of(self, node: Any) -> int | None: ...

    def bad_before(self, key: int, grad_outputs: Gradients) -> Gradients | None: ...

    def bad_after(self, key: int, grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None: ...


_watched: RunningCalls[Screened] = RunningCalls("torch_screening", lambda hooks: hooks.key_of(private.current_node()))
_donors: list[Any] = []  # kept for good: their hooks are called


def begin(core: Core, walk: CoreWalk, hooks: Screened, outputs: tuple[Any, ...]) -> bool:
    """Watch a call from its begin on; False: the Python hooks must. Under the GIL."""
    if not possible(core, outputs):
        return False
    custom = torch.autograd.function.BackwardCFunction
    if not walk.screen(bytes(issubclass(kind, custom) for kind in walk.types)):
        return False
    _watched.add(core, hooks)
    return True


def end(core: Core, walk: CoreWalk | None, hooks: Screened) -> None:
    """The call is over."""
    if _watched.remove(core, hooks) and walk is not None:
        walk.unscreen()


def abandon(core: Core) -> None:
    _watched.abandon(core)


def possible(core: Core, outputs: tuple[Any, ...]) -> bool:
    """Checks are made with the first tensor of the program's that they can be made with; none is made for them."""
    if compiled() or "screen" in core.failed:
        return False
    tensor = outputs[0] if outputs else None
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    if tensor.dtype not in (torch.float32, torch.float64, torch.float16, torch.bfloat16) or not tensor.numel():
        return False
    keys: Any = getattr(torch._C, "_dispatch_keys", None)
    try:
        if not _donors:
            _donors.append(apart(_donor, core.module))
            if not _donors[0]:
                core.failed["screen"] = "the lists of hooks were not found in a node"
        if not _donors[0] or keys is None or private.function_depth():
            return False
        raw = keys(tensor).raw_repr()
        return bool(core.module.torch_tensors(tensor, raw, tensor.numel(), tensor.data_ptr()))
    except own(Exception) as error:
        core.failed["screen"] = f"{type(error).__name__}: {error}"
        return False


def compiled() -> bool:
    """Whether backwards run compiled: there are no hooks of C++ then."""
    return bool(getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False))


def _donor(module: Any) -> bool:
    node: Any = getattr(torch._C, "_functions").UndefinedGrad()  # noqa: B009  (not in the hints)
    after, before = node.register_hook(_after), node.register_prehook(_before)
    return bool(module.torch_donor(node, before.hooks_dict_ref(), after.hooks_dict_ref()))


def _before(grad_outputs: Gradients) -> Gradients | None:
    found = _watched.of_node()
    return found[0].bad_before(found[1], grad_outputs) if found is not None else None


def _after(grad_inputs: Gradients, grad_outputs: Gradients) -> Gradients | None:
    found = _watched.of_node()
    return found[0].bad_after(found[1], grad_inputs, grad_outputs) if found is not None else None
