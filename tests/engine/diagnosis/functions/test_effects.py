"""Which custom functions may be run again: those that do nothing but to what they made themselves."""

from __future__ import annotations

import types
from typing import Any

import pytest

from adbg.engine.diagnosis.detectors.functions.effects import has_effects

LOG: list[Any] = []
TOTALS: dict[str, float] = {}
WORK: Any = None
empty_like: Any = None
torch: Any = types.ModuleType("torch")


class Fills:
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows: list[Any] = []
        sums: dict[str, Any] = {}
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


class Shares(Logs):
    """Its calls write to one buffer."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        work = WORK
        work[: len(x)] = x
        ctx.kept = work
        return x


class SharesParts(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        part = WORK.take(x.shape)
        return torch.sigmoid(x, out=part)


class SharesInCalls(Logs):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        WORK.copy_(grad)
        return grad


class SharesResults(Logs):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.mul(grad, 2, out=WORK)


class SharesAssigned(Logs):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        torch.assign(grad * 2, WORK)
        return WORK


class Reads:
    """What others have, and writes to what it made or was given copies of."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.scale, ctx.size = WORK[0], x.shape
        y.mul_(WORK)
        x[0] = 0
        total = x * WORK
        total += 1
        torch.relu_(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        out, more = torch.empty(ctx.size), 1
        out[:] = grad * WORK
        last = empty_like(out)
        last[0] = more
        return out


def test_what_it_made_itself_is_nobodys_business() -> None:
    assert not has_effects(Fills) and not has_effects(Reads)


OTHERS = [
    Logs, LogsByAnotherName, Counts, WritesWhatItIsGiven, Prints, Shares, SharesParts, SharesInCalls, SharesResults,
    SharesAssigned,
]  # fmt: skip


@pytest.mark.parametrize("function", OTHERS)
def test_what_others_have_is(function: type) -> None:
    assert has_effects(function)
