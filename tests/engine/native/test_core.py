"""The parts of the extension that know no framework: numbers, stacks, modules, relocation slots."""

from __future__ import annotations

import gc
import math
import os
import random
import struct
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, run

from adbg.engine.native import load


def test_it_passes_its_own_check(core: Any) -> None:
    assert load.check(core) == ""


@pytest.mark.parametrize(("kind", "letter"), [(0, "f"), (1, "d"), (2, "e")])
def test_numbers_are_those_of_python(core: Any, kind: int, letter: str) -> None:
    dice = random.Random(7)
    for length in (0, 1, 3, 4, 5, 63, 1000, 70_000):
        values = [dice.uniform(-2.0, 2.0) for _ in range(length)]
        packed = struct.pack(f"{length}{letter}", *values)
        exact = math.fsum(value * value for value in struct.unpack(f"{length}{letter}", packed))
        bad, count, squares = core.numbers(packed, kind)
        assert (bad, count) == (False, 0)
        assert math.isclose(squares, exact, rel_tol=1e-12)
        if values:
            for place in (0, length // 2, length - 1):
                values[place] = dice.choice([math.inf, -math.inf, math.nan])
            expected = sum(not math.isfinite(value) for value in values)
            bad, count, squares = core.numbers(struct.pack(f"{length}{letter}", *values), kind)
            assert (bad, count) == (True, expected) and not math.isfinite(squares)


def test_every_value_of_two_bytes(core: Any) -> None:
    """float16 against Python's own reading of it, bfloat16 against the upper half of a float32."""
    for bits in range(1 << 16):
        half = struct.pack("H", bits)
        value = struct.unpack("e", half)[0]
        bad, _, squares = core.numbers(half, 2)
        assert bad == (not math.isfinite(value)) and (bad or squares == value * value)
        value = struct.unpack("f", struct.pack("I", bits << 16))[0]
        bad, _, squares = core.numbers(half, 3)
        assert bad == (not math.isfinite(value)) and (bad or squares == value * value)


def frames() -> list[tuple[types.CodeType, int]]:
    found: list[tuple[types.CodeType, int]] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return found


def test_a_stack_is_kept_once_and_is_that_of_its_thread(core: Any) -> None:
    core.begin()
    numbers = [core.capture() for _ in range(100)]
    assert len(set(numbers)) == 1
    taken: list[Any] = []

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            taken.append((core.stack(core.capture()), frames()))

    threads = [threading.Thread(target=deep, args=(depth,)) for depth in (0, 3, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stack, expected in taken:
        assert stack[0][1:] == tuple(expected[1:]) and stack[0][0][0] is expected[0][0]


def test_old_stacks_are_let_go_of(core: Any) -> None:
    """A program that makes code without end: what is kept stays bounded, and what is gone is said to be."""
    core.begin()
    first = core.capture()
    assert core.stack(first) is not None
    for _ in range(40_000):
        exec(compile("taken()", "made.py", "exec"), {"taken": core.capture})
    kept, _, _ = core.counts()
    assert kept <= 1 << 15
    assert core.stack(first) is None
    assert core.stack(core.capture()) is not None
    assert core.stack(0) is None and core.stack(1 << 31) is None


class Part:
    """A module as frameworks have them: called through ``call``, with its parts in a dict."""

    def __init__(self, core: Any, **parts: Part) -> None:
        self.parts = parts
        self.core = core
        self.seen: list[int] = []

    def call(self) -> None:
        self.seen.append(self.core.capture())
        for part in self.parts.values():
            part.call()


def test_modules_have_their_paths_and_are_not_kept(core: Any) -> None:
    core.begin()
    core.modules(Part.call.__code__, "parts")
    gc.freeze()  # the collections below look at what this test makes, not at all that the worker has imported: 60 s
    try:
        for _ in range(50):  # addresses are used again: what lived there before is told apart
            inner = Part(core)
            middle = Part(core, inner=inner)
            outer = Part(core, middle=middle, other=Part(core))
            outer.call()
            stacks = [core.stack(part.seen[0]) for part in (outer, middle, inner, outer.parts["other"])]
            assert [stack[1] for stack in stacks] == ["", "middle", "middle.inner", "other"]
            assert all(stack[2]() is outer for stack in stacks)
            alone = Part(core, last=Part(core))
            alone.call()
            assert core.stack(alone.parts["last"].seen[0])[1] == "last"
            gone = stacks[0][2]
            del outer, middle, inner, alone
            gc.collect()
            assert gone() is None
    finally:
        gc.unfreeze()
        core.modules(None, "parts")


def test_slots_and_symbols_are_those_of_the_loaded_libraries(core: Any) -> None:
    maps = Path("/proc/self/maps").read_text()
    for library, address, _ in core.slots("malloc", "libstdc++"):
        assert library in maps and address
    assert core.symbol("malloc", "libc.so") != 0
    assert core.symbol("adbg_has_no_such_symbol", "libc.so") == 0
    assert core.slots("adbg_has_no_such_symbol", "lib") == []


def test_wrong_arguments_are_python_errors(core: Any) -> None:
    for call in (
        lambda: core.numbers("text", 0),
        lambda: core.numbers(b"1234", 9),
        lambda: core.modules(3, "parts"),
        lambda: core.modules(None, 3),
        lambda: core.stack("x"),
        lambda: core.stack(-1),
        lambda: core.slots("malloc"),
    ):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call()


def test_it_is_used_where_it_is_built_unless_told_not_to(extension: Path) -> None:
    """By the word of the module: where it was loaded from."""
    program = "from adbg.engine.native import load; module, why = load.core(); print(module and module.__file__, why)"
    built = next(iter((ROOT / "adbg").glob(f"_native.{sys.implementation.cache_tag}*.so")), None)
    for value, expected in (("", built), ("1", built), (str(extension), extension), ("0", None)):
        done = run([sys.executable, "-c", program], cwd=ROOT, env={**os.environ, load.VARIABLE: value})
        assert done.status == 0, str(done)
        told, _, why = done.stdout.strip().partition(" ")
        assert told == str(expected), str(done)
        assert (why == f"{load.VARIABLE}=0") == (value == "0") and (not why) == (expected is not None), str(done)


def test_one_built_for_another_version_is_not_used(core: Any) -> None:
    old = types.SimpleNamespace(**{**vars(core), "INTERFACE": load.INTERFACE - 1})
    assert "make native" in load.check(old) and load.check(core) == ""
