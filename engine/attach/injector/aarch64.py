"""aarch64. **Written from the ABI documents and the kernel's sources; never run.** ``examine`` says so and refuses,
unless it is told to try.

The kernel has wound an interrupted system call back before a tracer sees it: the thread stands at the instruction that
makes it, so home is simply where it was. A relative time-out then begins anew.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from adbg.engine.attach.injector.machine import Machine, State, Unsuitable
from adbg.engine.attach.injector.ptrace import PRSTATUS, Thread

_LAYOUT = struct.Struct("<34Q")  # x0 to x30, sp, pc, pstate
_SP, _PC, _PSTATE = 31, 32, 33
_FLOATS, _TLS, _CALL, _SVE, _STREAMING, _ZA, _GUARDED_STACK = 2, 0x401, 0x404, 0x405, 0x40B, 0x40C, 0x410
_INFO = 128
_CONTEXT = 176  # of ucontext before its registers: flags, link, stack, mask, 1024 bits for longer masks, to 16 bytes
_MACHINE = 288  # sigcontext before what follows it: fault address, registers, to 16 bytes
_RESERVED = 4096
_FPSIMD, _FPSIMD_SIZE = 0x46508001, 528
_BRANCH_TYPE = 0xC00
_NO = (1 << 64) - 1


class AArch64(Machine):
    MMAP, MUNMAP, SIGRETURN = 222, 215, 139
    FUTEX = 98
    WAITS = {
        4: "io_getevents", 22: "epoll_pwait", 63: "read", 72: "pselect6", 73: "ppoll", 95: "waitid", 101: "nanosleep",
        115: "clock_nanosleep", 128: "restart_syscall", 133: "rt_sigsuspend", 137: "rt_sigtimedwait", 188: "msgrcv",
        189: "msgsnd", 192: "semtimedop", 193: "semop", 202: "accept", 207: "recvfrom", 212: "recvmsg", 242: "accept4",
        243: "recvmmsg", 260: "wait4", 441: "epoll_pwait2",
    }  # fmt: skip
    RED_ZONE = 128  # none is asked for
    CALL_AND_RETURN = bytes.fromhex("010000d4c0035fd6")  # svc 0; ret
    GO_HOME = bytes.fromhex("681180d2010000d4")  # mov x8, 139; svc 0: in the kernel's vdso
    HOME, PENDING, THREAD = 0x40, 0x80, 0x100
    # aarch64.s, assembled (a test does it again)
    CODE = bytes.fromhex(
        """
        097e0010200900f9c97d0010290d40f93f010091681180d2010000d4fbffff171f2003d51f2003d51f2003d51f2003d5
        1f2003d51f2003d51f2003d51f2003d5fd7bbea9f35301a9fd030091b37b0010140080524b00009440020034693e40f9
        a90000b4693a40f920013fd6693e40f920013fd653000094f403002a694240f9a90000b4693a40f920013fd6694240f9
        20013fd6690080522901144b69fe9f88e003142abf3b03d57f0600b9f35341a9fd7bc2a8c0035fd61f2003d51f2003d5
        fd7bbea9f35301a9fd030091b3770010400080d261820091020080d2030180d2e81080d2010000d4481680d2010000d4
        600a00b9694640f920013fd6694a40f920013fd6693240f920013fd6f403002a1c000094000100342a00009469008052
        8000f836692e40f920013fd68900805269fe9f88e003142a693640f920013fd6000080d2f35341a9fd7bc2a8c0035fd6
        1f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d51f2003d5
        69fe5f883f050071c10000544900805269fe0a886affff3520008052c0035fd65f3f03d500008052c0035fd61f2003d5
        1f2003d51f2003d51f2003d51f2003d5fd7bbea9f45701a9fd030091692240f920013fd6400200b4f40300aa60020891
        21208052e20314aae30314aa692640f920013fd6f50300aae00314aa692a40f920013fd6d50000b4e00315aa692a40f9
        20013fd6000080520200001400008012f45741a9fd7bc2a8c0035fd6
        """
    )

    def state(self, thread: Thread, signals_wait: bool) -> State:
        for kind, name in ((_SVE, "SVE"), (_STREAMING, "SME"), (_ZA, "SME")):
            if _in_use(thread, kind):
                raise Unsuitable(f"it uses {name}, for which adbg writes no frame")
        if thread.read_registers(_GUARDED_STACK).strip(b"\0"):
            raise Unsuitable("it has a guarded control stack")
        data = thread.registers(PRSTATUS)
        if len(data) != _LAYOUT.size:
            raise Unsuitable("it is a 32-bit thread")
        registers = _LAYOUT.unpack(data)
        pc = registers[_PC]
        call = registers[8] if thread.word(pc) & 0xFFFFFFFF == 0xD4000001 else -1
        arguments = registers[:6] if call >= 0 else ()
        sets = ((_FLOATS, thread.registers(_FLOATS)),)
        return State(data, sets, thread.mask(), pc, registers[_SP], call, call, arguments)

    def frame(self, state: State, before: bytes) -> tuple[int, bytes]:
        at = (state.stack - self.RED_ZONE - _INFO - _CONTEXT - _MACHINE - _RESERVED) & ~15
        # A signal stack of a mode that there is not: the kernel leaves the thread's own as it is.
        context = struct.pack("<QQQIIQQ", 0, 0, 0, 0x40, 0, 0, state.mask).ljust(_CONTEXT, b"\0")
        machine = (struct.pack("<Q", 0) + state.registers).ljust(_MACHINE, b"\0")
        floats = state.sets[0][1]
        vectors, status = floats[:512], floats[512:520]
        reserved = struct.pack("<II", _FPSIMD, _FPSIMD_SIZE) + status + vectors
        return at, bytes(_INFO) + context + machine + reserved.ljust(_RESERVED, b"\0")

    def linked(self, frame: bytes, go_home: int) -> bytes:
        return frame  # the return address is in x30

    def home_stack(self, frame: int) -> int:
        return frame

    def function_stack(self, top: int) -> int:
        return top

    def enter(self, state: State, pc: int, stack: int, arguments: Sequence[int], back: int, call: int = -1) -> bytes:
        registers = list(_LAYOUT.unpack(state.registers))
        registers[: len(arguments)] = [value & _NO for value in arguments]
        if call >= 0:
            registers[8] = call
        registers[30], registers[_SP], registers[_PC] = back, stack, pc
        registers[_PSTATE] &= ~_BRANCH_TYPE
        return _LAYOUT.pack(*registers)

    def skip(self, thread: Thread, registers: bytes) -> None:
        thread.set_registers(_CALL, struct.pack("<i", -1))  # killed here, the code makes the call again
        thread.set_registers(PRSTATUS, registers)

    def thread_pointer(self, state: State, thread: Thread) -> int:
        return int.from_bytes(thread.registers(_TLS)[:8], "little")

    def number(self, registers: bytes, thread: Thread) -> int:
        return int.from_bytes(thread.registers(_CALL)[:4], "little", signed=True)

    def result(self, registers: bytes) -> int:
        return int.from_bytes(registers[:8], "little", signed=True)

    def finish(self, thread: Thread, state: State) -> None:
        """The call does it all."""


def _in_use(thread: Thread, kind: int) -> bool:
    """Whether a register set of SVE or SME holds something that the plain one does not."""
    data = thread.read_registers(kind)
    if kind == _ZA:
        return len(data) > 16
    return len(data) >= 16 and bool(int.from_bytes(data[12:14], "little") & 1)
