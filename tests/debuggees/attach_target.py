"""Waits or works in one way, again and again, until the file ``END`` is there; then prints what came of it, as JSON.

python attach_target.py KIND END
"""

import ctypes
import faulthandler
import hashlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading

kind, end = sys.argv[1:3]
if kind == "vectors":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy

    matrix = numpy.arange(1.0, 300 * 300 + 1).reshape(300, 300) ** 0.5
faulthandler.enable()  # gives the main thread a signal stack
libc = ctypes.CDLL(None, use_errno=True)
data = bytes(range(256)) * 256
lock = threading.Lock()
lock.acquire()
near, far = socket.socketpair()
near.settimeout(0.1)


def signal_state():
    stack, mask = ctypes.create_string_buffer(24), ctypes.create_string_buffer(128)
    libc.sigaltstack(None, stack)
    libc.pthread_sigmask(0, None, mask)
    return stack.raw.hex() + mask.raw.hex()


def tight():
    digest, x = hashlib.sha256(data), 1.0  # OpenSSL's uses the vector registers
    for i in range(3000):
        x = x * 1.0000001 + i % 7
    digest.update(repr(x).encode())
    return digest.hexdigest()


def recv():
    try:
        return near.recv(1).hex()
    except TimeoutError:
        return "timed out"


def sleep():  # of C, which gives up when it is interrupted
    return libc.nanosleep(struct.pack("qq", 0, 100_000_000), None), ctypes.get_errno()


def poll():
    return libc.poll(None, 0, 100), ctypes.get_errno()


def vectors():  # its sums are in vector registers all the time
    return hashlib.sha256((matrix @ matrix).tobytes()).hexdigest()


def held():  # in C, with the interpreter's lock
    return sum(range(15_000_000))


def held_long():
    return sum(range(80_000_000))


work = {
    "tight": tight,
    "recv": recv,
    "sleep": sleep,
    "poll": poll,
    "held": held,
    "held-long": held_long,
    "vectors": vectors,
    "lock": lambda: lock.acquire(timeout=0.1),
}[kind]
reader, writer = os.pipe2(os.O_NONBLOCK)
signal.set_wakeup_fd(writer)  # a byte for each that comes; Python's own handlers are called once for several
signal.signal(signal.SIGRTMIN, lambda *_: None)
seen, before = set(), signal_state()
print("ready", flush=True)
while not os.path.exists(end):
    seen.add(json.dumps(work()))
print(json.dumps({
    "seen": sorted(seen),
    "signals": len(os.read(reader, 1 << 16)) if select.select([reader], [], [], 0)[0] else 0,
    "same": signal_state() == before,
    "threads": len(os.listdir("/proc/self/task")),
    "main": sorted(name for name in globals() if name.startswith("_") or name == "space"),
}))  # fmt: skip
