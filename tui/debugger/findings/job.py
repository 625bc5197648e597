"""What the ranks of a job tell of themselves, compared: parameters that drift apart, a gradient that only some ranks
have, a rank that ends early. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from adbg.engine.names import ranks_text
from adbg.engine.protocol.messages import Finding, FoundAt, RankFacts
from adbg.tui.debugger.findings.kinds import CRASHED

_KEPT = 16  # iterations of which some rank has not told yet
OWN = 10_000  # ids of what is found here begin behind: processes count theirs from 1
_LOST = re.compile(
    r"(?:closed|reset) by (?:the )?(?:remote )?peer|Connection (?:closed|reset|refused)|Broken pipe|Timed out waiting"
    r"|remote (?:worker|process)|\bTIMEOUT self_rank\b",
    re.I,
)
NOT_ANY_MORE = "the steps used different gradients: they are not averaged over the ranks any more"
NEVER = (
    "the steps used different gradients, as they always did: right where parameters are averaged from time to time "
    "(local SGD) or ranks hold parts of a model, else the gradients have to be averaged (DistributedDataParallel)"
)
_AVERAGED = "has averaged it between ranks"
_PASSED_BY = "averages nothing"  # a rank's words for a wrapper that nobody calls
_DIFFER = ("unused-in-rank", "uneven-batches", "hang", "drifted-parameters")
_RAISED = ("backward-error", "operator-error")


def is_lost(finding: Finding) -> bool:
    """An exception of a rank that waited for another one, which was gone."""
    return finding.kind in _RAISED and any(_LOST.search(each) for each in (finding.message, *finding.evidence))


def is_aborted(finding: Finding) -> bool:
    """A rank that the transport ended (gloo, by SIGABRT): its call met another one's, or nobody's."""
    return finding.kind == CRASHED and "SIGABRT" in finding.message


def ends_ranks(finding: Finding) -> bool:
    """What has the transport do so: ranks that differ, or an exception of one."""
    return finding.severity == "error" and finding.kind in (*_DIFFER, *_RAISED)


def is_averaged(finding: Finding) -> bool:
    """NaN in a gradient of a rank that came from another one."""
    return finding.kind == "nonfinite" and _AVERAGED in finding.message


def is_apart(finding: Finding) -> bool:
    """Parameters that drift, of which no rank can say why."""
    return finding.kind == "drifted-parameters" and NEVER in finding.message


def is_passed_by(finding: Finding) -> bool:
    """Why they do."""
    return finding.kind == "drifted-parameters" and _PASSED_BY in finding.message


class Job:
    """Facts of all ranks so far."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], dict[int, RankFacts]] = {}  # (wrapper, iteration) -> rank -> facts
        self._ends: dict[int, RankFacts] = {}
        self._same: dict[str, int] = {}  # parameter -> the last iteration in which all ranks had the same
        self._averaged: set[str] = set()  # parameters whose gradient was once the same on all ranks
        self._found: dict[str, Finding] = {}  # by kind

    def add(self, rank: int, facts: RankFacts) -> list[Finding]:
        """What is new, or to be told anew, with the id that each kind has here; confidence 0: taken back."""
        if facts.what == "end":
            self._ends[rank] = facts
            return self._news(self._uneven(facts.world))
        if facts.wrapper and any(not wrapper for wrapper, _ in self._of):  # that was before it: of no more use
            self._of = {key: each for key, each in self._of.items() if key[0]}
            self._same.clear()
        known = self._of.setdefault((facts.wrapper, facts.iteration), {})
        known[rank] = facts
        for old in list(self._of)[:-_KEPT]:
            del self._of[old]
        if len(known) < facts.world:
            return []
        return self._news(self._compared(facts.iteration, dict(sorted(known.items()))))

    def confirmed(self, finding: Finding) -> Finding:
        """Of one rank, which alone cannot tell whether the program averages by itself: parameters that drift say that
        it does not, or from time to time only: a warning."""
        drift = self._found.get("drifted-parameters")
        if not is_passed_by(finding) or drift is None or drift.confidence <= 0 or not is_apart(drift):
            return finding
        return replace(finding, severity="warning", confidence=0.8, evidence=[*drift.evidence[:2], *finding.evidence])

    @staticmethod
    def doubted(finding: Finding) -> Finding:
        """What was ``confirmed``, once they are the same again."""
        evidence = [*finding.evidence, "they were the same on all ranks again later: the program averages by itself"]
        return replace(finding, severity="note", confidence=0.3, evidence=evidence)

    def _news(self, found: Iterable[Finding]) -> list[Finding]:
        news = [each for each in found if self._found.get(each.kind) != each]
        for each in news:
            self._found[each.kind] = each
        return news

    # ---- one iteration of all ranks

    def _compared(self, iteration: int, known: Mapping[int, RankFacts]) -> Iterable[Finding]:
        names = [
            name for name in next(iter(known.values())).parameters if all(name in f.parameters for f in known.values())
        ]
        differ = [name for name in names if len({facts.parameters[name] for facts in known.values()}) > 1]
        unused = [name for name in names if _some_have(name, known)]
        before = dict(self._same)
        self._same.update(dict.fromkeys(_replicated(known, names, differ), iteration))
        self._averaged |= {name for name in names if _same_gradient(name, known)}
        told = self._found.get("drifted-parameters")
        if told is not None and told.confidence > 0 and not differ:
            yield _taken_back(told)  # averaged from time to time: they were to differ in between
            if (other := self._found.get("unused-in-rank")) is not None and other.confidence > 0:
                yield _taken_back(other)
        if told is not None or not differ:
            return
        drifted = [name for name in differ if name in before]
        alike = [name for name in differ if _same_gradient(name, known)]
        unused = [name for name in unused if name in drifted] if self._averaged else []
        if unused:
            yield self._unused(iteration, known, unused)
        if len(drifted) == len(differ):  # else the ranks hold parts of their own
            found = self._drifted(iteration, known, drifted, before[drifted[0]])
            if unused:
                yield replace(found, victim_of=OWN + 2) if drifted[0] in unused else found
            else:
                yield found if self._were_averaged(drifted, known) else _apart(found)
        elif alike and len(alike) == len(differ):
            yield self._never_same(iteration, known, alike)

    def _were_averaged(self, names: Sequence[str], known: Mapping[int, RankFacts]) -> bool:
        """Their gradients were the same once, or those of nearly all others are: one was left out. Of two tensor
        parallel ranks with one seed about half of the gradients are the same: norms, and biases behind a reduction."""
        having = {name for facts in known.values() for name, each in facts.gradients.items() if each}
        return any(name in self._averaged for name in names) or len(having & self._averaged) * 4 >= len(having) * 3 > 0

    @staticmethod
    def _drifted(iteration: int, known: Mapping[int, RankFacts], names: Sequence[str], since: int) -> Finding:
        first = names[0]
        one = next(iter(known.values()))
        when = f"after backward {since + 1}" + (f" and before {iteration + 1}" if iteration > since + 1 else "")
        evidence = [
            f"{first} was the same on all {len(known)} ranks as backward {since + 1} began, to the bit",
            _hashes(first, known),
        ]
        alike = _same_gradient(first, known)
        rates = {rank: tuple(facts.rates) for rank, facts in known.items()}
        apart = alike and len(set(rates.values())) > 1
        if apart:
            why = "the learning rates differ: " + ", ".join(
                f"{_rates(each)} on rank {rank}" for rank, each in rates.items()
            )
        elif alike:
            why = "the steps used the same gradients, so that a step, or what was written besides, differs"
        else:
            why = NOT_ANY_MORE
        evidence.append(f"{_some(names)} differ{'s' * (len(names) == 1)} now; {why}")
        if apart and one.schedule is not None:
            evidence.append("a scheduler set them: what it is stepped by has to be the same on all ranks")
        return Finding(
            OWN + 1, "drifted-parameters", "error", 0.9 if not alike or len(set(rates.values())) > 1 else 0.8,
            f"parameters drift apart between ranks {when}: {_some(names)}; {why}",
            FoundAt(parameter=first), iteration=iteration,
            cause=(one.schedule if apart else None) or (one.step if alike else one.backward), evidence=evidence,
            next=[f"rank diff params '{first}'", f"b param:{first} after"],
        )  # fmt: skip

    @staticmethod
    def _never_same(iteration: int, known: Mapping[int, RankFacts], names: Sequence[str]) -> Finding:
        loaded = {rank: facts.loaded for rank, facts in known.items() if names[0] in facts.loaded_names}
        line = next(iter(loaded.values()), None) if len(loaded) < len(known) else None
        remedy = "broadcast them from one rank, or seed all alike"
        evidence = [
            _hashes(names[0], known),
            f"the gradient of {names[0]} is the same on all {len(known)} ranks, to the bit",
        ]
        seeded = next(iter(known.values())).seeded
        if line is None and seeded is not None:
            line, remedy = seeded, f"`{seeded.text}` seeds each rank apart: make the weights before, or broadcast them"
        elif line is not None:
            ranks = _ranks(list(loaded))
            remedy = f"only {ranks} loaded weights, by `{line.text}`: load them on all, or before they are broadcast"
            wrapper = known[next(iter(loaded))].wrapper
            if wrapper:
                evidence.append(f"{wrapper} broadcasts weights as it is made, and not again")
        return Finding(
            OWN + 1, "drifted-parameters", "error", 0.85 if line is None else 0.92,
            f"ranks did not begin with the same weights: {_some(names)} differ{'s' * (len(names) == 1)} in iteration "
            f"{iteration} already, while all ranks use the same gradients; {remedy}",
            FoundAt(parameter=names[0]), iteration=iteration, cause=line, evidence=evidence,
            next=[f"rank diff params '{names[0]}'"],
        )  # fmt: skip

    @staticmethod
    def _unused(iteration: int, known: Mapping[int, RankFacts], names: Sequence[str]) -> Finding:
        first = names[0]
        without = [rank for rank, facts in known.items() if not facts.gradients.get(first)]
        used = next((facts.uses.get(first) for facts in known.values() if first in facts.uses), None)
        where = f": `{used.text}` did not run there" if used is not None else ""
        others = [rank for rank in known if rank not in without]
        evidence = [
            f"the step of iteration {iteration} found a gradient of {first} on {_ranks(others)}, and none on "
            f"{_ranks(without)}",
            _hashes(first, known),
        ]
        return Finding(
            OWN + 2, "unused-in-rank", "error", 0.9,
            f"{_some(names)} got no gradient on {_ranks(without)} in iteration {iteration}, and one on the "
            f"other ranks{where}: the ranks now hold different weights",
            FoundAt(parameter=first), iteration=iteration, cause=used, evidence=evidence,
            next=[f"rank diff grads '{first}'", f"b param:{first}"],
        )  # fmt: skip

    # ---- the end

    def _uneven(self, world: int) -> Iterable[Finding]:
        ends = dict(sorted(self._ends.items()))
        if len(ends) < world:
            return
        counts = {rank: facts.iteration for rank, facts in ends.items()}
        least, most = min(counts.values()), max(counts.values())
        early = [rank for rank, count in counts.items() if count == least and not ends[rank].failed]
        waited = [rank for rank, count in counts.items() if count > least and _LOST.search(ends[rank].failed)]
        if least == most or not early or not waited:
            return
        facts = ends[waited[0]]
        yield Finding(
            OWN + 3, "uneven-batches", "error", 0.92,
            f"{_ranks(early)} ended after {least} iterations, while {_ranks(waited)} began iteration "
            f"{counts[waited[0]]} and waited for it: the ranks have different numbers of batches",
            None, iteration=counts[waited[0]], cause=facts.loop or facts.backward,
            evidence=[
                "iterations: " + ", ".join(f"{count} on rank {rank}" for rank, count in sorted(counts.items())),
                f"rank {waited[0]}: {facts.failed}",
            ],
            next=["rank", "why hang"],
        )  # fmt: skip


