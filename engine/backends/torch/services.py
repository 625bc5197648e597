"""What the graphs of torch share, and what can be said of one node. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch

from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.modules import Modules
from adbg.engine.backends.torch.native.brief import Calls
from adbg.engine.backends.torch.native.core import Core
from adbg.engine.backends.torch.native.walk import SHARED_TYPE
from adbg.engine.backends.torch.saved import NodeFields
from adbg.engine.backends.torch.stacks import Stacks
from adbg.engine.backends.torch.tensors import short_dtype
from adbg.engine.backends.torch.touched import SMALL, Ledger
from adbg.engine.outside import own, suppress
from adbg.engine.own_files import SHOWN
from adbg.engine.types import TensorMeta

_MOST_THREADS = 256


class Services:
    """What graphs share: the stacks, the modules and the caches per node type."""

    def __init__(self, modules: Modules, stacks: Stacks, core: Core) -> None:
        self.core = core
        #: (plan, what stacks show, what ``HookPlan.info`` said of nodes made at a place: by type and stack)
        self.verdicts: tuple[Any, int, dict[type, dict[int, bool]]] = (None, 0, {})
        self.modules = modules
        self.stacks = stacks
        self.fields = NodeFields()
        self.touched = Ledger()
        #: By thread, the highest number of a root whose backward ended and retained nothing. Numbers grow in a thread.
        self.last_roots: dict[int, int] = {}
        self.calls: Calls  # those that the extension passes over

    def verdicts_of(self, plan: Any) -> dict[type, dict[int, bool]]:
        """What ``plan.info`` said so far, by type and number of the stack; while modules have the names they had."""
        if self.verdicts[0] is not plan or self.verdicts[1] != SHOWN.version:
            self.verdicts = (plan, SHOWN.version, {})
        return self.verdicts[2]

    def note_root(self, roots: Sequence[Any]) -> None:
        """A backward from these tensors ended well and retained nothing (0.4 us)."""
        for root in roots:
            node = private.attribute_grad_fn(root) if isinstance(root, torch.Tensor) else None
            number = private.sequence(node) if node is not None else None
            if number is not None:
                self.note_number(number)

    def note_number(self, number: int) -> None:
        """The same of a root's number."""
        known = self.last_roots
        thread = get_ident()
        if number > known.get(thread, -1):
            if len(known) >= _MOST_THREADS:
                known.clear()
            known[thread] = number

    def last_root(self) -> int | None:
        """The highest number of a root on this thread whose backward ended well and retained nothing."""
        thread = get_ident()
        known = (self.last_roots.get(thread), self.calls.used_up(thread))
        return max((number for number in known if number is not None), default=None)

    def forget_parents(self, tensors: Sequence[Any]) -> None:
        """See ``Stacks.forget_parents``; of tensors or GradientEdges. It touches nodes, so it is counted among the
        walks."""
        with suppress(Exception):  # no reason to hurt the program
            roots: list[Any] = []
            for root in tensors:
                tensor = isinstance(root, torch.Tensor)
                node = private.attribute_grad_fn(root) if tensor else getattr(root, "node", None)
                if node is not None:
                    roots.append(node)
            if not roots:
                return
            with self.touched.lock:
                nodes, whole = self.stacks.forget_parents(roots, self.touched.allowance(roots))
                if len(nodes) > SMALL:
                    self.touched.record(roots, nodes, whole)


def node_name(node: Any) -> str:
    """The framework's name: every C++ node type has a Python type of that name, and so has every autograd.Function."""
    name = type(node).__name__
    return str(node.name()).removeprefix("torch::autograd::") if name == SHARED_TYPE else name


def is_compiled(kind: type) -> bool:
    """A whole region of torch.compile: AOTAutograd makes one autograd.Function of it, which carries its compiled
    backward."""
    return hasattr(getattr(kind, "_forward_cls", None), "compiled_bw")


def slot_meta(slot: Any) -> TensorMeta:
    try:
        shape = tuple(int(size) for size in slot.shape)
    except own(Exception):  # nested or symbolic
        return TensorMeta((), short_dtype(slot.dtype), str(slot.device), note="nested")
    numel = 1
    for size in shape:
        numel *= size
    itemsize = int(getattr(slot.dtype, "itemsize", 0))
    return TensorMeta(shape, short_dtype(slot.dtype), str(slot.device), numel * itemsize, numel)


def no_stack(stacks: Stacks) -> str:
    if not stacks.possible:
        return "this torch has no C++ stack capture (see adbg doctor)"
    if not stacks.on:
        return stacks.history.off
    return f"{stacks.history.missing}, or inside torch.compile"


def root_nodes(outputs: Sequence[Any]) -> list[Any]:
    """The root node of every output of a backward call: tensors (leaves too) or GradientEdges."""
    nodes: list[Any] = []
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            nodes.append(getattr(output, "node", None))
            continue
        node = private.attribute_grad_fn(output)
        if node is None and output.requires_grad:
            with torch.enable_grad():
                node = torch.autograd.graph.get_gradient_edge(output).node
        nodes.append(node)
    return [node for node in nodes if node is not None]
