"""Every message of the wire, as a dataclass in one registry; a module a topic. No behaviour here.

The protocol is the Debug Adapter Protocol (same envelope, same framing) plus ``adbg/*``. The agent in the
debuggee is the DAP *server*; a front end is the *client*. DAP fields keep their camelCase names, adbg's own
are snake_case. ``codec.py`` reads and writes these; ``tests/engine/protocol/schema.json`` is a committed snapshot of
them.

Order of a session: (agent dials out: event ``adbg/hello``) -> ``initialize`` -> ``setFunctionBreakpoints`` ... ->
``configurationDone`` (the script starts) -> events. A request that needs the paused point fails with
``NotStopped`` while the program runs. A request names its thread, or leaves ``threadId`` 0 for the one that stopped.
"""

from __future__ import annotations

from adbg.engine.protocol.messages.breakpoints import *
from adbg.engine.protocol.messages.collectives import *
from adbg.engine.protocol.messages.diagnosis import *
from adbg.engine.protocol.messages.digests import *
from adbg.engine.protocol.messages.graph import *
from adbg.engine.protocol.messages.info import *
from adbg.engine.protocol.messages.memory import *
from adbg.engine.protocol.messages.profile import *
from adbg.engine.protocol.messages.ranks import *
from adbg.engine.protocol.messages.registry import *
from adbg.engine.protocol.messages.running import *
from adbg.engine.protocol.messages.session import *
from adbg.engine.protocol.messages.threads import *
from adbg.engine.protocol.messages.values import *
