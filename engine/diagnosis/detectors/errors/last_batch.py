"""A batch of one sample where a layer normalises over the batch: the last, incomplete one of a loader. The layer and
its call are right; the line is named that makes the loader."""

from __future__ import annotations

import re
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.diagnosis.detectors.errors.called import called
from adbg.engine.diagnosis.detectors.errors.loaders import every_loader, looped, made_on, rest_of
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.values import Step, is_users, tensor_locals
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

# torch; Paddle gives a batch of one sample back as it is.
_ALONE = re.compile(r"Expected more than 1 value per channel when training")
_MOST = 32  # parts of a batch that are looked at


def alone(facts: Facts, error: Exception, steps: list[Step], place: int, line: SourceLine) -> Finding | None:
    """What is told of such an exception; ``line``: of the user's that called the layer. Where no loader leaves one
    sample, that is the line to change."""
    text = facts.backend.error_text(error)
    if _ALONE.search(text) is None:
        return None
    what = called(steps, place)
    first = text.split("\n", 1)[0]
    evidence = [text.strip()[:600]]
    told, confidence, cause = f"{what} is given a batch of one sample while it trains, which has no variance", 0.7, line
    known = _loader(facts.backend, steps, error)
    made = made_on(steps, error, known[1]) if known is not None else None
    if known is not None:
        name, (samples, size, _) = known[0], known[2]
        told = f"the last batch of {name} has one sample, of which {what} has no variance"
        evidence.append(
            f"{name} has {samples:,} samples: by {size:,} they leave 1 for the last batch (drop_last is False)"
        )
        cause, confidence = made or line, 0.95 if made is not None else 0.7
        evidence.append("drop_last=True leaves that batch out")
    else:
        evidence.append("no loader is known here whose last batch has one sample: each batch may be of one")
    evidence.append(f"{what} was called at {line.file}:{line.line} ({facts.text_of(line)})")
    return Finding(
        0, "operator-error", "error", confidence, f"{told}: {first[:160]}", forward=line, cause=facts.cause(cause),
        evidence=evidence, next=["adbg run SCRIPT", "info locals"],
    )  # fmt: skip


def _loader(
    backend: Backend, steps: list[Step], error: BaseException
) -> tuple[str, Any, tuple[int, int, int]] | None:  # fmt: skip
    """(its name, the loader, its samples) of the one that the batch came from; of a loop whose loader is not known, the
    only one that leaves one sample."""
    seen = False
    for name, loader, batch in looped(steps, error):
        seen = True
        rest = _leaves_one(loader)
        rows = {shape[0] for shape in _shapes(backend, batch)}
        if rest is not None and (not rows or 1 in rows):
            return name, loader, rest
    if seen:
        return None
    data = {
        tuple(backend.meta(value).shape or ())[:1]
        for frame, _ in steps if is_users(frame)
        for _, value in tensor_locals(backend, frame) if not backend.has_graph(value)
    }  # fmt: skip
    every = [(name, each, rest) for name, each in every_loader(steps) if (rest := _leaves_one(each)) is not None]
    return every[0] if len(every) == 1 and (1,) in data else None


def _leaves_one(loader: Any) -> tuple[int, int, int] | None:
    rest = rest_of(loader)
    return rest if rest is not None and rest[1] > 1 == rest[2] else None


def _shapes(backend: Backend, values: Any, depth: int = 2) -> list[tuple[int, ...]]:
    """Of the tensors among what a loop holds of a batch, or within it, that have rows."""
    parts = list(values.values()) if isinstance(values, dict) else list(values)
    found = []
    for each in parts[:_MOST]:
        if backend.is_tensor(each):
            shape = tuple(backend.meta(each).shape or ())
            found += [shape] if shape else []
        elif depth and type(each) in (list, tuple, dict):
            found += _shapes(backend, each, depth - 1)
    return found
