"""Data sets that each look at a sample changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adbg.engine.diagnosis.detector import Detector, LoaderEvent, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import line_of, place, plain, writes
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_MOST = 1 << 25  # bytes of a data set that are summed up
_PASSES = 4  # that are looked at


@detector("silent-overwrite")
class DamagedData(Detector):
    """``image = self.images[i]`` gives a view, and what augments it in place (``image[:, y:y + 8] = 0``) writes into
    the data set: each epoch leaves its marks in the samples, until little is left of them.

    Evidence: a sum over the bytes of what the data set keeps, at the begin of two passes; the line that takes the
    sample and the line that writes into it.
    Mistaken for: data that is renewed on purpose in the line that takes it (``self.targets[i] = …``), a cache that is
    filled once, samples that are cloned first: not told.
    Cost: a sum over the bytes of the tensors of a data set (32 MB at most), at the begin of four passes; in sampled
    iterations a look at the memory of what is indexed or written.
    """

    needs = Need.LOADERS
    sampled = Need.OPERATORS

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._held: dict[int, str] = {}  # memory of the tensors of data sets: their attributes
        self._lines: dict[str, tuple[SourceLine, SourceLine]] = {}  # by attribute: where a sample is taken, and written
        self._taken: dict[str, SourceLine] = {}
        self._sums: dict[int, tuple[int, dict[str, int]]] = {}  # by loader: passes, and the last sums by attribute
        self._changed: dict[tuple[int, str], int] = {}  # by loader and attribute: passes behind which it was another
        self._found: tuple[str, SourceLine, SourceLine] | None = None
        self._where: tuple[SourceLine | None, str] = (None, "")

    def applied(self) -> bool:
        return bool(self._sums)

    def loader(self, event: LoaderEvent) -> None:
        if event.what != "begins" or event.workers:
            return
        passes, before = self._sums.get(event.loader, (0, {}))
        if passes >= _PASSES:
            return
        now = dict(self._summed(event.dataset))
        self._sums[event.loader] = (passes + 1, now)
        for name in [name for name, each in now.items() if before.get(name, each) != each]:
            self._changed[event.loader, name] = self._changed.get((event.loader, name), 0) + 1
        # Once may be a cache that is filled.
        changed = [name for name in now if self._changed.get((event.loader, name), 0) > 1]
        if not changed:
            return
        self._found = next(((name, *self._lines[name]) for name in changed if name in self._lines), None)
        self._where = event.line, type(event.dataset).__name__

    def end(self) -> None:
        """Where another one has told it (``accumulated``, by the source) there is nothing to add."""
        told = any(each.kind == "silent-overwrite" for each in self.facts.findings.values())
        if self._found is not None and not told:
            self._tell(*self._found)

    def operator(self, call: OperatorCall) -> None:
        if not self._held or call.error is not None or not call.operands:
            return
        name, line = plain(call.name), line_of(call.lines)
        if name not in ("getitem", "setitem", "select") and not (
            call.name.endswith("_") or call.name.startswith("__i")
        ):
            return
        value = call.operands[0]
        held = next((self._held[at] for at, _ in self.facts.backend.storages(value) if at in self._held), None)
        if held is None or line is None or held in self._lines:
            return
        if name in ("getitem", "select"):
            self._taken[held] = line
        elif held in self._taken and self._taken[held] != line and writes(call):
            self._lines[held] = (self._taken[held], line)

    def _summed(self, dataset: Any) -> Iterator[tuple[str, int]]:
        kept, left = getattr(dataset, "__dict__", None), _MOST
        for name, value in list(kept.items()) if type(kept) is dict else ():
            size = getattr(value, "nbytes", None)
            if type(size) is not int or not 0 < size <= left:
                continue
            # Arrays are left to ``accumulated``: no operator tells who writes into them.
            found = self.facts.digest(value) if self.facts.backend.is_tensor(value) else None
            if found is not None:
                self._held |= {at: name for at, _ in self.facts.backend.storages(value)}
                left -= size
                yield name, found

    def _tell(self, name: str, taken: SourceLine, writer: SourceLine) -> None:
        facts, (line, kind) = self.facts, self._where
        facts.tell(
            Finding(
                0, "silent-overwrite", "error", 0.92,
                f"{place(taken)} takes a sample of '{name}' as a view, and {place(writer)} writes into it: {kind} "
                "keeps what that leaves, pass after pass; clone it first",
                None, None, facts.iteration, writer, facts.cause(writer),
                [
                    f"the bytes of '{name}' are other ones as the next pass begins",
                    f"{place(writer)}: {facts.text_of(writer)}",
                ],
                [f"b {place(line)}"],
            )
        )  # fmt: skip
