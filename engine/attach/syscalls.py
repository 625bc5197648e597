"""The names of the system calls that threads are found in. Pure data."""

from __future__ import annotations

_X86_64 = {
    0: "read", 1: "write", 2: "open", 7: "poll", 9: "mmap", 11: "munmap", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 28: "madvise", 34: "pause", 35: "nanosleep",
    42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 60: "exit", 61: "wait4",
    65: "semop", 69: "msgsnd", 70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
    128: "rt_sigtimedwait", 130: "rt_sigsuspend", 202: "futex", 208: "io_getevents", 219: "restart_syscall",
    220: "semtimedop", 230: "clock_nanosleep", 231: "exit_group", 232: "epoll_wait", 243: "mq_timedreceive",
    247: "waitid", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 299: "recvmmsg",
    307: "sendmmsg", 318: "getrandom", 426: "io_uring_enter", 441: "epoll_pwait2", 449: "futex_waitv",
}  # fmt: skip
_GENERIC = {  # aarch64, riscv64, loongarch64
    4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write",
    65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync", 83: "fdatasync",
    93: "exit", 94: "exit_group", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
    124: "sched_yield", 128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 183: "mq_timedreceive",
    188: "msgrcv", 189: "msgsnd", 192: "semtimedop", 193: "semop", 202: "accept", 203: "connect", 206: "sendto",
    207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 215: "munmap", 222: "mmap", 233: "madvise", 242: "accept4",
    243: "recvmmsg", 260: "wait4", 269: "sendmmsg", 278: "getrandom", 426: "io_uring_enter", 441: "epoll_pwait2",
    449: "futex_waitv",
}  # fmt: skip
_TABLES = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC, "loongarch64": _GENERIC}

#: That return EINTR to the program when a debugger has held its thread, also where no signal handler exists
#: (signal(7), "Interruption of system calls and library functions by stop signals").
NOT_RESTARTED = frozenset(
    ("epoll_wait", "epoll_pwait", "epoll_pwait2", "semop", "semtimedop", "rt_sigtimedwait", "io_getevents")
)


def syscall_name(number: int, machine: str) -> str:
    """ "futex"; "system call 999" for one that no table here has. ``machine``: ``os.uname().machine``."""
    return _TABLES.get(machine, {}).get(number) or f"system call {number}"
