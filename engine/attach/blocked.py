"""What the main thread of a process is in, by the kernel's word."""

from __future__ import annotations

import os

from adbg.engine.attach.syscalls import syscall_name
from adbg.engine.proc import Proc

# A call with a time-out that a stop has interrupted goes on under another name; the kernel's function tells the first.
_RESUMED = "restart_syscall"
_WAITS = {"nanosleep": "clock_nanosleep", "poll": "poll", "futex": "futex", "select": "select"}


def blocked_in(pid: int) -> str:
    """The name of the system call, "" while it runs or cannot be seen."""
    process = Proc(pid)
    try:
        call = process.call(pid)
        if call is None:
            return ""
        name = syscall_name(call.number, os.uname().machine) if call.number >= 0 else "a page fault"
        if name == _RESUMED:
            waits = process.waits_in(pid)
            name = next((name for part, name in _WAITS.items() if part in waits), waits or name)
        return name
    except (OSError, ValueError, IndexError):
        return ""
