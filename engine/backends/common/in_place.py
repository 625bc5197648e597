"""Who overwrote a tensor that a node needs? What the source lines and the edges of a graph say. At an error, on its
thread."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from adbg.engine.backends.common.graph import WalkedGraph
from adbg.engine.types import SourceLine

_IN_PLACE = re.compile(
    r"\.[A-Za-z]\w*_\("  # y.clamp_(0, 1)
    r"|\b[A-Za-z]\w*[a-z0-9]_\("  # F.relu_(y)
    r"|(?<![<>=!])(?:\+|-|\*\*?|//?|@|%|&|\||\^|<<|>>)="  # y += 1
    r"|\]\s*=(?!=)"  # y[0] = 1
    r"|\binplace\s*=\s*True|\bout\s*="
)


def writes_in_place(line: SourceLine | None) -> bool:
    """Whether the source of ``line`` has an operation in place."""
    if line is None:
        return False
    text = linecache.getline(line.file, line.line)
    return bool(_IN_PLACE.search(text.partition("#")[0]))


def overwritten_text(graph: WalkedGraph, writer: int, sure: bool = True) -> str:
    """ "overwritten at vae.py:12 by #10 ClampBackward1#1"; not ``sure``, where the source line alone says so:
    "probably overwritten at …"."""
    info = graph.describe(writer)
    order = graph.order()
    number = f"#{order.index(writer) + 1} " if writer in order else ""
    where = f" at {info.forward.file}:{info.forward.line}" if info.forward is not None else ""
    return f"{'' if sure else 'probably '}overwritten{where} by {number}{info.unique_name}"


def last_taker(graph: WalkedGraph, producer: int) -> int | None:
    """The last operator of the forward that took what ``producer`` made. One that writes in place is the last: those
    that come later take what it made."""
    below: Sequence[tuple[int, ...]] = graph.producers()
    return next((key for key in graph.order() if producer in below[key]), None)
