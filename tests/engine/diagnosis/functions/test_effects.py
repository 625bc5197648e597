"""Which custom functions may be run again: those that do nothing but to what they made themselves."""

from __future__ import annotations

from typing import Any

import pytest

from adbg.engine.diagnosis.detectors.functions.derivatives import has_effects

LOG: list[Any] = []
TOTALS: dict[str, float] = {}


class Fills:
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows, sums = [], {}
        found = grad.new_empty(grad.shape)
        for number, row in enumerate(grad):
            rows.append(row)
            found[number].add_(row)
        sums.update(rows=rows)
        return found


class Logs:
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        LOG.append(float(x))
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class LogsByAnotherName(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        log = []
        log = LOG
        log.append(float(x))
        return x


class Counts(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any, seen: Any) -> Any:
        TOTALS.update(last=float(x))
        return x


class WritesWhatItIsGiven(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any, seen: Any) -> Any:
        seen.add_(x)
        return x


class Prints(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        print(x)
        return x


def test_what_it_made_itself_is_nobodys_business() -> None:
    assert not has_effects(Fills)


@pytest.mark.parametrize("function", [Logs, LogsByAnotherName, Counts, WritesWhatItIsGiven, Prints])
def test_what_others_have_is(function: type) -> None:
    assert has_effects(function)
