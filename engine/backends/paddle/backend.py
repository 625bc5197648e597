"""The PaddlePaddle backend: puts the parts together behind ``Backend``. Made after the script imported paddle;
methods run on the thread that calls them, ``arm`` and ``set_stacks`` also on the reader thread."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import paddle

from adbg.engine import live_objects
from adbg.engine.backends.base import (
    Aids,
    Capabilities,
    DoctorLine,
    DumpDialect,
    Graph,
    NativeVlog,
)
from adbg.engine.backends.common.backend import FrameworkBackend
from adbg.engine.backends.common.under_way import in_engine
from adbg.engine.backends.paddle import observing, private, tensors
from adbg.engine.backends.paddle.aids import PaddleAids
from adbg.engine.backends.paddle.collectives import bits, groups
from adbg.engine.backends.paddle.collectives.taps import PaddleTaps
from adbg.engine.backends.paddle.creations import Creations
from adbg.engine.backends.paddle.entry import EngineEntry
from adbg.engine.backends.paddle.failures import error_text
from adbg.engine.backends.paddle.flags import SharedFlags
from adbg.engine.backends.paddle.graph import PYLAYER, SAVED_NOTE, PaddleGraph, Services, root_tensors
from adbg.engine.backends.paddle.modules import Modules
from adbg.engine.backends.paddle.native import memory, symbols
from adbg.engine.backends.paddle.native.census import census
from adbg.engine.backends.paddle.native.census import leave as leave_census
from adbg.engine.backends.paddle.native.core import abandon_core, core, native_lines
from adbg.engine.backends.paddle.native.grad_fn import node_of
from adbg.engine.backends.paddle.native.later import CALLERS, LateChecks
from adbg.engine.backends.paddle.native.own import aids_aside, aids_tell
from adbg.engine.backends.paddle.native.sites import log_sites
from adbg.engine.backends.paddle.observing.keeping import PaddleKeeping
from adbg.engine.backends.paddle.stacks import Stacks
from adbg.engine.backends.paddle.timing.forward import PaddleForward
from adbg.engine.backends.paddle.timing.phases import PaddlePhases
from adbg.engine.backends.paddle.vlog import PaddleVlog
from adbg.engine.errors import Unsupported
from adbg.engine.frames import locals_elsewhere
from adbg.engine.protocol.messages import GroupTimeout
from adbg.engine.types import SourceLine

_LIMITS = (
    ("to_static", "a region compiled by paddle.jit.to_static is one node; static graphs have no backward to stop in"),
    ("after an accumulate node", "Paddle has no hook there: reported when the next node's turn comes, .grad is set"),
    (
        "forward stacks",
        "at call stack level 3 Paddle's own error texts get longer, and a small operator takes 3.5 times",
    ),
    ("unique names", "Paddle's own (matmul2GradNode) stay off, they reset Adam's state; adbg numbers the nodes"),
    ("vlog", "from level 6 on Paddle itself switches unique names on, with that effect: vlog 5 has none (measured)"),
    ("execution order", "predicted for a dynamic graph on one thread; force-sequential nodes are not known to it"),
    ("distributed", "gloo gives up a collective after 30 s, and Paddle has no way to change that: stop all ranks"),
)


def _training() -> Iterable[tuple[Any, str]]:
    calls = [(private.eager, "run_backward"), (private.eager, "run_partial_grad")]
    joins = [(paddle.distributed, "init_parallel_env"), (paddle.distributed.parallel, "init_parallel_env")]
    return [(paddle.optimizer.Optimizer, "__init__"), *calls, *joins]


class PaddleBackend(FrameworkBackend):
    """PaddlePaddle's dynamic graph."""

    name: ClassVar[str] = "paddle"
    records = staticmethod(private.has_grad)
    clearing: ClassVar[str] = "clear_grad()"
    rate_of: ClassVar[str] = "{}.get_lr()"
    uses = private.USES
    limits = _LIMITS
    _framework: ClassVar[Any] = paddle
    reducer_kind = paddle.DataParallel
    reduces_by: ClassVar[str] = "grad_need_sync"
    reduced_by = staticmethod(groups.reduced_by)
    _training = staticmethod(_training)
    _native_lines = staticmethod(native_lines)
    _entry: EngineEntry
    _modules: Modules
    dump_dialect: ClassVar[DumpDialect] = DumpDialect(
        stack_note="Note : If you want to see the call stack information of each Node, please make sure "
        "FLAGS_call_stack_level=3 is set at runtime.\n"
    )

    is_tensor = staticmethod(tensors.is_tensor)
    meta = staticmethod(tensors.meta)
    stats = staticmethod(tensors.stats)
    window = staticmethod(tensors.window)
    norm = staticmethod(tensors.norm)
    nonfinite = staticmethod(tensors.nonfinite)
    text = staticmethod(tensors.text)
    storages = staticmethod(tensors.storages)
    feed_bits = staticmethod(bits.feed_bits)
    part_of = staticmethod(bits.part_of)

    def __init__(self) -> None:
        self.version = str(paddle.__version__)
        self._flags = SharedFlags()
        self._stacks = Stacks(self._flags)
        self._user_frames = self._stacks.frames
        self._modules = Modules(self._stacks.texts)
        self._creations = Creations(self._stacks)
        self._services = Services(self._modules, self._stacks)
        self._entry = EngineEntry(self._services)
        self._grad_modes: list[bool] = []
        self._phases = PaddlePhases(self._stacks.frames.live_line, self._modules)
        self._forward = PaddleForward()
        self._taps = PaddleTaps(self._stacks.frames.user_file)
        self._new_taps = functools.partial(observing.taps, self._user_frames, self._modules)
        self.keeping = PaddleKeeping(self._services)
        self._late_checks: LateChecks | None = None
        self._vlog = PaddleVlog(paddle.base.core, log_sites())
        self._aids = PaddleAids(paddle, self._flags)
        self.capabilities = _capabilities(self._stacks, hooks=True)

    def prepare(self, late: bool) -> None:
        super().prepare(late)
        memory.away(False)
        self._stacks.history.late = late
        self.under_way = late and in_engine(CALLERS)
        if late and not symbols.checked():
            self._entry.checks = self._late_checks = LateChecks(self._check)
        else:
            symbols.postpone(False)
            self._check()

    def _check(self) -> None:
        """Before the script's first operator, or between two of its: adbg's own are in none of its logs, and shift none
        of its numbers."""
        self._vlog.quiet(True)
        try:
            symbols.native()
            census()
            core()
        finally:
            self._vlog.quiet(False)

    # ---- in and out

    def uninstall(self) -> None:
        super().uninstall()
        noted = core()
        if noted is not None:
            noted.end()

    def leave(self) -> None:
        if self._late_checks is not None:  # on a thread of the program they may be under way, and open descriptors
            self._late_checks.leave()
        super().leave()
        self._vlog.leave()
        memory.away(True)
        symbols.leave()
        leave_census()

    def abandon(self, trains: Callable[[], None] | None = None) -> None:
        self._flags.abandon()
        self._stacks.abandon()
        self._modules.unwatch()
        self._aids.restore()
        symbols.abandon()
        abandon_core()
        super().abandon(trains)

    def set_stacks(self, on: bool) -> None:
        self._stacks.history.switched(on)
        self._stacks.set(on)
        if on and not self._stacks.native:
            self._modules.watch()
        else:
            self._modules.unwatch()

    # ---- Paddle's own log and aids, and its collectives

    def collectives(self) -> PaddleTaps:
        return self._taps

    def native_vlog(self) -> NativeVlog:
        return self._vlog

    def aids(self) -> Aids:
        return self._aids

    # ---- tensors

    def adopt(self, old: Any, new: Any, where: str) -> Any:
        keep_graph = self._grad_modes[-1] if self._grad_modes else private.has_grad()
        call = self._entry.top()
        keep_graph = keep_graph and call is not None and call.create_graph
        grows = where.startswith("grad_inputs") and call is not None and call.hooks.at_custom()
        return tensors.adopt(old, new, where, grows, keep_graph)

    def copied(self, value: Any) -> Any:
        if not value.is_dense():
            raise Unsupported("only dense gradients are copied")
        return value._copy_to(paddle.CPUPlace(), True)

    def error_text(self, error: BaseException) -> str:
        return error_text(error, None)

    def version_of(self, value: Any) -> int | None:
        return getattr(value, "inplace_version", None)

    def user_mode(self) -> contextlib.AbstractContextManager[None]:
        return _UserMode(self._entry, self._grad_modes, self._vlog.silent)

    def node_at(self, frame: types.FrameType, innermost: types.FrameType) -> tuple[str, SourceLine | None] | None:
        if frame.f_code is not private.custom_backward:
            return None
        context = locals_elsewhere(frame, innermost).get("self")
        return (PYLAYER + type(context).__name__.removesuffix("_backward"), None) if context is not None else None

    def optimized(self) -> Iterable[tuple[str, Any]]:
        for optimizer in live_objects.of_kind(paddle.optimizer.Optimizer):
            held = getattr(optimizer, "_parameter_list", None) or ()
            tensors = (each for entry in held for each in (entry["params"] if isinstance(entry, dict) else (entry,)))
            for place, value in enumerate(tensors):
                if isinstance(value, paddle.Tensor):
                    yield f"{type(optimizer).__name__} parameters[{place}]", value

    def custom_contexts(self) -> Iterable[tuple[str, Sequence[Any]]]:
        return private.contexts_alive()

    def made_so_far(self) -> int | None:
        return self.backward_count

    def older_nodes(self, value: Any, mark: int, most: int) -> int:
        nodes = PaddleGraph([value], self._services)
        if nodes.count() > most:
            return 0
        spent = self._services.spent.alive()
        recent = PaddleGraph([*spent, *self._entry.roots()], self._services)
        return len(nodes.addresses().keys() - recent.addresses().keys())

    def node_address(self, value: Any) -> int | None:
        return int(value.node_ptr()) if type(value).__name__ == "GradNodeBase" else None

    def graph_of(self, values: Iterable[Any]) -> Graph | None:
        roots = root_tensors([value for value in values if isinstance(value, paddle.Tensor)])
        spent = self._services.spent.among(roots)
        if spent:
            ran = set(PaddleGraph(spent, self._services).addresses())
            usable = [tensor for tensor in roots if node_of(tensor).node_ptr() not in ran]
            if usable:
                graph = PaddleGraph(usable, self._services)
                graph.left_out = [tensor for tensor in roots if all(tensor is not kept for kept in usable)]
                return graph
        return PaddleGraph(roots, self._services) if roots else None

    def device_memory(self) -> Any:
        return paddle.device.cuda if paddle.is_compiled_with_cuda() else None

    def group_timeouts(self) -> Sequence[GroupTimeout]:
        return groups.timeouts()

    def weights(self) -> Iterable[tuple[str, Any]]:
        statistics = self._modules.statistics()
        return [(name, value) for name, value in self.parameters() if value is not statistics.get(name)]

    def buffers(self) -> Iterable[tuple[str, Any]]:
        return [*super().buffers(), *self._modules.statistics().items()]

    def why_off(self, capability: str) -> str:
        return SAVED_NOTE if capability == "saved_tensors" else super().why_off(capability)

    def doctor(self) -> Sequence[DoctorLine]:
        native = symbols.native()
        self.capabilities = _capabilities(self._stacks, hooks=native is not None)
        how = DoctorLine("ok" if native is not None else "limit", "stops before a node", symbols.mechanism())
        first, *rest = super().doctor()
        return [first, how, *rest]


