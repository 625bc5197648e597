"""The texts of forward stacks are word for word Python's own, however they are made."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import pytest

from adbg.engine.backends.paddle.native.texts import _REPEATED, Frames


def deep(levels: int, then: Callable[[], object]) -> object:
    if levels:
        return deep(levels - 1, then)
    return then()


def compared(frames: Frames) -> tuple[list[str] | None, list[str]]:
    frame = sys._getframe()
    return frames.format(frame), traceback.format_stack(frame)


def test_the_text_is_python_s_own_each_time() -> None:
    frames = Frames()
    namespace: dict[str, object] = {"compared": compared, "frames": frames}
    exec("def made():\n    return (\n        compared(frames))\n", namespace)  # code without a source file
    for call in (lambda: compared(frames), namespace["made"], lambda: next(map(compared, [frames]))):
        for _ in range(2):
            ours, own = call()  # type: ignore[operator]
            assert ours == own and any("in compared" in line for line in own)


@pytest.mark.parametrize("levels", [_REPEATED - 1, _REPEATED, 50])
def test_deep_recursion_is_left_to_python(levels: int) -> None:
    frames = Frames()
    ours, own = deep(levels, lambda: compared(frames))  # type: ignore[misc]
    assert ours is None or ours == own
    assert (ours is None) == any("Previous line repeated" in line for line in own)


def test_a_limit_that_the_program_set_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "tracebacklimit", 2, raising=False)
    assert Frames().format(sys._getframe()) is None


def test_the_kept_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adbg.engine.backends.paddle.native.texts._MOST_TEXTS", 10)
    frames = Frames()
    for number in range(30):
        namespace: dict[str, object] = {"sys": sys}
        exec(compile(f"def f{number}(): return sys._getframe()", f"/nowhere/{number}.py", "exec"), namespace)
        frame = namespace[f"f{number}"]()  # type: ignore[operator]
        text = frames.format(frame)
        assert text is not None and text[-1] == f'  File "/nowhere/{number}.py", line 1, in f{number}\n'
        assert len(frames._texts) <= 60  # ten, and those of the stack at hand
