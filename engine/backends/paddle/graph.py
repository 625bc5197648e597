"""A walked graph of Paddle's nodes: keys, names, order, and what every node is. Runs on the thread that made it
(later: the parked thread).

Keys are positions in a breadth-first walk from the roots (1 us a node). The nodes are held while the object is in use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from adbg.engine.backends.base import SavedValue
from adbg.engine.backends.common.graph import WalkedGraph
from adbg.engine.backends.common.order import needed_nodes
from adbg.engine.backends.paddle.modules import Modules
from adbg.engine.backends.paddle.native import symbols
from adbg.engine.backends.paddle.native.census import Survey, census
from adbg.engine.backends.paddle.native.grad_fn import node_of
from adbg.engine.backends.paddle.native.spent import SpentRoots
from adbg.engine.backends.paddle.order import MadeOrder, execution_order
from adbg.engine.backends.paddle.stacks import Stacks, framework_name
from adbg.engine.backends.paddle.tensors import meta_of
from adbg.engine.errors import CommandError
from adbg.engine.types import Edge, NodeInfo, SourceLine, TensorMeta

PYLAYER = "GradNodePyLayer_"
ACCUMULATE = "GradNodeAccumulation"
COMPILED = ("Dy2StGradNode", "GradNodeRunProgram")  # to_static's program, today's and that of older Paddles
_MOST_NODES = 200_000
_MOST_PASSED = 1000  # sets of kinds that are remembered as of no interest to a plan
#: Operators that give a list of gradients, for a Paddle whose nodes cannot be read.
_LISTS = frozenset(
    ("Concat", "Stack", "AddN", "Meshgrid", "MultiDot", "Einsum", "BroadcastTensors", "Rnn", "Multiplex")
)
UNSEEN_NOTE = "seen only as they arrive at the next nodes: Paddle's post hook fails where one slot has several"
SAVED_NOTE = (
    "Paddle shows no saved tensors of an operator to Python; a PyLayer's are ctx.saved_tensor() in its backward"
)
NUMBERED_NOTE = "against the execution: Paddle tells the order of the forward only while forward stacks are on"
UNREGISTERED_NOTE = "its tensor is a parameter of no Layer that ran since adbg is there, and Paddle does not show it"
CONTEXT_HINT = "`breakpoint()` in its backward stops where ctx is a local"


class Services:
    """What graphs share."""

    def __init__(self, modules: Modules, stacks: Stacks) -> None:
        self.modules = modules
        self.stacks = stacks
        self.spent = SpentRoots()
        #: Kinds of nodes of which a plan (by its ``name``) takes none; forgotten with the plan.
        self._passed: tuple[Any, set[frozenset[str]]] = (None, set())

    def passes(self, name: Callable[[str], bool], kinds: frozenset[str]) -> bool:
        """Whether a plan by ``name`` takes none of ``kinds``, and no PyLayer is there to be followed."""
        known, passed = self._passed
        if known is not name:
            known, passed = self._passed = (name, set())
        if kinds in passed:
            return True
        if any(kind.startswith(PYLAYER) or name(kind) for kind in kinds):
            return False
        if len(passed) < _MOST_PASSED:
            passed.add(kinds)
        return True


class PaddleGraph(WalkedGraph):
    """See ``WalkedGraph``."""

    def __init__(self, roots: Sequence[Any], services: Services) -> None:
        """Args: roots: tensors whose nodes are the roots; of others nothing runs (see ``root_tensors``)."""
        super().__init__()
        self.services = services
        self._root_tensors = root_tensors(roots)
        self._made: list[Any] | None = None  # their nodes, one per tensor
        self._below: list[Any] = []  # next_functions by key
        self._survey: Survey | None = None
        self._surveyed = False
        self._printed: list[str] = []
        self._addresses: dict[int, int] | None = None
        self._users: dict[int, int] | None = None
        self._unique: list[str] | None = None
        self._made_order: MadeOrder | None = None
        self._parameters: dict[int, tuple[str | None, Any]] | None = None

    # ---- the walk

    @property
    def root_nodes(self) -> list[Any]:
        if self._made is None:
            nodes = [node_of(tensor) for tensor in self._root_tensors]
            self._made = [node for node in nodes if node is not None]
        return self._made

    def walk(self) -> list[Any]:
        """The nodes by key."""
        nodes = self._nodes
        if nodes or not self.root_nodes:
            return nodes
        nodes.extend(dict.fromkeys(self.root_nodes))
        seen = set(nodes)
        seen.add(None)  # an edge that leads nowhere
        add, append, keep = seen.add, nodes.append, self._below.append
        for node in nodes:  # grows while it is followed
            below = node.next_functions
            keep(below)
            for producer in below:
                if producer not in seen:
                    add(producer)
                    append(producer)
            if len(nodes) > _MOST_NODES:
                self.truncated = True
                self.add_note(f"walk capped at {len(nodes):,} nodes: the rest runs, unseen")
                break
        self._below.extend([()] * (len(nodes) - len(self._below)))
        return nodes

    def survey(self) -> Survey | None:
        """The graph as Paddle counts it, without a walk; None where that is not possible, or a walk was made."""
        if not self._surveyed and not self._nodes:
            self.take_survey(surveyed(root_addresses(self._root_tensors)))
        return self._survey

    def take_survey(self, survey: Survey | None) -> None:
        """It was made already."""
        self._surveyed, self._survey = True, survey

    def kinds(self) -> frozenset[str]:
        """Framework names of all nodes (and perhaps of a few that are not there); of PyLayers as Paddle prints them."""
        survey = self.survey()
        if survey is not None and survey.kinds is not None:
            return survey.kinds
        printed = self.printed()
        counted = census()
        if counted is not None:
            counted.learn(self.walk(), printed)
        return frozenset(framework_name(name) for name in set(printed))

    def release(self) -> None:
        self._below = []
        self._root_tensors, self._made = [], []
        self._parameters = None
        self._drop_nodes()

    def producers(self) -> list[tuple[int, ...]]:
        if self._producers is None:
            index = self.index
            self._producers = [
                tuple([index[node] for node in below if node is not None and node in index]) for below in self._below
            ]
        return self._producers

    def printed(self) -> list[str]:
        """What Paddle prints as the name of each node: "MatmulGradNode", "matmul2GradNode" with unique names."""
        if not self._printed:
            self._printed = [node.name() for node in self.walk()]
        return self._printed

    def addresses(self) -> dict[int, int]:
        """Address of a node -> key."""
        if self._addresses is None:
            self._addresses = {node.node_ptr(): key for key, node in enumerate(self.walk())}
        return self._addresses

    # ---- Graph

    def root_values(self) -> Sequence[Any]:
        return self._root_tensors

    def count(self) -> int:
        if self._order is None and not self.wanted:  # all nodes below the roots run, and a count needs no walk
            survey = self.survey()
            if survey is not None:
                return survey.count
        return len(self.order())

    def order(self) -> Sequence[int]:
        if self._order is None:
            producers = self.producers()
            printed = self.printed()
            needed = needed_nodes(self._wanted_keys(), producers) if self.wanted else None
            self._order = execution_order(
                [self.index[node] for node in self.root_nodes],
                producers.__getitem__,
                lambda key: printed[key] == ACCUMULATE,
                needed,
            )
        return self._order

    def _wanted_keys(self) -> list[int]:
        """Keys of the nodes where the gradients of ``inputs=`` arrive: of a leaf, its accumulate node."""
        native = symbols.native()
        keys = []
        for value in self.wanted:
            node = node_of(value)
            key = self.index.get(node) if node is not None else None
            if node is None and native is not None:
                key = self.addresses().get(native.leaf_node(value))
            if key is not None:
                keys.append(key)
        return keys

    def name(self, key: int) -> str:
        return framework_name(self.printed()[key])

    def is_accumulate(self, key: int) -> bool:
        return self.printed()[key] == ACCUMULATE

    def is_custom(self, key: int) -> bool:
        return self.printed()[key].startswith(PYLAYER)

    def custom_named(self, printed: str, running: int | None) -> int | None:
        """The PyLayer node that runs: the one whose turn it is, else the only one of that name."""
        if running is not None and self.printed()[running] == printed:
            return running
        named = [key for key, name in enumerate(self.printed()) if name == printed]
        return named[0] if len(named) == 1 else None

    def ends_unseen(self, key: int) -> bool:
        """Paddle's post hook fails on it: it gives several gradients in one slot (concat, stack)."""
        if self.is_custom(key):
            return False
        native = symbols.native()
        if native is None:
            return self.name(key).removesuffix("Final").removesuffix("GradNode") in _LISTS
        return any(ranks > 1 for ranks in native.output_slots(self.walk()[key].node_ptr()))

    def unique_name(self, key: int) -> str:
        """Paddle's own numbered name where it gave one, else name#k: k counts in order of the forward, accumulate
        nodes in order of execution."""
        if self._unique is None:
            self._unique = self.printed().copy()
        printed = self.printed()[key]
        if self._unique[key] == printed and framework_name(printed) == printed:
            order = self.made_order
            same = [other for other, name in enumerate(self.printed()) if name == printed]
            same.sort(key=order.position.__getitem__ if printed == ACCUMULATE else order)
            for count, other in enumerate(same, 1):
                self._unique[other] = f"{printed}#{count}"
        return self._unique[key]

    @property
    def made_order(self) -> MadeOrder:
        if self._made_order is None:
            nodes, stacks = self.walk(), self.services.stacks
            self._made_order = MadeOrder(self.order(), self.producers(), lambda key: stacks.number(nodes[key]))
        return self._made_order

    def info(self, key: int, needs: Sequence[str] | frozenset[str]) -> NodeInfo:
        accumulate = self.is_accumulate(key)
        parameter = self.parameter(key)[0] if accumulate and not {"parameter", "module"}.isdisjoint(needs) else None
        stack = self.forward_stack(key)[0] if "forward_stack" in needs else ()
        module: str | None = None
        if "module" in needs:
            module = (
                _module(self.services, self.walk()[key])
                if not accumulate
                else parameter and parameter.rpartition(".")[0]
            )
        return NodeInfo(
            key=key,
            name=self.name(key),
            unique_name=self.unique_name(key) if "unique_name" in needs else self.printed()[key],
            module=module,
            parameter=parameter,
            forward=stack[0] if stack else None,
            accumulate=accumulate,
            compiled=self.printed()[key] in COMPILED,
        )

    def parameter(self, key: int) -> tuple[str | None, Any]:
        """(name, tensor) of an accumulate node; (None, None) where its tensor is no parameter of a Layer seen so
        far."""
        if self._parameters is None:
            native = symbols.native()
            found: dict[int, tuple[str | None, Any]] = {}
            if native is not None:
                addresses = self.addresses()
                for name, tensor in self.services.modules.parameters():
                    at = addresses.get(native.leaf_node(tensor))
                    if at is not None:
                        found.setdefault(at, (name, tensor))
            self._parameters = found
        return self._parameters.get(key, (None, None))

    def edges(self, key: int) -> Sequence[Edge]:
        native = symbols.native()
        node = self.walk()[key]
        if native is None:
            return [
                Edge(slot, self.index.get(below) if below is not None else None)
                for slot, below in enumerate(self._below[key])
            ]
        return [
            Edge(
                place,
                self.addresses().get(edge.to) if edge.to else None,
                self._flat_slot(edge.to, edge.slot, edge.rank),
            )
            for place, edge in enumerate(
                edge for slot in native.edges(node.node_ptr()) for edge in slot or (symbols.NOWHERE,)
            )
        ]

    def _flat_slot(self, address: int, slot: int, rank: int) -> int:
        """Slots and ranks are counted through, as ``grad_outputs`` has them."""
        native = symbols.native()
        if not address or native is None or not (slot or rank):
            return 0
        return sum(native.input_slots(address)[:slot]) + rank

    def saved(self, key: int) -> Sequence[SavedValue]:
        """Of an accumulate node, its parameter; of all others nothing: see ``SAVED_NOTE``."""
        if self.is_accumulate(key):
            tensor = self.parameter(key)[1]
            return [SavedValue("variable", tensor)] if tensor is not None else []
        return []

    def saved_hidden(self, key: int) -> str:
        if not self.is_accumulate(key):
            return SAVED_NOTE
        return "" if self.parameter(key)[1] is not None else UNREGISTERED_NOTE

    def attributes(self, key: int) -> Mapping[str, str]:
        found = {"address": hex(self.walk()[key].node_ptr())}
        if "#" in self.unique_name(key) and not self.is_accumulate(key) and not self.made_order.told(key):
            found["numbered"] = NUMBERED_NOTE
        if self.is_accumulate(key):
            name, tensor = self.parameter(key)
            if tensor is not None:
                found.update({"shape": str(list(tensor.shape)), "tensor": str(tensor.name), "parameter": str(name)})
        elif not self.is_custom(key):
            found["saved"] = SAVED_NOTE
            if self.ends_unseen(key):
                found["grad_inputs"] = UNSEEN_NOTE
        return found

    def input_meta(self, key: int) -> Sequence[TensorMeta]:
        native = symbols.native()
        if native is None:
            return ()
        shapes = native.input_shapes(self.walk()[key].node_ptr())
        if self.is_accumulate(key) and shapes and shapes[0][0] is None:  # an operator that was given the leaf has it
            user = self._first_user(key)
            edges = native.edges(self.walk()[user].node_ptr()) if user is not None else []
            leaves = (edge for slot in edges for edge in slot if edge.to == self.address(key))
            shapes = [(edge.shape, edge.dtype) for edge in itertools.islice(leaves, 1)] or shapes
        return [meta_of(shape, dtype) for shape, dtype in shapes]

    def forward_stack(self, key: int) -> tuple[Sequence[SourceLine], str]:
        """Of an accumulate node, that of the operator which used its tensor first: Paddle makes the node as soon as
        somebody sets ``stop_gradient``, with the stack of whatever operator ran last."""
        if not self.is_accumulate(key):
            return self.services.stacks.lines(self.walk()[key])
        first = self._first_user(key)
        if first is None:
            return (), "no operator of this graph uses its tensor"
        return self.services.stacks.lines(self.walk()[first])

    def _first_user(self, key: int) -> int | None:
        """The operator that used the tensor of an accumulate node first in the forward: the last that runs."""
        if self._users is None:
            self._users = {}
            producers = self.producers()
            for user in sorted(self.order(), key=self.made_order, reverse=True):
                for below in producers[user]:
                    if self.is_accumulate(below):
                        self._users[below] = user  # the first in the forward stays
        return self._users.get(key)

    def node(self, key: int) -> Any:
        return self.walk()[key]

    def context(self, key: int) -> Any:
        raise CommandError("Paddle does not show the ctx of a PyLayer from outside", CONTEXT_HINT)

    @staticmethod
    def op_of(unique_name: str) -> str:
        return unique_name.partition("#")[0].removesuffix("Final").replace("GradNode", "") or "Node"

    def dumped_name(self, key: int) -> str:
        """As Paddle prints it."""
        return self.printed()[key]

    def address(self, key: int) -> int:
        return int(self.walk()[key].node_ptr())

    def keys_named(self, printed: str) -> Iterator[int]:
        """Nodes that Paddle prints by that name, in order of execution."""
        names = self.printed()
        return (key for key in self.order() if names[key] == printed)


def surveyed(roots: Sequence[int]) -> Survey | None:
    """The graph below the nodes at ``roots`` (see ``root_addresses``), as Paddle counts it."""
    counted = census()
    return counted.survey(roots) if counted is not None and roots else None


def root_addresses(tensors: Sequence[Any]) -> Sequence[int]:
    """Of the nodes of ``tensors`` (see ``root_tensors``), each once; () where one cannot be told."""
    native = symbols.native()
    if native is None or not tensors:
        return ()
    roots = tuple(dict.fromkeys([native.leaf_node(tensor) for tensor in tensors]))
    return roots if 0 not in roots else ()


def root_tensors(tensors: Sequence[Any]) -> list[Any]:
    """Those that were made by a node. A leaf has none: its gradient is its own."""
    return [tensor for tensor in tensors if tensor is not None and not tensor.stop_gradient and not tensor.is_leaf]


def _module(services: Services, node: Any) -> str | None:
    told = services.modules.told(services.stacks.text(node))
    return told if told is not None else services.stacks.layer(node)
