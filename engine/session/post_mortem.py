"""An exception that nothing caught: the program stops once more before it ends, with the frames that it came through.

Python tells of one without being asked: it keeps it in ``sys.last_value`` before it prints the traceback, and after
that calls what was registered with ``atexit``. So ``sys.excepthook`` stays the program's own. Only of the main thread;
what a launcher of workers catches (``mp.spawn``) is caught.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from adbg.engine.outside import own
from adbg.engine.python.expressions import evaluate
from adbg.engine.python.namespaces import Namespace
from adbg.engine.python.user_code import failed_frame
from adbg.engine.session.breakpoints.table import HitEvent
from adbg.engine.session.stop_description import point_at_line
from adbg.engine.types import Phase, StopReason

if TYPE_CHECKING:
    from adbg.engine.backends.base import Backend
    from adbg.engine.session.session import Session


def stop_at_uncaught(session: Session, error: BaseException | None) -> None:
    """As the program ends: stop where the ``error`` that ends it was raised, if there is one, and it was not shown as
    an error of a backward."""
    if error is None or _was_shown(session, error):
        return
    frame = failed_frame(error) or _innermost(error)
    if frame is not None and session.attached and not session.turn.mine():
        session.turn.take(_stop, session, error, frame)


def _stop(session: Session, error: BaseException, frame: types.FrameType) -> None:
    def condition(text: str) -> Any:
        return evaluate(text, Namespace(frame))

    hits = [hit for hit in session.check(HitEvent(Phase.ERROR, 0), condition) if not hit.trace]
    if not hits or not session.attached:
        return
    point = point_at_line(frame, session.backends, None, None, session.rank, session.problems.defect)
    ids = tuple(hit.id for hit in hits if hit.id)
    text = _told(session, error)
    point.stop = dataclasses.replace(point.stop, reason=StopReason.ERROR, breakpoints=ids, message=text)
    point.error = error
    session.park(point, None)


def error_text(error: BaseException | None) -> str:
    """ "ValueError: x"; "" for none. An exception may raise where its text is asked for."""
    if error is None:
        return ""
    try:
        return f"{type(error).__name__}: {error}"
    except own(Exception):
        return f"{type(error).__name__} (its __str__ raises)"


def named(error: BaseException, backend: Backend) -> tuple[int, type, str]:
    """An exception, told from others without keeping it alive: its frames hold tensors, and its address is used again.
    Of its text, in the words of the framework (Paddle's own changes on its way), the beginning."""
    try:
        return id(error), type(error), backend.error_text(error)[:60]
    except own(Exception):
        return id(error), type(error), ""


class Raised:
    """Exceptions that left a backward. None is kept alive for this: an address with type and text names one well
    enough among those of one iteration."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int, type, str]] = []

    def again(self, error: BaseException, iteration: int) -> bool:
        """Whether ``error``, or one it was raised from, left an inner call before. It is known from now on."""
        seen = False
        link: BaseException | None = error
        for _ in range(20):
            if link is None:
                break
            seen = seen or (iteration, id(link), type(link), str(link)) in self._known
            link = link.__cause__ or link.__context__
        self._known.append((iteration, id(error), type(error), str(error)))
        del self._known[:-100]
        return seen

    def clear(self) -> None:
        """The outermost call ended."""
        self._known.clear()


def _was_shown(session: Session, error: BaseException) -> bool:
    return any(named(link, backend) in session.shown for backend in session.backends for link in _chain(error))


def _told(session: Session, error: BaseException) -> str:
    """In the words of the framework that it may have come from."""
    try:
        return session.backends[0].error_text(error) if session.backends else error_text(error)
    except own(Exception):
        return error_text(error)


def uncaught() -> BaseException | None:
    """The exception that ends the program."""
    return _out_of_main(Exception)


def interrupted() -> bool:
    """Ctrl-C ends the program: SIGINT, which Python turns into an exception."""
    return _out_of_main(KeyboardInterrupt) is not None


def _out_of_main(kind: type[BaseException]) -> BaseException | None:
    """What ends the program, of that ``kind``. An interpreter inside the program (``code.interact``) leaves its own
    there: those did not come out of the main module."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if not isinstance(error, kind) or error.__traceback__ is None:
        return None
    if getattr(sys, "last_traceback", None) is not error.__traceback__:
        return None  # put there by the program, for ``pdb.pm()``
    main = sys.modules.get("__main__")
    trace: types.TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == "runpy":  # python -m
        trace = trace.tb_next
    return error if trace is not None and main is not None and trace.tb_frame.f_globals is main.__dict__ else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(20):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _innermost(error: BaseException) -> types.FrameType | None:
    trace, frame = error.__traceback__, None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    return frame
