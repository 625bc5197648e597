"""Weights as text, for the files that people read."""

from __future__ import annotations

from adbg.profiles.report.model import BYTES, SECONDS


def amount(weight: float, unit: str) -> str:
    """ "1.234 s", "12.3 ms", "45.1 µs", "1,234 samples", "12.0 MiB"."""
    if unit == SECONDS:
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if abs(weight) >= size:
                return f"{weight / size:.4g} {name}"
        return f"{weight * 1e6:.3g} µs" if weight else "0 s"
    if unit == BYTES:
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if abs(weight) >= size:
                return f"{weight / size:.4g} {name}"
        return f"{weight:.0f} B"
    return f"{weight:,.0f} {unit}"


def share(weight: float, total: float) -> str:
    return f"{100 * weight / total:.1f}%" if total else "0.0%"


def fact(value: object) -> str:
    """What is known, in one line; "" where nothing is."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact(each)}" for key, each in value.items() if fact(each))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(fact, value))
    return "" if value in (None, "", 0) else f"{value:.6g}" if isinstance(value, float) else str(value)
