"""The answers at a stop: a registry from command to function over one ``PausedPoint``.

Everything here runs on the parked thread, called by the session; no thread, no socket, no framework. One ``Answers``
lives from a stop until the program continues, and with it the ids of its frames and the references of its variables.
While the program runs, ``stack.running_stack`` and ``tables.info`` answer on "adbg-reader".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adbg.engine.errors import AdbgError, BackendError, ProtocolError
from adbg.engine.inspect.attributes import attributes
from adbg.engine.inspect.context import BreakpointsOf, StopContext
from adbg.engine.inspect.digest import bytes_at, digest_at
from adbg.engine.inspect.evaluate import evaluate, set_expression, value_at
from adbg.engine.inspect.graph import find_node, gradient_path, graph_page
from adbg.engine.inspect.memory.alive import alive
from adbg.engine.inspect.node import node_body
from adbg.engine.inspect.stack import scopes, set_variable, stack_trace, variables
from adbg.engine.inspect.tables import info
from adbg.engine.inspect.tensor import tensor_view
from adbg.engine.inspect.variables import References
from adbg.engine.outside import own
from adbg.engine.protocol import messages as protocol
from adbg.engine.session.session import Session
from adbg.engine.session.stop_point import PausedPoint


class Answers:
    """Answers of one stop.

    Args:
        point: where the thread is parked. Edits replace entries of its ``grad_outputs`` / ``grad_inputs`` and set
            ``edited``.
        session: the one that stopped; the tables of ``adbg/info`` read it.
        breakpoints: (graph, keys of a page) -> ids of the breakpoints at these nodes.
    """

    def __init__(self, point: PausedPoint, session: Session, breakpoints: BreakpointsOf | None = None) -> None:
        self.point = point
        self.session = session
        self.stop = StopContext(point, breakpoints)
        self.references = References(self.stop)

    @staticmethod
    def commands() -> frozenset[str]:
        """The commands that ``dispatch`` answers."""
        return frozenset(_ANSWERS)

    def dispatch(self, command: str, arguments: Any) -> Any:
        """The response body for ``arguments`` (the dataclass that ``protocol.REQUESTS`` has for ``command``).

        Raises:
            AdbgError: with what happened, why, and what next. Nothing else leaves here but KeyboardInterrupt.
        """
        answer = _ANSWERS.get(command)
        if answer is None:
            raise ProtocolError(f"no answer to {command!r} at a stop")
        try:
            return answer(self, arguments)
        except AdbgError:
            raise
        except own(Exception) as error:
            name = self.point.backend.name if self.point.backend is not None else "adbg"
            text = str(error).strip().splitlines()
            raise BackendError(
                f"{name} failed while answering {command}: {type(error).__name__}: {text[0] if text else ''}",
                "the program is unharmed and still stopped here",
            ) from error

    def value(self, expression: str) -> Any:
        """The value of ``expression`` at the innermost live frame (for watches of the session). Raises CommandError."""
        return value_at(self.stop, expression)


_ANSWERS: dict[str, Callable[[Answers, Any], Any]] = {
    "stackTrace": lambda a, request: stack_trace(a.stop, request),
    "scopes": lambda a, request: scopes(a.stop, a.references, request),
    "variables": lambda a, request: variables(a.references, request),
    "setVariable": lambda a, request: set_variable(a.stop, a.references, request),
    "evaluate": lambda a, request: evaluate(a.stop, a.references, request),
    "setExpression": lambda a, request: set_expression(a.stop, request),
    "adbg/attributes": lambda a, request: attributes(a.stop, request),
    "adbg/graph": lambda a, request: graph_page(a.stop, request),
    "adbg/find": lambda a, request: find_node(a.stop, request),
    "adbg/path": lambda a, request: gradient_path(a.stop, request),
    "adbg/node": lambda a, request: node_body(a.stop, request),
    "adbg/tensor": lambda a, request: tensor_view(a.stop, request),
    "adbg/digest": lambda a, request: digest_at(a.session, a.stop, request),
    "adbg/bytes": lambda a, request: bytes_at(a.session, request),
    "adbg/alive": lambda a, request: alive(a.session, a.stop, request),
    "adbg/info": lambda a, request: info(a.session, request.what, a.stop),
}
COMMANDS = {command: protocol.REQUESTS[command] for command in _ANSWERS}
