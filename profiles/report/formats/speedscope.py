"""speedscope's JSON (https://www.speedscope.app/file-format-schema.json): one profile a thread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adbg.profiles.report.formats.amounts import fact
from adbg.profiles.report.formats.collapsed import frame_of
from adbg.profiles.report.formats.problem import damaged
from adbg.profiles.report.model import (
    BYTES,
    DEEPEST,
    NATIVE,
    NODE,
    OUTSIDE,
    PYTHON,
    SAMPLES,
    SECONDS,
    Builder,
    Frame,
    Profile,
    Sample,
)

_KIND = "speedscope file"
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_NEGATIVE = "a stack has a frame of a negative number"
_SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}


def is_kind(text: str) -> bool:
    """A file may begin with any of its fields, so by the words that no other format has."""
    return "speedscope.app/file-format-schema" in text or ('"shared"' in text and '"frames"' in text)


def read(path: Path) -> Profile:
    try:
        body = json.loads(path.read_text("utf-8"))
        return _profile(body)
    except ValueError as error:
        raise damaged(path, _KIND, str(error)) from None
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(path, _KIND, f"its fields are not those of the schema ({error!r})") from None


def _profile(body: Mapping[str, Any]) -> Profile:
    builder = Builder()
    frames = [_frame(row) for row in body["shared"]["frames"]]
    units = {str(row["unit"]) for row in body["profiles"]}
    timed = bool(units) and units <= _SECONDS.keys()
    several = len(body["profiles"]) > 1  # the name of a single one is the profile's, not a thread's
    for row in body["profiles"]:
        thread = str(row.get("name") or "") if several else ""
        scale = _SECONDS[row["unit"]] if timed else 1.0
        if row["type"] == "sampled":
            for stack, weight in zip(row["samples"], row["weights"], strict=True):
                if any(index < 0 for index in stack):
                    raise ValueError(_NEGATIVE)
                builder.add([builder.frame(frames[index]) for index in stack[:DEEPEST]], float(weight) * scale, thread)
        else:
            _add_events(builder, row, frames, scale, thread)
    unit = SECONDS if timed else BYTES if units == {"bytes"} else SAMPLES
    meta = {"format": "speedscope", "profiler": str(body.get("exporter") or "").partition("@")[0]}
    return Profile(builder.frames, builder.samples, unit, meta=meta)


def _frame(row: Mapping[str, Any]) -> Frame:
    file, line = str(row.get("file") or ""), int(row.get("line") or 0)
    short = frame_of(f"{row['name']} ({file}:{line})" if file else str(row["name"]))
    return Frame(str(row["name"]), short.file, line, short.side, short.module) if file else short


def _add_events(builder: Builder, row: Mapping[str, Any], frames: Sequence[Frame], scale: float, thread: str) -> None:
    stack: list[int] = []  # places
    at = float(row["startValue"])
    for event in row["events"]:
        now = float(event["at"])
        if now > at and stack:
            builder.weigh(stack[-1], (now - at) * scale, thread)
        at = now
        if event["type"] == "O":
            index = int(event["frame"])
            if index < 0:
                raise ValueError(_NEGATIVE)
            stack.append(builder.below(stack[-1] if stack else OUTSIDE, builder.frame(frames[index])))
        elif stack:
            stack.pop()


def write(profile: Profile, path: Path) -> None:
    threads: dict[str, list[Sample]] = {}
    for sample in profile.samples:
        threads.setdefault(sample.thread, []).append(sample)
    unit = {SECONDS: "seconds", BYTES: "bytes"}.get(profile.unit, "none")
    name = fact(profile.meta.get("region")) or path.name
    body = {
        "$schema": _SCHEMA,
        "name": name,
        "exporter": "adbg",
        "activeProfileIndex": 0,
        "shared": {"frames": [_row(frame) for frame in profile.frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": thread or name,
                "unit": unit,
                "startValue": 0,
                "endValue": sum(sample.weight for sample in samples),
                "samples": [list(sample.stack) for sample in samples],
                "weights": [sample.weight for sample in samples],
            }
            for thread, samples in (threads or {"": []}).items()
        ],
    }
    path.write_text(json.dumps(body), "utf-8")


def _row(frame: Frame) -> dict[str, str | int]:
    row: dict[str, str | int] = {"name": frame.name}
    if frame.side == PYTHON and frame.file:
        row["file"] = frame.file
    elif frame.side == NATIVE and (frame.module or frame.file):
        row["file"] = frame.module or frame.file
    elif frame.side == NODE:
        row["file"] = f"node {frame.module}".rstrip()
    if frame.line and "file" in row:
        row["line"] = frame.line
    return row
