"""``rank diff``: are parameters, gradients or buffers the same on all ranks? Every rank hashes its own, the digests are
compared here; elements travel only of a tensor that differs, and only the blocks that do."""

from __future__ import annotations

import base64
import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any

from adbg.engine.errors import AdbgError, CommandError, NotStopped
from adbg.engine.protocol import messages as protocol
from adbg.engine.types import NodeStop, Phase
from adbg.tui.commands.table import CommandResult, choice_of, words_of
from adbg.tui.text.divergence import (
    Comparison,
    Differing,
    ElementCount,
    Elements,
    compare,
    comparison_text,
    odd_ranks,
    ranks_text,
)

if TYPE_CHECKING:
    from adbg.tui.debugger.debugger import Debugger
    from adbg.tui.debugger.process import Process

WHAT = ("params", "grads", "buffers")
SETTLE = 15.0  # seconds within which ranks that stop at the same breakpoint have all joined, and all stopped
HASHING = 600.0  # seconds for an answer at a stop: 1.6 GB/s where the processor has instructions for SHA-256
MOMENT = 30.0  # seconds within which a running rank should begin a backward
MARGINS = (0, 16, 256)  # how far ahead running ranks are to meet: a small loop runs on while the request travels
STIR = 10.0  # seconds to see whether collectives are counted
BLOCK = 1 << 16  # bytes; more where a tensor has over BLOCKS of them
BLOCKS = 4096
FETCHED = 8 << 20  # bytes of a rank's differing blocks that are compared element by element

STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "._mean", "._variance")  # of torch, of Paddle
_EXAMPLE = "params, grads or buffers, for example: rank diff grads"


def diff(debugger: Debugger, argument: str) -> CommandResult:
    """``rank diff params|grads|buffers [NAME]``, NAME being a tensor or a glob: all of that kind are hashed on every
    rank, bit by bit, and the first that differ are named in forward order."""
    words = words_of(argument)
    if not 1 <= len(words) <= 2:
        raise CommandError("expected what to compare", _EXAMPLE)
    what = choice_of(words[0], WHAT, "rank diff")
    ranks = _joined(debugger)
    if len(ranks) < 2:
        have = f"this session has {ranks_text(ranks)} only" if ranks else "no process of this session has a rank"
        raise CommandError(f"`rank diff` compares ranks, and {have}", "`info processes` lists them")
    launched = debugger.program.launched
    ask = _at_stops if _stopped(debugger, ranks) else _at_moments
    bodies, notes = ask(ranks, what, launched)
    found = compare(what, bodies)
    if len(words) == 2:
        found = _only(found, words[1], bodies)
    notes += _notes(found, bodies, ranks)
    elements: Elements | None = None
    if found.differing and all(body.at == "stop" for body in bodies.values()):
        elements, problem = _elements(ranks, what, found.differing[0])
        notes += [problem] if problem else []
    place = _place(bodies)
    return CommandResult(comparison_text(found, place, elements, notes), _value(found, place, elements, notes))


# ------------------------------------------------------------------ asking the ranks


def _ranks(debugger: Debugger) -> dict[int, Process]:
    """Those that have a framework."""
    return {number: process for number, process in debugger.ranks.connected().items() if process.frameworks}


def _joined(debugger: Debugger) -> dict[int, Process]:
    """``_ranks``, when all are there that the first one knows of, or did not come in time: a spawned rank learns its
    number with its first backward."""
    ranks = _ranks(debugger)
    if not ranks:
        _wait(debugger, lambda: bool(_ranks(debugger)))
        ranks = _ranks(debugger)
    if ranks:
        number, process = next(iter(ranks.items()))
        body: protocol.DigestBody = _all(ranks, {number: protocol.Digest()}, HASHING)[number]
        world = body.world or 2
        _wait(debugger, lambda: len(_ranks(debugger)) >= world or not process.alive)
    return _ranks(debugger)


def _stopped(debugger: Debugger, ranks: Mapping[int, Process]) -> bool:
    """Whether all ranks stand at a stop; False where none does.

    Raises:
        NotStopped: some do.
    """

    def settled() -> bool:
        return len({process.stop is not None for process in ranks.values()}) == 1

    _wait(debugger, settled)
    running = [number for number, process in ranks.items() if process.stop is None]
    if not running:
        return True
    if len(running) == len(ranks):
        return False
    stopped = [number for number in ranks if number not in running]
    raise NotStopped(
        f"{ranks_text(stopped)} stopped, {ranks_text(running)} running: they cannot be compared so",
        "`continue all` to compare running ranks, or `set stop one` and a breakpoint that all reach: b backward-end",
    )


def _wait(debugger: Debugger, settled: Callable[[], bool]) -> None:
    """Ranks that come to the same breakpoint do not come at once. Of a stop that waits to be shown the model does not
    notify."""
    deadline = time.monotonic() + SETTLE
    while not settled() and debugger.alive and time.monotonic() < deadline:
        time.sleep(0.02)