def _capabilities(stacks: Stacks, hooks: bool) -> Capabilities:
    seen = private.run_backward is not None
    return Capabilities(
        pre_hooks=seen and hooks,
        post_hooks=seen,
        edit_grad_outputs=seen and hooks,
        edit_grad_inputs=seen,
        saved_tensors=False,
        forward_stacks=stacks.possible and hooks,
        module_paths=stacks.possible,
        nested_backward=private.py_layer_backward is not None,
        execution_order=True,
        contributions=seen and hooks,
        native_vlog=True,
    )


class _UserMode:
    """See ``Backend.user_mode``. No generator: where an interrupt comes as the block is entered, one would switch the
    grad mode back when it is freed, long after, in the script."""

    def __init__(self, entry: EngineEntry, modes: list[bool], silent: bool) -> None:
        self._entry = entry
        self._modes = modes
        # What a person has computed is told of as the script's operators are; a condition or a display is not.
        self._aside = aids_aside() if silent and aids_tell() else contextlib.nullcontext()

    def __enter__(self) -> None:
        self._aside.__enter__()
        self._recorded = private.has_grad()
        self._outer = len(self._modes)
        self._entry.pass_through(1)
        self._modes.append(self._recorded)
        private.set_has_grad(True)

    def __exit__(self, *raised: Any) -> None:
        private.set_has_grad(self._recorded)
        del self._modes[self._outer :]
        self._entry.pass_through(-1)
        self._aside.__exit__(*raised)
