"""A profile as the report shows it: its tables, its flame graph, its difference to another one. Everything is made
when it is first asked for, on a worker thread: a hundred thousand stacks take half a second."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from adbg.profiles.report.comparison import Pair, paired
from adbg.profiles.report.flame import ROOT, Tree
from adbg.profiles.report.formats import detect
from adbg.profiles.report.formats.problem import FormatError
from adbg.profiles.report.model import Frame, Profile
from adbg.profiles.report.node_groups import with_stacks
from adbg.profiles.report.tables import Grouping, difference
from adbg.tui.app.profile import sheets
from adbg.tui.app.profile.colours import change_style
from adbg.tui.app.profile.sheets import Sheet
from adbg.tui.text.profile_difference import compared_words, told_apart
from adbg.tui.text.profile_report import head_lines, iteration_lines, verdict_lines

FLAME, TABLE, NODES, ITERATIONS, CHANGES = "flame", "table", "nodes", "iterations", "difference"


@dataclass(slots=True)
class Contents:
    """``path`` is a file, or an artifact's folder. ``before``: what it is compared with."""

    path: str
    profile: Profile
    before: Contents | None = None
    _trees: dict[bool, Tree] = field(default_factory=dict)
    _sheets: dict[tuple[str, str], Sheet] = field(default_factory=dict)
    _by_function: Profile | None = None
    _pair: Pair | None = None
    _tints: dict[bool, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return os.path.basename(self.path.rstrip("/")) or self.path

    @property
    def views(self) -> tuple[str, ...]:
        """What there is to see, the best first."""
        found = [CHANGES] if self.before is not None else []
        if self.profile.samples:
            found.append(FLAME)
        if self.profile.samples or self.profile.calls:
            found.append(TABLE)
        if self.profile.nodes:
            found += [NODES] if self.profile.samples else [NODES, FLAME]
        if self.profile.iterations:
            found.append(ITERATIONS)
        return tuple(found)

    def head(self) -> list[str]:
        """The verdict, or why there is none, and the usual iteration; then what it is a profile of."""
        verdict = verdict_lines(self.profile, _WHOLE)
        if not verdict:
            verdict = [_NO_LAUNCH if self.profile.nodes else _NO_VERDICT]
        verdict += iteration_lines(self.profile, _WHOLE)[:1]
        told = head_lines(self.profile, self.name)[0]
        if self.before is not None:
            told = f"{told_apart(self.before.path, self.path)[0]} → {told}"
            told += "".join(f"; {line}" for line in compared_words(self.pair()))
        why = str(self.profile.meta.get("why") or "")
        return [*verdict, told + (f"; {why}" if why else "")]

    def pair(self) -> Pair:
        """Both, fit to be compared. Raises CommandError where they have no row in common."""
        assert self.before is not None
        if self._pair is None:
            self._pair = paired(self.before.profile, self.profile)
        return self._pair

    def by_function(self) -> Profile:
        """Stacks of whole functions."""
        if self._by_function is None:
            self._by_function = _by_function(self.profile)
        return self._by_function

    def tree(self, inverted: bool) -> Tree:
        tree = self._trees.get(inverted)
        if tree is None:
            tree = self._trees[inverted] = Tree(self.by_function(), inverted=inverted)
        return tree

    def around(self, frame: Frame, callers: bool) -> Tree:
        """Every stack with that function in it, as one: what it calls, or its callers below it."""
        return Tree(part_of(self.by_function(), frame, callers), inverted=callers)

    def tints(self, inverted: bool) -> list[str] | None:
        """The style of each node of the tree, where it is compared with another profile."""
        if self.before is None:
            return None
        if inverted not in self._tints:
            earlier = Tree(_by_function(self.pair().before), inverted=inverted)  # its files by the names of this one
            self._tints[inverted] = compared(earlier, self.tree(inverted))
        return self._tints[inverted]

    def sheet(self, view: str, grouping: Grouping = Grouping.FUNCTION, single: bool = False) -> Sheet:
        """``single``: each node by itself."""
        key = (view, grouping.value if view in (TABLE, CHANGES) else str(single))
        found = self._sheets.get(key)
        if found is None:
            found = self._sheets[key] = self._make(view, grouping, single)
        return found

    def _make(self, view: str, grouping: Grouping, single: bool) -> Sheet:
        if view == NODES:
            return sheets.nodes(self.profile, single)
        if view == ITERATIONS:
            return sheets.iterations(self.profile)
        if view == CHANGES and self.before is not None:
            pair = self.pair()
            sides = pair.before, pair.after
            if self.profile.nodes:
                before, after = (with_stacks(each, kinds=True) for each in sides)
            elif grouping is Grouping.FUNCTION:
                before, after = map(_by_function, sides)
            else:
                before, after = sides
            return sheets.changes(difference(before, after, grouping, shares=pair.shares))
        whole = grouping is Grouping.FUNCTION and not self.profile.calls
        return sheets.functions(self.by_function() if whole else self.profile, grouping)


_NO_LAUNCH = "no verdict: what launching a node takes is not known from these nodes"
_WHOLE = 10_000  # cells: the screen folds the lines itself
_NO_VERDICT = "no verdict: launching and computing are not told apart here; `nodes` does"


def read(path: str) -> Contents:
    """Raises FormatError."""
    profile = detect.read(Path(path))
    if profile.empty:
        raise FormatError(f"{path}: nothing was sampled in it", "a longer region, or a higher rate, has more samples")
    return Contents(path, profile)


def read_with(path: str, before: str, known: dict[str, Contents]) -> Contents:
    """The report of ``path``, compared with ``before`` where that is given; what was read is kept in ``known``.

    Raises:
        FormatError: one of them cannot be read.
        CommandError: the two have no row in common.
    """
    for each in filter(None, (path, before)):
        if each not in known:
            known[each] = read(each)
    if not before:
        return known[path]
    both = Contents(path, known[path].profile, known[before])
    both.pair()
    return both


def _by_function(profile: Profile) -> Profile:
    """Stacks of whole functions; of nodes by their modules."""
    whole = with_stacks(profile)
    return functions_of(whole) if whole.lines == "executed" else whole


def functions_of(profile: Profile) -> Profile:
    """Samples of executed lines as those of whole functions, each at its line that most samples went through."""
    weights: dict[int, float] = defaultdict(float)
    for stack, weight, _ in profile.samples:
        for number in set(stack):
            weights[number] += weight
    heaviest: dict[Frame, tuple[float, int]] = {}
    keys = [replace(frame, line=0) for frame in profile.frames]
    for number, frame in enumerate(profile.frames):
        found = (weights[number], frame.line)
        heaviest[keys[number]] = max(heaviest.get(keys[number], found), found)
    numbers: dict[Frame, int] = {}
    mapped = [numbers.setdefault(replace(key, line=heaviest[key][1]), len(numbers)) for key in keys]
    samples = tuple(
        sample._replace(stack=tuple(mapped[number] for number in sample.stack)) for sample in profile.samples
    )
    return replace(profile, frames=tuple(numbers), samples=samples, lines="first")


def part_of(profile: Profile, frame: Frame, callers: bool) -> Profile:
    """Each stack down to its outermost call of that function, or from there on: recursion is counted once."""
    wanted = {number for number, each in enumerate(profile.frames) if each == frame}
    if not wanted:
        wanted = {n for n, each in enumerate(profile.frames) if replace(each, line=0) == replace(frame, line=0)}
    found = []
    for sample in profile.samples:
        at = next((place for place, number in enumerate(sample.stack) if number in wanted), None)
        if at is not None:
            found.append(sample._replace(stack=sample.stack[: at + 1] if callers else sample.stack[at:]))
    return replace(profile, samples=tuple(found))


def compared(before: Tree, after: Tree) -> list[str]:
    """Styles of the nodes of ``after``: by the change of their share of the whole, along equal stacks of both."""
    wholes = before.weight[ROOT] or 1.0, after.weight[ROOT] or 1.0
    same: list[int | None] = [None] * len(after)
    same[ROOT] = ROOT
    shares = [0.0] * len(after)
    children: dict[int, Mapping[tuple[str, str, str], int]] = {}
    for node in range(1, len(after)):  # a parent's number is below its children's
        above = same[after.parent[node]]
        if above is not None:
            if above not in children:
                children[above] = {_key(before.frame_of(child)): child for child in before.children[above]}
            same[node] = children[above].get(_key(after.frame_of(node)))
        other = same[node]
        shares[node] = after.weight[node] / wholes[1] - (before.weight[other] / wholes[0] if other is not None else 0.0)
    largest = max(map(abs, shares), default=0.0)
    return [change_style(share, largest) for share in shares]


def _key(frame: Frame | None) -> tuple[str, str, str]:
    return (frame.name, frame.file, frame.module) if frame is not None else ("", "", "")
