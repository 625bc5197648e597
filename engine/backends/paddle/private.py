"""Every private name of Paddle that adbg touches, found by looking (never by comparing versions).

What libpaddle exports to C alone is in ``native``. Looked up on the thread that imports the backend, used from any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import paddle
from paddle.autograd import py_layer as _py_layer
from paddle.base import core
from paddle.distributed.communication import group as _group

from adbg.engine import live_objects
from adbg.engine.backends.common.private_use import PrivateUses

USES = PrivateUses()
_find = USES.find

eager: Any = core.eager
run_backward: Any = _find(core, "core.eager.run_backward", "see Tensor.backward and autograd.backward")
run_partial_grad: Any = _find(core, "core.eager.run_partial_grad", "see paddle.grad")
py_layer_backward: Any = _find(_py_layer, "py_layer.PyLayerBackward", "stand around the backward of every PyLayer")
#: The code in which the backward of every PyLayer begins; read before adbg stands around it.
custom_backward: Any = getattr(getattr(py_layer_backward, "backward", None), "__code__", None)
_has_grad: Callable[[], bool] | None = _find(core, "core._has_grad", "leave the grad mode as it is")
_set_has_grad: Callable[[bool], None] | None = _find(
    core, "core._set_has_grad", "put the grad mode back after an exception in a hook"
)
process_groups: Any = _find(
    _group, "group._GroupManager", "know the process groups, and how long their collectives wait"
)


def has_grad() -> bool:
    return bool(_has_grad()) if _has_grad is not None else bool(paddle.is_grad_enabled())


#: The same, asked at every backward: Paddle's own where it is there.
quick_has_grad: Callable[[], bool] = _has_grad if _has_grad is not None else has_grad


def set_has_grad(on: bool) -> None:
    """Grad mode of this thread, past the context managers."""
    if _set_has_grad is not None:
        _set_has_grad(on)
    else:
        paddle.set_grad_enabled(on)


def contexts_alive() -> Iterator[tuple[str, Sequence[Any]]]:
    """(name of the PyLayer, what ``save_for_backward`` was given) of every context of a PyLayer. Paddle keeps them in
    its nodes and shows them to nobody: they are found among the objects that Python's garbage collector follows (32-40
    ms of 123,000 objects). Which node each is of cannot be told from outside."""
    for each in live_objects.of_kind(_py_layer.PyLayerContext):
        saved = each.container
        if isinstance(saved, (tuple, list)):
            yield type(each).__name__.removesuffix("_backward"), saved
