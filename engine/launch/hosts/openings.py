"""How a session is open to processes of other hosts: its named folder, its port. Runs in the front end."""

from __future__ import annotations

import os
from dataclasses import replace

from adbg.engine.launch.hosts.tunnel import Door, parse_address
from adbg.engine.protocol.rendezvous import SessionConfig


class Openings:
    """``folder``: where the session's socket and session.json lie by the user's wish, "" for a new folder. ``listen``:
    "HOST:PORT" to open, "" for no port."""

    def __init__(self, folder: str = "", listen: str = "") -> None:
        self.folder = folder
        self.listen = listen
        self._door: Door | None = None
        self._socket = ""

    def opened(self, config: SessionConfig) -> SessionConfig:
        """``config`` with the port, when one is asked for. It stays open when the program is started again.

        Raises:
            AdbgError: the port cannot be opened.
        """
        self._socket = config.socket
        if not self.listen:
            return config
        host, port = parse_address(self.listen)
        if self._door is None:
            self._door = Door((host, port), config.socket, config.token)
        self._door.path = config.socket
        name = os.uname().nodename if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        return replace(config, address=f"{name}:{self._door.port}", fingerprint=self._door.fingerprint)

    @property
    def joining(self) -> str:
        """How processes of other hosts get in, in one line; "" where it was not asked for."""
        if not self._socket or not (self.folder or self.listen):
            return ""
        file = os.path.join(os.path.dirname(self._socket), "session.json")
        by = f"; port {self._door.port} is open (TLS, and the token)" if self._door is not None else ""
        return f"`adbg join session.json -- COMMAND` there, with a copy of {file}{by}"

    def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.close()
