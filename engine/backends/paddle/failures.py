"""Which node failed, and what a PyLayer should have returned? Evidence gathered after an exception left a backward.

Runs on the thread that called backward, while the roots of the graph are still held. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.common.in_place import overwritten_text, writes_in_place
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.tensors import defined, is_tensor, meta_of, short_dtype
from adbg.engine.frames import locals_of

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.graph import PaddleGraph

_AT = re.compile(r"GradNodePyLayer_\w+\((0x[0-9a-f]+)\)")
_NAMED = re.compile(r"GradNode < ?(\w+) ?> error|Node \((\w+)\) raises")
_MOST = 8


def suspects(
    graph: PaddleGraph,
    error: BaseException,
    origin: BaseException | None,
    running: int | None,
    returned: Mapping[str, str],
    last: int | None = None,
) -> Sequence[tuple[int, str]]:
    """(key, evidence), most likely first. ``origin``: the exception as Python raised it, before Paddle made it text.
    ``running``: the node whose turn had come. ``returned``: what PyLayers gave back last.
    ``last``: the operator that began last."""
    reasons: dict[int, list[str]] = {}
    named = list(_by_message(graph, str(error)))
    if not named and last is not None and origin is None:
        named = [(last, _with_reason(graph, [last], str(error), "it began last"))]
    told = (*_running(running), *named)
    for key, why in told or _by_result(graph, str(error), returned):
        reasons.setdefault(key, []).append(why)
    if running is not None:
        reasons = {running: reasons[running]}
    found = {
        key: "; ".join(
            filter(None, dict.fromkeys((*why, _raised(origin), contract(graph, key, origin, returned, str(error)))))
        )
        for key, why in reasons.items()
    }
    return list(found.items())[:_MOST]


def _running(running: int | None) -> Iterator[tuple[int, str]]:
    if running is not None:
        yield running, "it was executing when the exception left it"


def flowed_in(graph: PaddleGraph, key: int, origin: BaseException) -> Sequence[Any] | None:
    """The arguments of the backward of the PyLayer ``key``, in a frame of the exception as Python raised it."""
    found: Sequence[Any] | None = None
    printed = graph.printed()[key]
    entry = origin.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        if frame.f_code.co_name == "backward" and frame.f_globals.get("__name__") == "paddle.autograd.py_layer":
            values = locals_of(frame)
            if printed == "GradNodePyLayer_" + type(values.get("self")).__name__.removesuffix("_backward"):
                found = tuple([value if defined(value) else None for value in values.get("args", ())])
        entry = entry.tb_next
    return found


def _raised(origin: BaseException | None) -> str:
    if origin is None:
        return ""
    trace = origin.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("paddle", "adbg"):
            place = f" ({code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"its backward raised {type(origin).__name__}{place}"


def _by_message(graph: PaddleGraph, message: str) -> Iterator[tuple[int, str]]:
    """The outermost PyLayer that the message names is the one of this graph; an operator is named at call stack
    level 3."""
    at = _AT.search(message)
    if at is not None:
        key = graph.addresses().get(int(at[1], 16))
        if key is not None:
            yield key, "Paddle's message names it"
            return
    custom = re.search(r"(GradNodePyLayer_\w+?)(?='s |\b)", message)
    for key in graph.keys_named(custom[1]) if custom is not None else ():
        yield key, "Paddle's message names it"
    for match in _NAMED.finditer(message):
        name = match[1] or match[2]
        printed = graph.printed()
        keys = [key for key in graph.order() if printed[key] == name or graph.name(key) == name]
        keys, told = _of_that_stack(graph, keys, message)
        sure = (
            f"Paddle's message names {told}" if len(keys) == 1 else f"one of {len(keys)} nodes of {told} in the message"
        )
        why = _with_reason(graph, keys, message, sure)
        for key in keys:
            yield key, why


def _with_reason(graph: PaddleGraph, keys: Sequence[int], message: str, sure: str) -> str:
    """``sure``, and what the message says was wrong."""
    what = "; ".join(filter(None, (_changed(message), _ran_before(message))))
    who = _overwritten(graph, keys[0]) if len(keys) == 1 and _changed(message) else ""
    what = "; ".join(filter(None, (what, who)))
    return f"{sure}: {what}" if what else sure


def _of_that_stack(graph: PaddleGraph, keys: list[int], message: str) -> tuple[list[int], str]:
    """Those of ``keys`` that were made by the call that the message shows (call stack level 3), where one was."""
    shown = _FORWARD.search(message)
    lines = graph.services.stacks.parsed(shown[1]) if shown is not None else ()
    found = [key for key in keys if tuple(graph.forward_stack(key)[0]) == lines] if lines else []
    one = len(keys) == 1 or not found
    return (
        (keys, "it" if len(keys) == 1 else "the name")
        if one
        else (found, "it and its line" if len(found) == 1 else "the name and line")
    )


def _overwritten(graph: PaddleGraph, key: int) -> str:
    """Paddle does not show what a node saved: who took its result, or what it took, on a line that writes in place.
    What wrote there before ``key`` came would stand between the two."""
    below = graph.producers()
    made = {key, *below[key]}
    takers = [other for other in graph.order() if other != key and not made.isdisjoint(below[other])]
    writers = [other for other in takers if writes_in_place(graph.describe(other).forward)]
    return " or ".join(overwritten_text(graph, writer, False) for writer in writers[:3])


def _ran_before(message: str) -> str:
    if "TensorWrappers of" not in message or "do not exist" not in message:
        return ""
    return "an earlier backward ran it and freed what it saved: detach() before it, or retain_graph=True in that one"


_FORWARD = re.compile(r"Forward Traceback \(most recent call last\):\n(.*?)\n\s*\n", re.DOTALL)


def _by_result(graph: PaddleGraph, message: str, returned: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Where Paddle could not read what a PyLayer gave back, its message names nothing."""
    if _WANTS_LIST in message and returned:
        for key in graph.keys_named(list(returned)[-1]):
            yield key, "its backward returned last, and Paddle could not read what it gave"


