"""Every private name of torch that adbg touches, found by looking (never by comparing versions).

What is missing is None here, and the callers switch the capability off; ``USES`` is what ``adbg doctor`` lists. Nothing
in this module runs an operator or starts a device. Imported on the thread that imports the backend; read from any
thread.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.graph
import torch.fx.traceback
import torch.utils._python_dispatch  # found by name below

from adbg.engine.backends.common.private_use import PrivateUses
from adbg.engine.outside import own

USES = PrivateUses()


def _find(path: str, purpose: str) -> Any:
    """The object at ``path`` ("torch._C.x"), or None."""
    return USES.find(torch, path, purpose)


def _minus_one() -> int:
    return -1


def _zero() -> int:
    return 0


def _nothing() -> None:
    return None


engine: Any = _find("torch.autograd.Variable._execution_engine", "see every backward that starts in Python")
engine_type: Any = _find("torch._C._ImperativeEngine", "put a subclass of the engine in its place")
#: 35 ns; -1 outside a backward.
task_id: Callable[[], int] = _find("torch._C._current_graph_task_id", "tell nested backward calls apart") or _minus_one
current_node: Callable[[], Any] = (
    _find("torch._C._current_autograd_node", "the node that started a nested backward") or _nothing
)
#: The code in which the backward of every autograd.Function begins.
custom_backward: Any = getattr(torch.autograd.function.BackwardCFunction.apply, "__code__", None)
gather: Callable[[bool, bool, bool], Any] | None = _find(
    "torch._C._profiler.gather_traceback", "capture a forward stack in 0.4 us"
)
symbolize: Callable[[list[Any]], list[list[dict[str, Any]]]] | None = _find(
    "torch._C._profiler.symbolize_tracebacks", "turn a captured stack into lines"
)
#: 60 ns; the number that the next node of this thread gets.
next_sequence: Callable[[], int] | None = _find(
    "torch.autograd._get_sequence_nr", "tell which nodes were made between two moments"
)
set_anomaly: Callable[[bool, bool], None] | None = _find(
    "torch._C.set_anomaly_enabled", "have a stack taken when a node is made"
)
is_anomaly: Callable[[], bool] | None = _find("torch._C.is_anomaly_enabled", "keep the script's own anomaly mode")
is_anomaly_nan: Callable[[], bool] | None = _find(
    "torch._C.is_anomaly_check_nan_enabled", "keep the script's own anomaly mode"
)
format_stack: Callable[[], list[str]] | None = _find(
    "torch.fx.traceback.format_stack", "the place where torch takes that stack"
)
dispatch_depth: Callable[[], int] = (
    _find("torch._C._len_torch_dispatch_stack", "keep adbg's own operators out of a script's dispatch mode") or _zero
)
function_depth: Callable[[], int] = (
    _find("torch._C._len_torch_function_stack", "keep adbg's own operators out of a script's function mode") or _zero
)
function_at: Callable[[int], Any] | None = _find(
    "torch._C._get_function_stack_at", "be told of the operators that the script calls"
)
default_device: Any = _find("torch._GLOBAL_DEVICE_CONTEXT", "stay above a default device among the script's modes")
_disable_modes: Callable[[], contextlib.AbstractContextManager[Any]] | None = _find(
    "torch.utils._python_dispatch._disable_current_modes", "keep adbg's own operators out of a script's dispatch mode"
)
no_function: Callable[[], contextlib.AbstractContextManager[Any]] | None = _find(
    "torch._C.DisableTorchFunction", "keep adbg's own operators out of a tensor subclass's __torch_function__"
)
_no_dispatch: Any = _find(
    "torch._C._DisableTorchDispatch", "keep adbg's own operators out of a tensor subclass's __torch_dispatch__"
)
_plain_dispatch: Any = _find("torch._C._disabled_torch_dispatch_impl", "recognise such a subclass")
_DEEP = 3  # containers and wrappers in one another that are looked into
_record_functions: Callable[[bool], None] | None = _find(
    "torch._C._autograd._enable_record_function", "keep adbg's own operators out of a script's profile"
)
_profiling: Callable[[], bool] | None = _find(
    "torch.autograd._profiler_enabled", "know that the script has a profiler on"
)
_is_wrapped: Callable[[Any], bool] | None = _find(
    "torch._C._functorch.is_functorch_wrapped_tensor", "read the value behind a func.grad / vmap wrapper"
)
_unwrap: Callable[[Any], Any] | None = _find(
    "torch._C._functorch.get_unwrapped", "read the value behind a func.grad / vmap wrapper"
)
guards_tls: Any = _find("torch._guards._TLS", "stay out of a graph while torch.compile traces it")
norms: Callable[[list[Any]], Sequence[Any]] | None = _find(
    "torch._foreach_norm", "look at all gradients before a step in one call"
)
has_any_global_hook: Any = _find(
    "torch.nn.modules.module._has_any_global_hook", "follow modules without torch.compile warning of it"
)
_mixin: Any = _find("torch.autograd.function._HookMixin", "put a hook on every node at a third of the price")
hook_mixin: Any = _mixin if "_register_hook" in vars(_mixin or object) else None
function_base: Any = _find("torch._C._FunctionBase", "recognise the node of an autograd.Function")
process_groups: Any = _find("torch.distributed.distributed_c10d._world", "know the process groups and their time-outs")
_sequence_number: Any = _find(
    "torch._C._distributed_c10d.ProcessGroup._get_sequence_number_for_group", "know when ranks are at the same place"
)

grad_mode: Callable[[], bool] = torch.is_grad_enabled
set_grad_mode: Callable[[bool], None] = torch._C._set_grad_enabled


def sequence_number() -> int | None:
    """Collectives of the default process group so far (1.2 us); None without a group, or where it does not count."""
    group = torch.distributed.group.WORLD if torch.distributed.is_available() else None
    if group is None or _sequence_number is None:
        return None
    try:
        return int(_sequence_number(group))
    except own(RuntimeError):  # a kind of group that does not number them
        return None


def tracing() -> bool:
    """True while torch.compile traces: hooks placed now would become part of the compiled program."""
    return getattr(guards_tls, "tracing_context", None) is not None or torch.compiler.is_compiling()


def traced_value(value: Any) -> bool:
    """A stand-in of a trace (FunctionalTensor, FakeTensor): it has no data."""
    return type(value).__name__ in ("FunctionalTensor", "FakeTensor", "ProxyTensor")


def unwrapped(value: Any) -> Any:
    """The tensor inside functorch wrappers, all batch elements included."""
    if _is_wrapped is not None and _unwrap is not None:
        while _is_wrapped(value):
            value = _unwrap(value)
    return value


def profiling() -> bool:
    """The script's profiler is on, on this thread; 0.2 us."""
    return _profiling is not None and _profiling()


