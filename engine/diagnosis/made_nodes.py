"""The node of a finding that was told of an operator, by the line that called it.

Detectors that look at operators as they are called know the line and the operator, but no node: it gets its place in a
graph with the next backward. So each graph that is new in a sampled iteration is read once, and findings are completed
from it as they are sent; one that was sent before is sent again under its id.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Graph
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.graph.index import index_of
from adbg.engine.protocol.messages import Finding, FoundAt
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_MOST = 20_000  # nodes of a graph that is read: 5 us each
_GRAPHS = 64  # that are known to be alike
_ABOUT = re.compile(r"([A-Za-z_]\w*) (?:of the mean )?at ")  # a message that begins with its operator
_PREFIXES = ("native", "cudnn", "miopen", "thnn", "slow", "safe")  # of nodes of torch, which no function has
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


def _operator(name: str) -> str:
    word = plain_name(name)
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return "convolution" if word in _CONVOLUTIONS else word.removesuffix("withindices")


class MadeNodes:
    """Nodes by the line that made them."""

    def __init__(self) -> None:
        self._at: dict[SourceLine, dict[str, list[FoundAt]]] = {}  # then by operator
        self._read: set[Any] = set()
        self._given: dict[tuple[int, SourceLine], FoundAt] = {}  # by finding: it stays with the node that it was given

    def read(self, running: Running) -> bool:
        """Read the graph of a call that begins; False where one like it was read before."""
        call = running.call
        twin = call.twin(shapes=False)
        if (twin is not None and twin in self._read) or call.count() > _MOST:
            return False
        if len(self._read) >= _GRAPHS:
            self._read.clear()
        self._read.add(twin)
        found: dict[SourceLine, dict[str, list[FoundAt]]] = defaultdict(lambda: defaultdict(list))
        for line, node in _nodes(call):
            found[line][_operator(node.name or "")].append(node)
        for line, nodes in found.items():
            self._at.setdefault(line, nodes)
        return True

    def made_in(self, file: str, first: int, last: int) -> bool:
        """Whether a graph that was read has a node that lines ``first`` to ``last`` of a file made."""
        return any(line.file == file and first <= line.line <= last for line in self._at)

    def completed(self, finding: Finding) -> Finding:
        """With its node, where it has none of its own: of the operator that its message begins with ("softmax at
        m.py:9"), at the line that made it. Where that line made several, with what they have in common. An operator
        that failed made none."""
        if finding.node is not None or finding.forward is None or finding.kind == "operator-error":
            return finding
        known = finding.id, finding.forward
        about = _ABOUT.match(finding.message)
        nodes = self._at.get(finding.forward, {}).get(_operator(about[1])) if about is not None else None
        if nodes and known not in self._given:
            self._given[known] = _shared(nodes)
        return replace(finding, node=self._given[known]) if known in self._given else finding


def _shared(nodes: Sequence[FoundAt]) -> FoundAt:
    if len(nodes) == 1:
        return nodes[0]
    names, modules = {each.name for each in nodes}, {each.module for each in nodes}
    return FoundAt(names.pop() if len(names) == 1 else None, None, modules.pop() if len(modules) == 1 else None)


def _nodes(call: Graph) -> Iterator[tuple[SourceLine, FoundAt]]:
    for key in index_of(call).order:
        if not call.is_accumulate(key):
            info = call.describe(key)
            if info.forward is not None:
                yield info.forward, FoundAt(info.name, info.unique_name, info.module, info.parameter)
