"""The torch backend: puts the parts together behind ``Backend``. Made after the script imported torch; methods run on
the thread that calls them (see each), ``arm`` and ``set_stacks`` also on the reader thread."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch

from adbg.engine import live_objects
from adbg.engine.backends.base import Capabilities, DoctorLine, Graph
from adbg.engine.backends.common.backend import FrameworkBackend
from adbg.engine.backends.common.under_way import in_engine
from adbg.engine.backends.torch import observing, private, tensors
from adbg.engine.backends.torch.collectives import bits, groups
from adbg.engine.backends.torch.collectives.taps import TorchTaps
from adbg.engine.backends.torch.creations import Creations
from adbg.engine.backends.torch.entry import EngineEntry
from adbg.engine.backends.torch.graph import TorchGraph
from adbg.engine.backends.torch.modules import Modules
from adbg.engine.backends.torch.native import events, listing, screen
from adbg.engine.backends.torch.native.core import Core
from adbg.engine.backends.torch.native.stacks import NativeStacks
from adbg.engine.backends.torch.observing.random_numbers import random_kept
from adbg.engine.backends.torch.observing.steps import TorchKeeping
from adbg.engine.backends.torch.services import Services, node_name, root_nodes
from adbg.engine.backends.torch.spent import older_nodes, used_up
from adbg.engine.backends.torch.stacks import FrameFilter, Stacks
from adbg.engine.backends.torch.timing.phases import TorchPhases
from adbg.engine.errors import Unsupported
from adbg.engine.frames import locals_elsewhere
from adbg.engine.protocol.messages import GroupTimeout
from adbg.engine.types import NodeInfo, SourceLine

_GROUPS = "torch.distributed.distributed_c10d"
_LIMITS = (
    (
        "backward started from C++",
        "torch.jit.script code that calls backward, torch.ops.aten._backward and C++ extensions are not seen",
    ),
    ("forward-mode AD", "jvp, jacfwd and forward gradients have no backward to stop in"),
    ("torch.compile", "a compiled region is one node; nothing is hooked while torch traces"),
    ("compiled autograd", "works while armed, but torch compiles the hooks too, recompiles and logs that it does"),
    (
        "deep graphs",
        "without the native core a walk is capped at 30,000 nodes, less where deep graphs walked before are alive; the "
        "rest runs, unseen",
    ),
    (
        "device threads",
        "nodes of several devices run in parallel: the predicted execution order is exact on one CPU thread",
    ),
    (
        "distributed",
        "a collective that waits already when a rank stops keeps its group's time-out; those called later wait longer",
    ),
)


class _Evaluating(threading.local):
    """The grad mode of the hook around an expression: on in a backward with create_graph. None outside of
    expressions."""

    grad_mode: bool | None = None


def _training() -> Iterable[tuple[Any, str]]:
    joins = "init_process_group"
    used = [sys.modules[name] for name in ("torch.distributed", _GROUPS) if name in sys.modules]
    calls = [(torch.autograd, "backward"), (torch.autograd, "grad")]
    return [(torch.optim.Optimizer, "__init__"), *calls, *((module, joins) for module in used)]


class TorchBackend(FrameworkBackend):
    """PyTorch's autograd engine."""

    name: ClassVar[str] = "torch"
    records = staticmethod(private.grad_mode)
    uses = private.USES
    limits = _LIMITS
    _framework: ClassVar[Any] = torch
    reducer_kind = torch.nn.parallel.DistributedDataParallel
    reduces_by: ClassVar[str] = "require_backward_grad_sync"
    reduced_by = staticmethod(groups.reduced_by)
    met_by = staticmethod(groups.met_by)
    _training = staticmethod(_training)
    _entry: EngineEntry
    _modules: Modules

    meta = staticmethod(tensors.meta)
    stats = staticmethod(tensors.stats)
    window = staticmethod(tensors.window)
    norm = staticmethod(tensors.norm)
    nonfinite = staticmethod(tensors.nonfinite)
    text = staticmethod(tensors.text)
    storages = staticmethod(tensors.storages)
    feed_bits = staticmethod(bits.feed_bits)
    part_of = staticmethod(bits.part_of)
    unseen = staticmethod(private.unseen_here)
    read_unseen = staticmethod(private.read_quietly)

    def __init__(self) -> None:
        self.version = str(torch.__version__)
        self._frames = self._user_frames = FrameFilter()
        self._modules = Modules()
        self._core = Core()
        self._native_lines = lambda: [DoctorLine(*line) for line in self._core.lines()]
        native = NativeStacks(self._core)
        self._modules.ran_natively = native.roots
        self._modules.runs_natively = lambda: native.on
        self._stacks = Stacks(self._modules, self._frames, native)
        self._creations = Creations(self._stacks)
        self._services = Services(self._modules, self._stacks, self._core)
        self._entry = EngineEntry(self._services, self._frames)
        self._evaluating = _Evaluating()
        self._phases = TorchPhases(self._frames.live_line)
        self._taps = TorchTaps(self._frames.user_file)
        self._new_taps = functools.partial(observing.taps, self._frames, self._modules, self._core.address)
        self.keeping = TorchKeeping(self.made_so_far, self.older_nodes, self._services.last_root)
        self.capabilities = _capabilities(self._stacks)

    # ---- in and out

    def abandon(self, trains: Callable[[], None] | None = None) -> None:
        self._services.touched.abandon()
        if self._core.module is not None:
            screen.abandon(self._core)
            self._core.module.torch_abandon()
            listing.abandon(self._core)
        self._entry.calls.abandon()
        self._creations = Creations(self._stacks)
        self._stacks.abandon()
        super().abandon(trains)

    def uninstall(self) -> None:
        super().uninstall()
        events.put_back(self._core)

    def prepare(self, late: bool) -> None:
        super().prepare(late)
        self._stacks.history.late = late
        self.under_way = late and in_engine(("run_backward",))

    def set_stacks(self, on: bool) -> None:
        self._stacks.history.switched(on)
        self._stacks.set(on)

    # ---- tensors

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def node_address(self, value: Any) -> int | None:
        return self._core.address(value) if isinstance(value, torch.autograd.graph.Node) else None

    def made_so_far(self) -> int | None:
        return private.next_sequence() if private.next_sequence is not None else None

    def older_nodes(self, value: Any, mark: int, most: int) -> int:
        return older_nodes(root_nodes([value]), mark, most, self._services.touched)

    def adopt(self, old: Any, new: Any, where: str) -> Any:
        outer = self._evaluating.grad_mode
        keep_graph = torch.is_grad_enabled() if outer is None else outer
        return tensors.adopt(old, new, where, keep_graph)

    def copied(self, value: Any) -> Any:
        with private.undisturbed(), torch.no_grad():
            plain = value.detach()
            return plain.clone() if plain.device.type == "cpu" else plain.cpu()

    def version_of(self, value: Any) -> int | None:
        with private.out_of_sight():
            return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None

    def rerun(self, graph: Graph, key: int, grads: Sequence[Any], times: int) -> None:
        if graph.describe(key).accumulate:
            raise Unsupported("AccumulateGrad adds to its parameter's gradient each time it runs", "take another node")
        node = graph.node(key)
        plain = node.apply if isinstance(node, torch.autograd.function.BackwardCFunction) else node
        lines = graph.forward_stack(key)[0]
        run = _named_call(plain, grads, graph.describe(key), lines[0] if lines else None)
        self._entry.enter_passing()  # a backward that it runs is no part of the program's
        try:
            with random_kept():
                for _ in range(times):
                    run()
        finally:
            self._entry.leave_passing()

    def user_mode(self) -> contextlib.AbstractContextManager[None]:
        return _UserMode(self._entry, self._evaluating)

    def graph_of(self, values: Iterable[Any]) -> Graph | None:
        asked = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
        usable: list[Any] = []
        spent: list[Any] = []
        for tensor in asked:
            roots = root_nodes([tensor])
            gone = bool(roots) and used_up(roots[0], self._services.fields)
            (spent if gone else usable).append((tensor, roots))
        made = any(private.attribute_grad_fn(tensor) is not None for tensor, _ in usable)
        kept = usable if made else [*usable, *spent]
        nodes = dict.fromkeys(root for _, roots in kept for root in roots)
        if not nodes:
            return None
        graph = TorchGraph(list(nodes), self._services)
        graph.left_out = [tensor for tensor, _ in spent] if made else ()
        return graph

    def node_at(self, frame: types.FrameType, innermost: types.FrameType) -> tuple[str, SourceLine | None] | None:
        if frame.f_code is not private.custom_backward:
            return None
        node = locals_elsewhere(frame, innermost).get("self")
        if node is None:
            return None
        trace = self._stacks.trace(node)
        lines = self._stacks.user_lines([trace])[0] if trace is not None else ()
        return node_name(node), lines[0] if lines else None

    def optimized(self) -> Iterable[tuple[str, Any]]:
        for optimizer in live_objects.of_kind(torch.optim.Optimizer):
            groups = getattr(optimizer, "param_groups", None) or ()
            tensors = (value for group in groups for value in group.get("params", ()))
            for place, value in enumerate(tensors):
                if isinstance(value, torch.Tensor):
                    yield f"{type(optimizer).__name__} params[{place}]", value

    def device_memory(self) -> Any:
        cuda: Any = torch.cuda
        return cuda if cuda.is_initialized() else None

    def collectives(self) -> TorchTaps:
        return self._taps

    def rank(self) -> int | None:
        """Spawned ranks have no RANK in their environment."""
        group = torch.distributed
        return int(group.get_rank()) if group.is_available() and group.is_initialized() else None

    def group_timeouts(self) -> Sequence[GroupTimeout]:
        return groups.timeouts()

    def set_group_timeout(self, group: str, backend: str, seconds: float) -> None:
        groups.set_timeout(group, backend, seconds)

    def world(self) -> int | None:
        group = torch.distributed
        return int(group.get_world_size()) if group.is_available() and group.is_initialized() else None

    def collectives_begun(self) -> int | None:
        return private.sequence_number()

    def why_off(self, capability: str) -> str:
        if capability == "native_vlog":
            return "torch writes no glog records of its backward; adbg writes them itself"
        return super().why_off(capability)


