"""A softmax along one axis, of which elements are picked along another, on Paddle; and what looks like it."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle")

from support.diagnosing_many import Run, kind_of, numbered

START = """
import paddle
import paddle.nn as nn
import paddle.nn.functional as F

paddle.seed(0)
net = nn.Linear(4, 3)
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
x = paddle.randn([6, 5, 4])
tags = (paddle.arange(30) % 3).reshape([6, 5])

{how}

for _ in range(3):
    optimizer.clear_grad()
    value = loss(net(x))
    value.backward()
    optimizer.step()
    print(value.item())
"""


def program(how: str) -> str:
    return START.format(how=how)


TOKENS = program("""
def loss(out):
    scores = F.log_softmax(out, 1)  # CAUSE
    return -paddle.take_along_axis(scores, tags.unsqueeze(-1), 2).mean()
""")

BATCH = program("""
normalise = nn.LogSoftmax(axis=0)
def loss(out):
    flat = normalise(out.flatten(0, 1))  # CAUSE
    return F.nll_loss(flat, tags.flatten())
""")

CHANCES = program("""
def chances(out):
    return F.softmax(out, axis=0)  # CAUSE
def loss(out):
    return -chances(out).clip(min=1e-6).log().take_along_axis(tags.unsqueeze(-1), axis=-1).mean()
""")

TURNED = program("""
def loss(out):
    scores = F.log_softmax(out, 1)  # CAUSE
    return F.nll_loss(scores.transpose([0, 2, 1]).unsqueeze(-1), tags.unsqueeze(-1))
""")

MEANT = program("""
def loss(out):
    scores = F.log_softmax(out, axis=-1)
    usual = -paddle.take_along_axis(scores, tags.unsqueeze(-1), -1).mean()
    usual = usual + F.nll_loss(scores.flatten(0, 1), tags.flatten())
    first = F.log_softmax(out.transpose([2, 0, 1]), 0)
    usual = usual + F.nll_loss(first.transpose([1, 2, 0]).reshape([-1, 3]), tags.flatten())
    usual = usual + F.nll_loss(scores.transpose([1, 2, 0]), tags.t())
    last = paddle.full([6, 1, 3], 4, dtype="int64")
    return usual + paddle.take_along_axis(scores, last, 1, broadcast=False).mean()
""")


CASES = [("wrong-axis", TOKENS), ("wrong-axis", BATCH), ("wrong-axis", CHANCES), ("wrong-axis", TURNED)]
PROGRAMS = numbered(CASES) | {"healthy": MEANT}


@pytest.mark.parametrize("name", numbered(CASES))
def test_a_softmax_along_another_axis_than_its_classes(runs: dict[str, Run], name: str) -> None:
    runs[name].check_first(kind_of(name))


def test_picks_that_are_meant(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy()
