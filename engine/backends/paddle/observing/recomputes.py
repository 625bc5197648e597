"""Regions of ``paddle.distributed.fleet.utils.recompute``: the results of both passes; where these differ, also the
first operator that did, as far as operators are told."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import paddle

from adbg.engine.backends.base import Need, OperatorCall, RecomputeCall, Tap, Watcher
from adbg.engine.backends.common.observing.recomputes import MOST, Listening, Passes, Region, Row, same
from adbg.engine.backends.common.observing.stand_ins import disguised
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.common.user_files import FrameFilter
from adbg.engine.backends.paddle import private, tensors
from adbg.engine.backends.paddle.observing.operators import OperatorTap
from adbg.engine.outside import DISGUISED, suppress

_MODULES = (
    "paddle.distributed.fleet.recompute.recompute", "paddle.distributed.fleet.recompute",
    "paddle.distributed.fleet.utils", "paddle.distributed.fleet",
)  # fmt: skip


class RecomputesTap(Tap):
    need = Need.RECOMPUTES

    def __init__(self, frames: FrameFilter, operators: OperatorTap) -> None:
        self._frames = frames
        self._operators = operators
        self._listening = Listening()
        self._put: list[tuple[Any, Any, Any]] = []
        self.codes: set[Any] = set()

    def put_in(self, watcher: Watcher) -> None:
        self._listening.watcher = watcher
        for name in _MODULES:
            module = sys.modules.get(name)
            original = vars(module).get("recompute") if module is not None else None
            if not inspect.isfunction(original):
                continue
            ours = disguised(_recompute(self, original), original)
            self.codes.add(ours.__code__)
            DISGUISED.add(ours.__code__)
            self._put.append((module, original, ours))
            setattr(module, "recompute", ours)  # noqa: B010  (a module)

    def take_out(self) -> None:
        self._listening.watcher = None
        for module, original, ours in self._put:
            if vars(module).get("recompute") is ours:
                module.recompute = original
                DISGUISED.discard(ours.__code__)
        self._put = []

    def region(self, function: Any, kwargs: dict[str, Any], frame: Any) -> Any:
        if self._listening.watcher is None or not private.has_grad() or isinstance(function, Region):
            return function
        known = ("preserve_rng_state", "use_reentrant")
        keywords = {name: value for name, value in kwargs.items() if name in known}
        passes = Passes(function, self._frames.live_line(frame), keywords, self._listening.tell)
        ours: Any = Region(function, passes, self._watched)
        plain = function.forward if isinstance(function, paddle.nn.Layer) else function
        ours.__signature__ = inspect.signature(plain)  # by which Paddle sorts the arguments
        return ours

    def _watched(self, passes: Passes, args: Any, run: Callable[[], Any]) -> Any:
        if self._listening.watcher is None:
            return run()
        with suppress(Exception):
            passes.begin(tuple([tensors.norm(each) for each in args if tensors.is_tensor(each)]))
        rows: list[Row] = []
        origins: list[int | None] = []  # of each row of the second pass that may be told: the row that it is owed to
        differ: list[tuple[Any, int]] = []  # what differs there and carries no gradient, and the row where that began

        def note(call: OperatorCall) -> None:
            if call.results and call.error is None and len(rows) < MOST and not call.name.startswith("empty"):
                line = call.lines[0] if call.lines else None
                made, place = call.results[0], len(rows)
                rows.append((call.name, tensors.norm(made), line))
                known = passes.rows_within[place] if place < len(passes.rows_within) else rows[-1]
                origin = next((at for each in call.operands for other, at in differ if each is other), place)
                origins.append(None if made.stop_gradient else origin)
                if made.stop_gradient and not same(known[1], rows[-1][1]):
                    differ.append((made, origin))

        self._operators.listeners.append(note)
        try:
            result = run()
        finally:
            self._operators.listeners.remove(note)
        if passes.count == 1:
            passes.rows_within = rows
        elif passes.count == 2:
            passes.tell = functools.partial(self._tell, passes, rows, origins)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for place, each in enumerate(results):
            if tensors.is_tensor(each):
                passes.row(f"result {place}", tensors.norm(each), None, carries=not each.stop_gradient)
        return result

    def _tell(self, passes: Passes, rows: list[Row], origins: list[int | None], call: RecomputeCall) -> None:
        """A result differs: because of the first operator that does and that a gradient goes through, or of what that
        was given (statistics that each pass moves on differ as well). What is told of both passes may not be the same
        calls (stand-ins come and go): then it is not known which."""
        for place, (first, second) in enumerate(zip(passes.rows_within, rows)):
            if first[0] != second[0]:
                break
            origin = origins[place]
            if not same(first[1], second[1]) and origin is not None:
                place, first, second = origin, passes.rows_within[origin], rows[origin]
                call.place, call.first, call.second, call.at = place, first[:2], second[:2], second[2] or first[2]
                break
        self._listening.tell(call)


def _recompute(tap: RecomputesTap, original: Callable[..., Any]) -> Callable[..., Any]:
    region, frame, strip, quietly, codes = tap.region, sys._getframe, strip_own, suppress, tap.codes

    def recompute(function: Any, *args: Any, **kwargs: Any) -> Any:
        ours = function
        with quietly(Exception):
            ours = region(function, kwargs, frame(1))
        try:
            return original(ours, *args, **kwargs)
        except BaseException as error:
            strip(error, codes)
            raise

    return recompute
