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


#: How many times smaller or larger a gradient's norm has to be than that of the node it comes from to be marked: the
#: derivative of a sigmoid is 1/4 at most, and eight such layers leave 1e-5 of a gradient with no larger step than that.
JUMP = 4.0


def jump(factor: float | None) -> str:
    """The mark of a norm that is ``factor`` times that of what feeds its node: "↓", "↑", "" for no jump, and where it
    is not known."""
    if factor is None or 1 / JUMP < factor < JUMP:
        return ""
    return "↑" if factor >= JUMP else "↓" if factor <= 1 / JUMP else ""


def change(norm: float | None, before: list[float | None]) -> float | None:
    """How many times the largest of ``before``, the norms of what feeds the node, its own ``norm`` is. None where one
    of them is not known, or is not a number that can be divided by."""
    known = [value for value in before if value is not None]
    if norm is None or not known or len(known) < len(before):
        return None
    largest = max(known)
    return norm / largest if 0 < largest < float("inf") and norm == norm else None
