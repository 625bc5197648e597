"""The taps STEPS and MODULES on Paddle: what they tell of a loop, and that nothing stays behind."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from support.met_modules import Modules

paddle = pytest.importorskip("paddle.autograd") and pytest.importorskip("paddle")

from adbg.engine.backends.base import ModuleCall, Need, Observation, OptimizerEvent, Watcher  # noqa: E402
from adbg.engine.backends.common.user_files import FrameFilter  # noqa: E402
from adbg.engine.backends.paddle import observing  # noqa: E402


class Told(Watcher):
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.forwards: list[tuple[str, bool, bool]] = []
        self.clipped: list[tuple[float | None, float | None]] = []

    def optimizer(self, event: OptimizerEvent) -> None:
        assert not paddle.is_grad_enabled()
        self.events.append((event.what, event.line.line if event.line is not None else 0))
        if event.what == "clipped":
            self.clipped.append((event.norm, event.limit))

    def module_begin(self, call: ModuleCall) -> None:
        self.forwards.append((call.path, call.training, call.grad_mode))


def _owned() -> dict[tuple[int, str], Any]:
    """Every attribute that a tap may stand in for."""
    kinds = [*vars(paddle.optimizer).values(), *vars(paddle.optimizer.lr).values()]
    owners: list[Any] = [paddle.nn.Layer, paddle.nn.utils, *(kind for kind in kinds if isinstance(kind, type))]
    return {(id(owner), name): value for owner in owners for name, value in vars(owner).items()}


def _loop() -> list[int]:
    """One iteration; the lines of what it calls, in order."""
    first = sys._getframe().f_lineno + 1
    model = paddle.nn.Sequential(paddle.nn.Linear(3, 2), paddle.nn.Dropout(0.0))
    scheduler = paddle.optimizer.lr.StepDecay(0.5, 1)
    optimizer = paddle.optimizer.AdamW(scheduler, parameters=model.parameters())
    model(paddle.ones([4, 3])).sum().backward()
    paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.clear_grad()
    model.clear_gradients()
    model.set_state_dict(model.state_dict())
    model.eval()
    with paddle.no_grad():
        model(paddle.ones([4, 3]))
    return [first + offset for offset in (1, 2, 4, 5, 5, 6, 7, 8, 9, 9)]


def test_what_a_loop_does_is_told_and_all_is_put_back() -> None:
    before = _owned()
    told = Told()
    observation = Observation(observing.taps(FrameFilter(os.path.dirname(paddle.__file__)), Modules()), told)
    observation.want(Need.STEPS | Need.MODULES)
    lines = _loop()
    observation.close()
    after = _owned()
    assert [key for key, value in before.items() if after.get(key) is not value] == []
    names = ["scheduler", "made", "clipped", "step", "stepped", "scheduled", "zeroed", "zeroed", "listed", "loaded"]
    assert told.events == list(zip(names, lines))
    assert told.forwards == [("Sequential", True, True), ("Sequential", False, False)]
    # 4 rows of ones: each weight of 3 x 2 has the gradient 4, each bias too
    assert told.clipped == [(pytest.approx((8 * 16) ** 0.5), 1.0)]
    _loop()
    assert len(told.events) == len(names)
