"""Functions of Paddle's that are several operators, and one on torch: losses go by their names there.

Nothing stands in for them: the program may compare, pickle or look up ``F.mse_loss``. As the operator runs that is the
last of one, the function's frame is on the stack, with what it was given.
"""

from __future__ import annotations

import functools
import inspect
import types

import paddle

from adbg.engine.backends.base import OperatorCall
from adbg.engine.backends.common.observing.operands import tensors_in
from adbg.engine.frames import local

_LOSSES = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss",
    "soft_margin_loss", "binary_cross_entropy_with_logits", "poisson_nll_loss", "gaussian_nll_loss",
    "cross_entropy",
)  # fmt: skip
_REDUCES = {"mean": "mean", "mean_all": "mean", "sum": "sum"}
_ATTENDS = "scaled_dot_product_attention"  # by smaller operators on a CPU, with one softmax
_DEEP = 6  # frames between the operator and the function


@functools.cache
def _functions() -> dict[types.CodeType, str]:
    """By their code, of Paddle 3.3; what another version writes in C++ is an operator there."""
    found = {}
    for name in (*_LOSSES, _ATTENDS):
        code = getattr(inspect.unwrap(getattr(paddle.nn.functional, name, len)), "__code__", None)
        if code is not None:
            found[code] = name
    for owner in (paddle, paddle.Tensor):
        code = getattr(inspect.unwrap(getattr(owner, "masked_fill", len)), "__code__", None)
        if code is not None:
            found[code] = "masked_fill"
    found[paddle.nn.MSELoss.forward.__code__] = "mse_loss"  # which does not call F.mse_loss
    return found


def composite(call: OperatorCall, frame: types.FrameType | None) -> OperatorCall | None:
    """The function that ``call`` is the last operator of (an attention: its softmax), as one call; None where there is
    none. ``frame``: who called the operator. A loss without a reduction is not told."""
    name, reduction = call.name, _REDUCES.get(call.name)
    if (reduction is None and name not in ("softmax", "masked_fill", "where")) or call.error is not None:
        return None
    for _ in range(_DEEP):
        if frame is None:
            return None
        found = _functions().get(frame.f_code)
        if found is not None:
            break
        frame = frame.f_back
    else:
        return None
    assert frame is not None
    if (found in _LOSSES) != (reduction is not None) or (found == _ATTENDS) != (name == "softmax"):
        return None
    given = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    arguments = tuple(local(frame, each) for each in given if each not in ("self", "reduction", "name"))
    operands = tuple(tensors_in(paddle.Tensor, arguments))
    keywords = {"reduction": reduction} if reduction is not None else {}
    versions = (None,) * len(operands)
    return OperatorCall(found, operands, versions, call.results, call.lines, call.grad_mode, False, arguments, keywords)
