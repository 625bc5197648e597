"""Expressions and statements of a person, in the place where the program stands (L2, stdlib only).

Runs on the parked thread. Nothing here lets an exception of user code out: all become CommandError of one line.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adbg.engine.backends.base import Backend, Graph
from adbg.engine.point import PausedPoint


class Namespace:
    """Names for an expression: the node's names first, then locals and globals of ``frame``, then fallbacks, then builtins."""

    def __init__(
        self,
        frame: types.FrameType | Callable[[], types.FrameType | None] | None = None,
        names: Mapping[str, Callable[[], Any]] | None = None,
        values: Mapping[str, Any] | None = None,
        mode: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        text: Callable[[Any], str] = repr,
    ) -> None:
        raise NotImplementedError

    def known(self) -> list[str]:
        """All names, for completion and closest matches."""
        raise NotImplementedError


def node_namespace(
    backend: Backend | None,
    graph: Graph | None,
    key: int | None,
    index: int,
    grad_outputs: Any,
    grad_inputs: Any,
    frame: types.FrameType | Callable[[], types.FrameType | None] | None = None,
) -> Namespace:
    """Names at a node: grad_outputs, grad_inputs (None: it has not run yet), saved, node, index, helpers. ``key`` None: no node."""
    raise NotImplementedError


def point_namespace(point: PausedPoint, frame: types.FrameType | None = None) -> Namespace:
    """``node_namespace`` of a paused point; ``frame`` None: the point's own."""
    raise NotImplementedError


def evaluate(expression: str, namespace: Namespace) -> Any:
    """The value of an expression. Raises CommandError ("name 'nope' is not defined", "TypeError: ...")."""
    raise NotImplementedError


def execute(statements: str, namespace: Namespace) -> str:
    """Run statements in the frame; returns what this thread printed, the last expression echoed. Assignments reach the frame's
    locals. Raises CommandError; what was printed before the error is in its ``printed`` attribute."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GradTarget:
    """``grad_outputs[0]``; ``item`` is a further subscript ("[0, :4]"), "" for the whole gradient."""

    kind: str  # "grad_outputs" or "grad_inputs"
    index: int
    item: str = ""


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """A name, attribute or item in Python."""

    text: str


def parse_target(text: str, items: bool = False) -> GradTarget | PythonTarget:
    """What ``set TARGET = ...`` means. ``items``: the caller can edit a part of a gradient; else such a target is refused."""
    raise NotImplementedError


def assign(target: PythonTarget, value: Any, namespace: Namespace) -> None:
    """Give ``target`` a value; a name that the frame has as a local is changed there."""
    raise NotImplementedError


def assign_item(value: Any, item: str, new: Any, namespace: Namespace) -> None:
    """``value[item] = new`` for GradTarget.item, in place on ``value`` (a clone made by the caller)."""
    raise NotImplementedError