def _all(ranks: Mapping[int, Process], requests: Mapping[int, Any], timeout: float) -> dict[int, Any]:
    """The answers of all ranks, which work at the same time.

    Raises:
        AdbgError: of the first rank that refused, or that did not answer.
    """
    futures = {number: ranks[number].client.send(request) for number, request in requests.items()}
    answers = {}
    for number, future in futures.items():
        try:
            answers[number] = future.result(timeout)
        except FutureTimeout:
            raise AdbgError(
                f"rank {number} did not answer within {timeout:g} s",
                "it runs no backward, or waits for another rank: `info threads`, or stop all ranks first",
            ) from None
        except AdbgError as error:
            error.message = f"rank {number}: {error.message}"
            error.args = (error.message,)
            raise
    return answers


def _same(ranks: Mapping[int, Process], request: Any, timeout: float) -> dict[int, Any]:
    return _all(ranks, dict.fromkeys(ranks, request), timeout)


def _at_stops(
    ranks: Mapping[int, Process], what: str, launched: bool
) -> tuple[dict[int, protocol.DigestBody], list[str]]:
    stops = {number: process.stop for number, process in ranks.items()}
    bodies = _same(ranks, protocol.Digest(what), HASHING)
    places = {number: _where(stop, what, launched) for number, stop in stops.items()}
    if len(set(places.values())) == 1:
        return bodies, []
    told = "; ".join(f"rank {number}: {', '.join(filter(None, map(str, place)))}" for number, place in places.items())
    return bodies, [
        f"the ranks do not stand at the same place, which alone makes values differ: {told}; with `set stop one` and a "
        "breakpoint that all reach (b backward-end), they do"
    ]


def _where(stop: NodeStop | None, what: str, launched: bool) -> tuple[str, ...]:
    """What has to agree for values to agree: backwards are counted from the start of a program, or from an attach."""
    if stop is None:
        return ()
    iteration = f"iteration {stop.iteration}" if launched else ""
    if what != "grads":
        return (iteration,)
    node = stop.node.unique_name if stop.node is not None else ""
    return iteration, stop.phase.value, node


def _at_moments(
    ranks: Mapping[int, Process], what: str, launched: bool
) -> tuple[dict[int, protocol.DigestBody], list[str]]:
    """Running ranks hash at the same backward: the first that begins when the process group has counted further than
    any rank has now; without one that counts, by iteration. Where ranks miss each other it is tried again, further
    ahead."""
    by_iteration = not _counting(ranks)
    count = _iteration if by_iteration else _collectives
    notes = []
    if by_iteration and not launched:
        notes.append("no collectives to count, and iterations are counted from the attach: ranks may be some apart")
    bodies: dict[int, protocol.DigestBody] = {}
    for margin in MARGINS:
        now = _same(ranks, protocol.Digest(), HASHING)
        after = max(count(body) for body in now.values()) + margin
        request = protocol.Digest(what, wait=MOMENT, after=after, by_iteration=by_iteration)
        bodies = _same(ranks, request, MOMENT + HASHING / 10)
        if len({count(body) for body in bodies.values()}) == 1:
            return bodies, notes
    counts = ", ".join(f"rank {number} at {count(body)}" for number, body in bodies.items())
    return bodies, [*notes, f"the ranks did not meet at the same backward ({counts}), which alone makes values differ"]


def _counting(ranks: Mapping[int, Process]) -> bool:
    """Whether every rank has a process group, and its count moves with the iterations."""
    first = _same(ranks, protocol.Digest(), HASHING)
    deadline = time.monotonic() + STIR
    while all(body.collectives is not None for body in first.values()):
        now = _same(ranks, protocol.Digest(), HASHING)
        if any(_collectives(now[number]) > _collectives(first[number]) for number in ranks):
            return True
        if time.monotonic() > deadline or all(_iteration(now[n]) > _iteration(first[n]) + 1 for n in ranks):
            return False
        time.sleep(0.02)
    return False


def _iteration(body: protocol.DigestBody) -> int:
    return body.iteration


def _collectives(body: protocol.DigestBody) -> int:
    return body.collectives or 0


# ------------------------------------------------------------------ elements of one tensor


