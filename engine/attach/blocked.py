"""What the main thread of a process is in, by the kernel's word."""

from __future__ import annotations

import os

from adbg.engine.attach.injector.x86_64 import X86_64
from adbg.engine.attach.proc import Proc

_NAMES = {"x86_64": {**X86_64.WAITS, X86_64.FUTEX: "futex"}}


def blocked_in(pid: int) -> str:
    """The name of the system call, "" while it runs or cannot be seen."""
    process = Proc(pid)
    try:
        call = process.call(pid)
        if call is None:
            return ""
        machine = os.uname().machine
        name = _NAMES.get(machine, {}).get(call.number)
        return name or process.waits_in(pid) or f"system call {call.number}"
    except (OSError, ValueError, IndexError):
        return ""
