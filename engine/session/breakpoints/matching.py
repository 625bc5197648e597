"""Which nodes specs need hooked, how many they take, what to say of none. On the thread that holds the graph."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adbg.engine.backends.base import Graph, HookPlan
from adbg.engine.names import closest_names, file_matches, name_matches
from adbg.engine.own_files import SHOWN
from adbg.engine.session.breakpoints.grammar import Spec, SpecKind, spec_matches
from adbg.engine.session.breakpoints.lines import loaded_file, why_none
from adbg.engine.types import NodeInfo, Phase, SourceLine

_WORDS = ("nan", "inf", "nonfinite", "backward", "backward-end", "error")  # specs that are no names
_NAMES = 6  # in the message of a pattern that no name is like
_LINES = 8  # of a file, closest first, in the message of a line that made no node


@dataclass(slots=True)
class _Seen:
    """What a graph has to offer, gathered in one walk, for the messages of specs that take nothing."""

    names: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)
    stacks_missing: str = ""


def count_matches(graph: Graph, specs: Mapping[int, Spec]) -> dict[int, tuple[int, str]]:
    """For every id: (nodes taken, message). The message is "" unless nothing is taken. Describes every node."""
    counts = dict.fromkeys(specs, 0)
    folded = dict.fromkeys(specs, 0)  # when case is ignored: used where nothing matches with its case
    seen = _Seen()
    with_stacks = any(spec.kind is SpecKind.LINE for spec in specs.values())
    order = graph.order() if specs else ()
    for index, key in enumerate(order, 1):
        info = graph.describe(key)
        stack: Sequence[SourceLine] = ()
        if with_stacks:
            stack, why = graph.forward_stack(key)
            seen.lines.update((frame.file, frame.line) for frame in stack)
            seen.stacks_missing = seen.stacks_missing or ("" if stack else why)
        seen.names.add(info.name)
        if info.module:
            seen.modules.add(info.module)
        if info.parameter:
            seen.parameters.add(info.parameter)
        for id, spec in specs.items():
            if spec_matches(spec, info, stack, index):
                counts[id] += 1
            elif spec.kind is SpecKind.NAME and spec_matches(spec, info, stack, index, fold=True):
                folded[id] += 1
    result = {}
    for id, spec in specs.items():
        number = counts[id] or folded[id]
        result[id] = (number, "" if number else _nothing(spec, seen, len(order)))
    return result


def _nothing(spec: Spec, seen: _Seen, total: int) -> str:
    """Why ``spec`` takes no node of the current graph, with the closest names."""
    if spec.kind is SpecKind.INDEX:
        return f"no node {spec.head} in the current graph: it has {total} nodes"
    if spec.kind is SpecKind.LINE:
        return _no_line(spec, seen)
    what, names = {
        SpecKind.MODULE: ("made in module", seen.modules),
        SpecKind.PARAMETER: ("of parameter", seen.parameters),
    }.get(spec.kind, ("named", seen.names))
    base = spec.pattern.partition("#")[0]
    if base != spec.pattern and any(name_matches(base, name, "", True) for name in names):
        return f"no node named {spec.pattern!r} in the current graph: fewer nodes of that name"
    text = f"no node {what} {spec.pattern!r} in the current graph"
    if not names:
        return f"{text}: no {'module path' if what.startswith('made') else 'name'} is known there"
    return text + _offer(spec.pattern, names)


def _offer(pattern: str, names: Iterable[str]) -> str:
    """The closest names; where none is close, some of those that are there."""
    close = closest_names(pattern, names)
    if close:
        return f"; closest: {', '.join(close)}"
    word = difflib.get_close_matches(pattern.lower(), _WORDS, n=1)
    if word:
        return f"; closest: the breakpoint `{word[0]}`"
    some = sorted(names)
    more = f" and {len(some) - _NAMES} more" if len(some) > _NAMES else ""
    return f"; names there: {', '.join(some[:_NAMES])}{more}" if some else ""


def absent(spec: Spec, graphs: Sequence[Graph]) -> str:
    """Why none of ``graphs`` (the last one is the current graph) has a node that ``spec`` takes; "" when one has, when
    ``spec`` names no nodes, or those of a backward call by its number."""
    if not spec.of_node or spec.backward:
        return ""
    message = ""
    for graph in graphs:
        number, message = count_matches(graph, {0: spec})[0]
        if number:
            return ""
    return message


def unmatched_name(spec: Spec, names: Sequence[str]) -> str:
    """Why a name ``spec`` took none of the nodes of a whole run, whose framework names are ``names``; "" when it is no
    name, or there were such nodes."""
    base = spec.pattern.partition("#")[0]
    if spec.kind is not SpecKind.NAME or not names or any(name_matches(base, name, "", True) for name in names):
        return ""
    return f"no node was named {spec.pattern!r}" + _offer(spec.pattern, names)


def _no_line(spec: Spec, seen: _Seen) -> str:
    text = f"no node was made at {spec.head}"
    if not SHOWN.all and seen.lines and not any(file_matches(spec.pattern, file) for file, _ in seen.lines):
        text += " (of lines inside the framework: after `frames all`)"
    if not seen.lines:
        return f"{text}: no forward stacks" + (f" ({seen.stacks_missing})" if seen.stacks_missing else "")
    matching = [(file, line) for file, line in seen.lines if file_matches(spec.pattern, file)]
    lines = sorted({line for _, line in matching})
    file = matching[0][0] if matching else loaded_file(spec.pattern)
    why = why_none(file, spec.number, lines) if file else "no imported module has that file"
    text += f": {why}" if why and "site-packages" not in file else ""  # of a framework only some frames are known
    if lines:
        nearest = min(lines, key=lambda line: (abs(line - spec.number), -line))
        near = sorted(sorted(lines, key=lambda line: abs(line - spec.number))[:_LINES])
        more = f" and {len(lines) - len(near)} further away" if len(lines) > len(near) else ""
        all_of_them = f"lines of that file that made nodes: {', '.join(map(str, near))}{more}"
        return f"{text}; nearest: `b {spec.pattern}:{nearest}`; {all_of_them}"
    files = sorted({file.rpartition("/")[2] for file, _ in seen.lines})
    return f"{text}; files that made nodes: {', '.join(files[:5])}"


_NEEDS = {SpecKind.LINE: "forward_stack", SpecKind.MODULE: "module", SpecKind.PARAMETER: "parameter"}


def plan_for(specs: Sequence[Spec]) -> HookPlan:
    """The union of what ``specs`` need hooked. A unique name ("Bmm#3") is asked for by its framework name: hooking the
    few nodes of that name is cheaper than describing every node of the graph."""
    patterns = tuple({spec.pattern for spec in specs if spec.kind is SpecKind.NAME})
    slow = tuple(spec for spec in specs if spec.kind in _NEEDS)

    def name(framework_name: str) -> bool:
        return any(name_matches(pattern, framework_name, "", True) for pattern in patterns)

    def info(node: NodeInfo, stack: Sequence[SourceLine]) -> bool:
        return any(spec_matches(spec, node, stack, 0) for spec in slow)

    return HookPlan(
        name=name if patterns else None,
        info=info if slow else None,
        needs=frozenset(_NEEDS[spec.kind] for spec in slow),
        by_place=True,
        indices=frozenset(spec.number for spec in specs if spec.kind is SpecKind.INDEX),
        contributions=any(spec.of_node for spec in specs),  # no stop can ask for parts that were not kept
        post=any(spec.phase is Phase.AFTER for spec in specs if spec.of_node),
        screen=any(spec.of_values for spec in specs),
    )


def name_test(plans: Sequence[HookPlan]) -> Callable[[str], bool] | None:
    """A cheap test for names that no breakpoint takes (one dict lookup), so that a node hooked for another reason costs
    no description; None where breakpoints look at more than names."""
    if any(plan.every or plan.info or plan.indices or plan.screen for plan in plans):
        return None
    tests = [plan.name for plan in plans if plan.name is not None]
    return functools.lru_cache(maxsize=1024)(lambda name: any(test(name) for test in tests))
