"""Where operators and their derivatives are not finite: words for numbers that explain a NaN or an infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from adbg.engine.diagnosis.detectors.numbers.values import LARGEST, WORDS, plain
from adbg.engine.protocol.messages import Finding


def outgrew(text: str) -> bool:
    """Whether that says of finite numbers that they grew beyond a range, which is no matter of float16, of a derivative
    at an edge, or of zeros."""
    return any(f"is beyond the largest {word}," in text for word in _WIDE) or "diverges until numbers overflow" in text


def outgrown(finding: Finding) -> bool:
    """Whether it tells of weights or numbers that outgrew their range, and nothing was found yet that led to it."""
    grown = finding.kind == "large-update" or (finding.kind == "nonfinite" and outgrew(finding.message))
    return grown and finding.victim_of is None and finding.severity != "note"


_WIDE = WORDS["f32"], WORDS["f64"], WORDS["bf16"]
_TINY = 1.2e-38  # the smallest normal float32: 1 / x of what is below may be infinite, 1 / x**2 is


def made_in_backward(op: str, incoming: float | None, operands: Mapping[str, float], exponent: str) -> str:
    """Why the derivative of ``op`` is not finite: ``operands`` are what it saved at the place, by name."""
    self, result, other = operands.get("self"), operands.get("result"), operands.get("other")
    why = ""
    if op == "sqrt" and (result == 0 or self == 0):
        why = "the derivative of sqrt(x), 1 / (2 * sqrt(x)), is infinite at x = 0"
    elif op == "rsqrt" and (self == 0 or (result is not None and math.isinf(result))):
        why = "rsqrt(x) and its derivative are infinite at x = 0"
    elif op in ("log", "log2", "log10", "reciprocal") and (self == 0 or operands.get("result") == math.inf):
        why = f"the derivative of {op}(x) is infinite at x = 0"
    elif op in ("log", "log2", "log10", "reciprocal", "sqrt", "rsqrt") and self is not None and 0 < abs(self) < _TINY:
        why = f"the derivative of {op}(x) is beyond the largest number at x = {plain(self)}: x has all but underflown"
    elif op == "div" and other is not None and 0 < abs(other) < _TINY:
        why = f"it divides by {plain(other)}, which has all but underflown"
    elif op == "log1p" and self == -1:
        why = "the derivative of log1p(x) is infinite at x = -1"
    elif op == "div" and other == 0:
        why = "it divides by 0"
    elif op == "pow" and self == 0:
        why = f"the derivative of x ** {exponent or 'p'} is infinite, or not defined, at x = 0"
    elif op in ("norm", "std", "cdist", "dist") and result == 0:
        why = f"the derivative of {op} is not defined where the result is 0"
    elif op in ("acos", "asin", "atanh") and self is not None and abs(self) >= 1:
        why = f"the derivative of {op}(x) is infinite at x = {plain(self)}"
    elif op == "acosh" and self == 1:
        why = "the derivative of acosh(x) is infinite at x = 1"
    elif op == "logsumexp" and self == -math.inf:
        why = (
            "a slice that is -inf everywhere: all of it is masked, its logsumexp is -inf, and the derivative takes one "
            "from the other (-inf - -inf is NaN)"
        )
    elif op == "atan2" and self == 0 and other == 0:
        why = "the derivative of atan2 is not defined at (0, 0)"
    if why and incoming == 0 and op != "logsumexp":
        why += ", and 0 * inf is NaN: a mask after an operator does not keep its derivative away"
    return why


#: what the derivative of these is infinite at, where a framework does not show what was saved
EDGES = {
    "sqrt": "0", "rsqrt": "0", "log": "0", "log2": "0", "log10": "0", "reciprocal": "0", "div": "a divisor of 0",
    "pow": "0", "norm": "a vector of zeros", "std": "equal values", "cdist": "equal points", "dist": "equal points",
    "acos": "±1", "asin": "±1", "atanh": "±1", "acosh": "1", "log1p": "-1", "atan2": "(0, 0)",
}  # fmt: skip


def made_in_forward(
    op: str, operands: Sequence[float | None], scalars: Sequence[float], result: float, dtype: str, largest: float
) -> str:
    """Why ``op`` gives ``result`` of finite operands: those at the place (None: not at one place), numbers among its
    arguments, and the largest magnitude in all of them."""
    first = operands[0] if operands else None
    second = operands[1] if len(operands) > 1 else (scalars[0] if scalars else None)
    why = ""
    if op in ("log", "log2", "log10", "log1p"):
        bound = -1 if op == "log1p" else 0
        if first is not None and first <= bound:
            why = f"{op} of {plain(first)}"
    elif op in ("sqrt", "rsqrt") and first is not None and first <= 0:
        why = f"{op} of {plain(first)}"
    elif op == "reciprocal" and first == 0:
        why = "1 / 0"
    elif op == "div" and second == 0:
        why = f"{plain(first) if first is not None else 'a number'} / 0"
    elif op == "addcdiv" and len(operands) > 1 and operands[-1] == 0:
        why = f"{plain(operands[-2]) if operands[-2] is not None else 'a number'} / 0"
    elif op == "pow" and first is not None and second is not None and (first == 0 or not math.isinf(result)):
        why = f"{plain(first)} ** {plain(second)}"
    elif op in ("acos", "asin", "atanh") and first is not None and abs(first) >= 1:
        why = f"{op} of {plain(first)}"
    if not why and math.isinf(result):
        limit = LARGEST.get(dtype, math.inf)
        if op in ("exp", "expm1", "exp2", "cosh", "sinh") and first is not None:
            why = f"{op} of {plain(first)} is beyond the largest {WORDS.get(dtype, dtype)}, {plain(limit)}"
        elif op == "pow" and first is not None and second is not None:
            power = f"{plain(first)} ** {plain(second)}"
            why = f"{power} is beyond the largest {WORDS.get(dtype, dtype)}, {plain(limit)}"
        elif largest > 1:
            why = (
                f"the result is beyond the largest {WORDS.get(dtype, dtype)}, {plain(limit)}: "
                f"operands go up to {plain(largest)}"
            )
    return why


def outside_domain(op: str, name: str, low: float, high: float, zero: int, exponent: str) -> str:
    """Whether a saved operand with that range tells that the forward of ``op`` gave a number that is not finite."""
    if op in ("log", "log2", "log10") and name in ("self", "x") and (low <= 0 or zero):
        return f"{op} of {plain(min(low, 0) if not zero or low < 0 else 0)}"
    if op == "log1p" and name == "self" and low <= -1:
        return f"log1p of {plain(low)}"
    if op in ("sqrt", "rsqrt") and name == "self" and low < 0:
        return f"{op} of {plain(low)}"
    if op == "div" and name == "other" and zero:
        return "a division by 0"
    if op == "reciprocal" and name == "self" and zero:
        return "1 / 0"
    if op in ("acos", "asin", "atanh") and name == "self" and max(abs(low), abs(high)) > 1:
        return f"{op} of {plain(low if abs(low) > abs(high) else high)}"
    if op == "pow" and name == "self" and low < 0 and _fraction(exponent):
        return f"{plain(low)} ** {exponent}"
    if op == "pow" and name == "self" and zero and exponent.startswith("-"):
        return f"0 ** {exponent}"
    return ""


def _fraction(text: str) -> bool:
    try:
        return float(text) != int(float(text))
    except (ValueError, OverflowError):
        return False