@contextlib.contextmanager
def _unprofiled() -> Any:
    assert _record_functions is not None
    _record_functions(False)
    try:
        yield
    finally:
        _record_functions(True)


@contextlib.contextmanager
def unseen() -> Any:
    """Operators of adbg's own here: no dispatch or function mode of the script sees them, nor its profiler."""
    with contextlib.ExitStack() as stack:
        if _record_functions is not None and profiling():
            stack.enter_context(_unprofiled())
        if no_function is not None:
            stack.enter_context(no_function())
        if _disable_modes is not None and dispatch_depth():
            stack.enter_context(_disable_modes())
        yield


def out_of_sight() -> Any:
    """``unseen``, for less where nobody looks, as a rule: 0.8 us without a stack of contexts, not 3."""
    seen = no_function is None or dispatch_depth() or profiling()
    return unseen() if seen or no_function is None else no_function()


class undisturbed:  # a lower-case name, used in a ``with``
    """Compute something of adbg's own here: unseen, and no gradient recorded.

    No generator for the grad mode: where an interrupt comes as the block is entered, a generator would switch it back
    when it is freed, long after, in the script.
    """

    __slots__ = ("_recorded", "_unseen")

    def __enter__(self) -> None:
        self._recorded = torch.is_grad_enabled()
        self._unseen = out_of_sight()
        self._unseen.__enter__()
        set_grad_mode(False)

    def __exit__(self, *raised: Any) -> None:
        set_grad_mode(self._recorded)
        self._unseen.__exit__(*raised)


def attribute_grad_fn(tensor: Any) -> Any:
    """``tensor.grad_fn`` past a subclass's __torch_function__."""
    if type(tensor) is torch.Tensor or no_function is None:
        return tensor.grad_fn
    with no_function():
        return tensor.grad_fn


