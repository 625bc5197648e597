"""Functions of a framework's that ours stand in for while somebody watches: the program calls ours, ours calls the
original, and what is seen is told. Runs on the program's threads.

A stand-in goes by the name and the file of the function that it stands for, so that what looks at the frames of a
program (compilers, warnings' stack levels) meets nothing new. It adds no exception, and takes its own frame out of the
tracebacks of those that pass. One call costs 0.4 us more.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from adbg.engine.backends.common.tracebacks import strip_own
from adbg.engine.outside import DISGUISED, own, suppress

#: (arguments with self first, keywords, the caller's frame) -> what ``After`` is handed; None: nothing to tell.
Before = Callable[[tuple[Any, ...], dict[str, Any], types.FrameType], Any]
#: (what ``Before`` returned, the result or None, the exception or None)
After = Callable[[Any, Any, "BaseException | None"], None]
#: (arguments with self first) -> what is called as the call has ended, where nothing else is to be done; None: ask
#: ``Before``.
Within = Callable[[tuple[Any, ...]], "Callable[[], None] | None"]


class StandIns:
    """What stands in for what. ``unseen``: whether a call is none of the program's (a compiler traces it)."""

    def __init__(self, unseen: Callable[[], bool]) -> None:
        self._unseen = unseen
        self._put: list[tuple[Any, str, Any, Any]] = []  # (owner, name, original, ours)
        self.codes: set[types.CodeType] = set()
        self.on = False

    def put(
        self, owner: Any, name: str, before: Before, after: After | None = None, within: Within | None = None
    ) -> None:
        """``owner``: a class or a module that has ``name`` itself; else nothing happens. ``within``: for calls of which
        there are many with nothing to tell; it raises nothing, runs no operator, and reads nothing of the program's
        classes."""
        original = vars(owner).get(name)
        if original is None:
            return
        plain = of_class(original) or original
        ours: Any = _stand_in(self, plain, before, after, within)
        self.codes.add(ours.__code__)
        DISGUISED.add(ours.__code__)
        if plain is not original:
            ours = classmethod(ours)
        self._put.append((owner, name, original, ours))
        setattr(owner, name, ours)
        self.on = True

    def aside(self, out: bool) -> None:
        """The originals back for a while (``out``), and ours again."""
        for owner, name, original, ours in self._put:
            if vars(owner).get(name) is (ours if out else original):
                setattr(owner, name, original if out else ours)

    def restore(self) -> None:
        """Where another tool wrapped ours meanwhile, ours stays below it and only passes on."""
        self.on = False
        for owner, name, original, ours in reversed(self._put):
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)
                DISGUISED.discard(getattr(ours, "__func__", ours).__code__)
        self._put = []

    def begins(self, before: Before, args: tuple[Any, ...], kwargs: dict[str, Any], frame: types.FrameType) -> Any:
        if not self.on or self._unseen():
            return None
        with suppress(Exception):  # an odd call of the program's: the framework says what is wrong with it
            return before(args, kwargs, frame)
        return None

    @staticmethod
    def ended(after: After, told: Any, result: Any, error: BaseException | None) -> None:
        with suppress(Exception):
            after(told, result, error)


def of_class(method: Any) -> Callable[..., Any] | None:
    """What a class method runs, given the class first; None for what is none. From torch 2.14 on ``Function.apply`` is
    one of C's."""
    if isinstance(method, classmethod):
        return method.__func__
    if isinstance(method, types.ClassMethodDescriptorType):
        bound = method.__get__

        def call(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return bound(None, kind)(*args, **kwargs)

        return functools.update_wrapper(call, method)
    return None


def _stand_in(stand_ins: StandIns, original: Any, before: Before, after: After | None, within: Within | None) -> Any:
    begins, ended, strip, codes, frame = stand_ins.begins, stand_ins.ended, strip_own, stand_ins.codes, sys._getframe

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            leave = within(args) if within is not None else None
            if leave is not None:
                try:
                    return original(*args, **kwargs)
                finally:
                    leave()
            told = begins(before, args, kwargs, frame(1))
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if told is not None and after is not None:
                    ended(after, told, None, error)
                raise
            if told is not None and after is not None:
                ended(after, told, result, None)
            return result
        except BaseException as error:  # a Ctrl-C comes between any two of these
            strip(error, codes)
            raise

    return disguised(call, original)


def disguised(call: Any, original: Any) -> Any:
    """``call`` under the name and the file of ``original``."""
    like = original
    while not isinstance(like, types.FunctionType) and hasattr(like, "__wrapped__"):
        like = like.__wrapped__
    theirs = getattr(like, "__code__", None)
    if theirs is not None:
        code = call.__code__.replace(
            co_filename=theirs.co_filename, co_firstlineno=theirs.co_firstlineno, co_name=theirs.co_name
        )
        call = types.FunctionType(code, like.__globals__, theirs.co_name, None, call.__closure__)
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__dict__"):
        if hasattr(original, name):
            setattr(call, name, getattr(original, name) if name != "__dict__" else dict(vars(original)))
    with suppress(Exception):  # what another tool put there may be no function
        known = _signature(original)
        if known is not None:
            call.__signature__ = known
    return call


@functools.lru_cache(256)
def _signature(original: Any) -> inspect.Signature | None:
    """What ``inspect.signature`` says of it; kept, for stand-ins come and go with the iterations that are sampled."""
    try:
        return inspect.signature(original)
    except own(TypeError, ValueError):  # of C++
        return None
