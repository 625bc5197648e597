"""x86-64: the registers, the frame of a signal handler (the kernel's ``struct rt_sigframe``), the code that is run."""

from __future__ import annotations

import ctypes
import signal
import struct
from collections.abc import Sequence
from functools import cache

from adbg.engine.attach.injector.machine import Machine, State, Unsuitable
from adbg.engine.attach.injector.ptrace import PRSTATUS, Thread

_NAMES = (
    "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi",
    "orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs",
)  # fmt: skip
_LAYOUT = struct.Struct(f"<{len(_NAMES)}Q")
_IN_FRAME = (
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp",
    "rip", "eflags",
)  # fmt: skip
_ARGUMENTS = (
    "rdi", "rsi", "rdx", "rcx", "r8", "r9",
)  # fmt: skip
_CALL_ARGUMENTS = (
    "rdi", "rsi", "rdx", "r10", "r8", "r9",
)  # fmt: skip
_XSTATE = 0x202
_SHADOW_STACK = 0x204
_CONTEXT = 304  # bytes of ucontext, with a signal mask of 8
_INFO = 128
_SOFTWARE = 464  # where in the FXSAVE area the kernel notes what follows it
_MAGIC_1, _MAGIC_2 = 0x46505853, 0x46505845
_DIRECTION = 0x400
_NO = (1 << 64) - 1
# The kernel's numbers for "to be made again". Each comes with a system call that a stop has taken a thread out of.
_RESTART, _RESTART_AT = {-512, -513, -514}, -516
_EINTR = -4
_RESTART_SYSCALL = 219
#: They give EINTR after a stop instead of being made again (signal(7)): epoll_wait, epoll_pwait, semop, semtimedop,
#: rt_sigtimedwait, io_getevents, msgsnd, msgrcv, epoll_pwait2. None has changed anything when it does.
GIVE_UP = {232, 281, 65, 220, 128, 208, 69, 70, 441}


@cache
def _kernel_frame() -> tuple[int, int, int]:
    """(flags of the context, vector state's features, its size) as the kernel writes them for a thread that has not
    used what must be asked for (AMX): read from a signal that this process sends to itself."""
    seen: list[tuple[int, int, int]] = []

    def note(_signal: int, _info: int, context: int) -> None:
        flags = ctypes.c_uint64.from_address(context).value
        area = ctypes.c_uint64.from_address(context + 224).value
        magic, _, features, size = struct.unpack("<IIQI", ctypes.string_at(area + _SOFTWARE, 20))
        seen.append((flags, features, size) if magic == _MAGIC_1 else (flags, 3, 512))

    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(note)
    libc = ctypes.CDLL(None)
    action = struct.pack("<Q128siiQ", ctypes.cast(handler, ctypes.c_void_p).value or 0, b"", 4, 0, 0)
    old = ctypes.create_string_buffer(len(action))
    libc.sigaction(signal.SIGUSR2, action, old)
    libc["raise"](int(signal.SIGUSR2))
    libc.sigaction(signal.SIGUSR2, old, None)
    if not seen:
        raise Unsuitable("the kernel's frame of a signal handler could not be read")
    return seen[0]


