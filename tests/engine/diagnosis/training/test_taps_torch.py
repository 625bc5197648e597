"""The taps STEPS and MODULES on torch: what they tell of a loop, and that nothing stays behind."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from support.met_modules import Modules

torch = pytest.importorskip("torch")

from adbg.engine.backends.base import ModuleCall, Need, Observation, OptimizerEvent, Watcher  # noqa: E402
from adbg.engine.backends.common.user_files import FrameFilter  # noqa: E402
from adbg.engine.backends.torch import observing  # noqa: E402


class Told(Watcher):
    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.forwards: list[tuple[str, bool, bool]] = []
        self.clipped: list[tuple[float | None, float | None]] = []

    def optimizer(self, event: OptimizerEvent) -> None:
        assert not torch.is_grad_enabled()
        self.events.append((event.what, event.line.line if event.line is not None else 0))
        if event.what == "clipped":
            self.clipped.append((event.norm, event.limit))

    def module_begin(self, call: ModuleCall) -> None:
        self.forwards.append((call.path, call.training, call.grad_mode))


def _owned() -> dict[tuple[int, str], Any]:
    """Every attribute that a tap may stand in for, and torch's hooks of steps."""
    from torch.optim import lr_scheduler, optimizer

    owners: list[Any] = [torch.nn.Module, torch.nn.utils, torch.nn.utils.clip_grad, optimizer.Optimizer]
    owners += [value for value in vars(lr_scheduler).values() if isinstance(value, type)]
    stood_in_for = {"__call__", "train", "eval", "zero_grad", "load_state_dict", "state_dict", "step", "_update_lr"}
    found = {
        (id(owner), name): value for owner in owners for name, value in vars(owner).items()
        if name in stood_in_for or "clip_grad" in name or (name == "__init__" and owner is not torch.nn.Module)
    }  # fmt: skip
    for hooks in (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks):
        found[id(hooks), "hooks"] = tuple(hooks.values())
    return found


def _loop() -> list[int]:
    """One iteration; the lines of what it calls, in order."""
    first = sys._getframe().f_lineno + 1
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(4, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    model.zero_grad()
    model.load_state_dict(model.state_dict())
    model.eval()
    with torch.no_grad():
        model(torch.ones(4, 3))
    return [first + offset for offset in (1, 2, 4, 5, 5, 6, 7, 8, 9, 9)]


def test_what_a_loop_does_is_told_and_all_is_put_back() -> None:
    before = _owned()
    told = Told()
    observation = Observation(observing.taps(FrameFilter("/nowhere"), Modules()), told)
    observation.want(Need.STEPS | Need.MODULES)
    _loop()
    observation.close()
    assert _owned() == before
    names = ["made", "scheduler", "clipped", "step", "stepped", "scheduled", "zeroed", "zeroed", "listed", "loaded"]
    assert [what for what, _ in told.events] == names
    assert told.forwards == [("Sequential", True, True), ("Sequential", False, False)]
    # 4 rows of ones: each weight of 2 x 3 has the gradient 4, each bias too
    assert told.clipped == [(pytest.approx((8 * 16) ** 0.5), 1.0)]
    count = len(told.events)
    _loop()
    assert len(told.events) == count


def test_lines_are_those_of_the_calls() -> None:
    told = Told()
    observation = Observation(observing.taps(FrameFilter(os.path.dirname(torch.__file__)), Modules()), told)
    observation.want(Need.STEPS | Need.MODULES)
    try:
        lines = _loop()
    finally:
        observation.close()
    assert [line for _, line in told.events] == lines


def test_a_step_may_be_compiled_meanwhile() -> None:
    model = torch.nn.Linear(3, 2)
    before = _owned()
    told = Told()
    observation = Observation(observing.taps(FrameFilter("/nowhere"), Modules()), told)
    observation.want(Need.STEPS | Need.MODULES)
    try:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(1, 3)), model(torch.ones(1, 3)))
    finally:
        observation.close()
    assert _owned() == before


class _Raises(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            raise ValueError("positive")
        return x


def test_parts_are_met_once_and_pass_by_then_also_where_one_raises() -> None:
    """Only the outermost is told, whatever happens inside of it, and whether its parts were met before or not."""
    told, modules = Told(), Modules()
    inner = torch.nn.Sequential(torch.nn.Linear(3, 2), _Raises())
    model = torch.nn.Sequential(inner, torch.nn.ReLU())
    torch.nn.init.constant_(inner[0].weight, 1.0)
    observation = Observation(observing.taps(FrameFilter("/nowhere"), modules), told)
    observation.want(Need.MODULES)
    try:
        for sign in (-1, 1, -1, 1, -1):
            with pytest.raises(ValueError, match="positive") if sign > 0 else nullcontext():
                model(sign * torch.ones(1, 3) * 9)
    finally:
        observation.close()
    assert told.forwards == [("Sequential", True, True)] * 5
    assert modules.told == [model, inner, inner[0], inner[1], model[1]]


def test_what_is_left_of_a_compiler_that_forgot_keeps_nothing_in() -> None:
    """``torch._dynamo.reset`` clears the list of whom to tell, too."""
    import torch._dynamo

    model, before, told = torch.nn.Linear(3, 2), _owned(), Told()
    observation = Observation(observing.taps(FrameFilter("/nowhere"), Modules()), told)
    observation.want(Need.STEPS | Need.MODULES)
    try:
        torch.compile(model, backend="eager")(torch.ones(1, 3))
        model(torch.ones(1, 3))
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        assert handler.all_start_callbacks if hasattr(handler, "all_start_callbacks") else handler.start_callbacks
        handler.clear()
    finally:
        observation.close()
    assert _owned() == before


def test_an_interrupt_within_blinds_nobody() -> None:
    """A Ctrl-C as a part is left has the count of modules wrong until the outermost ends."""
    told = Told()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    taps = observing.taps(FrameFilter("/nowhere"), Modules())
    (tap,) = [each for each in taps if each.need is Need.MODULES]
    observation = Observation(taps, told)
    observation.want(Need.MODULES)
    try:
        model(torch.ones(1, 3))  # its parts are met
        leave, tap._inside.leave = tap._inside.leave, _interrupt
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 3))
        tap._inside.leave = leave
        model(torch.ones(1, 3))
    finally:
        observation.close()
    assert told.forwards == [("Sequential", True, True)] * 3


def _interrupt() -> None:
    raise KeyboardInterrupt
