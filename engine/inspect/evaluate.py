"""``evaluate``, ``setExpression``: expressions, statements and edits at a stop. Runs on the parked thread."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.engine.inspect.context import StopContext
from adbg.engine.inspect.gradients import reads_only
from adbg.engine.inspect.value_text import ValueText, is_tensor, type_name
from adbg.engine.inspect.variables import References, expandable
from adbg.engine.outside import own, suppress
from adbg.engine.protocol import messages as protocol
from adbg.engine.python import expressions as python
from adbg.engine.types import TensorMeta

SHORT_LIST = 64  # items of a list that travel as JSON
LONG_TEXT = 20_000  # characters of a result


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


def evaluate(stop: StopContext, references: References, request: protocol.Evaluate) -> protocol.EvaluateBody:
    """An expression, or (context "statement") statements, in a frame."""
    if request.context == "statement":
        return protocol.EvaluateBody(_execute(stop, request))
    value = value_at(stop, request.expression, request.frameId)
    meta = result_meta(stop, value)
    reference = 0
    if meta is None and expandable(value):
        reference = references.value(value, request.expression, request.frameId)
    return protocol.EvaluateBody(
        result=result_text(stop, value),
        type=type_name(value),
        variablesReference=reference,
        value=plain_value(value, meta, stop),
        tensor=meta,
    )


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


def plain_value(value: Any, meta: TensorMeta | None = None, stop: StopContext | None = None) -> Any:
    """``value`` where JSON can say it: numbers, strings, bools, None; the number of a tensor of one element; short
    lists, tuples and dicts of these."""
    if meta is not None:
        return _element(value, meta)
    if isinstance(value, (list, tuple)) and len(value) <= SHORT_LIST:
        return _all_plain(stop, value)
    if type(value) is dict and len(value) <= SHORT_LIST and all(type(key) is str for key in value):
        items = _all_plain(stop, list(value.values()))
        return dict(zip(value, items)) if items is not None else None
    return _scalar(value)


def _all_plain(stop: StopContext | None, values: Sequence[Any]) -> list[Any] | None:
    """None when JSON cannot say one of them."""
    items = []
    for value in values:
        tensor = result_meta(stop, value) if stop is not None else None
        item = _element(value, tensor) if tensor is not None else _scalar(value)
        if item is None and value is not None:
            return None
        items.append(item)
    return items


def _element(value: Any, meta: TensorMeta) -> Any:
    if meta.numel != 1 or meta.shape is None:
        return None
    try:
        return _scalar(value.item())
    except own(Exception):
        return None


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if len(value) <= LONG_TEXT else None
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 1024 else None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else value
    if type(value).__module__ == "numpy":  # float32(2.5): no attribute of any other value is touched
        with suppress(Exception):
            number = value.item()
            return number if isinstance(number, (bool, int, float)) else None
    return None


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
