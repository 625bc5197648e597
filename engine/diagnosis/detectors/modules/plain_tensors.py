"""Attributes of modules that compute like weights, and that nothing can train."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from adbg.engine.diagnosis.detector import Detector, ModuleCall, Need, OperatorCall, detector
from adbg.engine.diagnosis.detectors.graphs.calls import place
from adbg.engine.diagnosis.detectors.training.leaves import assigned_in
from adbg.engine.diagnosis.facts import Facts
from adbg.engine.diagnosis.source import assigned_before, nodes_of
from adbg.engine.outside import suppress
from adbg.engine.protocol.messages import Finding
from adbg.engine.types import SourceLine

_RANDOM = re.compile(
    r"\b(randn?|randn_like|rand_like|normal_?|uniform_?|standard_normal|xavier_\w+|kaiming_\w+|trunc_normal_?|"
    r"glorot\w*|orthogonal_?|gaussian)\("
)
_FORWARDS = 2  # of the outermost module, before which modules are looked through
_MODULES = 2000
_ITERATIONS = 3


@dataclass(slots=True)
class _Plain:
    ref: weakref.ref[Any]
    module: weakref.ref[Any]
    name: str
    version: int | None
    line: SourceLine
    seen: set[int] = field(default_factory=set)  # iterations in which an operator took it


@detector("not-optimized")
class PlainTensors(Detector):
    """A module keeps a tensor with random numbers as a plain attribute (``self.scale = torch.randn(8)``), computes with
    it beside its parameters, and never changes it: it is no parameter, so that no optimizer trains it.

    Evidence: in how many iterations operators took it, and that none changed it; the line that makes it.
    Mistaken for: random features that are fixed on purpose, which decides it: a note. Not told: buffers
    (``register_buffer``), tensors that something writes to, single numbers, what is not made of random numbers.
    Cost: once a walk through the modules; in sampled iterations a look at the operands of each operator, where there
    is such a tensor.
    """

    needs = Need.MODULES
    sampled = Need.OPERATORS

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._found: dict[int, _Plain] = {}
        self._looks = _FORWARDS
        self._told: dict[str, int] = {}

    def applied(self) -> bool:
        return bool(self._found)

    def module_begin(self, call: ModuleCall) -> None:
        if not (call.outermost and call.grad_mode and self._looks > 0):
            return
        self._looks -= 1
        parts = call.module.modules() if hasattr(call.module, "modules") else call.module.sublayers(include_self=True)
        for module, _ in zip(parts, range(_MODULES)):
            with suppress(Exception):  # a property of the program's, a class without weak references
                self._look_into(module)

    def _look_into(self, module: Any) -> None:
        backend = self.facts.backend
        for name, value in _attributes(module):
            if name.startswith("_") or id(value) in self._found or not backend.is_tensor(value):
                continue
            meta = backend.meta(value)
            if meta.requires_grad or not (meta.dtype or "").startswith(("f", "bf")) or meta.numel < 2:
                continue
            line = assigned_in(type(module), name)
            if line is not None and _is_random(line):
                self._found[id(value)] = _Plain(
                    weakref.ref(value), weakref.ref(module), name, backend.version_of(value), line
                )

    def operator(self, call: OperatorCall) -> None:
        if not self._found or not call.grad_mode or call.error is not None or call.in_backward:
            return
        for operand in call.operands:
            known = self._found.get(id(operand))
            if known is not None and known.ref() is operand:
                known.seen.add(self.facts.iteration)

    def iteration_end(self) -> None:
        """While the tensors live: they are gone as ``main()`` returns."""
        if not self.facts.sampled or self.facts.iteration < _ITERATIONS or not self._found:
            return
        by_kind: dict[str, list[_Plain]] = {}
        for key, known in list(self._found.items()):
            value, module = known.ref(), known.module()
            if value is None or module is None:
                continue
            same = dict(_attributes(module)).get(known.name) is value
            if not same or self.facts.backend.version_of(value) != known.version:
                del self._found[key]  # somebody changes it
                if type(module).__name__ in self._told:
                    self.facts.take_back(self._told.pop(type(module).__name__))
            elif len(known.seen) >= _ITERATIONS:
                by_kind.setdefault(type(module).__name__, []).append(known)
        for kind, plain in by_kind.items():
            if kind not in self._told:
                self._told[kind] = self._tell(kind, plain)

    def _tell(self, kind: str, plain: list[_Plain]) -> int:
        names = list(dict.fromkeys(f"{kind}.{each.name}" for each in plain))
        one, line = len(names) == 1, plain[0].line
        are, they = ("is a plain tensor", "it is") if one else ("are plain tensors", "they are")
        make = "create_parameter" if self.facts.backend.name == "paddle" else "nn.Parameter"
        message = (
            f"{self.facts.some(names)} {are}, made at {place(line)} of random numbers, which no optimizer can train: "
            f"if {they} to be learnt, {make} makes parameters; if not, register_buffer has the state dict keep such"
        )
        evidence = [
            f"operators took {names[0]} in {len(plain[0].seen)} iterations that were looked at, and none changed it",
            f"{kind} does not have it among its parameters: {self.facts.text_of(line)}",
            "whether it is meant to be trained decides it",
        ]
        return self.facts.tell(
            Finding(
                0, "not-optimized", "note", 0.45, message, cause=self.facts.cause(line), evidence=evidence,
                next=["info params"],
            )
        )  # fmt: skip


def _attributes(module: Any) -> Iterator[tuple[str, Any]]:
    """Its own, but for parameters and registered buffers: Paddle puts plain tensors among its buffers, as such that the
    state dict does not keep."""
    yield from list(vars(module).items())
    plain = vars(module).get("_non_persistable_buffer_names_set")
    if isinstance(plain, set):
        buffers = vars(module).get("_buffers", {})
        yield from [(name, buffers[name]) for name in sorted(plain) if name in buffers]


def _is_random(line: SourceLine) -> bool:
    """Whether the assignment at a line, or that of a variable it is made of, draws random numbers."""
    for node in nodes_of(line.file):
        if isinstance(node, ast.Assign) and node.lineno == line.line:
            if _RANDOM.search(ast.unparse(node.value)):
                return True
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            made = [found[1] for each in used if (found := assigned_before(line.file, line.line, each)) is not None]
            return any(_RANDOM.search(ast.unparse(each)) for each in made)
    return False
