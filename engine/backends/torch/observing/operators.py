"""Every operator that the user's code calls on torch: a function mode, which sees calls as they are written.

``nn.Parameter(x)`` of what was computed is told as one: torch makes it behind the mode's back, and it cuts the graph.
So are ``from_numpy`` and ``frombuffer``, which no mode sees: what they make has memory of the program's.

torch takes a mode off its stack while it handles a call, and while an overridable function of Python runs
(``Tensor.backward``, ``F.cross_entropy``): what such a function calls is its own business, and not told.

The mode lies at the bottom of the stack, above a default device alone, which insists on being the last: a program that
leaves modes of its own, in whatever order, finds them on top. Where it is to go while torch has it aside, it stays
silent until the next step of an optimizer, or until it is wanted again. torch.compile guards on the stack of modes:
from the first ``torch.compile`` on there is no tap.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import overrides
from torch.optim.optimizer import register_optimizer_step_pre_hook

from adbg.engine.backends.base import Need, OperatorCall, Tap, Watcher
from adbg.engine.backends.common.observing.operands import tensors_in
from adbg.engine.backends.common.observing.user_lines import UserLines
from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.backends.torch import private
from adbg.engine.backends.torch.observing.stand_ins import TorchStandIns
from adbg.engine.backends.torch.observing.unseen import PlainBackward, RightLines
from adbg.engine.outside import own, suppress

Versions = tuple["int | None", ...]

_push_mode: Callable[[Any], None] = overrides._push_mode
_pop_mode: Callable[[], Any] = overrides._pop_mode

#: Attributes that give a tensor, or take one: they cut, alias or overwrite. All others are facts, and not told.
_ATTRIBUTES = frozenset({"data", "grad", "T", "mT", "H", "mH", "real", "imag"})
_SET = frozenset({"data", "grad", "requires_grad"})
#: Functions of torch that make a tensor over an array, and that no mode is told of.
_OVER_ARRAYS = ("from_numpy", "frombuffer")
#: Calls that ask for a fact, or that are no operator.
_FACTS = frozenset({
    "_record_function_enter_new", "_record_function_exit._RecordFunction", "__format__", "__hash__", "__len__",
    "__repr__", "__dir__", "_backward_hooks", "_is_view", "_set_grad_enabled",
    "backward", "data_ptr", "dim", "element_size", "get_device", "grad", "has_names", "is_complex", "is_contiguous",
    "is_floating_point", "is_inference", "is_nonzero", "is_same_size", "is_tensor", "ndimension", "nelement", "numel",
    "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "set_grad_enabled", "size", "storage",
    "storage_offset", "stride", "untyped_storage", "_typed_storage", "__reduce_ex__", "set_default_dtype",
})  # fmt: skip


class _Aside(threading.local):
    depth = 0  # calls that the mode handles on this thread now: torch has it off the stack meanwhile
    telling = False


class OperatorTap(Tap):
    need = Need.OPERATORS

    def __init__(self) -> None:
        self._lines = UserLines(torch.__path__[0])
        self._names: dict[Any, str] = {}
        self._aside = _Aside()
        self._mode: Any = None
        self._handle: Any = None
        self._compile: tuple[Any, Any] | None = None  # torch's, and what stands in for it
        self._parameter: tuple[Any, Any] | None = None  # the same of ``Parameter.__new__``
        self._asked: tuple[Any, Any] | None = None  # the same of ``torch.overrides.has_torch_function``
        self._arrays = TorchStandIns()
        self.watcher: Watcher | None = None
        self.problem = ""
        self._lines_told = RightLines(__name__, OperatorTap.handle.__code__, _Mode.__torch_function__.__code__)
        self._backward = PlainBackward(self._is_alone, self._put_aside, self._put_back)

    # ---- in and out

    def put_in(self, watcher: Watcher) -> None:
        if self.problem or private.no_function is None or private.function_at is None:
            return
        self.watcher = watcher
        if self._compile is None:
            self._stand_in()
        if self._asked is None:
            self._keep_fast_paths()
        if self._parameter is None:
            self._watch_parameters()
        if not self._arrays.on:
            for name in _OVER_ARRAYS:
                self._arrays.put(torch, name, functools.partial(self._over_array, name), self._made_over)
        self._lines_told.put_in()
        self._backward.put_in()
        if self._mode is None:
            self._mode = _Mode(self)
        if not self._aside.depth and self._mode not in _stack():
            _insert(self._mode)
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._step_begins)

    def take_out(self) -> None:
        self.watcher = None
        self._lines_told.take_out()
        self._backward.take_out()
        if self._compile is not None:
            theirs, ours = self._compile
            if torch.compile is ours:
                torch.compile = theirs
            self._compile = None
        if self._asked is not None:
            theirs, ours = self._asked
            if overrides.has_torch_function is ours:
                overrides.has_torch_function = theirs
            self._asked = None
        if self._parameter is not None:
            theirs, ours = self._parameter
            if vars(torch.nn.Parameter).get("__new__") is ours:
                torch.nn.Parameter.__new__ = theirs  # type: ignore[method-assign]
            self._parameter = None
        self._arrays.restore()
        self._leave()

    def _leave(self) -> None:
        """Off the stack of this thread, where it is there now."""
        if self._mode is None:
            return
        if self._mode in _stack():
            _remove(self._mode)
        elif self._aside.depth:
            return  # torch puts it back behind the call
        self._mode = None
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.watcher is None:
            self._leave()

    def _is_alone(self) -> bool:
        return self._mode is not None and not self._aside.depth and _stack() == [self._mode]

    def _put_aside(self) -> None:
        _remove(self._mode)
        self._aside.depth += 1

    def _put_back(self) -> None:
        """It may be wanted no more, or only since."""
        self._aside.depth -= 1
        if self.watcher is None:
            self._leave()
        elif self._mode is not None and self._mode not in _stack():
            _insert(self._mode)

    def _stand_in(self) -> None:
        theirs = torch.compile

        @functools.wraps(theirs)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self.problem = "operators are not seen where the program compiles (torch.compile)"
            self.take_out()
            try:
                return theirs(*args, **kwargs)
            except BaseException as error:
                strip_own(error)
                raise

        self._compile = theirs, compile
        torch.compile = compile

    def _keep_fast_paths(self) -> None:
        """TransformerEncoderLayer and MultiheadAttention compute with other kernels in evaluation, with other bits,
        where no mode is on: they ask by this name. It answers as if ours were not there."""
        theirs, plain = overrides.has_torch_function, torch.Tensor.__torch_function__

        def has_torch_function(relevant_args: Any) -> bool:
            if self._mode is None or private.function_depth() != 1 or self._mode not in _stack():
                return bool(theirs(relevant_args))
            kinds = {type(each) for each in relevant_args}
            own = [getattr(kind, "__torch_function__", None) for kind in kinds if kind is not torch.Tensor]
            return any(each not in (None, plain, torch._C._disabled_torch_function_impl) for each in own)

        self._asked = theirs, has_torch_function
        overrides.has_torch_function = has_torch_function  # type: ignore[assignment]

    def _watch_parameters(self) -> None:
        theirs = vars(torch.nn.Parameter)["__new__"]
        original = theirs.__func__

        @functools.wraps(original)
        def new(*args: Any, **kwargs: Any) -> Any:
            try:
                made = original(*args, **kwargs)
                self.parameter_made(args[1] if len(args) > 1 else kwargs.get("data"), made)
                return made
            except BaseException as error:
                strip_own(error)
                raise

        ours = staticmethod(new)
        self._parameter = theirs, ours
        torch.nn.Parameter.__new__ = ours  # type: ignore[method-assign]

    # ---- on the program's threads

    def parameter_made(self, data: Any, made: Any) -> None:
        """Of a tensor with a graph: of any other one nothing is cut."""
        watcher, aside = self.watcher, self._aside
        if watcher is None or watcher.deaf or aside.telling or aside.depth or type(data) is not torch.Tensor:
            return
        with suppress(Exception):
            if data.grad_fn is None or private.tracing() or self._mode not in _stack():
                return
            call = OperatorCall("Parameter", (data,), (_version(data),), (), (), private.grad_mode())
            call.arguments = (data,)
            self._tell(watcher, call, made)

    def _over_array(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        watcher, aside = self.watcher, self._aside
        if watcher is None or watcher.deaf or aside.telling or aside.depth or self._mode not in _stack():
            return None
        return OperatorCall(name, (), (), (), self._lines(frame), private.grad_mode(), False, args, kwargs)

    def _made_over(self, call: Any, made: Any, error: BaseException | None) -> None:
        watcher = self.watcher
        if watcher is None:
            return
        self._aside.telling = True
        try:
            call.results, call.error = tuple(tensors_in(torch.Tensor, (made,))), error
            call.in_backward = private.task_id() != -1
            watcher.operator(call)
        finally:
            self._aside.telling = False

    def name_of(self, function: Any) -> str:
        """ "" for what is not told."""
        try:
            return self._names[function]
        except own(KeyError):
            found = self._names[function] = _name(function)
            return found
        except own(TypeError):  # not hashable
            return _name(function)

    def handle(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watcher, aside = self.watcher, self._aside
        told_of = watcher is not None and not watcher.deaf and not aside.telling
        name = ""
        if told_of:
            with suppress(Exception):  # a function of the program's may have a name or a hash that raises
                name = self.name_of(function)
        aside.depth += 1
        try:
            if not name or watcher is None or private.tracing():
                return function(*args, **kwargs)
            given = self._given(args, kwargs)
            if given is None:
                return function(*args, **kwargs)
            operands, versions = given
            grad_mode = private.grad_mode()
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                self._tell(
                    watcher, OperatorCall(name, operands, versions, (), (), grad_mode, False, args, kwargs, error)
                )
                raise
            self._tell(watcher, OperatorCall(name, operands, versions, (), (), grad_mode, False, args, kwargs), result)
            return result
        finally:
            aside.depth -= 1

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Versions] | None:
        """(operands, their versions) as they are before the call; None where they cannot be read. A class of the
        program's may refuse every attribute that it does not know: its own functions are not asked."""
        hidden = private.no_function
        assert hidden is not None
        with suppress(Exception), hidden():
            operands = tensors_in(torch.Tensor, args)
            if kwargs:
                operands += tensors_in(torch.Tensor, kwargs.values())
            return tuple(operands), tuple([_version(each) for each in operands])
        return None

    def _tell(self, watcher: Watcher, call: OperatorCall, result: Any = None) -> None:
        hidden = private.no_function
        assert hidden is not None
        self._aside.telling = True
        try:
            with suppress(Exception), hidden():
                call.in_backward = private.task_id() != -1
                call.results = tuple(tensors_in(torch.Tensor, (result,)))
                _leave_out(call)
                call.lines = self._lines(sys._getframe(3))
                watcher.operator(call)
        finally:
            self._aside.telling = False


