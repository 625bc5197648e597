"""Commands for the ranks of a job: one, some or all of them at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from adbg.engine.errors import AdbgError, CommandError
from adbg.engine.names import ranks_text
from adbg.engine.protocol.codec import to_json
from adbg.tui.commands.table import CommandResult, command, execute, resolve, split, table_result
from adbg.tui.debugger.job.rows import rank_rows
from adbg.tui.debugger.stop_view import as_error
from adbg.tui.text.formatting import stop_title
from adbg.tui.text.ranks import COLUMNS, cells, outliers, summary, timeouts_text, verdict_text

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.process import Process

T = TypeVar("T")
Answer = CommandResult | AdbgError
AT_ONCE = 64  # questions
AGAIN = 5.0  # seconds that a rank which was stepped by itself is waited for

# What acts on one process; everything else is for the whole program.
_LOOKING = {
    "print", "set", "!", "where", "thread", "threads", "up", "down", "frame", "list", "info", "node", "graph", "path",
    "why", "dump",
}  # fmt: skip
_MOVING = {"continue", "step", "next", "finish", "until", "after"}


@command("rank", group="session", args="[RANKS [COMMAND] | diff params|grads|buffers [NAME]]", completes="rank")
def rank(debugger: Debugger, argument: str) -> CommandResult:
    """Select a rank, or run a command on several ranks at once: `rank 2`, `rank 0,2 p norm(grad_outputs[0])`.

    RANKS is `all`, or numbers as in `0,2` or `1-3`. The answers come as one table, and those that differ are marked;
    numbers are compared bit by bit, tensors by their statistics and by what is printed of them. `rank all step`,
    `next`, `finish`, `after`, `until` and `continue` move these ranks and leave the others where they are. Without
    RANKS, list the ranks: state, backward, node, last collective, memory, and when a waiting one gives up.
    `rank diff params` and `rank diff grads 'fc1.*'` hash all parameters, gradients or buffers on every rank, bit by
    bit, and name the first that differ in forward order.
    """
    word, _, line = argument.strip().partition(" ")
    line = line.strip()
    if not word:
        return rank_table(debugger)
    if word == "diff":
        from adbg.tui.commands.parameters.divergence import diff

        return diff(debugger, line)
    chosen = debugger.ranks.chosen(word)
    if line:
        return _on_ranks(debugger, chosen, line)
    if len(chosen) > 1:
        raise CommandError(f"what are ranks {ranks_text(chosen)} to do?", "for example: rank all where")
    (process,) = chosen.values()
    debugger.select_process(process.number)
    return CommandResult(f"{process.title} is the current process", {"process": process.number, "rank": process.rank})


def rank_table(debugger: Debugger) -> CommandResult:
    """``info ranks``."""
    debugger.ranks.ask_once()
    rows = rank_rows(debugger.ranks, debugger.stop_all, debugger.run.current)
    if not rows:
        return CommandResult(summary(rows), [])
    head = "\n".join([summary(rows), *timeouts_text(row.state for row in rows)])
    value = [
        {
            "rank": row.rank,
            "process": row.number,
            "pid": row.pid,
            "state": row.life,
            "waits": bool(row.state and row.state.collective and row.state.collective.running),
            "gives_up_in": row.gives_up,
            **{name: to_json(value) for name, value in zip(("backward", "iteration"), cells(row)[5:7])},
            "node": row.stop.node.unique_name if row.stop and row.stop.node else "",
            "memory": row.state.rss if row.state else None,
            "collective": to_json(row.state.collective) if row.state else None,
            "timeouts": to_json(row.state.timeouts) if row.state else [],
        }
        for row in rows
    ]
    return table_result(COLUMNS, [cells(row) for row in rows], head, value)


# ------------------------------------------------------------------ one command on several ranks


def on_ranks(chosen: Mapping[int, Process], ask: Callable[[Process], T]) -> dict[int, T | AdbgError]:
    """``ask`` of each at the same time, in the order of the ranks; what it raises is its answer."""

    def one(process: Process) -> T | AdbgError:
        try:
            return ask(process)
        except Exception as error:
            return as_error(error)

    with ThreadPoolExecutor(min(len(chosen), AT_ONCE), thread_name_prefix="adbg-rank") as pool:
        return dict(zip(chosen, pool.map(one, chosen.values())))


def _on_ranks(debugger: Debugger, chosen: dict[int, Process], line: str) -> CommandResult:
    from adbg.tui.debugger.job.one_rank import OneRank

    name = resolve(split(line)[0]).name
    if name not in _LOOKING | _MOVING:
        hint = (
            "`break SPEC rank 0,2` stops on some ranks" if name in ("break", "tbreak", "trace") else "leave out `rank`"
        )
        raise CommandError(f"`{name}` is for the whole program, not for single ranks", hint)
    debugger.stop_all.wait_all(chosen.values())
    if name in _MOVING:
        return _move(debugger, chosen, line)
    answers = on_ranks(chosen, lambda process: execute(OneRank(debugger, process), line))
    return compared(line, answers)


def _move(debugger: Debugger, chosen: dict[int, Process], line: str) -> CommandResult:
    from adbg.tui.debugger.debugger import State
    from adbg.tui.debugger.job.one_rank import OneRank

    current = debugger.run.current
    with debugger.model.changed:
        before = {rank: process.stop for rank, process in chosen.items()}
        leads = current in chosen.values() and split(line)[0] not in ("continue", "c")
        debugger.stop_all.leader = current if leads and current is not None and current.stop is not None else None
    answers = on_ranks(chosen, lambda process: execute(OneRank(debugger, process), line))
    refused = {rank: answer for rank, answer in answers.items() if isinstance(answer, AdbgError)}
    if len(refused) == len(answers):
        raise next(iter(refused.values()))
    text = [f"rank {rank}: {error}" for rank, error in refused.items()]
    moved = {rank: process for rank, process in chosen.items() if rank not in refused}
    if current in moved.values() or debugger.state is not State.STOPPED:
        return CommandResult("\n".join(text), running=True)
    # Another rank is shown, and goes on being shown: where these have stopped is told here.
    with debugger.model.changed:
        debugger.model.changed.wait_for(lambda: all(_stood(p, before[rank]) for rank, p in moved.items()), AGAIN)
    for rank, process in moved.items():
        stop = process.stop
        text.append(
            f"rank {rank}: {stop_title(stop) if stop is not None else 'runs' if process.alive else 'has ended'}"
        )
    value = [{"rank": rank, "stopped": p.stop is not None} for rank, p in moved.items()]
    return CommandResult("\n".join(text), value)


def _stood(process: Process, before: Any) -> bool:
    """It has come to another stop, or to its end."""
    return not process.alive or (process.stop is not None and process.stop is not before)


def compared(line: str, answers: Mapping[int, Answer]) -> CommandResult:
    """The answers of ranks to one command as one, those that differ marked."""
    kinds: dict[str, list[int]] = {}
    silent: dict[int, AdbgError] = {}
    for rank, answer in answers.items():
        if isinstance(answer, AdbgError):
            silent[rank] = answer
        else:
            kinds.setdefault(_exact(answer), []).append(rank)
    if not kinds:
        raise next(iter(silent.values()))
    groups = sorted(kinds.values(), key=lambda group: (-len(group), group))
    odd = set(outliers(groups))
    marked = odd or (set(answers) - set(silent) if len(groups) > 1 else set())
    texts = {rank: _text(answer) for rank, answer in answers.items()}
    value = {
        "command": line,
        "same": len(groups) == 1 and not silent,
        "differing": sorted(odd),
        "ranks": [_value(rank, answer) for rank, answer in answers.items()],
    }
    verdict = verdict_text(groups, list(silent))
    if all("\n" not in text for text in texts.values()):
        rows = [("≠" if rank in marked else "", rank, text) for rank, text in texts.items()]
        return table_result(("", "rank", line), rows, verdict, value)
    parts = [verdict] if verdict else []
    for group in [*groups, *([rank] for rank in silent)]:
        mark = " ≠" if set(group) & marked else ""
        parts += [f"── rank {ranks_text(group)}{mark} ──", texts[group[0]]]
    return CommandResult("\n".join(parts), value)


def _exact(answer: CommandResult) -> str:
    """Two answers are the same if this is: floats by their shortest exact text, -0.0 and 0.0 apart."""
    exact = (answer.value, answer.text, answer.exact)
    return json.dumps(exact, sort_keys=True, default=str)


def _text(answer: Answer) -> str:
    return answer.message if isinstance(answer, AdbgError) else answer.text


def _value(rank: int, answer: Answer) -> dict[str, Any]:
    if isinstance(answer, AdbgError):
        return {"rank": rank, "value": None, "text": "", "error": answer.message}
    return {"rank": rank, "value": answer.value, "text": answer.text, "error": ""}
