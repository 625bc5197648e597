"""Which node failed? Evidence gathered after an exception left a backward, without any hook having been there.

Runs on the thread that called backward, while the roots of the graph are still held. Nothing is executed or recomputed.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Iterator, Sequence
from typing import Any

from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.graph import TorchGraph
from adbg.engine.frames import local, locals_of
from adbg.engine.outside import by_handler, suppress
from adbg.engine.types import ValueState

_MARK = "__adbg_told__"
_NAMED = re.compile(r"[Ff]unction '?(\w+)'? returned")
_MOST = 8  # suspects named at most


def suspects(graph: TorchGraph, error: BaseException, running: int | None) -> Sequence[tuple[int, str]]:
    """(key, evidence), most likely first. ``running``: the node that the exception left, where it is known."""
    evidence = (*_in_traceback(graph, error), *_by_message(graph, str(error), running))
    if running is not None:
        why = ["it was executing when the exception left it"]
        why += list(dict.fromkeys(reason for key, reason in evidence if key == running))
        return [(running, "; ".join(why))]
    found: dict[int, str] = {}
    for key, reason in evidence:
        found.setdefault(key, reason)
    return list(found.items())[:_MOST]


def _in_traceback(graph: TorchGraph, error: BaseException) -> Iterator[tuple[int, str]]:
    """The ctx of a Python backward is its node: frames of the exception hold it. Innermost first, and of each node its
    innermost alone: above it lies the ``apply`` that called it."""
    frames, told = [], set()
    entry: types.TracebackType | None = error.__traceback__
    while entry is not None:
        frames.append((entry.tb_frame, entry.tb_lineno))
        entry = entry.tb_next
    for frame, line in reversed(frames):
        names = frame.f_code.co_varnames[:1]
        if not names:
            continue
        key = graph.key_of(local(frame, names[0]))
        if key is not None and key not in told:
            told.add(key)
            file = frame.f_code.co_filename
            yield key, f"its backward raised {type(error).__name__} ({file}:{line})"


def flowed_in(graph: TorchGraph, key: int, error: BaseException) -> Sequence[Any] | None:
    """The arguments of the ``apply`` of a Function's node ``key``, in a frame of the exception."""
    found: Sequence[Any] | None = None
    entry = error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        if frame.f_code.co_name == "apply" and frame.f_globals.get("__name__") == "torch.autograd.function":
            values = locals_of(frame)
            if graph.key_of(values.get("self")) == key:
                found = values.get("args")
                if isinstance(found, tuple) and len(found) == 1 and isinstance(found[0], list):
                    found = found[0]  # boxed, for a Function that takes them out of a list
        entry = entry.tb_next
    return found


def _by_message(graph: TorchGraph, message: str, running: int | None) -> Iterator[tuple[int, str]]:
    if "is at version" in message:
        yield from _corrupted(graph)
        return
    if "second time" in message:
        yield from _freed(graph, running)
        return
    named = _NAMED.search(message)
    if named is not None:
        for key in _at_hand(graph):
            if graph.name(key) == named.group(1) and not _is_freed(graph, key):
                yield key, f"the message names it: {message.splitlines()[0][:200]}"


def _corrupted(graph: TorchGraph) -> Iterator[tuple[int, str]]:
    """Every node with a changed tensor. Nodes that executed have freed their tensors, so the first in order that has a
    changed one is the one that failed."""
    for key in _at_hand(graph):
        for value in graph.saved(key):
            if value.state is ValueState.CORRUPTED:
                moved = f"is at version {value.version}; expected version {value.saved_at}"
                who = f", {value.note}" if value.note else ""
                yield key, f"its saved tensor '{value.name}' {moved}{who}"
                break


def _at_hand(graph: TorchGraph) -> list[int]:
    """Keys in order, of the nodes that may be asked what they saved: of a deep graph some alone."""
    most = len(graph.walk())
    return [key for key in graph.order() if key < most]


def _is_freed(graph: TorchGraph, key: int) -> bool:
    return any(value.state is ValueState.FREED for value in graph.saved(key))


def _freed(graph: TorchGraph, running: int | None) -> Iterator[tuple[int, str]]:
    """The first to run of those that an earlier backward has freed, and the link that leads to it from what was made
    since. What this backward ran is freed too; but of a graph that ran, no node is younger than its root was.
    """
    freed = [key for key in _at_hand(graph) if _is_freed(graph, key)]
    root = graph.services.last_root()
    if running in freed:
        yield running, _link(graph, running, root)
        return
    old = [key for key in freed if _older(graph, key, root)]
    if old:
        sure = "" if len(old) == 1 else (
            f"; it is the first of {len(old)} nodes as old as that backward: "
            "a breakpoint at it shows whether it still ran"
        )  # fmt: skip
        yield old[0], _link(graph, old[0], root) + sure
    for key in freed:
        yield (
            key,
            "its saved tensors were freed by an earlier backward (or it is the first of those freed in this one)",
        )


def _older(graph: TorchGraph, key: int, root: int | None) -> bool:
    number = private.sequence(graph.node(key))
    return root is not None and number is not None and number <= root


def _link(graph: TorchGraph, key: int, root: int | None) -> str:
    """ "an earlier backward ran it and freed what it saved; #7 AddmmBackward0#3 (rnn.py:7), made since, leads …"."""
    told = "an earlier backward ran it and freed what it saved"
    producers = graph.producers()
    order = graph.order()
    above, newer = {key}, None  # of what is as old, some save nothing: a sum between
    for other in reversed(order[: order.index(key)]):
        if above & set(producers[other]):
            if _older(graph, other, root):
                above.add(other)
            else:
                newer = other
    if newer is None:
        return told
    info = graph.describe(newer)
    line = f" ({os.path.basename(info.forward.file)}:{info.forward.line})" if info.forward is not None else ""
    place = order.index(newer) + 1
    return (
        f"{told}; #{place} {info.unique_name}{line}, made since, leads to it: detach() there, "
        "or retain_graph=True in the earlier backward"
    )


def mark_told(error: BaseException) -> None:
    """Told once, however many nested calls it crosses. On the exception itself: a list of those told would keep the
    frames and tensors of one that a custom backward catches."""
    with suppress(Exception):
        vars(error)[_MARK] = True


def unmark_told(error: BaseException) -> None:
    with suppress(Exception):
        vars(error).pop(_MARK, None)


def unexpected(error: BaseException) -> bool:
    """Whether a post-mortem of it is wanted: not twice, and not of what a signal's handler raised."""
    if by_handler(error) or not isinstance(error, Exception) or private.tracing():
        return False
    return not vars(error).get(_MARK)
