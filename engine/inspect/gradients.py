"""The gradients of the current node as expressions may see them: read in place, written only through the backend.

Runs on the parked thread. A gradient may be shared with other nodes (``a + b`` hands one tensor to both) or be an
expanded view, so nothing that could write may touch it. Two ways in:

- an expression that can only read (``reads_only``) sees the engine's own tensors: no copy, whatever their size;
- any other one sees clones, made when a slot is first asked for. A clone that was changed in place afterwards (its
  version moved, or the expression went around the version: ``.data``, ``.numpy()``) is adopted as an edit, like an
  assignment.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adbg.engine.backends.base import Backend
from adbg.engine.errors import CommandError, Unsupported
from adbg.engine.places import parsed
from adbg.engine.session.stop_point import PausedPoint
from adbg.engine.types import Phase


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READ_FUNCTIONS = _words("norm stats nonfinite len float int bool abs round min max sum")
_READ_METHODS = _words(
    """abs all allclose amax amin any argmax argmin bool count_nonzero cpu diff dim double equal exp flatten float half
    histc int is_contiguous isfinite isinf isnan isneginf isposinf item log log10 long max mean median min nansum
    nonzero norm numel permute pow prod reshape select sign size sqrt square squeeze std stride sum t tolist topk
    transpose unbind unique unsqueeze var view"""
)
_READ_ATTRIBUTES = _words(
    "shape dtype device T mT ndim is_sparse layout requires_grad is_cuda itemsize nbytes real imag"
)
_READ_NODES = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Subscript, ast.Slice,
    ast.Tuple, ast.List, ast.IfExp, ast.Attribute, ast.Call, ast.keyword,
    ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_AROUND_VERSION = (".data", ".numpy", ".__array__", "from_dlpack", "as_tensor", "from_numpy")


@functools.lru_cache(maxsize=1024)
def reads_only(expression: str) -> bool:
    """True when nothing in ``expression`` can write to a tensor: arithmetic, subscripts, known reading methods and
    helpers.

    Cached (a watch is evaluated at every stop): 0.05 us instead of 40 us.
    """
    try:
        tree = parsed(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return all(_node_reads(n, id(n) in called) for n in ast.walk(tree))


def _node_reads(node: ast.AST, called: bool) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, (ast.Name, ast.Attribute))
    if isinstance(node, ast.Name):
        return not called or node.id in _READ_FUNCTIONS
    if isinstance(node, ast.Attribute):
        return node.attr in (_READ_METHODS if called else _READ_ATTRIBUTES)
    if isinstance(node, ast.keyword):
        return node.arg is not None and node.arg != "out"
    return isinstance(node, _READ_NODES)


class GradientView(Sequence[Any]):
    """``grad_outputs`` or ``grad_inputs`` for an expression that may write: items are clones, assignment is an edit."""

    def __init__(self, gradients: Gradients, kind: str) -> None:
        self._gradients = gradients
        self._kind = kind

    def __len__(self) -> int:
        return len(self._gradients.slots(self._kind))

    def __getitem__(self, index: Any) -> Any:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return tuple(self._gradients.handed(self._kind, i) for i in positions)
        return self._gradients.handed(self._kind, positions)

    def __setitem__(self, index: int, value: Any) -> None:
        self._gradients.replace(self._kind, range(len(self))[index], value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Gradients:
    """The gradients of one stop. All edits of a stop go through here."""

    def __init__(self, point: PausedPoint) -> None:
        self.point = point
        self._handed: dict[
            tuple[str, int], tuple[Any, Any]
        ] = {}  # (kind, slot) -> clone, its version when it was last looked at

    # ---- reading

    def slots(self, kind: str) -> list[Any]:
        """The engine's own list for ``kind``.

        Raises:
            CommandError: there is none now; says why and how to get there.
        """
        slots = self._slots(kind)
        if slots is not None:
            return slots
        point = self.point
        if point.key is None:
            raise CommandError(f"no {kind}: the program does not stand at a node", "`step` goes to the next node")
        if kind == "grad_inputs" and point.stop.phase is Phase.BEFORE:
            raise CommandError("grad_inputs exist only after the node ran", "use `after` first")
        if point.stop.phase is Phase.ERROR:
            raise CommandError(
                f"{kind} were not kept: nothing was hooked at the node that failed",
                "set a breakpoint on it and run again",
            )
        raise CommandError(f"{kind} are not known at this stop", "`info node` shows what is")

    def _slots(self, kind: str) -> list[Any] | None:
        return self.point.grad_outputs if kind == "grad_outputs" else self.point.grad_inputs

    def known(self, kind: str) -> bool:
        return self.point.key is not None and self._slots(kind) is not None

    def for_reading(self, kind: str) -> tuple[Any, ...]:
        """The engine's own tensors, for an expression that ``reads_only``. Raises as ``slots``."""
        return tuple(self.slots(kind))

    def for_writing(self, kind: str) -> GradientView:
        """Clones on demand; call ``settle`` after the expression. Raises as ``slots``."""
        self.slots(kind)
        return GradientView(self, kind)

    def handed(self, kind: str, index: int) -> Any:
        """The clone of a slot that expressions of this stop share, None for an undefined gradient."""
        entry = self._handed.get((kind, index))
        if entry is None:
            value = self.slots(kind)[index]
            if value is None or not self._backend.is_tensor(value):
                return value
            clone = self._backend.adopt(value, value, f"{kind}[{index}]")
            entry = self._handed[kind, index] = (clone, self._backend.version_of(clone))
        return entry[0]

    # ---- writing

    @property
    def _backend(self) -> Backend:
        if self.point.backend is None:
            raise CommandError("no framework is loaded", "`continue` until the program imports one")
        return self.point.backend

    def settle(self, text: str) -> None:
        """Adopt the clones that ``text`` (an expression or statements just executed) changed in place.

        Raises:
            CommandError: the change cannot take effect at this stop, or the framework would refuse it. The clone is
                dropped, so that the next look shows the gradient as the engine has it.
        """
        around = any(mark in text for mark in _AROUND_VERSION)
        problem: CommandError | Unsupported | None = None
        for (kind, index), (clone, version) in list(self._handed.items()):
            if self._backend.version_of(clone) == version and not (around and self._editable(kind)):
                continue
            try:
                self.replace(kind, index, clone)
                self._handed[kind, index] = (clone, self._backend.version_of(clone))
            except (CommandError, Unsupported) as error:
                self._handed.pop((kind, index), None)
                problem = problem or error
        if problem is not None:
            raise problem

    def _editable(self, kind: str) -> bool:
        try:
            self.check_edit(kind, 0)
        except (CommandError, Unsupported):
            return False
        return True

    def check_edit(self, kind: str, index: int) -> None:
        """Raises CommandError or Unsupported when an edit of this slot could not take effect now."""
        count = len(self.slots(kind))
        if kind == "grad_outputs" and self.point.stop.phase is not Phase.BEFORE:
            hint = (
                "set grad_inputs[i], or stop before the node"
                if self.point.stop.phase is Phase.AFTER
                else "stop before the node"
            )
            raise CommandError("the node has already used its grad_outputs: a change would have no effect", hint)
        if kind == "grad_inputs" and self.point.stop.phase is not Phase.AFTER:
            raise CommandError("grad_inputs can be changed only right after the node ran", "use `after` first")
        able = self._backend.capabilities
        if not (able.edit_grad_outputs if kind == "grad_outputs" else able.edit_grad_inputs):
            raise Unsupported(
                f"{self._backend.name} {self._backend.version} cannot replace {kind}", "`info capabilities`"
            )
        if not 0 <= index < count:
            have = (
                f"it has {kind}[0] to [{count - 1}]"
                if count > 1
                else f"it has {kind}[0] only"
                if count
                else f"it has no {kind}"
            )
            raise CommandError(f"no {kind}[{index}] at this node: {have}")

    def replace(self, kind: str, index: int, value: Any) -> Any:
        """Hand ``value`` (checked and cloned by the backend) to the engine in place of a slot; returns what was
        adopted.
        """
        self.check_edit(kind, index)
        slots = self.slots(kind)
        adopted = self._backend.adopt(slots[index], value, f"{kind}[{index}]")
        self._put(kind, index, adopted)
        return adopted

    def change(self, kind: str, index: int, write: Callable[[Any], None]) -> Any:
        """Let ``write`` change a clone of a slot in place, then hand that to the engine."""
        self.check_edit(kind, index)
        slots = self.slots(kind)
        where = f"{kind}[{index}]"
        if slots[index] is None:
            raise CommandError(f"{where} is undefined: there is nothing to change in it", "edit a defined slot")
        clone = self._backend.adopt(slots[index], slots[index], where)
        write(clone)
        adopted = self._backend.adopt(slots[index], clone, where)
        self._put(kind, index, adopted)
        return adopted

    def _put(self, kind: str, index: int, adopted: Any) -> None:
        self.slots(kind)[index] = adopted
        self.point.edited = True
        self._handed.pop((kind, index), None)  # the next expression clones the new value
