"""What any file may claim, made fit to be shown: no number that is none, no character that steers a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from adbg.profiles.report.model import SECONDS, Frame, Profile

# Control characters (ESC begins what a terminal does), the marks that turn text round, line ends, lone surrogates,
# and what XML forbids.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_BLANKS = "\t\n\r\u2028\u2029"
_LAST_LINE = 1 << 31
_MOST = float(1 << 63)  # of anything
_MOST_SECONDS = _MOST / 1e9  # 292 years


def printable(text: str) -> str:
    """The text without what would steer a terminal or break a document."""
    return _UNFIT.sub(lambda found: " " if found[0] in _BLANKS else "\ufffd", text)


def sound(profile: Profile) -> Profile:
    """The profile with printable text. Raises ValueError for a number that is infinite or none, or that no profile
    has: a flame graph is as wide as its weights, and formats keep nanoseconds in 64 bits."""
    numbers = [sample.weight for sample in profile.samples] + [profile.period, profile.launch_cost]
    for call in profile.calls:
        numbers += [call.own, call.cumulative]
        numbers += [value for row in call.callers for value in (row.own, row.cumulative)]
    for node in profile.nodes:
        numbers += [node.total, node.gap, node.kernel, node.median, node.forward]
    for row in profile.iterations:
        numbers += [row.total, row.forward, row.backward, row.optimizer, row.data]
    numbers += [wait.seconds for wait in profile.waits]
    numbers += [value for span in profile.spans for value in (span.begin, span.duration)]
    if not all(map(math.isfinite, (number for number in numbers if number is not None))):
        raise ValueError("it has a number that is infinite, or none")
    largest = _MOST_SECONDS if profile.unit == SECONDS else _MOST
    if sum(abs(sample.weight) for sample in profile.samples) >= largest:
        raise ValueError("its numbers are too large to be added")
    if any(sample.weight < 0 for sample in profile.samples):
        raise ValueError("a stack weighs less than nothing, as in the difference of two profiles")
    if any(abs(number) >= _MOST for number in numbers if number is not None):
        raise ValueError("it has a number that is too large for a time")
    return _with_text(profile) if _has_unfit(profile) else profile


def _has_unfit(profile: Profile) -> bool:
    """Few files have any: a look is cheaper than new values."""
    if any(not 0 <= frame.line < _LAST_LINE for frame in profile.frames):
        return True
    return any(map(_UNFIT.search, _texts(profile))) or printable_meta(profile.meta) != profile.meta


def _texts(profile: Profile) -> Iterable[str]:
    for frame in profile.frames:
        yield from (frame.name, frame.file, frame.module)
    yield from {sample.thread for sample in profile.samples}
    for node in profile.nodes:
        yield from (node.name, node.unique_name, node.file, node.module)
    yield from (wait.file for wait in profile.waits)
    for span in profile.spans:
        yield from (span.name, span.category, span.thread, span.process)
        for key, value in span.facts.items():
            yield key
            if isinstance(value, str):
                yield value


def _with_text(profile: Profile) -> Profile:
    return replace(
        profile,
        frames=tuple(map(_frame, profile.frames)),
        samples=tuple(sample._replace(thread=printable(sample.thread)) for sample in profile.samples),
        nodes=tuple(
            replace(
                node,
                name=printable(node.name),
                unique_name=printable(node.unique_name),
                file=printable(node.file),
                module=printable(node.module),
            )
            for node in profile.nodes
        ),
        waits=tuple(replace(wait, file=printable(wait.file)) for wait in profile.waits),
        spans=tuple(
            span._replace(
                name=printable(span.name),
                category=printable(span.category),
                thread=printable(span.thread),
                process=printable(span.process),
                facts={
                    printable(key): printable(value) if isinstance(value, str) else value
                    for key, value in span.facts.items()
                },
            )
            for span in profile.spans
        ),
        meta=printable_meta(profile.meta),  # type: ignore[arg-type]
    )


def _frame(frame: Frame) -> Frame:
    line = frame.line if 0 <= frame.line < _LAST_LINE else 0
    return replace(
        frame, name=printable(frame.name), file=printable(frame.file), module=printable(frame.module), line=line
    )


def printable_meta(value: object) -> object:
    """What a meta.json says, at any depth."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_meta(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(printable_meta, value))
    return value
