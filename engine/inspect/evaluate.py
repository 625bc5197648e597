"""``evaluate``, ``setExpression``: expressions, statements and edits at a stop. Runs on the parked thread."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.graph.index import index_of
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.gradients import reads_only
from adbg.engine.inspect.plain_values import LONG_TEXT, plain_value
from adbg.engine.inspect.value_text import ValueText, is_tensor, type_name
from adbg.engine.inspect.variables import References, expandable
from adbg.engine.outside import own
from adbg.engine.protocol import messages as protocol
from adbg.engine.python import expressions as python
from adbg.engine.python.expressions import names_used
from adbg.engine.python.over import OverFrame
from adbg.engine.types import TensorMeta, TensorStats


def value_at(stop: StopContext, expression: str, frame_id: int = 0) -> Any:
    """The value of ``expression``; in-place changes that it made to gradients are adopted as edits.

    Cost: 6 us for ``1 + 1``, 14 us for ``norm(grad_outputs[0])`` of 64 x 256 on torch, the answer made and all.

    Raises:
        CommandError: it raised, or what it changed cannot take effect; one line.
    """
    if reads_only(expression):
        return python.evaluate(expression, stop.namespace(frame_id, reads=True))
    names = stop.namespace(frame_id, reads=False)
    try:
        value = python.evaluate(expression, names)
    except BaseException:
        with contextlib.suppress(AdbgError):  # the first error is the one to report
            stop.gradients.settle(expression)
        raise
    stop.gradients.settle(expression)
    return value


def value_of(stop: StopContext, expression: str, frame_id: int, node: int) -> Any:
    """The value at the current node, or at node number ``node``. Raises CommandError."""
    point = stop.point
    if not node or (point.key is not None and node == point.stop.index):
        return value_at(stop, expression, frame_id)
    graph, _ = stop.graph()
    frame = stop.live_frames[0] if stop.live_frames else None
    return python.evaluate(expression, stop.node_names(graph, index_of(graph).key_at(node), frame))


def evaluate(stop: StopContext, references: References, request: protocol.Evaluate) -> protocol.EvaluateBody:
    """An expression, or (context "statement") statements, in a frame."""
    if request.context == "statement":
        return protocol.EvaluateBody(_execute(stop, request))
    value = value_of(stop, request.expression, request.frameId, request.node)
    meta = result_meta(stop, value)
    reference = 0
    if meta is None and expandable(value):
        reference = references.value(value, request.expression, request.frameId)
    return protocol.EvaluateBody(
        result=result_text(stop, value),
        type=type_name(value),
        variablesReference=reference,
        value=None if meta is not None and meta.numel != 1 else plain_value(value, stop.point.backend),
        tensor=meta,
        stats=_stats(stop, value, meta) if request.stats else None,
        locals=None if request.node else running_locals(stop, names_used(request.expression), request.frameId),
    )


def running_locals(stop: StopContext, names: Sequence[str], frame_id: int) -> protocol.RunningLocals | None:
    """What is said of a local that the reader may take for the forward's: ``x`` at a node is that of the frame that
    runs, and the function that made the node had an ``x`` too."""
    at_node = not frame_id or stop.frame(frame_id).kind == "node"
    if not at_node or stop.point.key is None:
        return None
    forward = next((entry.location for entry in stop.frames if entry.kind == "node"), None)
    running = stop.innermost
    entry = next((entry for entry in stop.frames if entry.python is not None and entry.python is running), None)
    if forward is None or running is None or entry is None or entry.location is None:
        return None
    if (forward.file, forward.function) == (entry.location.file, entry.location.function):
        return None  # the same call, as far as can be told
    own = stop.namespace(frame_id, reads=True).before_the_frame()
    mixed = [name for name in names if name in running.f_locals and name not in own and OverFrame(forward).had(name)]
    return protocol.RunningLocals(mixed, entry.id - 1, entry.location, forward) if mixed else None


def _stats(stop: StopContext, value: Any, meta: TensorMeta | None) -> TensorStats | None:
    """Of a tensor with numbers in it, more than one. Never a reason for the value not to be shown."""
    if meta is None or not meta.shape or meta.numel < 2:
        return None
    try:
        return stop.backend.stats(value, False, 16)
    except own(Exception):  # sparse, meta device, a subclass that refuses
        return None


def _execute(stop: StopContext, request: protocol.Evaluate) -> str:
    names = stop.namespace(request.frameId, reads=False)
    try:
        printed = python.execute(request.expression, names)
    except BaseException:
        with contextlib.suppress(AdbgError):
            stop.gradients.settle(request.expression)
        raise
    stop.gradients.settle(request.expression)
    return printed


def result_meta(stop: StopContext, value: Any) -> TensorMeta | None:
    """TensorMeta of a tensor, None of anything else."""
    return stop.backend.meta(value) if is_tensor(stop.point.backend, value) else None


def result_text(stop: StopContext, value: Any) -> str:
    """What ``print`` shows: a tensor as the framework prints it (long ones elided), text of any other value bounded."""
    if is_tensor(stop.point.backend, value):
        return stop.backend.text(value)
    return ValueText(stop.point.backend, items=100, characters=LONG_TEXT, levels=5, fold=False)(value)


def set_expression(stop: StopContext, request: protocol.SetExpression) -> protocol.SetVariableBody:
    """``set TARGET = EXPR``: a gradient (whole, or a part of it) or a Python name, attribute or item."""
    target = python.parse_target(request.expression, items=True)
    if isinstance(target, python.GradTarget):
        return _set_gradient(stop, target, request)
    value = value_at(stop, request.value, request.frameId)
    assign(stop, target, value, request.frameId)
    return protocol.SetVariableBody(stop.text(value), type_name(value))


def _set_gradient(
    stop: StopContext, target: python.GradTarget, request: protocol.SetExpression
) -> protocol.SetVariableBody:
    stop.gradients.check_edit(target.kind, target.index)  # before the expression runs: it may be costly
    value = value_at(stop, request.value, request.frameId)
    if target.item:
        names = stop.namespace(request.frameId, reads=False)
        adopted = stop.gradients.change(
            target.kind, target.index, lambda clone: python.assign_item(clone, target.item, value, names)
        )
    else:
        adopted = stop.gradients.replace(target.kind, target.index, value)
    return protocol.SetVariableBody(stop.text(adopted) if adopted is not None else "undefined", type_name(adopted))


def assign(stop: StopContext, target: python.PythonTarget, value: Any, frame_id: int) -> None:
    """Give a Python name, attribute or item in a frame a value.

    Raises:
        CommandError: there is no frame for a name, or Python refused it.
    """
    python.assign(target, value, stop.namespace(frame_id, reads=False))
