"""One front end, as the agent sees it: its connection, its rights, and the envelope of DAP messages.

``respond``, ``refuse`` and ``event`` may be called from any thread, never block and never raise.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any

from adbg.engine.agent.connection import Connection, Later, Message
from adbg.engine.errors import (
    AdbgError,
    BackendError,
    ProtocolError,
)
from adbg.engine.flag import Flag
from adbg.engine.protocol import codec as wire
from adbg.engine.protocol.messages import MAX_MESSAGE

_DAP_EVENTS = ("initialized", "stopped", "continued", "output", "breakpoint", "terminated")


class Client:
    """``on_request(client, message)`` runs on "adbg-reader"; ``on_gone(client)`` once, when the connection is over."""

    def __init__(
        self,
        sock: socket.socket,
        on_request: Callable[[Client, Message], None],
        on_gone: Callable[[Client], None],
    ) -> None:
        self.initialized = False
        self.configured = False
        self.over = Flag()  # the connection is gone
        self.adbg = False  # it announced that it knows the adbg/* events
        self.connection = Connection(
            sock, lambda message: on_request(self, message), self._unreadable, lambda: self._gone(on_gone)
        )
        self._numbers = itertools.count(1)

    def _gone(self, tell: Callable[[Client], None]) -> None:
        try:
            tell(self)
        finally:
            self.over.set()

    def _unreadable(self, error: ProtocolError) -> None:
        self.refuse({}, error)

    def respond(self, request: Message, body: Any) -> None:
        """``body``: the dataclass of the response."""
        try:
            data = wire.encode({**self._envelope(request, True), "body": wire.to_json(body)})
        except (AdbgError, ValueError, TypeError, RecursionError) as error:
            self.refuse(request, BackendError(f"the answer cannot be sent: {error}"))
            return
        if len(data) > MAX_MESSAGE:
            text = f"the answer has {len(data)} bytes, over the limit of {MAX_MESSAGE}"
            self.refuse(request, ProtocolError(text, "ask for less"))
            return
        self.connection.send(data)

    def refuse(self, request: Message, error: BaseException) -> None:
        """Answer with an error."""
        if isinstance(error, AdbgError):
            message, hint = error.message, error.hint
            number = error.ID
        else:
            message, hint = f"adbg failed to answer: {type(error).__name__}: {error}", "this is a defect of adbg"
            number = 99
        body = {"error": {"id": number, "format": message, "hint": hint}}
        self.connection.send(wire.encode({**self._envelope(request, False), "message": message, "body": body}))

    def _envelope(self, request: Message, success: bool) -> Message:
        seq, command = request.get("seq"), request.get("command")
        return {
            "seq": next(self._numbers),
            "type": "response",
            "request_seq": seq if isinstance(seq, int) else 0,
            "success": success,
            "command": command if isinstance(command, str) else "",
        }

    def event(self, body: Any, droppable: bool = False) -> None:
        """Send an event, if this client knows its kind."""
        if self.knows(body):
            self.connection.send(self.event_message(body), droppable)

    def event_later(self, gather: Callable[[], Callable[[], Sequence[Any]]], calm: float = 0.0) -> None:
        """Send events soon, in few batches. ``gather`` returns what takes them: ``Connection.send_later``."""

        def later() -> Later:
            take = gather()
            return lambda: [self.event_message(body) for body in take() if self.knows(body)]

        self.connection.send_later(later, calm)

    def knows(self, body: Any) -> bool:
        return self.adbg or body.EVENT in _DAP_EVENTS or not self.initialized

    def event_message(self, body: Any) -> Message:
        return {"seq": next(self._numbers), "type": "event", "event": body.EVENT, "body": body}
