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
def _functions() -> dict[int, tuple[types.CodeType, str]]:
    """By the address of their code, which is held beside it (its hash takes microseconds, see ``UserLines``). Of Paddle
    3.3; what another version writes in C++ is an operator there."""
    functional = paddle.nn.functional
    known = [(getattr(functional, name, None), name) for name in (*_LOSSES, _ATTENDS)]
    known += [(getattr(owner, "masked_fill", None), "masked_fill") for owner in (paddle, paddle.Tensor)]
    known.append((paddle.nn.MSELoss.forward, "mse_loss"))  # which does not call F.mse_loss
    codes = [(getattr(inspect.unwrap(each), "__code__", None), name) for each, name in known if callable(each)]
    return {id(code): (code, name) for code, name in codes if code is not None}


def composite(call: OperatorCall, frame: types.FrameType | None) -> OperatorCall | None:
    """The function that ``call`` is the last operator of (an attention: its softmax), as one call; None where there is
    none. ``frame``: who called the operator. A loss without a reduction is not told."""
    name, reduction = call.name, _REDUCES.get(call.name)
    if (reduction is None and name not in ("softmax", "masked_fill", "where")) or call.error is not None:
        return None
    known = None
    for _ in range(_DEEP):
        known = _functions().get(id(frame.f_code)) if frame is not None else None
        if frame is None or known is not None:
            break
        frame = frame.f_back
    if frame is None or known is None:
        return None
    found = known[1]
    if (found in _LOSSES) != (reduction is not None) or (found == _ATTENDS) != (name == "softmax"):
        return None
    given = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    arguments = tuple(local(frame, each) for each in given if each not in ("self", "reduction", "name"))
    operands = tuple(tensors_in(paddle.Tensor, arguments))
    keywords = {"reduction": reduction} if reduction is not None else {}
    versions = (None,) * len(operands)
    return OperatorCall(found, operands, versions, call.results, call.lines, call.grad_mode, False, arguments, keywords)
