"""What operators of the forward gave that is not finite, and of what: the way back from a bad loss to the first one.

No tensor is kept: results are known by a weak reference, and by where they lie.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.backends.base import OperatorCall
from adbg.engine.diagnosis.detectors.numbers import singular, values
from adbg.engine.diagnosis.detectors.numbers.holders import (
    holder_of_bad_data,
    maker_of_bad_array,
    variable_of_bad_data,
)
from adbg.engine.diagnosis.detectors.numbers.prepared import given_bad
from adbg.engine.diagnosis.detectors.numbers.silenced import is_copy, leads_to, silenced
from adbg.engine.diagnosis.detectors.sizes.unconstrained import parameter_behind
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.operator_names import plain_name
from adbg.engine.outside import suppress
from adbg.engine.types import SourceLine

_MOST = 5_000  # results that are remembered
_BETWEEN = 64  # operators after one backward
_MAKERS = {"full", "full_like", "tensor", "to_tensor", "as_tensor", "new_full", "fill_", "masked_fill", "where"}
_TAKERS = {"tensor", "to_tensor", "as_tensor"}


@dataclass(slots=True)
class Made:
    """A tensor that is not finite. ``kind``: "operator" (made here of finite operands, or passed on from ``parents``),
    "parameter", "gradient" (of parameter ``name``), "data" (it came from outside), "constant" (infinities that the
    program wrote there: a mask)."""

    kind: str
    name: str
    lines: tuple[SourceLine, ...]
    nan: int
    inf: int
    numel: int
    what: str = ""  # shape and dtype
    why: str = ""
    evidence: list[str] = field(default_factory=list)
    parents: tuple[Made, ...] = ()
    iteration: int = 0
    # Of data: the line that gave its holder the array. Of infinities, and of what a mask made: the line that put them.
    held: SourceLine | None = None
    guessed: bool = False  # ``held`` is the likely one only
    negative: bool = False  # data from outside, of which some is minus infinity
    node: int | None = None  # ``Graph.address`` of the node that the operator made, where it made it of finite operands

    @property
    def line(self) -> SourceLine | None:
        return self.lines[0] if self.lines else None

    def origin(self) -> Made:
        """The first of those that it was made of; a mask of infinities is none."""
        at, seen = self, {id(self)}
        while True:
            usable = [each for each in at.parents if each.kind != "constant" and id(each) not in seen]
            if not usable:
                return at
            at = max(usable, key=lambda each: each.nan > 0)
            seen.add(id(at))


class Ledger:
    """Of the operators of one framework. ``look`` once for each."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._by_id: dict[int, tuple[Any, Made]] = {}
        self._by_place: dict[tuple[int, int], Made] = {}
        self._edges: dict[tuple[str, int], tuple[int, str]] = {}  # line -> iteration, an operand at such a place
        self._recent: dict[tuple[str, int], Made] = {}  # by line: what was not finite there last
        self._searched = False  # for the holder of bad data: once
        self._quiet: dict[tuple[bool, bool], SourceLine | None] = {}
        self.backward: list[Made] = []  # made while this backward runs, by Python code in it
        # Made of finite operands since, each with the parameter whose gradient went in.
        self.between: list[tuple[Made, str]] = []
        self._warned_before: frozenset[SourceLine] = frozenset()

    def of(self, tensor: Any) -> Made | None:
        """What is known of a tensor that is not finite."""
        known = self._by_id.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return next((self._by_place[place] for place in self._places(tensor) if place in self._by_place), None)

    def backward_begins(self) -> None:
        self.backward.clear()
        self.between.clear()
        self._warned_before = self._warned()

    def _warned(self) -> frozenset[SourceLine]:
        return frozenset((*self._facts.warned.of(True), *self._facts.warned.of(False)))

    def warned_since(self) -> SourceLine | None:
        """The only line at which NumPy warned for the first time since the backward began."""
        lines = self._warned() - self._warned_before
        return next(iter(lines)) if len(lines) == 1 else None

    def made_of_gradient(self, name: str, nan: int, inf: int, numel: int) -> Made | None:
        """The operator behind the backward that made such a gradient of parameter ``name``, whose way from there is not
        seen (through NumPy's memory, or a buffer): of that gradient, or the first with as many bad elements, or with
        all of them among others'."""
        alike = [made for made, of in self.between if of and of == name]
        alike += [made for made, of in self.between if (made.nan, made.inf, made.numel) == (nan, inf, numel)]
        alike += [made for made, _ in self.between if made.numel > numel and made.nan >= nan and made.inf >= inf]
        return alike[0] if alike else None

    def at(self, line: SourceLine | None, iteration: int) -> Made | None:
        """What was not finite at a line, in the forward that belongs to the backward of ``iteration``."""
        made = self._recent.get((line.file, line.line)) if line is not None else None
        return made if made is not None and made.iteration == iteration - 1 and made.kind != "constant" else None

    def mask_at(self, line: SourceLine | None) -> SourceLine | None:
        """Who put the infinities into a mask that was last computed with at a line."""
        made = self._recent.get((line.file, line.line)) if line is not None else None
        return made.held if made is not None and made.kind == "constant" else None

    def like(self, what: str, nan: int, inf: int) -> Made | None:
        """The only tensor of that shape and dtype with so many bad elements: a copy of it is what is asked about."""
        found = (made for made in self._recent.values() if made.kind != "parameter")
        same = {id(made): made for made in found if (made.what, made.nan, made.inf) == (what, nan, inf)}
        return next(iter(same.values())) if len(same) == 1 else None

    def edges_at(self, line: SourceLine | None) -> list[str]:
        found = self._edges.get((line.file, line.line)) if line is not None else None
        return [found[1]] if found is not None else []

    def _places(self, tensor: Any) -> Iterator[tuple[int, int]]:
        with suppress(Exception):
            yield from self._facts.backend.storages(tensor)

    def look(self, call: OperatorCall, in_backward: bool) -> Made | None:
        """Note what a call made; the last of its results that is not finite."""
        backend = self._facts.backend
        found = None
        results = call.results or (call.operands[:1] if call.name == "__setitem__" else ())
        for result in results:
            if math.isfinite(backend.norm(result)):
                if self._by_id or self._by_place:
                    self._forget(result)
                continue
            nan, inf = backend.nonfinite(result)
            if nan or inf:
                found = self._note(call, result, nan, inf, in_backward)
        return found

    def _forget(self, result: Any) -> None:
        self._by_id.pop(id(result), None)
        if self._by_place and not self._facts.backend.has_graph(result):
            for place in self._places(result):
                self._by_place.pop(place, None)

    def _note(self, call: OperatorCall, result: Any, nan: int, inf: int, in_backward: bool) -> Made:
        backend = self._facts.backend
        meta = backend.meta(result)
        made = Made("operator", call.name, call.lines, nan, inf, meta.numel, values.shape_text(backend, result))
        made.iteration = self._facts.iteration
        parents, before = [], []
        if (
            call.name == "grad"
            and len(call.arguments) == 1
            and not any(map(any, map(backend.nonfinite, call.operands)))
        ):
            return self.of(result) or self._entered(call, result, nan, inf)
        for operand in call.operands:
            if operand is result or any(
                operand is each for each in call.results
            ):  # in place: what it was before is what is known of it
                known = self._by_id.get(id(operand))
                if known is not None and known[0]() is operand:
                    parents.append(known[1].origin())
                continue
            bad = backend.nonfinite(operand)
            if any(bad) and parents and _is_statistic(call, operand):
                continue
            if any(bad):
                parents.append((self.of(operand) or self._entered(call, operand, *bad)).origin())
            else:
                before.append(operand)
        made.parents = tuple(parents)
        if not [each for each in parents if each.kind != "constant"]:
            self._explain(made, call, result, before)
            if made.parents and (made.nan or not before):
                made.held = made.parents[0].held or made.parents[0].line
                made.evidence += _way(made.held, made.parents[0].line)
                if made.parents[0].negative:  # no mask, but what NumPy's logarithm gave
                    self._guess(made, self._quiet_line(False, True))
            # Of an origin alone: deep graphs whose nodes Python has touched overflow the C stack as they are freed.
            if not in_backward and backend.has_graph(result):
                made.node = backend.node_address(getattr(result, "grad_fn", None))
        if parents and not nan and all(each.kind == "constant" for each in parents):
            made.kind = "constant"  # a mask that was moved, or added to something
            made.negative = all(each.negative for each in parents)
            made.held = made.held if made.guessed else _put_at(parents)
        if made.kind == "data":
            made.negative = self._some_negative(result)
            self.find_holder(made)
        if made.kind == "constant":
            made.parents = ()  # no chain over all iterations of a table that is written to
        self._keep(result, made)
        if made.kind == "operator" and not parents and not in_backward and len(self.between) < _BETWEEN:
            name = next((name for each in before if (name := self._gradient_of(each))), "")
            self.between.append((made, name))
        if in_backward:
            self.backward.append(made)
        elif call.lines:
            self._recent[call.lines[0].file, call.lines[0].line] = made
        return made

    def _keep(self, result: Any, made: Made) -> None:
        if len(self._by_id) > _MOST:
            self._by_id = {key: each for key, each in self._by_id.items() if each[0]() is not None}
            self._by_place.clear()
        with suppress(TypeError):  # what cannot be referred to weakly is known by its place
            self._by_id[id(result)] = (weakref.ref(result), made)
        for place in self._places(result):
            self._by_place[place] = made

    def _entered(self, call: OperatorCall, operand: Any, nan: int, inf: int) -> Made:
        """A bad operand that no operator made: a parameter, or data."""
        backend = self._facts.backend
        name = self._facts.name_of(operand)
        meta = backend.meta(operand)
        kind = "parameter" if name else "data"
        if kind == "data" and (of := self._gradient_of(operand)):
            kind, name = "gradient", of
        negative = kind == "data" and self._some_negative(operand)
        if negative and not nan and self._only_negative(operand):
            kind = "constant"
        made = Made(kind, name or call.name, call.lines, nan, inf, meta.numel, values.shape_text(backend, operand))
        made.iteration, made.negative = self._facts.iteration, negative
        found = values.numbers(backend, operand)
        place = found.first_bad() if found is not None else None
        if found is not None and place is not None:
            where = values.index_text(place, found.shape)
            made.evidence.append(f"element {where} is {values.plain(found.flat[place])}" if where else "it is a scalar")
        if kind == "data":
            self.find_holder(made)
        self._keep(operand, made)
        return made

    def find_holder(self, made: Made) -> None:
        """What NumPy said of its numbers; whose array it was, for the first that is not finite."""
        if not self._searched:
            self._searched = True
            self._search(made)
        warned = self._facts.warned.of(bool(made.nan))
        for line, text in list(warned.items())[:3]:
            made.evidence.append(f"NumPy warned in {os.path.basename(line.file)}:{line.line}: {text}")
        if len(warned) == 1:
            made.held = next(iter(warned))
        elif not warned:
            quiet, held = self._quiet_line(bool(made.nan), made.negative), made.held
            if quiet is not None and (held is None or is_copy(held) or leads_to(held, quiet)):
                self._guess(made, quiet)
            elif held is not None and (given := given_bad(held)) is not None:
                made.held, only = given
                made.guessed = not only

    def _quiet_line(self, nan: bool, negative: bool) -> SourceLine | None:
        """Where NumPy keeps quiet: the line that may have made what data has. Read once."""
        if (nan, negative) not in self._quiet:
            self._quiet[nan, negative] = silenced(nan, negative)
        return self._quiet[nan, negative]

    @staticmethod
    def _guess(made: Made, quiet: SourceLine | None) -> None:
        if quiet is not None:
            made.held, made.guessed = quiet, True
            where = f"{os.path.basename(quiet.file)}:{quiet.line}"
            made.evidence.append(f"NumPy is told to say nothing of what it makes at {where}: `{Facts.text_of(quiet)}`")

    def _search(self, made: Made) -> None:
        holder = holder_of_bad_data(self._facts.backend, bool(made.nan))
        if holder is not None:
            what, made.held = holder
            made.evidence.append(f"{what}, given to it in {os.path.basename(made.held.file)}:{made.held.line}")
            return
        backend, nan = self._facts.backend, bool(made.nan)
        array = maker_of_bad_array(backend, made.line, nan) or variable_of_bad_data(backend, nan)
        if array is not None:
            what, made.held = array
            made.evidence.append(f"{what} at {os.path.basename(made.held.file)}:{made.held.line}")

    def _gradient_of(self, operand: Any) -> str:
        """The parameter whose ``.grad`` it is, or a part of; "" for none."""
        here = set(self._places(operand))
        for name, parameter in self._facts.backend.parameters() if here else ():
            gradient = self._facts.backend.gradient_of(parameter)
            if gradient is not None and not here.isdisjoint(self._places(gradient)):
                return name
        return ""

    def _some_negative(self, operand: Any) -> bool:
        found = values.stats(self._facts.backend, operand)
        return found is not None and bool(found.neg_inf)

    def _only_negative(self, operand: Any) -> bool:
        found = values.stats(self._facts.backend, operand)
        return found is not None and not found.pos_inf

    def _explain(self, made: Made, call: OperatorCall, result: Any, operands: list[Any]) -> None:
        """Of a result that is not finite although all operands are, masks set aside: why."""
        scalars = values.scalars_of(call)
        if not made.nan and (any(map(math.isinf, scalars)) or (not operands and call.name in _MAKERS)):
            # An array that is taken over whole is data; a mask has minus infinity, and a best loss is one number.
            taken = call.name in _TAKERS and made.numel > 1 and not self._only_negative(result)
            made.kind = "data" if taken else "constant"
            if not taken:
                return
        if call.name.startswith("empty"):
            made.kind, made.why = "constant", "memory that nothing was written to"
            return
        backend = self._facts.backend
        if made.parents:
            made.why = _of_masked(made.name)
        elif not call.operands:
            made.kind = "data"
        elif any(backend.meta(each).numel == 0 for each in operands):
            made.why = f"{made.name} of no elements"
        elif any(math.isnan(each) for each in scalars):
            made.why = "a NaN among its arguments"
        read = values.numbers(backend, result)
        place = read.first_bad() if read is not None else None
        if read is None or place is None:
            return
        where = values.index_text(place, read.shape)
        made.evidence.append(f"its result{where} is {values.plain(read.flat[place])}")
        at: list[float | None] = []
        largest = 0.0
        for number, operand in enumerate(operands):
            one = values.numbers(backend, operand)
            if one is None:
                at.append(None)
                continue
            largest = max(largest, max(map(abs, one.flat)))
            met = one.at(place, read.shape) if made.what else None
            at.append(met)
            told = (
                f" there: {values.plain(met)}" if met is not None else f": {min(one.flat):.6g} to {max(one.flat):.6g}"
            )
            made.evidence.append(f"operand {number} {list(one.shape)}{told}")
        if made.why:
            return
        op = plain_name(call.name)
        if op in ("std", "var") and made.nan:
            made.why = f"{op} of a single element"
        elif op == "nllloss":
            made.why = "no target counts (all are ignored), or the targets are out of range"
        else:
            bits = read.dtype
            made.why = singular.made_in_forward(op, at, scalars, read.flat[place], bits, largest)
            gone = parameter_behind(self._facts, op, operands) if made.why else None
            if gone is not None:
                made.evidence.append(gone[0])
                made.held = gone[1]

    def watch_edges(self, call: OperatorCall) -> None:
        """Note operands at which a derivative is infinite, where the framework will not show them in backward."""
        op = plain_name(call.name)
        if op not in singular.EDGES or not call.lines or not call.operands:
            return
        watched = (
            call.operands[1:2] if op == "div" else call.results[:1] if op in ("norm", "std") else call.operands[:1]
        )
        for value in watched:
            found = values.stats(self._facts.backend, value)
            line = (call.lines[0].file, call.lines[0].line)
            if found is None or not (
                found.zero or (op in ("acos", "asin", "atanh") and max(-found.min, found.max) >= 1)
            ):
                if line in self._edges and self._edges[line][0] != self._facts.iteration:
                    del self._edges[line]
                continue
            which = "divisor" if op == "div" else "result" if op in ("norm", "std") else "operand"
            zeros = f"{found.zero:,} of its {found.numel:,} elements are 0, the first at {self._first_zero(value)}"
            text = zeros if found.zero else f"its elements go from {found.min:.6g} to {found.max:.6g}"
            told = f"the {which} of {call.name} {values.shape_text(self._facts.backend, value)}: {text}"
            self._edges[line] = (self._facts.iteration, told)

    def _first_zero(self, value: Any) -> str:
        found = values.numbers(self._facts.backend, value)
        if found is None:
            return "?"
        place = next((at for at, number in enumerate(found.flat) if number == 0), None)
        return values.index_text(place, found.shape) or "[]" if place is not None else "?"


def _put_at(masks: list[Made]) -> SourceLine | None:
    """The line that put infinities into the only mask of these; None for several, and for one that is infinite all
    over: that is no mask, it is what ``where`` takes for one."""
    lines = {each.held or (each.line if each.inf < each.numel else None) for each in masks}
    return lines.pop() if len(lines) == 1 else None


def _way(put: SourceLine | None, came: SourceLine | None) -> list[str]:
    """Where infinities were put, and the line that they came from there by."""
    if put is None:
        return []
    by = f", by {os.path.basename(came.file)}:{came.line}" if came is not None and came != put else ""
    return [f"the infinities come from {os.path.basename(put.file)}:{put.line}{by}"]


def _of_masked(name: str) -> str:
    if "softmax" in name or "attention" in name:
        return "a row that is -inf everywhere: all of it is masked, and softmax has nothing to choose from"
    return "infinities that stand for a mask were computed with"


def _is_statistic(call: OperatorCall, operand: Any) -> bool:
    """A running mean or variance: where a batch that is not finite goes in, it is read after it was written."""
    return "_norm" in call.name and operand is not call.operands[0] and not operand.requires_grad