class X86_64(Machine):
    MMAP, MUNMAP, SIGRETURN = 9, 11, 15
    FUTEX = 202
    WAITS = {
        0: "read", 7: "poll", 23: "select", 34: "pause", 35: "nanosleep", 43: "accept", 45: "recvfrom", 47: "recvmsg",
        61: "wait4", 65: "semop", 69: "msgsnd", 70: "msgrcv", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
        208: "io_getevents", 219: "restart_syscall", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait",
        247: "waitid", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 299: "recvmmsg",
        441: "epoll_pwait2",
    }  # fmt: skip
    RED_ZONE = 128
    CALL_AND_RETURN = bytes.fromhex("0f05c3")  # syscall; ret
    GO_HOME = bytes.fromhex("48c7c00f0000000f05")  # mov rax, 15; syscall
    HOME, PENDING, THREAD = 0x40, 0x80, 0x100
    # x86_64.s, assembled (a test does it again)
    CODE = bytes.fromhex(
        """
        488905c90f0000488b25ca0f0000b80f0000000f050f0b66662e0f1f84000000000066662e0f1f84000000000066662e
        0f1f8400000000000f1f8400000000005341544883ec08488d1d720f00004531e4b801000000b902000000f00fb10b75
        3548837b78007409ff53704889c7ff5378e8ca0000004189c448837b7800740cff53704889c7ff9380000000b8030000
        004429e089034489e0c74304000000004883c408415c5bc366662e0f1f84000000000066662e0f1f8400000000006690
        5341544883ec08488d1df20e0000b80e000000bf02000000488d732031d241ba080000000f05b8ba0000000f05894308
        ff93880000004889c7ff9390000000ff53604189c4b801000000b902000000f00fb10b7518e82600000085c0b8030000
        007908ff5358b80400000089034489e7ff536831c04883c408415c5bc30f1f00415441554883ec08ff53404885c07430
        4989c4488dbb00020000be010100004c89e24c89e1ff53484989c54c89e7ff53504d85ed740a4c89efff535031c0eb05
        b8ffffffff4883c408415d415cc3
        """
    )

    def state(self, thread: Thread, signals_wait: bool) -> State:
        if thread.read_registers(_SHADOW_STACK).strip(b"\0"):
            raise Unsuitable("it has a shadow stack, which adbg cannot write to")
        data = thread.registers(PRSTATUS)
        if len(data) != _LAYOUT.size:
            raise Unsuitable("it is a 32-bit thread")
        registers = _named(data)
        mask = thread.mask()
        sets = ((_XSTATE, thread.registers(_XSTATE)),)
        call, result = _signed(registers["orig_rax"]), _signed(registers["rax"])
        again = -1
        if call >= 0 and (result in _RESTART or (result == _EINTR and call in GIVE_UP and not signals_wait)):
            again = call
        elif call >= 0 and result == _RESTART_AT:
            again = _RESTART_SYSCALL
        arguments = tuple(registers[name] for name in _CALL_ARGUMENTS) if again >= 0 else ()
        kept = call if again >= 0 else -1
        return State(data, sets, mask, registers["rip"], registers["rsp"], kept, again, arguments)

    def frame(self, state: State, before: bytes) -> tuple[int, bytes]:
        registers = _named(state.registers)
        if state.call >= 0:  # the instruction before: syscall
            registers["rip"] -= 2
            registers["rax"] = state.call
            if state.call == _RESTART_SYSCALL and before[-7:-6] == b"\xb8":  # mov eax, NUMBER; syscall
                # What was held before: after a handler's end there is nothing to go on with, so it is made anew.
                registers["rax"] = int.from_bytes(before[-6:-2], "little")
        flags, features, size = _kernel_frame()
        area = state.sets[0][1]
        if int.from_bytes(area[512:520], "little") & ~features:  # it uses what must be asked for: all of it
            features, size = int.from_bytes(area[_SOFTWARE : _SOFTWARE + 8], "little"), len(area)
        software = struct.pack("<IIQI28x", _MAGIC_1, size + 4, features, size)
        vectors = area[:_SOFTWARE] + software + area[512:size] + struct.pack("<I", _MAGIC_2)
        vectors_at = (registers["rsp"] - self.RED_ZONE - len(vectors)) & ~63
        at = ((vectors_at - 8 - _CONTEXT - _INFO) & ~15) - 8
        # A signal stack of a mode that there is not: the kernel leaves the thread's own as it is.
        context = struct.pack("<QQQIIQ", flags, 0, 0, 0x40, 0, 0)
        context += struct.pack("<18Q", *(registers[name] for name in _IN_FRAME))
        context += struct.pack("<HHHH", registers["cs"], 0, 0, registers["ss"])
        context += struct.pack("<QQQQQ64xQ", 0, 0, state.mask, 0, vectors_at, state.mask)
        frame = bytes(8) + context + bytes(_INFO)
        return at, frame + bytes(vectors_at - at - len(frame)) + vectors

    def linked(self, frame: bytes, go_home: int) -> bytes:
        return struct.pack("<Q", go_home) + frame[8:]

    def home_stack(self, frame: int) -> int:
        return frame + 8

    def function_stack(self, top: int) -> int:
        return top - 8

    def enter(self, state: State, pc: int, stack: int, arguments: Sequence[int], back: int, call: int = -1) -> bytes:
        registers = _named(state.registers)
        names = _ARGUMENTS if call < 0 else _CALL_ARGUMENTS
        registers.update(zip(names, (value & _NO for value in arguments)))
        registers.update(rip=pc, rsp=stack, orig_rax=_NO, rax=max(call, 0), eflags=registers["eflags"] & ~_DIRECTION)
        return _packed(registers)

    def number(self, registers: bytes, thread: Thread) -> int:
        return _signed(_named(registers)["orig_rax"])

    def result(self, registers: bytes) -> int:
        return _signed(_named(registers)["rax"])

    def skip(self, thread: Thread, registers: bytes) -> None:
        thread.set_registers(PRSTATUS, registers)  # orig_rax says that no call is to be made

    def thread_pointer(self, state: State, thread: Thread) -> int:
        return _named(state.registers)["fs_base"]

    def finish(self, thread: Thread, state: State) -> None:
        registers = _named(state.registers)
        # The system call about to be made becomes the one that the thread was in, or none.
        registers["orig_rax"] = state.again & _NO
        for kind, content in state.sets:
            thread.set_registers(kind, content)
        thread.set_mask(state.mask)
        thread.set_registers(PRSTATUS, _packed(registers))


def _named(data: bytes) -> dict[str, int]:
    return dict(zip(_NAMES, _LAYOUT.unpack(data)))


def _packed(registers: dict[str, int]) -> bytes:
    return _LAYOUT.pack(*(registers[name] for name in _NAMES))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
