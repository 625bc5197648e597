"""What plain Python frees is freed under adbg: the same script prints the same list of living objects, without a
collection of cycles."""

from __future__ import annotations

import functools

import pytest
from support.frameworks import on_frameworks
from support.program import adbg, commands, debuggee, plain

MODES = {
    "unarmed": ["--no-stacks", "--no-record"],
    "never matching": ["--no-stacks", "-b", "NoSuchNode"],
    "nan watch": ["--no-stacks", "-b", "nonfinite"],
    "stacks": ["--stacks", "--no-record"],
    "stacks, nan watch": ["--stacks", "-b", "nonfinite"],
    "as run by itself": [],
}


@pytest.mark.parametrize("mode", MODES)
@on_frameworks()
def test_the_same_objects_live(framework: str, mode: str) -> None:
    """Every exception stops, and the program goes on: that leaves nothing either."""
    name = f"{'' if framework == 'torch' else 'paddle_'}lifetimes"
    words = ["run", "--batch", *MODES[mode], *commands(*["info node", "continue"] * 40), debuggee(name)]
    said, expected = living(adbg(*words).stdout), without_adbg(name)
    assert len(expected) > 20
    assert said == expected


@functools.cache  # 11 s of CPU, the same for every mode
def without_adbg(name: str) -> list[str]:
    return living(plain(name).stdout)


def living(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("alive")]
