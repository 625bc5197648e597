"""An aid that is asked for before a framework is imported is switched when one that has it comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from adbg.engine.agent.aids import keep, switch_kept
from adbg.engine.backends.base import Aid
from adbg.engine.errors import CommandError


class Known:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def list(self) -> list[Aid]:
        return [Aid("check", "off", "on | off", "checks", "")]

    def set(self, name: str, value: str) -> Aid:
        if value not in ("on", "off"):
            raise CommandError(f"no value {value!r}", "on | off")
        self.told.append((name, value))
        return self.list()[0]


def backend(aids: Known | None) -> Any:
    return SimpleNamespace(name="fake", aids=lambda: aids)


def test_kept_and_switched_once() -> None:
    kept: dict[str, str] = {}
    row = keep(kept, "check", "on").aids[0]
    assert (row.name, row.value) == ("check", "on") and "kept" in row.note
    assert switch_kept(backend(None), kept) == [] and kept, "a framework without aids leaves it to the next one"
    aids = Known()
    assert switch_kept(backend(aids), kept) == [] and switch_kept(backend(aids), kept) == []
    assert aids.told == [("check", "on")]


def test_what_cannot_be_switched_is_said() -> None:
    aids = Known()
    first, second = switch_kept(backend(aids), {"check": "perhaps", "nonsense": "1"})
    assert "check perhaps" in first and "on | off" in first
    assert "nonsense" in second and "it has check" in second
    assert aids.told == []
