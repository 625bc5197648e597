"""Hangs in the way that the first argument names. SIGUSR1 has Python itself write its stacks into the second one."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time


class Config:
    def __init__(self):
        self.rates = [0.1, 0.01]
        self.name = "base"

    def __repr__(self):
        os._exit(99)  # nobody but the program may run its code

    @property
    def secret(self):
        os._exit(98)


def deadlock():
    first, second = threading.Lock(), threading.Lock()
    config = Config()

    def other(step):
        with second:
            both.wait()
            first.acquire()  # @other

    both = threading.Barrier(2)
    threading.Thread(target=other, args=(7,), name="other", daemon=True).start()
    with first:
        both.wait()
        say("hangs")
        second.acquire()
    return config


def gil():
    def helper():
        while True:
            time.sleep(0.01)

    threading.Thread(target=helper, name="helper", daemon=True).start()
    say("hangs")
    sum(range(10**12))  # @gil


def epoll():
    """A C library that waits, and knows no EINTR."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.epoll_create1(0)
    events = ctypes.create_string_buffer(120)
    say("hangs")
    answer = libc.epoll_wait(made, events, 1, 600_000)
    say(f"epoll_wait {answer} errno {ctypes.get_errno()}")


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    stacks = open(sys.argv[2], "w")  # noqa: SIM115  (the handler writes to it)
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    {"deadlock": deadlock, "gil": gil, "epoll": epoll}[sys.argv[1]]()
