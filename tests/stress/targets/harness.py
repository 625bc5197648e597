"""What every target has in common: it says READY, works until it is told to end, and prints what came out.

    python plain.py KIND STOP_FILE            works until STOP_FILE exists
    python plain.py KIND STOP_FILE STEPS      the same steps in a run of their own, without any waiting: the witness

The last line is ``END STEPS SHA256``. A run that somebody attached to must print the digest that a run of as many steps
prints to which nobody did. Standard library only, and readable by every Python that adbg can enter.
"""

import hashlib
import os
import signal
import sys
import time


class Ending(Exception):
    """The blocked target has been asked to end."""


class Target:
    """A digest over the results of the steps, and how many there were."""

    def __init__(self):
        self.kind = sys.argv[1]
        self._stop_file = sys.argv[2]
        self.wanted = int(sys.argv[3]) if len(sys.argv) > 3 else None
        self.steps = 0
        self._hash = hashlib.sha256()
        self.facts = []  # part of the digest: called at the end
        self.truths = []  # must be true at the end, of both runs

    @property
    def witness(self):
        """This is the run that nobody attaches to."""
        return self.wanted is not None

    def add(self, value):
        """The result of one more step: bytes, or anything by its repr."""
        self._hash.update(value if isinstance(value, bytes) else repr(value).encode())
        self.steps += 1

    def asked_to_end(self):
        if self.witness:
            return self.steps >= self.wanted
        return os.path.exists(self._stop_file)

    def run(self, step, pause=0.0):
        """``step()`` over and over, with as many seconds in between. READY comes after two of them: by then a framework
        has the threads, files and generated code that it makes at first use."""
        while not self.asked_to_end():
            self.add(step())
            if self.steps == 2:
                print("READY", os.getpid(), flush=True)
            if pause and not self.witness:
                time.sleep(pause)
        self.end()

    def run_blocked(self, wait, result):
        """``wait()`` blocks until a poke and returns what it brought; then ``result(that)`` is the step's."""
        print("READY", os.getpid(), flush=True)
        while not self.asked_to_end():
            try:
                brought = self.steps if self.witness else wait()
            except Ending:
                break
            self.add(result(brought))
            if not self.witness:
                print("STEP", self.steps, flush=True)
        self.end()

    def end(self):
        for truth in self.truths:
            if not truth():
                print("not true at the end:", truth.__name__, file=sys.stderr, flush=True)
                os._exit(9)
        for fact in self.facts:
            self._hash.update(repr(fact()).encode())
        # A last poke may still come: the interpreter's end would give the signal its default back, which kills.
        if signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        print("END", self.steps, self._hash.hexdigest(), flush=True)


def on_poke(action):
    """``action()`` runs on the main thread when SIGUSR1 comes, as a program's own handler would."""
    signal.signal(signal.SIGUSR1, lambda number, frame: action())
