"""Profiles in words: what is measured, what came of it."""

from __future__ import annotations

from adbg.engine.protocol.messages import ProfileRegion, ProfilerRow, ProfileState
from adbg.profiles.region import Region


def region_text(region: ProfileRegion) -> str:
    return str(Region(region.kind, region.count, region.warmup, region.place, region.spec))


def seconds_text(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def is_whole(state: ProfileState) -> bool:
    """Measured to the end of its region, and nothing speaks against its numbers."""
    return state.state == "done" and not state.warnings


def state_text(state: ProfileState, prompt: bool = False, stopped: bool = False) -> str:
    """One line, and the warnings below it. ``prompt``: what to do next is a command of adbg's, not of a shell;
    ``stopped``: the program is, and goes on when it is told to."""
    rank = f" of rank {state.rank}" if state.rank is not None else ""
    what = f"{state.profiler}{rank}, {region_text(state.region)}"
    if state.state == "idle":
        return "nothing is profiled; for example: profile cprofile 10 iterations"
    if state.state in ("waiting", "ready"):
        return f"profile {what}: waits for the region to begin{'; `continue` goes on to it' if stopped else ''}"
    if state.state == "running":
        passed = f" ({state.iterations} iterations so far)" if state.iterations else ""
        return f"profile {what}: running{passed}{f'; {state.why}' if state.why else ''}"
    if state.state == "failed":
        return f"profile {what}: failed: {state.why}"
    passed = f"{state.iterations} iteration{'s' * (state.iterations != 1)}, " if state.iterations else ""
    took = seconds_text(state.seconds) if state.seconds else ""
    if state.region.kind == "node" and state.iterations:
        passed, took = "", f"{took}, {seconds_text(state.seconds / state.iterations)} each"
    lines = [f"profile {what}: " + "; ".join(filter(None, (passed + took, state.why)))]
    if state.file:
        how = "profile open" if prompt else "adbg profile"
        lines.append(f"wrote {state.folder}/{state.file}; to see it: {how} {state.folder}")
    return "\n".join(lines + [f"warning: {text}" for text in state.warnings])


def profiler_rows(rows: list[ProfilerRow]) -> list[tuple[str, str, str]]:
    return [(row.name, "yes" if row.ok else f"no: {row.why}; {row.hint}", row.what) for row in rows]
