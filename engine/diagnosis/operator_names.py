"""Operators by whatever name they go: the function's that was called, or that of the node which it recorded."""

from __future__ import annotations

import functools
import re

_ALIASES = {
    "truedivide": "div", "divide": "div", "truediv": "div", "rtruediv": "div", "floordivide": "div", "rdiv": "div",
    "linalgvectornorm": "norm", "linalgnorm": "norm", "vectornorm": "norm", "pnorm": "norm", "frobeniusnorm": "norm",
    "stdmean": "std", "varmean": "var", "multiply": "mul", "rmul": "mul", "elementwisepow": "pow", "rpow": "pow",
    "clampmin": "clamp", "clampmax": "clamp", "clip": "clamp", "add": "add", "radd": "add", "subtract": "sub",
    "rsub": "sub", "matmul": "mm", "bmm": "mm", "addmm": "mm", "linear": "mm", "rmatmul": "mm", "toncopy": "tocopy",
    "crossentropy": "nllloss", "crossentropywithsoftmax": "nllloss", "logsoftmax": "logsoftmax", "square": "pow",
}  # fmt: skip


@functools.lru_cache(4096)
def plain_name(name: str) -> str:
    """The operator in the name of a call or a node: "div" of "__truediv__", "DivBackward0", "DivideGradNode",
    "div_"."""
    word = re.sub(r"(Backward\d*|GradNode|GradNodeFinal)(#\d+)?$", "", name).replace("_", "").lower()
    return _ALIASES.get(word, word)