def _capabilities(stacks: Stacks) -> Capabilities:
    seen = private.engine_type is not None
    node_type = getattr(torch.autograd.graph, "Node", None)
    hooks = seen and hasattr(node_type, "register_prehook")
    return Capabilities(
        pre_hooks=hooks,
        post_hooks=seen and hasattr(node_type, "register_hook"),
        edit_grad_outputs=hooks,
        edit_grad_inputs=seen and hasattr(node_type, "register_hook"),
        saved_tensors=True,
        forward_stacks=stacks.possible,
        module_paths=stacks.possible,
        nested_backward=any(use.present for use in private.USES if use.name.endswith("_current_graph_task_id")),
        execution_order=hasattr(private.function_base, "_sequence_nr"),
        contributions=hooks,
        native_vlog=False,
    )


class _UserMode:
    """See ``Backend.user_mode``. No generator: see ``private.undisturbed``."""

    def __init__(self, entry: EngineEntry, evaluating: _Evaluating) -> None:
        self._entry = entry
        self._evaluating = evaluating

    def __enter__(self) -> None:
        self._recorded = private.grad_mode()
        self._outer = self._evaluating.grad_mode
        self._entry.enter_passing()
        self._evaluating.grad_mode = self._recorded if self._outer is None else self._outer
        private.set_grad_mode(True)

    def __exit__(self, *raised: object) -> None:
        private.set_grad_mode(self._recorded)
        self._evaluating.grad_mode = self._outer
        self._entry.leave_passing()


def _named_call(
    run: Callable[..., Any], values: Sequence[Any], info: NodeInfo, place: SourceLine | None
) -> Callable[[], None]:
    """``run(*values)`` as a function of that name. Profilers of Python are told of functions, and a node is none: what
    it took would be its caller's, which is adbg's."""

    def call() -> None:
        run(*values)

    call.__code__ = call.__code__.replace(
        co_name=info.unique_name,
        co_filename=place.file if place is not None else "<node>",
        co_firstlineno=place.line if place is not None else 1,
    )
    return call
