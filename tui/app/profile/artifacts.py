"""The profiles that lie in a run directory. Reads files; any thread."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from adbg.profiles.base import META
from adbg.profiles.folders import order_of, parent_folder
from adbg.profiles.region import Region


@dataclass(frozen=True, slots=True)
class Saved:
    """``what`` it is, in words."""

    path: str
    name: str
    what: str = ""


def saved(run_dir: str) -> list[Saved]:
    """The newest first; those of which nothing was written are left out."""
    parent = parent_folder(run_dir)
    try:
        names = sorted(os.listdir(parent), key=order_of, reverse=True)
    except OSError:
        return []
    return [found for name in names if (found := _saved(os.path.join(parent, name), name)) is not None]


def _saved(path: str, name: str) -> Saved | None:
    try:
        with open(os.path.join(path, META)) as file:
            meta = json.load(file)
        if os.path.getsize(os.path.join(path, str(meta["file"]))) == 0:
            return None
        region = Region(**meta["region"])
        words = [str(region)]
        if meta.get("seconds"):
            words.append(f"{meta['seconds']:.2g} s")
        if meta.get("why"):
            words.append(str(meta["why"]))
        return Saved(path, name, ", ".join(words))
    except (OSError, ValueError, TypeError, KeyError):
        return None
