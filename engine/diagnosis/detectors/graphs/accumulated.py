"""Data that each visit changes where it is stored: an augmentation or a normalisation that works in place on a view of
what a data set keeps, so that what it does adds up from epoch to epoch."""

from __future__ import annotations

import sys
import types
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.earlier.views import Write, loops_of, writes_of
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.numbers.holders import owners
from adbg.engine.diagnosis.detectors.training.bits import hash_of
from adbg.engine.diagnosis.values import is_users
from adbg.engine.frames import forget_stack, local, locals_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.running_call import Running

_LOOKED = (1, 2, 3, 8, 16, 32)  # iterations at which data sets are looked for
_ROWS = 16  # elements of one that are compared
_MOST = 2_000  # times
_TWICE = 2  # times that one element changed
_BYTES = 1 << 20  # of an element


@dataclass(slots=True)
class _Watched:
    stored: Callable[[], Any]  # what it is an element of
    called: str
    write: Write
    identity: int  # of what is stored there
    witness: Callable[[], Any] | None  # it, or its first element: its identity may be another's later
    anchor: Callable[[], Any] | None = None  # a table further out whose memory it is cut of, anew for each call
    where: object = None  # in that memory
    seen: dict[int, set[int | None]] = field(default_factory=dict)  # by element: hashes
    changes: dict[int, int] = field(default_factory=dict)


