"""What detectors share: the run so far, names of tensors, lines of source, and the way to tell a finding."""

from __future__ import annotations

import itertools
import linecache
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.diagnosis.next_commands import NodeLines, as_typed, told_apart
from adbg.engine.diagnosis.rounds import Rounds
from adbg.engine.diagnosis.warned import Warned
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Cause, Finding, FoundAt, RankFacts
from adbg.engine.types import SourceLine

_ASKED_AGAIN = 100  # times that names are looked up anew before the first backward
_WEIGHTS = {"note": 0, "warning": 1, "error": 2}


class Facts:
    """Of one framework in this process.

    Attributes:
        iteration: outermost backwards begun so far, since it is watched.
        rounds: iterations as users count them: those of a loop with several backwards.
        before: outermost backwards that had begun by then.
        sampled: the taps for sampled iterations are in now.
        stepping: an optimizer's step runs, as far as a detector that wants operators in every iteration has noted.
        other_needs: a detector changed its ``needs`` as a module began or ended: they count from here on.
        deep: every iteration is sampled, and detectors may compute more.
        warned: at which lines NumPy met NaN and infinities.
        node_lines: those that recorded nodes, for ``next``.
        findings: told so far, by id.
        share: for the front end, which compares it with what other ranks tell.
    """

    def __init__(
        self,
        backend: Backend,
        send: Callable[[Finding], None],
        deep: bool = False,
        share: Callable[[RankFacts], None] = lambda _: None,
    ) -> None:
        self.backend = backend
        self.share = share
        self.deep = deep
        self.iteration = self.before = 0
        self.rounds = Rounds()
        self.sampled = True
        self.stepping = self.other_needs = False
        self.at_backward = False  # it ends between a forward and its backward: as many iterations were asked for
        self.cut_short = False  # what would have come after the last backward may not have: an exception, Ctrl-C
        self.warned = Warned()  # what NumPy says
        self.node_lines = NodeLines(backend)
        self.findings: dict[int, Finding] = {}
        self._send = send
        self._ids: Callable[[], int] = itertools.count(1).__next__
        self._names: dict[int, str] = {}
        self._named_at = -1
        self._asked_again = 0
        self.shared: dict[type, Any] = {}  # what detectors of one family keep together
        self.places: dict[int, str] = {}  # id of a tensor -> its place in an optimizer; STEPS fills it in
        self.about: dict[int, frozenset[int]] = {}  # id of a finding -> ids of the tensors that it is about
        self.replaced: dict[int, int] = {}  # id of a tensor that others took the place of -> the finding that says so
        self.titled: Callable[[Any, str], str] = lambda _, name: name  # a name, and whose it is; a ledger knows
        self.born: Callable[[Any], SourceLine | None] = lambda _: None  # where a parameter was made; OPERATORS knows
        # Whether lines (file, first, last) made a node of a graph that a backward went through.
        self.made_in: Callable[[str, int, int], bool] = lambda file, first, last: False
        self.written: Callable[[Any], SourceLine | None] = lambda _: None  # and where it was initialised by hand
        self.spoilt: Callable[[Sequence[Any]], int | None] = lambda _: None  # the finding of why they are not finite
        # The finding of gradients clipped too late, of which numbers outgrew their range; 0: it may come to that.
        self.unclipped: Callable[[], int | None] = lambda: None
        self.with_depth: Callable[[], frozenset[str]] = frozenset  # "vanishing", "exploding": so far, told at the end

    # ---- names

    def name_of(self, tensor: Any) -> str:
        """What the user calls a parameter ("fc1.weight"); else its place in an optimizer; "" for any other tensor."""
        # Before the first backward modules are only being met: for a leaf without a name they are asked again.
        again = not self.iteration and id(tensor) not in self._names and self._asked_again < _ASKED_AGAIN
        if self._named_at != self.iteration or (again and not self.backend.has_graph(tensor)):
            names: dict[int, str] = {}
            for name, each in self.backend.parameters():  # a part that ran alone tells a shorter path
                if len(name) > len(names.get(id(each), "")):
                    names[id(each)] = name
            self._names, self._named_at = names, self.iteration
            self._asked_again += 1
        return self._names.get(id(tensor), "") or self.places.get(id(tensor), "")

    def statistics(self) -> frozenset[int]:
        """Ids of the running statistics that are parameters by their type: Paddle keeps those of BatchNorm so. A tensor
        of the user's in a Layer is a buffer, too. Walks all modules."""
        return frozenset(id(value) for _, value in self.backend.buffers() if "Param" in type(value).__name__)

    def title_of(self, tensor: Any) -> str:
        """``name_of``, and whose it is where several modules run ("head.bias")."""
        name = self.name_of(tensor)
        return self.titled(tensor, name) if name else ""

    def leaf_at(self, graph: Graph, key: int) -> str:
        """The same of an accumulate node's; "" where it has no name."""
        path = graph.describe(key).parameter or ""
        if "." in path:
            return path
        for saved in graph.saved(key) if path else ():
            if saved.value is not None:
                return self.titled(saved.value, path)
        return path

    def is_named(self, tensor: Any) -> bool:
        """A module has it under its name."""
        return self.name_of(tensor) not in ("", self.places.get(id(tensor), ""))

    def share_memory(self, one: Any, other: Any) -> bool:
        """The same storage, whichever parts of it."""
        where = self.backend.storages
        return not {at for at, _ in where(one)}.isdisjoint(at for at, _ in where(other))

    def digest(self, tensor: Any) -> int | None:
        """Of its bytes: differs where they do, but for one in 2**32. None where they cannot be read."""
        found = 0

        def put(piece: memoryview) -> None:
            nonlocal found
            found = zlib.crc32(piece, found)

        with suppress(Exception):
            self.backend.feed_bits(tensor, put)
            return found
        return None

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """() where it cannot be told."""
        with suppress(Exception):
            return tuple(self.backend.meta(tensor).shape or ())
        return ()

    @staticmethod
    def some(names: Sequence[str], most: int = 3) -> str:
        """ "fc1.weight, fc1.bias and 4 more": names in a sentence."""
        known = list(dict.fromkeys(names))
        if len(known) <= most:
            return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
        return f"{', '.join(known[:most])} and {len(known) - most} more"

    # ---- lines

    @staticmethod
    def text_of(line: SourceLine) -> str:
        """The source of a line, stripped; "" where it cannot be had."""
        with suppress(Exception):
            return linecache.getline(line.file, line.line).strip()
        return ""

    def cause(self, line: SourceLine | None) -> Cause | None:
        return Cause(line.file, line.line, line.function, self.text_of(line)) if line is not None else None

    @staticmethod
    def node(graph: Graph, key: int) -> tuple[FoundAt, SourceLine | None]:
        """A node as findings name it, and the forward line that made it."""
        info = graph.describe(key)
        return FoundAt(info.name, info.unique_name, info.module, info.parameter), info.forward

    # ---- telling

    def tell(self, finding: Finding) -> int:
        """Tell a finding (``id`` 0), or tell it anew (its id). The same kind with the same cause, node and message is
        told once, and anew where it turns out graver. Below 0.5 it is a note. Returns its id."""
        if finding.confidence < 0.5 and finding.severity != "note":
            finding = replace(finding, severity="note")
        lines = [(each.file, each.line) for each in (finding.cause, finding.forward) if each is not None]
        finding = replace(finding, next=as_typed(self.node_lines.shown(told_apart(finding.next, lines))))
        if not finding.id and self.iteration:  # a detector counts backwards
            ahead = finding.iteration - self.iteration if finding.iteration is not None else 0
            finding = replace(finding, iteration=max(1, self.before + self.rounds.count + ahead))
        elif not finding.id and self.before:  # in the forward of the first iteration that is watched
            finding = replace(finding, iteration=self.before + 1)
        if not finding.id:
            for known in list(self.findings.values()):
                if (known.kind, known.cause, known.node) == (finding.kind, finding.cause, finding.node) and (
                    known.cause is not None or known.message == finding.message
                ):
                    if _WEIGHTS[finding.severity] <= _WEIGHTS[known.severity]:
                        return known.id
                    finding = replace(finding, id=known.id)
                    break
            else:
                finding = replace(finding, id=self._ids())
        elif self.findings.get(finding.id) == finding:
            return finding.id
        self.findings[finding.id] = finding
        self._send(finding)
        return finding.id

    def take_back(self, id: int) -> None:
        """What was told turned out otherwise: it becomes a note without confidence, which front ends leave out."""
        known = self.findings.pop(id, None)
        if known is not None:
            self._send(replace(known, severity="note", confidence=0.0))
