"""Questions at a stop: the stack, variables, expressions, tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adbg.engine.protocol.messages.registry import request
from adbg.engine.types import SourceLine, TensorMeta, TensorStats, TensorView


@dataclass(frozen=True, slots=True)
class Source:
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class StackFrame:
    """``kind``: "node" (frame 0), "enclosing" (the nodes around it, innermost first), "forward" (Python frames that
    made the node, innermost first; no locals), "live" (Python frames of the stopped thread, innermost first;
    locals)."""

    id: int
    name: str
    line: int = 0
    column: int = 0
    source: Source | None = None
    kind: str = "live"
    locals: bool = False


@dataclass(frozen=True, slots=True)
class StackTraceBody:
    stackFrames: list[StackFrame]
    totalFrames: int
    note: str = ""  # why there is no forward stack, when there is none


@request("stackTrace", StackTraceBody)
@dataclass(frozen=True, slots=True)
class StackTrace:
    """Works while the program runs too: then live frames only (of ``threadId``, or the main thread)."""

    threadId: int = 0
    startFrame: int = 0
    levels: int = 0  # 0: all


@dataclass(frozen=True, slots=True)
class Scope:
    name: str  # "Gradients", "Saved tensors", "Attributes", "Locals", "Globals"
    variablesReference: int
    expensive: bool = False


@dataclass(frozen=True, slots=True)
class ScopesBody:
    scopes: list[Scope]


@request("scopes", ScopesBody)
@dataclass(frozen=True, slots=True)
class Scopes:
    frameId: int


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    value: str
    type: str = ""
    variablesReference: int = 0
    evaluateName: str = ""
    indexedVariables: int = 0
    adbg: TensorMeta | None = None


@dataclass(frozen=True, slots=True)
class VariablesBody:
    variables: list[Variable]


@request("variables", VariablesBody)
@dataclass(frozen=True, slots=True)
class Variables:
    """References are valid until the program continues. A tensor is never expanded unasked."""

    variablesReference: int
    start: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class SetVariableBody:
    value: str
    type: str = ""


@request("setVariable", SetVariableBody)
@dataclass(frozen=True, slots=True)
class SetVariable:
    variablesReference: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class RunningLocals:
    """Names of an expression at a node that the function of its forward had too, and whose values here are of a frame
    that runs: ``frame`` (number in the stack from 0), ``running``, while that call of the ``forward`` is over."""

    names: list[str]
    frame: int
    running: SourceLine
    forward: SourceLine


@dataclass(frozen=True, slots=True)
class EvaluateBody:
    """``result`` is the text; ``value`` is set for numbers, strings, bools, None and short lists of them."""

    result: str
    type: str = ""
    variablesReference: int = 0
    value: Any = None
    tensor: TensorMeta | None = None
    stats: TensorStats | None = None  # of a tensor with more than one element, where they were asked for
    locals: RunningLocals | None = None


@request("evaluate", EvaluateBody)
@dataclass(frozen=True, slots=True)
class Evaluate:
    """``context``: "repl"/"watch"/"hover" evaluate an expression; "statement" executes Python statements in the frame
    (``!``) and returns what they printed. ``frameId`` 0: the innermost live frame, and the node's names. ``node``
    (index): the names of another node than the current one, its gradients as they were at the stop there."""

    expression: str
    frameId: int = 0
    context: str = "repl"
    node: int = 0
    stats: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """``type`` of what the object itself holds; "" for what its class has."""

    name: str
    type: str = ""


@dataclass(frozen=True, slots=True)
class AttributesBody:
    """The likeliest first; none where only code of the program's could tell."""

    attributes: list[Attribute]


@request("adbg/attributes", AttributesBody)
@dataclass(frozen=True, slots=True)
class Attributes:
    """What can stand behind the dot of ``expression``, a chain of names, attributes and items with a constant key.
    Nothing of the program's runs for it: no property, no ``__getattr__``."""

    expression: str
    frameId: int = 0


@request("setExpression", SetVariableBody)
@dataclass(frozen=True, slots=True)
class SetExpression:
    """``set TARGET = EXPR``. Targets: grad_outputs[i] (before the node), grad_inputs[i] (after it), Python names."""

    expression: str
    value: str
    frameId: int = 0


@request("adbg/tensor", TensorView)
@dataclass(frozen=True, slots=True)
class Tensor:
    """Meta of a value, and on request statistics and a window. ``node`` (index) reads ``saved``, ``grad_outputs`` of
    another node than the current one, as far as they are kept. ``slice`` is Python index text, "" the first 2-D
    plane."""

    expression: str
    node: int = 0
    stats: bool = True
    exact: bool = False
    bins: int = 16
    window: bool = False
    slice: str = ""
    rows: int = 16
    cols: int = 64
    frameId: int = 0
