"""Reading the locals of a running function changes none of them, whoever looks."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from adbg.engine import frames


def profiled(read: Any, where: str) -> int:
    """``sys.setprofile`` with a callback that reads: up to Python 3.12 the dict is written back after it."""

    def work() -> int:
        kept = 41
        len("a call to be told of")
        return kept + 1

    def callback(frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code is work.__code__:
            read(frame)

    getattr(sys, where)(callback if where == "setprofile" else lambda frame, event, arg: callback)
    try:
        return work()
    finally:
        getattr(sys, where)(None)


@pytest.mark.parametrize("where", ["setprofile", "settrace"])
@pytest.mark.parametrize("read", [frames.locals_of, lambda frame: frames.local(frame, "kept"), frames.forget_locals])
def test_a_profiled_function_keeps_its_locals(read: Any, where: str) -> None:
    assert profiled(read, where) == 42