def sequence(node: Any) -> int | None:
    """Order of recording on the thread that ran the forward; None for an accumulate node (torch gives it 2**64 - 1)."""
    read = getattr(node, "_sequence_nr", None)
    if read is None:
        return None
    number = int(read())
    return None if number >= 1 << 63 else number


def input_metadata(node: Any) -> Any:
    """Shape, dtype and device of every incoming slot; () where this torch cannot tell."""
    return getattr(node, "_input_metadata", ())


def warning_line() -> tuple[dict[str, Any], str, int] | None:
    """(globals, file, line) of the Python line that calls the C++ engine.

    C++ warnings of a backward are attributed to the frame that called it. A frame of adbg's own in between would move
    them to another module and line, and a script's filters (``-W error::UserWarning:torch.autograd.graph``) would stop
    working.
    """
    function = getattr(torch.autograd.graph, "_engine_run_backward", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    try:
        with open(code.co_filename, encoding="utf-8") as source:
            lines = source.readlines()
    except own(OSError):
        return None
    for number in range(code.co_firstlineno, len(lines) + 1):
        if "_execution_engine.run_backward(" in lines[number - 1]:
            return vars(sys.modules[function.__module__]), code.co_filename, number
    return None


def unseen_here() -> contextlib.AbstractContextManager[Any]:
    """See ``Backend.unseen``."""
    return contextlib.nullcontext() if tracing() else out_of_sight()


@contextlib.contextmanager
def no_inductor() -> Iterator[None]:
    """symbolize_tracebacks asks ``hasattr(torch, "_inductor")`` for the lines of compiled code, so does the dump of the
    flight recorder, and torch answers by importing it: 823 modules and 0.7-1.1 s, in a script that compiles nothing. An
    empty attribute in its place meanwhile keeps it out.
    """
    if "torch._inductor" in sys.modules:
        yield
        return
    empty = types.SimpleNamespace()
    names = vars(torch)
    names.setdefault("_inductor", empty)
    try:
        yield
    finally:
        if names.get("_inductor") is empty:  # another thread may have imported the real one
            del names["_inductor"]


# ---- classes of tensors that handle their own operators


class _Reading:
    """While diagnosis watches, what a tensor of a class with a ``__torch_dispatch__`` of the program's holds stands for
    its values, its own memory or the tensors that it keeps: its code would see, and could refuse, every operator of
    adbg's. Whether all are zero, finite, or the same as before can be told so. Elsewhere a person has asked for the
    values, and the class gives them."""

    quietly = False


_reading = _Reading()


def read_quietly(on: bool) -> None:
    """See ``Backend.read_unseen``."""
    _reading.quietly = on and _no_dispatch is not None


def is_wrapper(value: Any) -> bool:
    """Whether a class of the program's handles what is done to it. torch's own kinds are known to adbg."""
    kind = type(value)
    if getattr(kind, "__torch_dispatch__", _plain_dispatch) is _plain_dispatch:
        return False
    home = getattr(kind, "__module__", "")
    return not (isinstance(home, str) and home.partition(".")[0] == "torch")


def is_silent(value: Any) -> bool:
    """To be read as ``parts_of`` says."""
    return _reading.quietly and is_wrapper(value)


def parts_of(value: Any) -> list[Any]:
    """Plain tensors that hold its numbers; those of its own shape where there are any."""
    with _no_dispatch():
        if _has_memory(value):
            return [value.detach()]
        found = list(_kept(vars(value).values(), _DEEP))
        shape = value.shape
        return [each for each in found if each.shape == shape] or found


def dense_of(value: Any) -> Any:
    """The same as one dense tensor; None where there is none."""
    parts = [each for each in parts_of(value) if each.layout is torch.strided and not each.is_quantized]
    if len(parts) > 1:
        return torch.cat([each.reshape(-1).to(torch.float64) for each in parts if not each.is_complex()])
    return parts[0] if parts else None


def _kept(values: Iterable[Any], deep: int) -> Iterator[Any]:
    for value in values:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            if is_wrapper(value) and not _has_memory(value):
                if deep:
                    yield from _kept(vars(value).values(), deep - 1)
            elif not value.is_meta:
                yield value.detach()
        elif deep and kind in (list, tuple, dict):
            yield from _kept(value.values() if kind is dict else value, deep - 1)


def _has_memory(value: Any) -> bool:
    try:
        return bool(value.data_ptr())
    except RuntimeError:
        return False
