"""A walked graph of nodes, live or recorded: what can be asked of it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adbg.engine.types import Edge, NodeInfo, SourceLine, TensorMeta, ValueState, remark_of


@dataclass(frozen=True, slots=True)
class SavedValue:
    """A saved tensor or attribute of a node. ``value`` is None where its state is unread or freed; of a corrupted one
    it is the changed tensor. ``note``: why it cannot be read, where no state says so."""

    name: str
    value: Any
    note: str = ""
    state: ValueState = ValueState.OK
    version: int | None = None  # of a corrupted tensor, as in ``TensorMeta``
    saved_at: int | None = None
    writer: SourceLine | None = None  # of a corrupted tensor: the line that changed it, where that is known

    @property
    def remark(self) -> str:
        """State and note in words."""
        return remark_of(self.state, self.note, self.version, self.saved_at)


class Graph(abc.ABC):
    """A walked graph. Keys are small ints, stable while the object lives; nothing here keeps framework nodes alive
    longer than the graph itself lives (dropping many node wrappers can overflow the C stack: torch/touched.py)."""

    note: str = ""  # what is missing ("walk capped at 30,000 nodes: ..."), for the UI
    truncated: bool = False  # the walk was cut: more nodes than ``count`` run, and the rest is never seen
    wanted: tuple[Any, ...] = ()  # the inputs whose gradients alone are asked for, until the call has ended; none: all
    left_out: Sequence[Any] = ()  # values given to ``graph_of`` whose graphs a backward has used up
    # What ``engine/graph`` made of it. Not in a WeakKeyDictionary: its Python function would run as the graph goes, in
    # the program's thread, and what a signal handler of the program's raises there is lost.
    index_kept: Any = None
    marks_kept: dict[int, str] = {}

    def add_note(self, text: str) -> None:
        """One thing more that is missing."""
        self.note = f"{self.note}; {text}" if self.note else text

    @abc.abstractmethod
    def count(self) -> int:
        """Nodes that will execute."""

    @abc.abstractmethod
    def order(self) -> Sequence[int]:
        """Keys in the order in which the engine executes them (predicted; exact on one CPU thread)."""

    @abc.abstractmethod
    def roots(self) -> Sequence[int]: ...

    def root_values(self) -> Sequence[Any]:
        """The tensors that backward was called on, while it runs; none where they are not at hand."""
        return ()

    @abc.abstractmethod
    def describe(self, key: int) -> NodeInfo: ...

    def name(self, key: int) -> str:
        """The framework's name alone: what ``describe`` gives, for less."""
        return self.describe(key).name

    def groups(self) -> Sequence[int] | None:
        """By key, the number of the node's group: only nodes of one name, module and forward line have it in common, so
        that ``describe`` need not be asked about each of them. 0: ask it. None: of every node."""
        return None

    @abc.abstractmethod
    def edges(self, key: int) -> Sequence[Edge]:
        """Towards the producers: where this node's grad_inputs flow."""

    @abc.abstractmethod
    def saved(self, key: int) -> Sequence[SavedValue]: ...

    def saved_hidden(self, key: int) -> str:
        """Why ``saved`` does not have what node ``key`` saved; "" where it does."""
        return ""

    @abc.abstractmethod
    def attributes(self, key: int) -> Mapping[str, str]:
        """Non-tensor facts that the user wants: dim, keepdim, alpha; of an accumulate node its parameter's shape."""

    @abc.abstractmethod
    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        """Shape and dtype of every incoming gradient slot, known before it runs. Empty when the framework cannot
        tell."""

    @abc.abstractmethod
    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        """User frames that made the node, innermost first, and why there are none."""

    @abc.abstractmethod
    def node(self, key: int) -> Any:
        """The framework's own node object, for expressions (``node``)."""

    def is_accumulate(self, key: int) -> bool:
        """The node that adds to a leaf's gradient."""
        return self.describe(key).accumulate

    def op_name(self, key: int) -> str:
        """The forward op of a node, as drawings name it; of an accumulate node its parameter."""
        info = self.describe(key)
        return info.parameter or "Node" if info.accumulate else self.op_of(info.unique_name)

    @staticmethod
    def op_of(unique_name: str) -> str:
        """The forward op in the unique name of a node: the name without what stands for "backward"."""
        return unique_name

    def dumped_name(self, key: int) -> str:
        """What dump files call the node: the unique name, without an ordinal where the framework has no ordinals."""
        return self.describe(key).unique_name

    def is_custom(self, key: int) -> bool:
        """PyLayer / autograd.Function."""
        return False

    def ends_unseen(self, key: int) -> bool:
        """The framework does not show what leaves this node: it is seen only where it arrives (Paddle's concat)."""
        return False

    def context(self, key: int) -> Any:
        """``ctx`` of a custom node, as its forward and backward have it: in torch that is the node.

        Raises:
            CommandError: the framework does not give it away here.
        """
        return self.node(key)

    def address(self, key: int) -> int:
        """A number that no other node alive has."""
        return id(self.node(key))

    def read_all_stacks(self) -> None:  # noqa: B027
        """The stacks of all nodes are about to be asked for: a backend may read them together for less."""

    def names(self) -> Iterable[str]:
        """Distinct framework names in the graph, for completion and closest matches."""
        return sorted({self.describe(key).name for key in self.order()})


@dataclass(frozen=True, slots=True)
class Stray:
    """A node that the forward made and that a graph does not have: its op has no part in the loss. ``text`` is what is
    known of it: a name, or the source text of its line."""

    text: str
    stack: tuple[SourceLine, ...] = ()  # user frames, innermost first

    @property
    def forward(self) -> SourceLine | None:
        return self.stack[0] if self.stack else None


class CreationWatch(abc.ABC):
    """Which nodes are made from its making on until ``close``."""

    @abc.abstractmethod
    def close(self) -> None:
        """No node made from now on belongs to it. Repeated calls are harmless."""

    @abc.abstractmethod
    def release(self) -> None:
        """Let go of everything kept."""

    @abc.abstractmethod
    def restart(self) -> None:
        """Forget what was made so far: a backward that had none of it ended."""

    @abc.abstractmethod
    def holds(self, graph: Graph, key: int) -> bool:
        """Whether that node was made while it was open, on its thread."""

    @abc.abstractmethod
    def strays(self, graph: Graph) -> tuple[Sequence[Stray], str]:
        """Nodes made while it was open that ``graph`` does not have, and what of this cannot be known."""
