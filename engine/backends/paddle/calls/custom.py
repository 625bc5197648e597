"""Around the backward of every PyLayer: which one runs, what it is given and gives, and what it raised.

On the threads that call backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.paddle.failures import described
from adbg.engine.backends.paddle.graph import PYLAYER
from adbg.engine.outside import own

if TYPE_CHECKING:
    from adbg.engine.backends.paddle.entry import EngineEntry
    from adbg.engine.backends.paddle.open import Open


def custom_function(entry: EngineEntry, original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for ``original``, ``PyLayerBackward.backward``."""

    def backward(ctx: Any, *args: Any) -> Any:
        state = entry.mine()
        opened = state.open[-1] if state.open else None
        if opened is None or opened.passing or entry.sink is None:
            return original(ctx, *args)
        printed = PYLAYER + type(ctx).__name__.removesuffix("_backward")
        call = opened.call
        key = call.hooks.custom_key(printed) if call is not None else None
        state.customs.append(printed)
        try:
            if call is not None and key is not None:
                args = call.hooks.custom_begin(key, args) or args
            result = original(ctx, *args)
        except BaseException as error:
            if state.origin is None and state.abort is None:
                state.origin = error
            strip_own(error)
            raise
        finally:
            state.customs.pop()
        state.origin = None  # it got over whatever was raised inside
        return _end(entry, opened, printed, key, result, args)

    return backward


def _end(entry: EngineEntry, opened: Open, printed: str, key: int | None, result: Any, args: tuple[Any, ...]) -> Any:
    call = opened.call
    if call is not None and key is None:  # a stop at a Python line inside had the call made meanwhile
        key = call.hooks.custom_key(printed)
    if call is not None and key is not None:
        result = call.hooks.custom_end(key, result, args)
    try:
        opened.returned = (printed, described(result))
        if result is None or (isinstance(result, (tuple, list)) and any(value is None for value in result)):
            call = entry.realize(opened)
            if call is not None:
                call.hooks.watch_undefined(printed, key)
    except own(Exception):  # knowing less about a PyLayer is no reason to hurt the backward
        return result
    return result
