"""Steps that divide by 0: the ``eps`` of an optimizer is 0, or too small for the type in which it is added, and so is
the second moment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.numbers import values
from adbg.engine.diagnosis.facts import Facts

#: the smallest number above 0; what is at most half of it is rounded to 0
_SMALLEST = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 5e-324}
_SQUARES = re.compile(r"_sq$|squ?are(?!.*update)|moment2|second|^sum$|^moment$|inf")  # of what a root is divided by
_OTHERS = ("exp_avg", "moment1", "momentum_buffer")


@dataclass(frozen=True, slots=True)
class Divided:
    """Why a step made a parameter that is not finite, in words."""

    why: str
    evidence: tuple[str, ...]


def divided_by_zero(facts: Facts, optimizer: Any, what: str = "") -> Divided | None:
    """Of the first parameter that the last step of ``optimizer`` left not finite because it divided by 0, one like
    ``what`` (its shape and dtype) before others; None where that is not proven."""
    backend = facts.backend
    held = [value for value in _held(backend, optimizer) if any(values.bad(backend, value))]
    for value in sorted(held, key=lambda each: values.shape_text(backend, each) != what):
        eps, states = backend.keeping.optimizer_state(optimizer, value)
        found = _divided(backend, facts.title_of(value) or "the parameter", value, eps, states)
        if found is not None:
            return found
    return None


def _held(backend: Backend, optimizer: Any) -> Iterator[Any]:
    mine = f"{type(optimizer).__name__} "
    seen: set[int] = set()
    for place, value in backend.optimized():
        if place.startswith(mine) and id(value) not in seen:
            seen.add(id(value))
            yield value


def _divided(
    backend: Backend, name: str, parameter: Any, eps: float | None, states: Mapping[str, Any]
) -> Divided | None:
    read = values.numbers(backend, parameter)
    if read is None or eps is None:
        return None
    same = {kept: found for kept, each in states.items() if (found := values.numbers(backend, each)) is not None
            and found.shape == read.shape}  # fmt: skip
    squares = {kept: found for kept, found in same.items() if _SQUARES.search(kept)}
    if not squares or any(not _vanishes(eps, found.dtype) for found in squares.values()):
        return None
    bad = [at for at, number in enumerate(read.flat) if number - number != 0]
    zero = [at for at in bad if all(found.flat[at] == 0 for found in squares.values())]
    if 2 * len(zero) <= len(bad):  # others are what it comes from
        return None
    kept, square = next(iter(squares.items()))
    kind = values.WORDS.get(square.dtype, square.dtype)
    where = values.index_text(zero[0], read.shape)
    if eps == 0:
        why = f"eps is 0, and so is {kept} at {where}: it divides by 0"
    else:
        why = f"eps={eps:g} is 0 in {kind}, and so is {kept} at {where}: it divides by 0"
    evidence = [
        f"{name}: {kept} {list(read.shape)} {kind} is 0 at {len(zero):,} of the {len(bad):,} elements that are not "
        "finite"
    ]
    if eps:
        evidence.append(f"the smallest {kind} above 0 is {_SMALLEST[square.dtype]:.2g}: eps={eps:g} is rounded to 0")
    first = next(((other, same[other].flat) for other in _OTHERS if other in same), None)
    moved = [at for at in zero if first is not None and first[1][at] - first[1][at] == 0 and first[1][at] != 0]
    if first is not None and moved:
        at = moved[0]
        evidence.append(
            f"{first[0]} is {values.plain(first[1][at])} at {values.index_text(at, read.shape)}: the gradient was not "
            f"0 there, but what its square adds to {kept} is rounded to 0"
        )
    if eps:
        evidence.append(f"hold parameters in float32 (and use autocast), or give an eps that {kind} has, such as 1e-4")
    return Divided(why, tuple(evidence))


def _vanishes(eps: float, dtype: str) -> bool:
    return dtype in _SMALLEST and abs(eps) <= _SMALLEST[dtype] / 2
