"""Exceptions of operators in the forward: shapes, dtypes and devices of what they were given, and who made it."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from adbg.engine.diagnosis.detector import Detector, detector
from adbg.engine.diagnosis.detectors.errors import parts
from adbg.engine.diagnosis.detectors.errors.called import called, distinct, operator, raises
from adbg.engine.diagnosis.detectors.errors.counts import count_of
from adbg.engine.diagnosis.detectors.errors.datasets import item_line
from adbg.engine.diagnosis.detectors.errors.foreign import kept_in
from adbg.engine.diagnosis.detectors.errors.inference import is_refused, refused, told_of
from adbg.engine.diagnosis.detectors.errors.killed_worker import is_of_worker
from adbg.engine.diagnosis.detectors.errors.kinds import of_types, other_kind
from adbg.engine.diagnosis.detectors.errors.label_range import from_one
from adbg.engine.diagnosis.detectors.errors.last_batch import alone
from adbg.engine.diagnosis.detectors.errors.layers import given_by, layer_of, outside, weights_of
from adbg.engine.diagnosis.detectors.errors.states import state_of
from adbg.engine.diagnosis.detectors.errors.tables import table_of
from adbg.engine.diagnosis.source import expression_at, operands_of
from adbg.engine.diagnosis.values import (
    Step,
    is_of_values,
    is_users,
    line_in,
    made_at,
    made_by_node,
    steps_of,
    tensor_locals,
    tensors_at,
)
from adbg.engine.protocol.messages import Finding
from adbg.engine.session.post_mortem import named
from adbg.engine.session.running_call import Running
from adbg.engine.types import SourceLine

_BEYOND = re.compile(r"out of range|OP\(embedding\)")
_TURNS = re.compile(r"\.(permute|transpose|t|swapaxes|moveaxis|T|mT|movedim)\b|\b(transpose|permute)\(")
_FOLDS = re.compile(r"\.(?:view|reshape)\(\s*\[?-1\s*,|reshape\(\s*\w+\s*,\s*\[?-1\s*,")
_DROPS = re.compile(r"\.squeeze\(\s*\)|\b(?:torch|paddle)\.squeeze\(\s*[\w.]+\s*\)")  # no axis is given
_SPLITS = re.compile(r"\bsplit(?:_with_sizes)?\(")
_RESHAPES = re.compile(r"\b(?:view|reshape|flatten|unflatten|rearrange|expand|resize)\w*\(")
_REPEATS = re.compile(r"\b(?:repeat|tile|broadcast_to)\w*\(")
_MOST = 200  # nodes that are looked at
_LEAF = re.compile(
    r"leaf Variable that requires grad (?:is being|has been) used in an in-place|"
    r"Leaf (?:Var|Tensor) .*doesn't stop gradient can't use inplace", re.S | re.I
)  # fmt: skip
_NOT_SCALAR = "grad can be implicitly created only for scalar outputs"
_BACKWARDS = ("run_backward", "run_partial_grad", "_run_backward", "_engine_run_backward")
_NO_GRAPH = "does not require grad and does not have a grad_fn"


@detector("operator-error")
class OperatorError(Detector):
    """An operator of the forward raised an exception that ended the program: which one, what it expected, what it was
    given, and which line made the operand that does not fit: also a state for a full batch at a smaller one, the number
    of rows that another one was made with, and what was made under inference_mode.

    Evidence: shape, dtype and device of every operand, and the line that made it.
    Mistaken for: an exception of the user's own (``raise``) is none of an operator and is not told.
    Cost: nothing until the program fails.
    """

    def __init__(self, facts: Any) -> None:
        super().__init__(facts)
        self._told: set[tuple[int, type, str]] = set()
        self._no_graph: dict[tuple[int, type, str], int] = {}  # number of the backward that raised it
        self._failed: tuple[type, int] | None = None  # what the last backward raised, and in which iteration
        self._ended = False

    def applied(self) -> bool:
        return self._ended

    def backward_end(self, running: Running, error: BaseException | None) -> None:
        if error is None:
            return
        if _NO_GRAPH in str(error):
            self._no_graph[named(error, running.backend)] = running.call.number
        else:
            self._told.add(named(error, running.backend))
            self._failed = type(error), self.facts.iteration

    def at_error(self, running: Running, error: BaseException) -> None:
        self.backward_end(running, error)

    def uncaught(self, error: BaseException) -> None:
        self._ended = True
        backend = self.facts.backend
        name = named(error, backend)
        if not isinstance(error, Exception) or name in self._told or self._is_cut(self._no_graph.get(name)):
            return
        if is_of_worker(error):
            return
        steps = steps_of(error)
        users = [place for place, (frame, _) in enumerate(steps) if is_users(frame)]
        if not users or isinstance(error, (KeyError, AttributeError, NameError, ImportError, AssertionError)):
            return
        place = users[-1]
        line = line_in(error, steps[place][0])
        if line is None or (place == len(steps) - 1 and raises(steps[place])):
            return
        if not all(self._is_framework(frame) for frame, _ in steps[place + 1 :]):
            return
        single = alone(self.facts, error, steps, place, line)
        if single is not None:
            self.facts.tell(single)
            return
        text = backend.error_text(error)
        operands = self._operands(steps[-1]) or (self._operands(steps[place]) if place < len(steps) - 1 else [])
        seen = self._operands(steps[place])
        if not operands and not seen:
            return
        operands = self._as_the_user_calls_them(operands, seen, steps, place)
        # Paddle may change the text of what a hook raised on its way out of the backward.
        if self._failed == (type(error), self.facts.iteration) and operator(steps) in _BACKWARDS:
            return
        self._tell(error, steps, place, line, text, operands or seen, seen)

    def _is_cut(self, backward: int | None) -> bool:
        """Whether the call that lost the graph of that backward is known: then that is the line to change."""
        findings = list(self.facts.findings.values())
        return backward is not None and any(
            each.kind == "no-gradient" and each.backward == backward for each in findings
        )

    def _is_framework(self, frame: Any) -> bool:
        return str(frame.f_globals.get("__name__")).partition(".")[0] in (self.facts.backend.name, "")

    def _operands(self, step: Step) -> list[tuple[str, Any]]:
        expression = expression_at(step[0].f_code, step[1])
        found = tensors_at(self.facts.backend, step, operands_of(expression)) if expression else []
        return found or ([] if is_users(step[0]) else tensor_locals(self.facts.backend, step[0]))

    def _as_the_user_calls_them(
        self, operands: list[tuple[str, Any]], seen: list[tuple[str, Any]], steps: list[Step], place: int
    ) -> list[tuple[str, Any]]:
        """The framework's own functions have variables too: its ``x`` is not the program's."""
        if place == len(steps) - 1:
            return operands
        backend, entered = self.facts.backend, steps[place + 1][0]
        given = entered.f_code.co_varnames[: entered.f_code.co_argcount + entered.f_code.co_kwonlyargcount]
        arguments = {id(value): f"argument {name}" for name, value in tensor_locals(backend, entered) if name in given}
        theirs = {id(value): name for name, value in (*tensor_locals(backend, steps[place][0]), *seen)}
        inner = steps[-1][0].f_code.co_name
        found = []
        for name, value in operands:
            known = theirs.get(id(value)) or self.facts.title_of(value) or arguments.get(id(value))
            found.append((known or f"{name} within {inner}", value))
        return found

    # ---- telling

    def _tell(
        self, error: Exception, steps: list[Step], place: int, line: SourceLine, text: str,
        operands: list[tuple[str, Any]], seen: list[tuple[str, Any]],
    ) -> None:  # fmt: skip
        facts = self.facts
        what = called(steps, place)
        cause, why, confidence = line, "", 0.85
        found = from_one(facts, error, steps, place, text) or self._cause(error, steps, place, text, operands, seen)
        if found is not None:
            cause, why = found
        elif _LEAF.search(text):
            written = (seen or operands)[0][0]
            why = f"{written} is a leaf that takes gradients, and is written to while autograd records"
            why, confidence = f"{why}: do that under no_grad()", 0.95
        elif _NO_GRAPH in text:
            confidence = 0.6
        every = self._known_to_the_user(distinct([*operands, *seen]))
        ids = {id(value) for _, value in operands}
        known = [each for each in every if id(each[1]) in ids] or every
        shown = " and ".join(f"{name} {self._meta(value)}" for name, value in known[:3])
        first = text.split("\n", 1)[0]
        evidence = [text.strip()[:600]]
        for name, value in every:
            evidence.append(f"{name} is {self._meta(value)}{self._origin(steps, place, name, value, error)}")
        evidence.append(f"{what} was called at {line.file}:{line.line} ({facts.text_of(line)})")
        message = f"{what} failed on {shown}: {first[:160]}"
        if why:
            message = f"{why}, so that {message}"
        tensors = [value for _, value in distinct([*operands, *seen])]
        began = facts.spoilt(tensors) if found is None and is_of_values(text) else None
        facts.tell(
            Finding(
                0, "operator-error", "error", confidence, message, forward=line, cause=facts.cause(cause),
                evidence=evidence, next=["adbg run SCRIPT", "info locals"], victim_of=began,
            )
        )  # fmt: skip

    def _known_to_the_user(self, pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Without what has a name within the framework only, where there is anything else, and without tensors that are
        not there yet."""
        there = [each for each in pairs if self.facts.backend.meta(each[1]).shape is not None] or pairs
        return [each for each in there if " within " not in each[0]] or there

    def _meta(self, value: Any) -> str:
        meta = self.facts.backend.meta(value)
        where = f" {meta.device}" if meta.device and meta.device != "cpu" else ""
        return f"{meta.dtype} {list(meta.shape) if meta.shape is not None else '?'}{where}"

    def _origin(self, steps: list[Step], place: int, name: str, value: Any, error: Exception) -> str:
        parameter = self.facts.title_of(value)
        if parameter:
            return f": parameter {parameter}" if parameter != name else ", a parameter"
        line, node = made_by_node(self.facts.backend, value)
        if line is None:
            line = made_at(steps, place, name, error) if name.isidentifier() or name.startswith("self.") else None
        by = f" by {node}" if node else ""
        return f", made at {line.file}:{line.line} ({self.facts.text_of(line)}){by}" if line else ""

    # ---- the line to change

    def _cause(
        self, error: Exception, steps: list[Step], place: int, text: str, operands: list[tuple[str, Any]],
        seen: list[tuple[str, Any]],
    ) -> tuple[SourceLine, str] | None:  # fmt: skip
        facts = self.facts
        inputs = [(name, value) for name, value in seen if not facts.name_of(value)]
        if _NOT_SCALAR in text or _NO_GRAPH in text:
            for name, value in inputs[:1]:
                line = self._made(steps, place, name, value, error)
                if line is not None:
                    shape = list(facts.backend.meta(value).shape or ())
                    return (
                        line,
                        f"{name} is {shape}, no single number" if _NOT_SCALAR in text else f"{name} has no graph",
                    )
            return None
        if is_refused(text):
            name, value = refused(distinct([*operands, *seen]))
            return told_of(name, self._made(steps, place, name, value, error), steps[place][0].f_code.co_filename)
        if "device" in text.lower():
            wide = [pair for step in steps[place + 1 :] for pair in self._operands(step)]
            operands = distinct([*wide, *operands, *seen])
        # What has no name in the user's function is known by that of the framework's argument.
        given = inputs or [each for each in operands if not facts.name_of(each[1])]
        wrong = other_kind(facts, text, operands, given, weights_of(steps[place + 1 :]))
        if wrong is not None:
            name, value, why = wrong
            table = table_of(facts, steps, place, error, value) if of_types(text) else None
            if table is not None:
                return table[1], f"line {table[1].line} makes {table[0]}, which{why.removeprefix(name)}"
            line = self._made(steps, place, name, value, error)
            kept = kept_in(facts.backend, steps, line, facts.backend.meta(value).dtype) if line is not None else None
            if kept is not None:
                return kept[1], f"{kept[0]} makes that {why}"
            return (item_line(steps, line, name) or line, why) if line is not None else None
        said = {int(each) for each in re.findall(r"\b\d+\b", text)}
        batched = self._batch_changed(steps, place, error, given, said)
        if batched is not None:
            return batched
        for name, value in inputs:
            line = self._made(steps, place, name, value, error)
            source = facts.text_of(line) if line is not None else ""
            if line is not None and (_TURNS.search(source) or _FOLDS.search(source)):
                return line, f"{name} becomes {self._meta(value)} at line {line.line}"
        shapes = [self.facts.backend.meta(value).shape or () for _, value in seen]
        if len(shapes) > 1 and shapes[0][:1] != shapes[1][:1]:
            for name, value in inputs:
                folded = self._in_history(value, _FOLDS)
                if folded is not None:
                    return folded, f"{name} becomes {self._meta(value)} by line {folded.line}"
        made = self._dropped(inputs) or self._split(steps, line_in(error, steps[place][0]), seen)
        if made is not None:
            return made
        batched = self._batch_changed(steps, place, error, given)
        if batched is not None:
            return batched
        other = self._state(error, steps, place, text, operands) or self._other_batch(steps, place, error, text, inputs)
        if other is not None:
            return other
        layer = layer_of(steps, place)
        if layer is not None:
            line, name = given_by(layer[0]) if _BEYOND.search(text) else layer[0], layer[1]
            which = "".join(f", {x} {self._meta(v)}{outside(self.facts.backend, steps, v)}" for x, v in inputs[:1])
            return line, f"{name} does not fit what it is given{which}"
        return None

    def _made(self, steps: list[Step], place: int, name: str, value: Any, error: Exception) -> SourceLine | None:
        line = made_by_node(self.facts.backend, value)[0]
        if line is not None and not line.file.startswith("<"):
            return line
        return made_at(steps, place, name, error) if " " not in name else None

    def _dropped(self, operands: list[tuple[str, Any]]) -> tuple[SourceLine, str] | None:
        """The line that dropped an axis too many of an operand: ``squeeze()`` at a batch of one, which another operand
        still shows, with as many axes as this one had."""
        shapes = [self._shape(value) for _, value in operands]
        for name, value in operands:
            shape = self._shape(value)
            single = any(len(other) > len(shape) and other[0] == 1 for other in shapes)
            line = self._in_history(value, _DROPS) if single else None
            if line is not None:
                why = "squeeze() drops every axis of size 1, that of the batch too where it is of one sample"
                return line, f"{name} is {self._meta(value)} by line {line.line}: {why}"
        return None

    def _split(
        self, steps: list[Step], at: SourceLine | None, operands: list[tuple[str, Any]]
    ) -> tuple[SourceLine, str] | None:  # fmt: skip
        """The line that split into so many parts, where parts of that size were meant, or the other way round."""
        backend = self.facts.backend
        known = {frame.f_code.co_filename: frame.f_globals for frame, _ in steps if is_users(frame)}
        for name, value in operands:
            odd = (parts.odd_sizes(self._shape(value), self._shape(other)) for _, other in operands)
            sizes = next(filter(None, odd), None)
            lines = [*self._lines_of(value, _SPLITS), *parts.splits_of(at.file, at.line, name)] if sizes and at else []
            for line in lines:
                given = parts.splits_at(line.file, line.line, known.get(line.file, {}))
                if sizes is not None and any(parts.is_swapped(backend.name, each, sizes) for each in given):
                    why = f"{parts.words(backend.name)}, and {sizes[0]} came out where {sizes[1]} is needed"
                    return line, f"{name} is {self._meta(value)} by line {line.line}: {why}"
        return None

    def _in_history(self, value: Any, what: re.Pattern[str]) -> SourceLine | None:
        """The line nearest to a tensor in its history that says ``what``: one that folds its batch into another
        dimension (``view(-1, 72)``)."""
        return next(iter(self._lines_of(value, what)), None)

    def _lines_of(self, value: Any, what: re.Pattern[str]) -> list[SourceLine]:
        backend = self.facts.backend
        graph = backend.graph_of([value]) if backend.has_graph(value) else None
        if graph is None:
            return []
        try:
            lines = [graph.describe(key).forward for key in list(graph.order())[:_MOST]]
        finally:
            release = getattr(graph, "release", None)
            if release is not None:
                release()
        return [each for each in dict.fromkeys(lines) if each is not None and what.search(self.facts.text_of(each))]

    def _batch_changed(
        self, steps: list[Step], place: int, error: Exception, operands: list[tuple[str, Any]],
        said: Collection[int] | None = None,
    ) -> tuple[SourceLine, str] | None:  # fmt: skip
        """The line that gave an operand another number of rows than the batch has, which the data in the user's
        functions agrees on: ``view(batch_size, -1)`` at the last batch, which is smaller. ``said``: both numbers are
        among these, of the exception; a repetition is looked for only then."""
        backend = self.facts.backend
        tensors = [
            value for frame, _ in steps[: place + 1] if is_users(frame) for _, value in tensor_locals(backend, frame)
        ]
        data = [each for each in tensors if not backend.has_graph(each) and not self.facts.name_of(each)]
        shapes = [backend.meta(each).shape for each in data]
        rows = {shape[0] for shape in shapes if shape}
        if len(rows) != 1 or len(shapes) < 2:
            return None
        for name, value in operands:
            shape = backend.meta(value).shape
            if said is not None and not (shape and {shape[0], *rows} <= {*said}):
                continue
            line = self._made(steps, place, name, value, error) if shape and shape[0] not in rows else None
            made = self.facts.text_of(line) if line is not None else ""
            if line is not None and (_RESHAPES.search(made) or (said is not None and _REPEATS.search(made))):
                return line, f"{name} becomes {self._meta(value)} at line {line.line}, of a batch of {rows.pop()}"
        return None

    def _other_batch(
        self, steps: list[Step], place: int, error: Exception, text: str, operands: list[tuple[str, Any]]
    ) -> tuple[SourceLine, str] | None:
        """The line that made an operand for another batch than the one that the user's function was given with it: a
        state for ``BATCH_SIZE`` rows at the last batch. It was right before, and so is the layer."""
        frame, backend = steps[place][0], self.facts.backend
        given = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        if not self.facts.iteration or not given or frame.f_code.co_name == "<module>":
            return None
        said = {int(each) for each in re.findall(r"\b\d+\b", text)}
        data = [value for name, value in tensor_locals(backend, frame) if name in given]
        batch = self._shape(data[0]) if data else ()
        for name, value in operands:
            sizes = set(self._shape(value))
            rows = said & set(batch[:1]) - sizes if data and value is not data[0] else set()
            line = self._made(steps, place, name, value, error) if len(rows) == 1 else None
            if line is not None and said & sizes - set(batch):
                why = f"{name}, made at line {line.line}, is {self._meta(value)}"
                at = line_in(error, frame)
                wrong = said & sizes - set(batch)
                count = count_of(frame, at, name, wrong, self._shape_of) if at is not None else None
                if count is not None:
                    line, why = count[2], f"{why}, for {count[0]} is {count[1]} at line {count[2].line}"
                return line, f"{why}, and the batch has {rows.pop()} rows"
        return None

    def _state(
        self, error: Exception, steps: list[Step], place: int, text: str, operands: list[tuple[str, Any]]
    ) -> tuple[SourceLine, str] | None:  # fmt: skip
        line = line_in(error, steps[place][0])
        torchs = any(frame.f_code.co_name == "check_hidden_size" for frame, _ in steps[place + 1 :])  # Paddle: PreState
        if line is None or not (torchs or "PreState" in text):
            return None
        state = state_of(self.facts.backend, steps, place, error, self.facts.iteration > 0)
        if state is not None:
            if state.turned:
                return None
            count = f" ({state.count} is {state.rows})" if state.count and not state.count.isdigit() else ""
            why = f"the state {state.given}, {list(state.shape)}, is for {state.rows} rows{count}"
            return state.line or line, f"{why}, and the batch has {state.batch}"
        given = [self._meta(value) for _, value in operands if torchs and not self.facts.name_of(value)]
        return line, f"the state that is given{f', {given[0]},' if given else ''} was made for another batch"

    def _shape_of(self, value: Any) -> tuple[int, ...]:
        return self._shape(value) if self.facts.backend.is_tensor(value) else ()

    def _shape(self, value: Any) -> tuple[int, ...]:
        return tuple(self.facts.backend.meta(value).shape or ())
