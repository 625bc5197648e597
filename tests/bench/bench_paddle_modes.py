"""What a training step on Paddle is run under, by name: adbg's ways beside Paddle's own flags and levels."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import paddle
from bench_program import NEVER, Mode, recorded

from adbg.engine.agent import agent as agents
from adbg.engine.protocol import messages as p

LEVELS = (3, 4, 6)


def make_modes(agent: agents.Agent) -> dict[str, Mode]:
    """The modes; "plain" is with the agent detached."""
    session = agent.session

    @contextlib.contextmanager
    def attached(*breakpoints: str, stacks: bool = False, vlog: str = "") -> Iterator[None]:
        session.set_stacks(stacks)
        session.attach()
        requests = [p.BreakpointRequest(text, id=number) for number, text in enumerate(breakpoints, 1)]
        assert all(state.verified for state in session.set_breakpoints(requests))
        if vlog:
            session.change(lambda: agent.log_levels.set(vlog))
        try:
            yield
        finally:
            if vlog:
                session.change(lambda: agent.log_levels.set("off"))
            session.detach()

    @contextlib.contextmanager
    def recording() -> Iterator[None]:
        with recorded(session), attached():
            yield

    modes: dict[str, Mode] = {
        "plain": contextlib.nullcontext,
        "plain again": contextlib.nullcontext,
        "unarmed": attached,
        "breakpoint": lambda: attached(NEVER[0]),
        "stacks": lambda: attached(stacks=True),
        "line": lambda: attached(NEVER[1], stacks=True),
        "module": lambda: attached(NEVER[2], stacks=True),
        "nan watch": lambda: attached("nonfinite"),
        "everything": lambda: attached(*NEVER, "nonfinite", stacks=True),
        "record": recording,
        "check_nan_inf": lambda: flags(FLAGS_check_nan_inf=True),
        "csl3": lambda: flags(FLAGS_call_stack_level=3),
        "csl3, names": lambda: flags(FLAGS_call_stack_level=3, FLAGS_enable_unique_name=True),
    }
    for level in LEVELS:
        modes[f"vlog {level} adbg"] = lambda level=level: attached(vlog=str(level))  # type: ignore[misc]
        modes[f"vlog {level} file"] = lambda level=level: vlog_to_file(level)  # type: ignore[misc]
    return modes


@contextlib.contextmanager
def flags(**wanted: object) -> Iterator[None]:
    before = paddle.get_flags(list(wanted))
    paddle.set_flags(wanted)
    try:
        yield
    finally:
        paddle.set_flags(before)


@contextlib.contextmanager
def vlog_to_file(level: int) -> Iterator[None]:
    """As ``python train.py 2>FILE`` at this level."""
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        paddle.base.core.set_vlog_level(level)
        try:
            yield
        finally:
            paddle.base.core.set_vlog_level(0)
            os.dup2(saved, 2)
            os.close(saved)
