"""Which custom functions may be run again: those that do nothing but to what they made themselves."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import math
import random
import types
from typing import Any

import pytest

from adbg.engine.diagnosis.detectors.functions.effects import has_effects

LOG: list[Any] = []
TOTALS: dict[str, float] = {}
WORK: Any = None
empty_like: Any = None
torch: Any = types.ModuleType("torch")
RECENT: Any = collections.deque()
NUMBERS = itertools.count()
OWN_RANDOM = random.Random(3)
log = logging.getLogger("effects")


class Stats:
    scale = 2.0

    def __init__(self) -> None:
        self.calls = 0
        self.power = 3

    def count(self) -> None:
        self.calls += 1


STATS = Stats()


def doubled(x: Any) -> Any:
    return [STATS.scale * each for each in x]


def seen(x: Any) -> None:
    kept(x)


def kept(x: Any) -> None:
    LOG.append(x)


def put(rows: Any, x: Any) -> None:
    rows[0] = x


tripled = functools.partial(doubled)
halved = lambda x: x / 2  # noqa: E731
noted = lambda x: kept(x)  # noqa: E731


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


class FillsTwo(Fills):
    """Two lists at once, whose names are used anew for what is made of them."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        best, place = [], []
        for row in x:
            best.append(row)
            place.append(row)
        place = torch.stack(place)
        return best


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


class LogsByOneOfTwo(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        rows, log = [], LOG
        rows.append(x)
        log.append(float(x))
        return x


class LogsTheSecondTime(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        rows: list[Any] = []
        for row in x:
            rows.append(row)
            rows = LOG
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


class Computes(Logs):
    """By helpers, by what modules have, by numbers that an object keeps."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        rows: list[Any] = []
        put(rows, math.sqrt(STATS.power) * STATS.scale)
        ctx.place = random.randrange(len(x))
        return tripled(doubled(halved(x))) + LOG.index(x) + functools.reduce(max, rows)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return Fills.backward(ctx, grad)


class CountsInAnObject(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        STATS.count()
        return x


class CountsInTheBackward(Logs):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        stats = STATS
        stats.count()
        return grad


class LogsByLogging(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        log.info("squared")
        return x


class LogsByTheModule(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        logging.info("squared")
        return x


class LogsInAHelper(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        seen(x)
        return x


class LogsInALambda(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return noted(x)


class LogsInAnotherFunction(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return list(map(kept, x))


class HandsOver(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        put(LOG, x)
        return x


class Keeps(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        RECENT.appendleft(x)
        RECENT.rotate()
        return x


class Draws(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any, where: Any) -> Any:
        return torch.rand(3, generator=where)


class DrawsItsOwn(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * OWN_RANDOM.random()


class Numbered(Logs):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.number = next(NUMBERS)
        return x


class Hidden(Logs):
    """Nobody can read it."""

    forward = staticmethod(eval("lambda ctx, x: x"))


class Decorated(Logs):
    @staticmethod
    @functools.wraps(Logs.backward)
    def forward(ctx: Any, x: Any) -> Any:
        kept(x)
        return Logs.backward(ctx, x)


def test_what_is_only_computed_is_nobodys_business() -> None:
    assert not has_effects(Computes)


def test_what_it_made_itself_is_nobodys_business() -> None:
    assert not any(map(has_effects, (Fills, FillsTwo, Reads)))


OTHERS = [
    Logs, LogsByAnotherName, LogsByOneOfTwo, LogsTheSecondTime, Counts, WritesWhatItIsGiven,
    Prints, Shares, SharesParts, SharesInCalls, SharesResults,
    SharesAssigned, CountsInAnObject, CountsInTheBackward, LogsByLogging, LogsByTheModule, LogsInAHelper, LogsInALambda,
    LogsInAnotherFunction, HandsOver, Keeps, Draws, DrawsItsOwn, Numbered, Hidden, Decorated,
]  # fmt: skip


@pytest.mark.parametrize("function", OTHERS)
def test_what_others_have_is(function: type) -> None:
    assert has_effects(function)