_SHORT = re.compile(r"\A\((\w+)\) ")
_SUMMARY = re.compile(r"Error Message Summary:\n-+\n(.*)", re.DOTALL)
_WHERE = re.compile(r"\s*\(at /paddle/[^)]*\)")


def error_text(error: BaseException, origin: BaseException | None) -> str:
    """What Python raised where it did; else Paddle's message, without its C++ and repeated Python stacks."""
    if origin is not None:
        return f"{type(origin).__name__}: {_plain(str(origin))}"
    return f"{type(error).__name__}: {_plain(str(error))}"


def _plain(message: str) -> str:
    summary = _SUMMARY.search(message)
    text = summary[1] if summary is not None else _SHORT.sub(r"\1Error: ", message)  # the same at every level
    return _WHERE.sub("", text).strip()


def _changed(message: str) -> str:
    match = re.search(r"Its version is (\d+) but the expected version is (\d+)", message)
    if match is None:
        return ""
    return f"a tensor that it saved was changed in place: it is at version {match[1]}, saved at {match[2]}"


# ------------------------------------------------------------------ the contract of a PyLayer


def described(result: Any) -> str:
    """What a PyLayer's backward returned, in a line: "(f32 [3], None, [f32 [2]])"."""
    if isinstance(result, (tuple, list)):
        inside = ", ".join(described(item) for item in result)
        return f"[{inside}]" if isinstance(result, list) else f"({inside}{',' if len(result) == 1 else ''})"
    if is_tensor(result):
        return f"{short_dtype(result.dtype)} {list(result.shape)}" if defined(result) else "undefined"
    return "None" if result is None else type(result).__name__


_WANTS_LIST = "must be list or tuple"


def contract(
    graph: PaddleGraph, key: int, origin: BaseException | None, returned: Mapping[str, str], message: str = ""
) -> str:
    """What Paddle expected of a PyLayer beside what it got; "" where nothing is known of that, or it raised by
    itself. A list counts as one, however long; whether one tensor was given in a list is told by Paddle's ``message``
    alone."""
    got = returned.get(graph.printed()[key])
    native = symbols.native()
    if origin is not None or got is None or native is None or not graph.is_custom(key):
        return ""
    expected = []
    for slot in native.edges(graph.walk()[key].node_ptr()):
        drawn = [_expected(edge) for edge in slot]
        if slot and not slot[0].to:  # Paddle looks at the first alone, and then wants None for the whole list
            expected.append("None")
        elif len(slot) == 1:
            expected.append(f"{drawn[0]} or [{drawn[0]}]" if _WANTS_LIST in message else drawn[0])
        else:
            expected.append(f"[{', '.join(drawn)}]")
    whole = f"({', '.join(expected)}{',' if len(expected) == 1 else ''})"
    return f"one gradient per tensor, one list per list of tensors given to forward; expected {whole}, got {got}"


def _expected(edge: symbols.SlotEdge) -> str:
    if not edge.to:
        return "None"
    return f"{meta_of(edge.shape, edge.dtype).dtype} {list(edge.shape)}" if edge.shape is not None else "a tensor"


_UNDEFINED = (
    "{node} is about to run with an undefined gradient, and Paddle usually dies of that (SIGSEGV){why}. "
    "Let the PyLayer return zeros instead of None: stop after it and set grad_inputs[…] = paddle.zeros(…)"
)


def undefined_note(graph: PaddleGraph, key: int) -> str:
    """A warning that ``key`` is about to run without a gradient, and which PyLayers returned None for it."""
    makers = [
        graph.unique_name(other)
        for other, below in enumerate(graph.producers())
        if key in below and graph.is_custom(other)
    ]
    why = f": {', '.join(makers[:3])} returned None for it" if makers else ""
    return _UNDEFINED.format(node=graph.unique_name(key), why=why)