def _taken_back(finding: Finding) -> Finding:
    return replace(finding, severity="note", confidence=0.0)


def _apart(finding: Finding) -> Finding:
    """No gradient of theirs was ever the same: perhaps nothing is to average them (local SGD, parts of a model)."""
    return replace(
        finding, severity="note", confidence=0.4,
        message=finding.message.replace(NOT_ANY_MORE, NEVER),
        evidence=[each.replace(NOT_ANY_MORE, NEVER) for each in finding.evidence],
    )  # fmt: skip


def _replicated(known: Mapping[int, RankFacts], names: Sequence[str], differ: Sequence[str]) -> list[str]:
    """Parameters that each rank has a copy of. Those of one value, as biases of zeros, are only where all the rest is:
    ranks that share nothing begin with them too."""
    same = [name for name in names if name not in differ]
    constant = {name for facts in known.values() for name in facts.constant}
    telling = [name for name in same if name not in constant]
    whole = len(same) == max(len(facts.parameters) for facts in known.values())
    return same if telling and whole else telling


def _some_have(name: str, known: Mapping[int, RankFacts]) -> bool:
    have = [bool(facts.gradients[name]) for facts in known.values() if name in facts.gradients]
    return len(have) == len(known) and any(have) and not all(have)


def _same_gradient(name: str, known: Mapping[int, RankFacts]) -> bool:
    found = {facts.gradients.get(name, "") for facts in known.values()}
    return len(found) == 1 and not found & {"", "?"}


def _ranks(ranks: Iterable[int]) -> str:
    each = list(ranks)
    return f"rank{'s' * (len(each) > 1)} {ranks_text(each)}"


def _hashes(name: str, known: Mapping[int, RankFacts]) -> str:
    shown = ", ".join(f"{facts.parameters[name][:8]} on rank {rank}" for rank, facts in sorted(known.items())[:4])
    return f"hash of {name}: {shown}" + (" ..." if len(known) > 4 else "")


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in rates) or "unknown"


def _some(names: Sequence[str], most: int = 3) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
