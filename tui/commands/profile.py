"""The command ``profile``: measure part of the run."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from adbg.engine.errors import CommandError
from adbg.engine.protocol import messages as protocol
from adbg.profiles.region import parse_region
from adbg.profiles.registry import ALIASES, REGISTRY, known
from adbg.profiles.report.formats import detect
from adbg.profiles.report.tables import table
from adbg.tui.commands.table import CommandResult, command, table_result, words_of
from adbg.tui.text.profile import profiler_rows, state_text
from adbg.tui.text.profile_report import head_lines, iteration_lines, node_lines, table_lines, verdict_lines

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger

DEFAULT = "cprofile"
WIDTH, ROWS = 120, 30  # of a report as text
_ARGS = "[NAME] [REGION] [pin CORES] [nice N] [in DIR] | list | stop | open FILE"


@command("profile", group="session", args=_ARGS)
def profile(debugger: Debugger, argument: str) -> CommandResult:
    """Measure a region of the run: `profile cprofile 10 iterations`, `profile yep run`, `profile nodes backward`.

    Regions: `run` (until `profile stop` or the program's end; default), `N iterations [of FILE:LINE] [after W]` (an
    iteration ends with an outermost backward, or as the line runs again; W = 1 of them pass before), `backward` (the
    next outermost one), `stop` (from here to the next stop), `N seconds`, `FILE:A-B [N times]`, and at a stop before
    a node `node X --repeat N`: that node, run N times over the gradients that flow into it (`node .` is the one of
    the stop). `pin CORES` and `nice N` hold for the program meanwhile. What was measured goes to the run directory,
    or to `DIR`. `profile list`: which profilers there are. Without arguments, how far the profile is; `profile stop`
    ends it now. `profile open FILE` shows a report: of a profile that was made, or of any file that `adbg profile
    FILE` knows.
    """
    words = words_of(argument)
    if words[:1] == ["open"]:
        return _open(words[1:])
    if not words:
        body = debugger.view.request(protocol.Profile())
        return _state(debugger, body.state)
    if words == ["list"]:
        rows = debugger.view.request(protocol.Profile("list")).profilers
        columns = ("name", "can run here", "measures")
        return table_result(columns, profiler_rows(rows), f"{len(rows)} profilers", [asdict(row) for row in rows])
    if words == ["stop"]:
        return _state(debugger, debugger.view.request(protocol.Profile("stop"), 60.0).state)
    request = parse(words)
    process = debugger.current
    body = debugger.view.request(request, 600.0 if request.region.kind == "node" else 30.0)
    if process is not None:
        debugger.incoming.profiles.asked(process, request)
    return _state(debugger, body.state)


def _open(words: list[str]) -> CommandResult:
    """The report as text; the app has a screen for it."""
    if len(words) != 1:
        raise CommandError("expected one file, or an artifact's folder", "for example: profile open run.pstats")
    path = os.path.abspath(os.path.expanduser(words[0]))
    read = detect.read(Path(path))
    if read.empty:
        raise CommandError(f"{path}: nothing was sampled in it", "a longer region has more samples")
    lines = [*head_lines(read, words[0]), *verdict_lines(read, WIDTH), *iteration_lines(read, WIDTH)]
    if read.nodes:
        lines += node_lines(read, WIDTH, ROWS)
    if read.samples or read.calls:
        rows = table(read)
        lines += table_lines(rows, rows.rows, WIDTH, ROWS)
    return CommandResult("\n".join(lines), {"path": path}, action="profile")


def _state(debugger: Debugger, state: protocol.ProfileState) -> CommandResult:
    stopped = debugger.stop is not None and state.region.kind != "stop"
    return CommandResult(state_text(state, True, stopped), asdict(state))


def ended_text(state: protocol.ProfileState) -> str:
    """What a prompt says at its end: of nodes also what bounds the step, as `adbg profile` does."""
    lines = [state_text(state, True)]
    if state.file and known(state.profiler) == "nodes":
        with suppress(CommandError):  # on another host
            read = detect.read(Path(state.folder))
            lines += [*verdict_lines(read, WIDTH), *iteration_lines(read, WIDTH)]
    return "\n".join(lines)


def parse(words: list[str]) -> protocol.Profile:
    """Raises CommandError."""
    given, rest = dict[str, str](), list(words)
    while len(rest) >= 2 and rest[-2] in ("pin", "nice", "in") and rest[-2] not in given:
        given[rest[-2]] = rest[-1]
        del rest[-2:]
    name = DEFAULT
    if rest and (rest[0] in REGISTRY or rest[0] in ALIASES or not _is_region(rest[0])):
        name = known(rest.pop(0))
    region = parse_region(rest)
    nice = given.get("nice")
    if nice is not None and not nice.lstrip("-").isdigit():
        raise CommandError(f"expected a nice value from -20 to 19, got {nice!r}", "for example: nice -5")
    folder = os.path.abspath(os.path.expanduser(given["in"])) if "in" in given else ""
    return protocol.Profile(
        "start",
        name,
        protocol.ProfileRegion(**asdict(region)),
        folder,
        given.get("pin", ""),
        int(nice) if nice is not None else None,
    )


def _is_region(word: str) -> bool:
    return word in ("run", "backward", "stop", "node") or word.isdigit() or ":" in word