@detector("silent-overwrite")
class Accumulated(Detector):
    """A data set's ``__getitem__``, or a transformation that it calls, works in place on a view of what is stored
    (``img = self.images[i]``, ``img += noise``, ``img[at : at + n] = 0``): each visit changes the data itself, and the
    changes add up from epoch to epoch. No graph is concerned, and no gradient is wrong. So does a loop over a list of
    batches, or over slices, where it writes itself, and where the module, the object or the function that it hands
    them to does.

    Evidence: the statement that writes, where the variable is given the view, and an element of the attribute (of the
    list, of the table) that has changed at least twice while the program trained.
    Mistaken for: a copy (indexing with a list, ``clone()``, ``copy()``, another type), what is normalised once (not
    told: no element changes twice), an argument that a call is there to change, counters and caches that a data set
    keeps beside its data, buffers that are written anew (``copy_``, ``fill_``). Of a method with another name, and of a
    loop, only what adds something random and is handed on (a warning), and not where a name speaks of a simulation,
    which may carry its state on like that; what is mixed with numbers that the caller has drawn (a note).
    Cost: none where no source has such a statement; else checksums of 16 elements after each forward, 2,000 times.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._watched: list[_Watched] = []
        self._met: set[int] = set()  # ids of owners
        self._codes: dict[int, types.CodeType] = {}  # of functions that run, by address
        self._looks = 0
        self._told = False

    def applied(self) -> bool:
        return bool(self._met or self._codes)

    def backward_begin(self, running: Running) -> None:
        if self._told or len(running.chain) > 1:
            return
        if self.facts.iteration in _LOOKED:
            self._find()
        if self._watched and self._looks < _MOST:
            self._looks += 1
            self._look()

    def _find(self) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        try:
            for owner in owners():
                if id(owner) not in self._met and "_parameters" not in owner.__dict__:
                    self._met.add(id(owner))
                    for write in writes_of(owner):
                        with suppress(TypeError):  # what has no weak references
                            self._watch(_attribute_of(weakref.ref(owner), write.kept), type(owner).__name__, write)
            while frame is not None:
                if id(frame.f_code) not in self._codes and is_users(frame):
                    self._codes[id(frame.f_code)] = frame.f_code
                    known = {**frame.f_globals, **locals_of(frame)}
                    roots = {name for name, value in known.items() if self._is_data(value)}
                    for write in loops_of(frame.f_code, roots, known) if roots else ():
                        self._watch(_local_of(frame.f_code, write.kept), "", write, frame.f_back)
                frame = frame.f_back
        finally:
            del frame
            forget_stack()

    def _watch(self, stored: Callable[[], Any], kind: str, write: Write, outer: types.FrameType | None = None) -> None:
        called = f"{kind}.{write.kept}" if kind else write.kept
        held = stored()
        if not write.by or self._is_data(held):
            made = _Watched(stored, called, write, id(held), _witness(held))
            if outer is not None and self.facts.backend.is_tensor(held):
                made.anchor, made.where = self._anchor(held, outer), self._where(held)
            self._watched.append(made)

    def _anchor(self, held: Any, frame: types.FrameType | None) -> Callable[[], Any] | None:
        """What a function further out calls a tensor over the same memory, held weakly."""
        backend, memory = self.facts.backend, self.facts.backend.storages(held)
        while frame is not None:
            for value in list(locals_of(frame).values()) if is_users(frame) else ():
                if value is not held and backend.is_tensor(value) and memory and backend.storages(value) == memory:
                    return weakref.ref(value)
            frame = frame.f_back
        return None

    def _where(self, value: Any) -> object:
        return value.data_ptr(), tuple(value.shape), self.facts.backend.storages(value)

    def _is_same(self, each: _Watched, stored: Any) -> bool:
        if id(stored) == each.identity and not (each.witness and each.witness() is None):
            return True
        anchored = each.anchor is not None and each.anchor() is not None
        return anchored and self.facts.backend.is_tensor(stored) and self._where(stored) == each.where

    def _is_data(self, value: Any) -> bool:
        """A table, or several tensors; no parameter, and nothing of a graph."""
        if type(value) in (list, tuple):
            return any(self._is_data(each) for each in value[:1])
        backend = self.facts.backend
        return _is_array(value) or (backend.is_tensor(value) and not backend.meta(value).requires_grad)

    def _look(self) -> None:
        for each in tuple(self._watched):
            stored = each.stored()
            if stored is None or not self._is_same(each, stored):
                self._watched.remove(each)
                continue
            for at in _spread(stored, self.facts.backend.is_tensor):
                with suppress(Exception):
                    now = self._hash(stored[at])
                    seen = each.seen.setdefault(at, set())
                    if now is not None and seen and now not in seen:  # what it was before is put back
                        each.changes[at] = each.changes.get(at, 0) + 1
                    seen.add(now)
            if any(count >= _TWICE for count in each.changes.values()):
                self._told = True
                self._tell(each)
                return

    def _hash(self, value: Any) -> int | None:
        if _is_array(value):
            return zlib.crc32(value.tobytes()) if value.nbytes <= _BYTES and not value.dtype.hasobject else None
        if type(value) in (list, tuple, dict):
            every = [self._hash(each) for each in list(value.values() if type(value) is dict else value)[:_ROWS]]
            return hash(tuple(every)) if any(each is not None for each in every) else None
        return hash_of(self.facts, value) if self.facts.backend.is_tensor(value) else None

    def _tell(self, each: _Watched) -> None:
        facts, write = self.facts, each.write
        stored, name = each.called, write.inner or write.name
        how = "handed on" if write.by else "taken"
        at, count = max(each.changes.items(), key=lambda item: item[1])
        message = (
            f"{place(write.line)} writes into {stored} itself: {name} is a view of it, and each visit of an "
            "element adds to what the visits before have done; work on a copy (clone(), copy(), or an operator that is "
            "not in place)"
        )
        evidence = [
            f"{stored}[{at}] has changed {count} times by iteration {facts.iteration}, and others of {_ROWS} that were "
            f"looked at: {len(each.changes)} in all",
            f"{write.name} is {how} at {place(write.taken)}: {facts.text_of(write.taken)}",
        ]
        severity, sure = ("error", 0.9) if write.sure else ("warning", 0.7)
        if write.mixes:
            severity, sure = "note", 0.45
            evidence.append("a process that goes on by drawn numbers is carried on so: whether this is one decides it")
        facts.tell(
            Finding(
                0, "silent-overwrite", severity, sure, message, iteration=facts.iteration, forward=write.taken,
                cause=facts.cause(write.line), evidence=evidence, next=[f"b {place(write.line)}"],
            )
        )  # fmt: skip


def _witness(value: Any) -> Callable[[], Any] | None:
    for _ in range(3):
        with suppress(TypeError):
            return weakref.ref(value)
        if type(value) not in (list, tuple) or not value:
            break
        value = value[0]
    return None


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _spread(stored: Any, is_tensor: Callable[[Any], bool]) -> list[Any]:
    """Indices of some elements, from the first to the last."""
    if type(stored) is dict:
        return list(stored)[:_ROWS]
    if type(stored) not in (list, tuple) and not _is_array(stored) and not is_tensor(stored):
        return []
    with suppress(Exception):
        return list(range(0, len(stored), max(1, len(stored) // _ROWS)))[:_ROWS]
    return []


def _attribute_of(owner: Any, name: str) -> Callable[[], Any]:
    return lambda: vars(held).get(name) if (held := owner()) is not None else None


def _local_of(code: types.CodeType, name: str) -> Callable[[], Any]:
    """Of the function while it runs, on the thread that asks."""

    def find() -> Any:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is None:
            return None
        value = local(frame, name)
        return frame.f_globals.get(name) if value is None else value

    return find
