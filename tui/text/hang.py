"""A hang verdict in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adbg.engine.hang.branch import Branch
from adbg.engine.hang.left_loop import LeftLoop
from adbg.engine.hang.values import Divergence, HangKind, HangVerdict, Life, Standing
from adbg.engine.protocol.messages import Collective
from adbg.tui.text.formatting import place_text, source_text, table_text

_DIFFER = {
    "op": "the operation",
    "shape": "the number of elements",
    "dtype": "the dtype",
    "reduce": "the reduce operator",
    "peer": "the root",
}
_LIFE = {
    Life.STOPPED: "stopped in this debugger",
    Life.SILENT: "does not answer: a call holds the GIL, or the process is stopped (SIGSTOP)",
    Life.ENDED: "its program ended",
    Life.DIED: "its process is gone",
    Life.LOST: "the connection is lost; whether it runs is not known",
    Life.UNKNOWN: "not known: adbg is not in that process",
}
_NEXT = {
    HangKind.DIED: "its output and `adbg runs show` may say why it died",
    HangKind.STOPPED: "`continue all` lets it go on",
    HangKind.MISMATCH: "the lines above must call the same collective on every rank, in the same order",
    HangKind.COUNTS: "every rank must call it equally often: look at the loop's length on each rank (its data)",
    HangKind.DEADLOCK: "call the collectives of these groups in one order on all ranks",
    HangKind.LONG_KERNEL: "`why hang` again after a while tells whether it moves",
    HangKind.SLOW: "`why hang` again after a while tells whether it moves",
    HangKind.MISSING: "look at the line where it rests: a branch, a lock or input that only this rank waits for",
    HangKind.IDLE: "look at the lines where they rest",
}


def hang_lines(verdict: HangVerdict, recorded: bool = False) -> list[str]:
    """The verdict: a sentence, where each rank stands, what tells so, what to do."""
    lines = [headline(verdict, recorded)]
    several = len({each.waits.group for each in verdict.standings if each.waits is not None}) > 1
    rows = [_row(each, recorded, several) for each in verdict.standings]
    if rows:
        table = table_text(("rank", "state", "collective", "line", "since"), rows)
        lines += [f"  {line}" for line in table.splitlines()]
    lines += _source_lines(verdict)
    if verdict.divergence is not None and not _shown(verdict.divergence, verdict.standings):
        lines += _divergence_lines(verdict.divergence)
    if verdict.condition is not None:
        called = f"{_short(verdict.collective)} is called under a condition on the rank"
        lines.append(f"{called}: {verdict.condition.text} at {place_text(verdict.condition.test)}")
    if verdict.calls:
        counted = ", ".join(f"rank {rank} {_times(number)}" for rank, number in sorted(verdict.calls.items()))
        row = verdict.collective
        place = place_text(row.place if row else None)
        lines.append(f"calls of {_short(row)} at {place}{_since(verdict)}: {counted}")
    if verdict.left is not None:
        who = verdict.waiting if verdict.kind is HangKind.MISSING else verdict.culprits
        lines.append(_left_loop(verdict.left, ranks_text(who), len(who) == 1))
    if verdict.branch is not None:
        lines.append(_branch(verdict.branch))
    if verdict.missing:
        where = ranks_text(verdict.missing)
        lines.append(f"not known: {where} of the group: adbg is not there (`adbg attach --job PID` goes to all ranks)")
    if verdict.timeout and verdict.kind is not HangKind.NOTHING and not recorded:
        waited = max((each.seconds for each in verdict.standings if each.seconds is not None), default=None)
        left = "" if waited is None else f": {_left(verdict.timeout - waited)}"
        lines.append(f"the process group gives up after {_seconds(verdict.timeout)}{left}")
    lines += [f"note: {note}" for note in verdict.notes]
    hint = _NEXT.get(verdict.kind)
    if hint and not recorded:
        lines.append(f"next: {hint}")
    return lines


def headline(verdict: HangVerdict, recorded: bool = False) -> str:
    """One sentence."""
    kind = verdict.kind
    who, row = ranks_text(verdict.culprits), verdict.collective
    name = verdict.description or verdict.group
    where = f"group {name} (ranks {_list(verdict.group_ranks)})" if verdict.group_ranks else f"group {name}"
    waiting = ranks_text([rank for rank in verdict.waiting if rank not in verdict.culprits])
    what = _numbered(row)
    sure = "" if verdict.confidence >= 0.9 else f" (confidence {verdict.confidence:.2g})"
    texts = {
        HangKind.NOTHING: f"nothing hangs: {_progress(verdict.standings)}",
        HangKind.IDLE: "no rank waits in a collective, and none moves:"
        f" {who} {_verb(verdict.culprits, 'rest')} where the table says",
        HangKind.DIED: f"{who} died: "
        + (
            f"{waiting} {_verb(verdict.waiting, 'wait')} for it in {what} of {where}"
            if verdict.waiting
            else "no other rank waits in a collective"
        ),
        HangKind.STOPPED: f"{who} {_be(verdict.culprits)} stopped in this debugger"
        + (f": {waiting} {_verb(verdict.waiting, 'wait')} in {what} of {where}" if verdict.waiting else ""),
        HangKind.MISMATCH: _mismatch(verdict, where),
        HangKind.COUNTS: _counts(verdict, who, waiting, what, where),
        HangKind.DEADLOCK: "deadlock: "
        + ", ".join(
            f"rank {a} waits for rank {b}" for a, b in zip(verdict.cycle, (*verdict.cycle[1:], *verdict.cycle[:1]))
        ),
        HangKind.LONG_KERNEL: f"{who} {_verb(verdict.culprits, 'compute')} in one call"
        + (f": {waiting} {_verb(verdict.waiting, 'wait')} for it in {what} of {where}" if verdict.waiting else ""),
        HangKind.SLOW: f"{who} {_be(verdict.culprits)} slow, and on the way: {waiting} {_verb(verdict.waiting, 'wait')}"
        f" in {what} of {where}",
        HangKind.MISSING: f"{who} did not come to {what} of {where}: {waiting} {_waits(verdict)}",
        HangKind.UNKNOWN: (
            f"{ranks_text(verdict.waiting)} {_verb(verdict.waiting, 'wait')} in {what} of {where}{_unknown(verdict)}"
            if verdict.waiting
            else "no rank waits in a collective, and it is not known what"
            f" {who} {_verb(verdict.culprits, 'do', 'does')}"
        ),
    }
    text = texts[kind]
    if recorded and kind is HangKind.NOTHING:
        text = "when the record ends, no rank is in a collective"
    elif recorded:
        text = f"when the record ends: {text}"
    return text + (sure if kind is not HangKind.NOTHING else "")


def _waits(verdict: HangVerdict) -> str:
    killed = all(each.life is Life.DIED for each in verdict.standings if each.rank in verdict.waiting)
    return f"{'were' if len(verdict.waiting) > 1 else 'was'} killed in it" if killed else _verb(verdict.waiting, "wait")


def _unknown(verdict: HangVerdict) -> str:
    if len(verdict.culprits) > 1:
        return f", for some of {ranks_text(verdict.culprits)}: not known which of them are missing, or what they do"
    if verdict.culprits:
        return f", for {ranks_text(verdict.culprits)}: not known what that does"
    if verdict.missing:
        return f", probably for {ranks_text(verdict.missing)}: adbg is not in that process"
    return "; all of them are in it: the network between them, or their hosts"


def _mismatch(verdict: HangVerdict, where: str) -> str:
    found = verdict.divergence
    if found is None:
        return f"ranks called different collectives in {where}"
    number = f" at #{found.seq}" if found.seq else ""
    differ = " and ".join(_DIFFER.get(name, name) for name in found.differ)
    calls = ", ".join(f"rank {rank} {_short(row)}" for rank, row in sorted(found.rows.items())[:4])
    return f"mismatch{number} in {where}: {differ} {'differ' if len(found.differ) > 1 else 'differs'} ({calls})"


def _counts(verdict: HangVerdict, who: str, waiting: str, what: str, where: str) -> str:
    if verdict.calls:
        fewer, more = min(verdict.calls.values()), max(verdict.calls.values())
        row = verdict.collective
        return (
            f"different counts in {where}: {who} called {_short(row)} {_times(fewer)}{_since(verdict)},"
            f" the others {_times(more)}"
        )
    return f"different counts: {who} ended, {waiting} {_verb(verdict.waiting, 'wait')} in {what} of {where}"


def _left_loop(left: LeftLoop, who: str, one: bool) -> str:
    who += " has" if one else " have"
    loop = f"the loop `{left.over}` at {place_text(left.loop)}"
    if left.leaves is None:
        under = f", or left it under `{left.text}`" if left.text else ""
        return f"{who} come to the end of {loop}{under}, and the others go on in it"
    return (
        f"{who} left {loop} under `{left.text}` at {place_text(left.leaves)}, and the others "
        "go on in it: decide that of what all ranks have (all_reduce, or broadcast of one rank's word)"
        + (f"; or `{left.shorter}` in it has been shorter there" if left.shorter else "")
    )


def _branch(branch: Branch) -> str:
    return (
        f"{place_text(branch.call)} leads there only where `{branch.text}`, at {place_text(branch.test)}: a rank where "
        "that does not hold passes it by; let all ranks come there, or decide it of what all of them have"
    )


def _since(verdict: HangVerdict) -> str:
    """Where calls are not counted from the first."""
    return f" since #{verdict.calls_from}" if verdict.calls_from > 1 else ""


def _progress(standings: Sequence[Standing]) -> str:
    parts = []
    for each in standings:
        if each.life is not Life.RUNNING:
            parts.append(f"rank {each.rank}: {_LIFE.get(each.life, each.life.value)}")
        elif each.moved:
            parts.append(f"rank {each.rank} moves")
        else:
            busy = "" if each.cpu is None else f" ({each.cpu:.0%} busy)"
            parts.append(f"rank {each.rank} is at {place_text(each.place)}{busy}")
    return ", ".join(parts) or "no rank is known"


def _row(each: Standing, recorded: bool, several: bool) -> tuple[object, ...]:
    row = each.waits
    if each.life not in (Life.RUNNING, Life.STOPPED):
        state = _LIFE.get(each.life, each.life.value) + (f" ({each.how})" if each.how else "")
    elif each.life is Life.STOPPED:
        state = _LIFE[Life.STOPPED]
    elif row is not None:
        state = "in it" if recorded else "waits"
    elif recorded:
        state = "not in one"
    elif each.moved:
        state = "moves"
    elif each.cpu is not None and each.cpu > 0.3:
        state = f"computes ({each.cpu:.0%})"
    else:
        state = "rests"
    last = f"last: {_numbered(each.last)}" if each.last is not None else "none known"
    call = f" in {each.call}" if each.call and row is None else ""
    collective = _numbered(row) if row is not None else last
    if several and row is not None:
        collective += f" of group {row.group}"
    where = place_text(each.place) if each.place is not None else ""
    since = _seconds(each.seconds) if each.seconds and not recorded else ""
    return each.rank, state, collective, where + call, since


def _source_lines(verdict: HangVerdict) -> list[str]:
    """The source of the lines that the ranks are at, each once."""
    lines = []
    seen = set()
    for each in verdict.standings:
        place = each.place
        if place is None or (place.file, place.line) in seen or verdict.kind is HangKind.NOTHING:
            continue
        seen.add((place.file, place.line))
        source = source_text(place.file, place.line, mark=False).strip()
        if source:
            lines.append(f"  {place_text(place)}:  {source.partition(' ')[2].strip()}")
    return lines[:6]


def _shown(found: Divergence, standings: Iterable[Standing]) -> bool:
    """Whether the table has these rows: the ranks wait where they differ."""
    waits = {each.rank: each.waits for each in standings}
    return all(waits.get(rank) == row for rank, row in found.rows.items())


def _divergence_lines(found: Divergence) -> list[str]:
    number = f"#{found.seq}" if found.seq else "now"
    lines = [f"first divergence ({number}):"]
    rows = [
        (f"rank {rank}", _short(row), place_text(row.place), f"backward {row.backward}" if row.backward else "")
        for rank, row in sorted(found.rows.items())
    ]
    table = table_text(("", "called", "at", ""), rows)
    return lines + [f"  {line}" for line in table.splitlines()[1:]]


def _short(row: Collective | None) -> str:
    """ "all_reduce float32[4] SUM"."""
    if row is None:
        return "a collective"
    words = [row.op]
    if row.shape is not None:
        words.append(f"{row.dtype}[{', '.join(map(str, row.shape))}]")
    if row.reduce:
        words.append(row.reduce)
    if row.peer is not None:
        words.append({"send": "to", "recv": "from"}.get(row.op, "root") + f" rank {row.peer}")
    return " ".join(words)


def _numbered(row: Collective | None) -> str:
    if row is None:
        return "a collective"
    return f"{_short(row)} #{row.seq}" if row.seq else _short(row)


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0 and 2", "ranks 0-5, 7"."""
    found = sorted(set(ranks))
    if not found:
        return ""
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {_list(found)}"


def _list(ranks: Sequence[int]) -> str:
    """ "0-3, 5"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _verb(ranks: Sequence[int], verb: str, one: str = "") -> str:
    return verb if len(ranks) > 1 else one or f"{verb}s"


def _be(ranks: Sequence[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    if value < 120:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    return f"{value / 60:.0f} min"


def _left(seconds: float) -> str:
    return f"{_seconds(seconds)} are left" if seconds > 0 else "that is over"