class _Mode(overrides.TorchFunctionMode):
    def __init__(self, tap: OperatorTap) -> None:
        self._tap = tap

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._tap.handle(func, args, kwargs or {})
        except BaseException as error:
            strip_own(error)
            raise


def _stack() -> list[Any]:
    assert private.function_at is not None
    return [private.function_at(place) for place in range(private.function_depth())]


def _remove(mode: Any) -> None:
    above = []
    while (top := _pop_mode()) is not mode:
        above.append(top)
    for each in reversed(above):
        _push_mode(each)


def _insert(mode: Any) -> None:
    """At the bottom, or above the default device there (``with torch.device(…)`` is as any other mode)."""
    default = getattr(private.default_device, "device_context", None)
    above = [_pop_mode() for _ in range(private.function_depth())]
    if above and above[-1] is default:
        _push_mode(above.pop())
    _push_mode(mode)
    for each in reversed(above):
        _push_mode(each)


def _leave_out(call: OperatorCall) -> None:
    """Tensors that torch lets nobody ask about: a view made under no_grad whose base was written to since raises at
    ``is_leaf`` (nn.Embedding makes one where it has a padding_idx)."""
    if not all(_sound(each) for each in call.results):
        call.results = tuple([each for each in call.results if _sound(each)])
    sound = [_sound(each) for each in call.operands]
    if not all(sound):
        call.versions = tuple([version for version, good in zip(call.versions, sound, strict=True) if good])
        call.operands = tuple([each for each, good in zip(call.operands, sound, strict=True) if good])


def _sound(value: Any) -> bool:
    try:
        return value.is_leaf is not None
    except RuntimeError:
        return False


def _version(value: Any) -> int | None:
    try:
        return int(value._version)
    except RuntimeError:  # of inference mode, or inside a transformation
        return None


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(function, "__self__", None), "__name__", "")
        if name == "__get__":
            return attribute if attribute in _ATTRIBUTES else ""
        return f"set_{attribute}" if attribute in _SET else ""
    return "" if name in _FACTS else name