def _elements(ranks: Mapping[int, Process], what: str, tensor: Differing) -> tuple[Elements | None, str]:
    """The largest difference between a rank of the majority and one that stands apart; or why it is not known."""
    pair = tensor.groups[0][0], (odd_ranks(tensor) or tensor.groups[1])[0]
    if any(tensor.digests[number] == "none" for number in pair):
        return None, ""
    two = {number: ranks[number] for number in pair}
    block = max(BLOCK, -(-tensor.nbytes // BLOCKS // BLOCK) * BLOCK)
    try:
        bodies = _same(two, protocol.Digest(what, [tensor.name], block), HASHING)
        one, other = (bodies[number].tensors[0].blocks for number in pair)
        differing = [n for n, (a, b) in enumerate(zip(one, other)) if a != b]
        count = ElementCount(tensor.dtype, tensor.shape)
        fetched = 0
        for place in differing:
            if fetched and fetched + block > FETCHED:
                break
            fetched += block
            parts = _same(two, protocol.Bytes(what, tensor.name, place * block, block), HASHING)
            count.add(place * block, *(base64.b64decode(parts[number].data) for number in pair))
    except (AdbgError, IndexError) as error:
        return None, f"the elements of {tensor.name} cannot be compared: {error}"
    return count.result(pair, fetched < len(differing) * block), ""


# ------------------------------------------------------------------ what is said


def _only(found: Comparison, name: str, bodies: Mapping[int, protocol.DigestBody]) -> Comparison:
    """The tensors that ``name`` (or a glob) names."""
    names = {row.name for body in bodies.values() for row in body.tensors}
    chosen = {each for each in names if each == name or fnmatch.fnmatchcase(each, name)}
    if not chosen:
        from adbg.engine.names import closest_names

        close = closest_names(name, sorted(names))
        raise CommandError(
            f"no tensor {name!r} among the {found.what}", f"closest: {', '.join(close)}" if close else "`info params`"
        )
    unlike = tuple(row for row in found.unlike if row[0] in chosen)
    differing = tuple(row for row in found.differing if row.name in chosen)
    rows = {name: [r for b in bodies.values() for r in b.tensors if r.name == name] for name in chosen}
    undefined = sum(all(row.state.value == "undefined" for row in each) for each in rows.values())
    compared = len(chosen) - len(unlike) - undefined
    return Comparison(found.what, found.ranks, compared, differing, unlike, undefined)


def _notes(found: Comparison, bodies: Mapping[int, protocol.DigestBody], ranks: Mapping[int, Process]) -> list[str]:
    notes = []
    world = next((body.world for body in bodies.values() if body.world), len(bodies))
    absent = sorted(set(range(world)) - set(bodies))
    if absent:
        notes.append(f"{ranks_text(absent)} of {world} {'is' if len(absent) == 1 else 'are'} not in this session")
    if found.undefined:
        notes.append(f"{found.undefined} parameters have no gradient on any rank")
    if found.what == "grads" and found.compared:
        notes.append(_reduced(bodies, ranks))
    if any(each.name.endswith(STATISTICS) for each in found.differing):
        note = "running statistics (BatchNorm) are those of each rank's own data"
        if any(body.reducer == "DistributedDataParallel" for body in bodies.values()):
            note += "; DistributedDataParallel sends rank 0's to the others when a forward begins, and they part again"
        notes.append(note)
    return notes


def _reduced(bodies: Mapping[int, protocol.DigestBody], ranks: Mapping[int, Process]) -> str:
    """Whether these gradients should agree."""
    reducer = next((body.reducer for body in bodies.values() if body.reducer), "")
    if not reducer:
        return (
            "no wrapper reduces gradients here (none ran: called past DistributedDataParallel, a model has none): they "
            "are those of each rank's own data until the script reduces them; "
            "`rank diff grads` at a stop after that compares what the optimizer gets"
        )
    if all(_ended(body, ranks[number].stop) for number, body in bodies.items()):
        return f"compared after {reducer}'s all-reduce, which makes gradients the same on all ranks"
    return (
        f"this backward has not ended: {reducer} may still be reducing, and until then gradients are those of each "
        "rank's own data; `b backward-end` stops after it"
    )


def _ended(body: protocol.DigestBody, stop: NodeStop | None) -> bool:
    return body.at == "end" or (stop is not None and stop.phase in (Phase.END, Phase.PYTHON) and not stop.depth)


def _place(bodies: Mapping[int, protocol.DigestBody]) -> str:
    """ "where they stopped (iteration 7)"."""
    at = next(iter(bodies.values())).at
    iterations = sorted({body.iteration for body in bodies.values()})
    number = f"iteration {'-'.join(map(str, iterations[:1] + iterations[1:][-1:]))}"
    if at == "stop":
        return f"where they stopped ({number})"
    return f"at the {at} of a backward ({number})"


def _value(found: Comparison, place: str, elements: Elements | None, notes: Sequence[str]) -> dict[str, Any]:
    """For scripts."""
    tensors: list[dict[str, Any]] = []
    for each in found.differing:
        made_by = [
            {"node": node.unique_name, "file": node.forward.file, "line": node.forward.line}
            if node.forward is not None
            else {"node": node.unique_name, "file": None, "line": None}
            for node in each.made_by
        ]
        tensors.append(
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": each.dtype,
                "digests": {str(number): digest for number, digest in each.digests.items()},
                "groups": [list(group) for group in each.groups],
                "odd": list(odd_ranks(each)),
                "made_by": made_by,
            }
        )
    first = None
    if elements is not None:
        first = {
            "ranks": list(elements.ranks),
            "differ": elements.differ,
            "zeros": elements.zeros,
            "nans": elements.nans,
            "max": elements.largest,
            "index": None if elements.where is None else list(elements.where),
            "values": [value if not isinstance(value, complex) else str(value) for value in elements.values],
        }
    return {
        "what": found.what,
        "ranks": list(found.ranks),
        "place": place,
        "compared": found.compared,
        "differ": len(found.differing),
        "tensors": tensors,
        "elements": first,
        "not_compared": [{"name": name, "why": why} for name, why in found.unlike],
        "notes": list(notes),
    }
