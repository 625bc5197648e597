"""Sizes and times as text: narrow for panels, ``spaced`` (a blank before the unit) for sentences. Pure; any thread."""

from __future__ import annotations


def size(nbytes: float, spaced: bool = False) -> str:
    """Bytes with a binary unit: "512B", "64KiB", "1.5MiB"; spaced "1.5 MiB"."""
    value, unit = float(nbytes), "B"
    for bigger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    digits = 0 if value >= 10 or unit == "B" or value == int(value) else 1
    return f"{value:.{digits}f}{' ' if spaced else ''}{unit}"


def duration(us: float | None, spaced: bool = False, bare: bool = False) -> str:
    """Microseconds: "41µs", "1.2ms", "12ms", "1.2s"; spaced "1.2 ms"; "·" where none are known. ``bare``: "41" in place
    of "41µs", so that it fits into five cells."""
    if us is None:
        return "·"
    if us < 999.5:
        value, unit, digits = us, "" if bare else "µs", 0
    else:
        value, unit = (us / 1e3, "ms") if us < 999.5e3 else (us / 1e6, "s")
        digits = 1 if value < 9.95 else 0
    return f"{value:.{digits}f}{' ' if spaced else ''}{unit}"
