"""adbg: a terminal debugger for the backward pass.

``import adbg`` costs under 10 ms and imports nothing but the standard library: what it takes to stop is imported when
it is used.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # known to type checkers by name; importing typing would cost more than all the rest (3 ms)
if TYPE_CHECKING:
    from adbg.engine.agent.agent import Agent
    from adbg.engine.agent.capture_block import SubgraphCapture

__version__ = "0.1.0"
__all__ = ["__version__", "breakpoint", "capture_backward_subgraph", "listen"]

_said = False
_ROOT = os.path.dirname(os.path.abspath(__path__[0]))

# A checkout has engine/, tui/ and profiles/ beside this folder, an installed adbg has them inside: there this is one
# stat. Not by "engine" alone: a project that carries a copy of this folder may have an engine/ of its own.
if not os.path.exists(os.path.join(__path__[0], "engine")) and os.path.exists(
    os.path.join(_ROOT, "engine", "bootstrap", "sitecustomize.py")
):
    __path__.append(_ROOT)


def breakpoint(*_args: object, **_kwargs: object) -> None:
    """Stop at the calling line, with its locals and the graph that the tensors there have so far.

    Outside adbg it does nothing, and says so once on stderr. Under ``adbg run`` the built-in ``breakpoint()`` comes
    here (its arguments are ignored).
    """
    global _said
    agent = _agent()
    if agent is not None and agent.session.attached:
        agent.session.break_at(sys._getframe(1))
    elif not _said:
        _said = True
        why = "no front end is attached" if agent is not None else "this program does not run under adbg"
        print(f"adbg: breakpoint() does nothing: {why} (adbg run, or adbg.listen() and adbg attach)", file=sys.stderr)


def listen() -> None:
    """Open this process to ``adbg attach PID`` of the same user, over a private socket. Repeated calls are harmless."""
    from adbg.engine.agent.listener import listen as open_socket

    open_socket()


def capture_backward_subgraph(
    directory: str, grads: bool = False, *, name: str = "", limit: int = 1 << 30
) -> SubgraphCapture:
    """``with adbg.capture_backward_subgraph(DIR, grads=True):`` writes what a backward does of the block's operators.

    The nodes made while inside, their boundary and leaves are written by the first backward whose graph has them, in
    Paddle's formats: ``<time>_backward_graph.dot``, ``_ref_forward_graph.dot``, ``_call_stack.log``, and both graphs as
    SVG; with ``grads`` their gradients too, as they pass (``_grad_tensors.log``), up to ``limit`` bytes. ``name``: into
    a folder of that name in ``directory``. It works under adbg and without it; the framework must be imported before.
    """
    from adbg.engine.agent.capture_block import SubgraphCapture

    return SubgraphCapture(directory, grads, name, limit)


def _agent() -> Agent | None:
    module = sys.modules.get("adbg.engine.agent.agent")
    agent: Agent | None = module.current() if module is not None else None
    return agent
