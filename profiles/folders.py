"""Where artifacts lie: ``<run directory>/profiles/NNN-<profiler>/``, each with its meta.json."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from adbg.engine.errors import AdbgError
from adbg.profiles.base import META, ProfileError

_NUMBER = re.compile(r"(\d{3,})-")
WITHOUT_RUN = "adbg-profiles"


def parent_folder(run_dir: str) -> str:
    """Of the artifacts; without a run directory one in the current folder."""
    return os.path.join(run_dir, "profiles") if run_dir else os.path.abspath(WITHOUT_RUN)


def make_folder(parent: str, profiler: str) -> str:
    """The next free one.

    Raises:
        ProfileError: it cannot be made.
    """
    try:
        os.makedirs(parent, exist_ok=True)
        numbers = [int(match[1]) for match in map(_NUMBER.match, os.listdir(parent)) if match]
        number = max(numbers, default=0) + 1
        while True:
            folder = os.path.join(parent, f"{number:03}-{profiler}")
            try:
                os.mkdir(folder)
            except FileExistsError:  # another rank was faster
                number += 1
                continue
            return folder
    except OSError as error:
        raise ProfileError(
            f"the profile cannot be written to {parent}: {error.strerror}",
            "nothing is profiled; name a folder that you may write to: --run-dir DIR, or `in DIR` after the region",
        ) from None


def order_of(name: str) -> tuple[int, str]:
    """To sort the names of artifacts by: as text 1000 would come before 999."""
    number = _NUMBER.match(name)
    return (int(number[1]) if number else 0, name)


def write_meta(folder: str, meta: dict[str, Any]) -> None:
    """Raises OSError."""
    path = os.path.join(folder, META)
    with open(path + ".new", "w") as file:
        json.dump(meta, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(path + ".new", path)


def reason(error: BaseException, folder: str) -> str:
    """What happened, why, and what to do."""
    if isinstance(error, AdbgError):
        return str(error)
    if isinstance(error, OSError):
        text = f"the profile cannot be written to {folder}: {error.strerror or error}"
        return f"{text} (what was saved before is kept; `in DIR` after the region, or --run-dir, names another folder)"
    return f"{type(error).__name__}: {error}"
