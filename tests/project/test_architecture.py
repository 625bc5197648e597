"""ARCHITECTURE.md names files and folders: all of them exist, and no room is missing."""

from __future__ import annotations

import re

from support.program import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PLACES = sorted(set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|md))?|[a-z_]+(?:/[a-z_]+)*\.(?:py|md))`", TEXT)))
BELOW = ("", "engine", "tui", "docs", "engine/backends", "tui/app", "tui/app/log", "tui/app/screens")


def test_every_place_exists() -> None:
    names = {path.name for top in ("engine", "tui", "profiles") for path in (ROOT / top).rglob("*")}
    missing = [p for p in PLACES if p.rstrip("/") not in names and not any((ROOT / f / p).exists() for f in BELOW)]
    assert len(PLACES) > 40 and not missing, missing


def test_every_room_is_described() -> None:
    rooms = [path.parent.name for top in ("engine", "tui", "profiles") for path in (ROOT / top).glob("*/__init__.py")]
    missing = [room for room in rooms if f"`{room}/`" not in TEXT]
    assert len(rooms) > 15 and not missing, missing
