"""Targets that need nothing but Python. See harness.py."""

import cProfile
import os
import queue
import random
import socket
import sys
import threading
import time

from harness import Ending, Target, on_poke

target = Target()
LONG = 3600.0  # seconds: a wait that only a poke ends
NUMBERS = 40_000_000  # summed in one C call that holds the GIL: about a second


def mixed(number):
    """A hundred thousand bytecodes or so, and a number that depends on all of them."""
    for place in range(5000):
        number = (number * 6364136223846793005 + place) % (1 << 64)
    return number


class Numbers:
    """Each step continues with the number of the one before."""

    last = 1

    def step(self):
        self.last = mixed(self.last)
        return self.last


numbers = Numbers()


# ------------------------------------------------------------------ never blocked


def tight():
    target.run(numbers.step)


def c_call():
    """The second witness of this one is a formula."""
    target.run(lambda: NUMBERS * (NUMBERS - 1) // 2 if target.witness else sum(range(NUMBERS)))


def malloc():
    """Allocates and frees small blocks of all sizes, and large ones beside."""
    source = random.Random(7)
    kept = [b""] * 512

    def step():
        for _ in range(2000):
            kept[source.randrange(512)] = bytes(source.randrange(700)) if source.random() < 0.98 else bytes(300_000)
        return sum(map(len, kept))

    target.run(step)


def profiled():
    """Under cProfile, which must have counted every step, and still be in charge at the end."""
    profile = cProfile.Profile()

    def still_in_charge():
        return sys.getprofile() is profile or sys.version_info >= (3, 12)  # those have sys.monitoring for it

    def counted():
        profile.disable()
        entries = [entry for entry in profile.getstats() if getattr(entry.code, "co_name", "") == "mixed"]
        return [entry.callcount for entry in entries] == [target.steps]

    target.truths += [still_in_charge, counted]
    profile.enable()
    target.run(numbers.step)


def traced():
    """Under a trace function, as coverage's own is in Python: it must have seen every line of every step."""
    seen = {"lines": 0, "calls": 0}

    def trace(frame, event, argument):
        if frame.f_code is not mixed.__code__:
            return None
        seen["calls"] += event == "call"
        seen["lines"] += event == "line"
        return trace

    def still_in_charge():
        return sys.gettrace() is trace

    target.truths.append(still_in_charge)
    target.facts.append(lambda: sorted(seen.items()))
    sys.settrace(trace)
    target.run(numbers.step)


# ------------------------------------------------------------------ blocked until they are poked


def ending_or(value):
    if target.asked_to_end():
        raise Ending
    return value


def sleep():
    """A sleep that returns early is damage: nothing but the poke may end it."""

    class Poked(Exception):
        pass

    state = {"waiting": False, "poked": False}

    def poke():
        state["poked"] = True
        if state["waiting"]:
            state["waiting"] = False
            raise Poked

    def wait():
        state["waiting"] = True
        try:
            if not state["poked"]:
                time.sleep(LONG)
                print("the sleep ended by itself", file=sys.stderr, flush=True)
                os._exit(9)
        except Poked:
            pass
        state.update(waiting=False, poked=False)
        return ending_or(target.steps)

    on_poke(poke)
    target.run_blocked(wait, mixed)


def receive(timeout=None):
    """stdin is a socket; what arrives is the number of the step."""
    if target.witness:
        target.run_blocked(None, mixed)
        return
    peer = socket.socket(fileno=os.dup(0))
    peer.settimeout(timeout)

    def wait():
        data = peer.recv(64)
        if not data:
            raise Ending
        return int(data) + target.steps

    target.run_blocked(wait, mixed)


def lock():
    gate = threading.Lock()
    gate.acquire()
    on_poke(gate.release)

    def wait():
        gate.acquire()
        return ending_or(target.steps)

    target.run_blocked(wait, mixed)


def timed_lock():
    """sem_clockwait or a futex with a deadline: what an interrupted wait comes back with is another path."""
    gate = threading.Lock()
    gate.acquire()
    on_poke(gate.release)

    def wait():
        if not gate.acquire(timeout=LONG):
            os._exit(9)
        return ending_or(target.steps)

    target.run_blocked(wait, mixed)


def queued():
    items = queue.Queue()
    on_poke(lambda: items.put(target.steps))
    target.run_blocked(lambda: ending_or(items.get()), mixed)


def joined():
    """The main thread waits for another one, which works in Python: the shape of many programs with a pool."""

    def work():
        while not target.asked_to_end():
            target.add(numbers.step())

    print("READY", os.getpid(), flush=True)
    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    target.end()


KINDS = {
    "tight": tight,
    "c_call": c_call,
    "malloc": malloc,
    "profiled": profiled,
    "traced": traced,
    "sleep": sleep,
    "recv": receive,
    "timed recv": lambda: receive(LONG),
    "lock": lock,
    "timed lock": timed_lock,
    "queue": queued,
    "joined": joined,
}

KINDS[target.kind]()
