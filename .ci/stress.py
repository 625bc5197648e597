"""Runs a command on a busy machine: python3 .ci/stress.py [--load 10] COMMAND...

``--load`` processes run beside it, three of four computing, the others writing files. They end with the command, whose
exit status this is, or when this process dies. For tests that only pass where nothing else runs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

BLOCK = os.urandom(1 << 20)


def compute() -> None:
    """Half a second of Python, which gives up the processor only when it is taken away."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sum(range(10_000))


def write() -> None:
    """A few megabytes to a disk and back."""
    with tempfile.TemporaryFile() as file:
        for _ in range(8):
            file.write(BLOCK)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        file.read()


def burden(number: int, parent: int) -> None:
    """One process of the load; ends with its parent."""
    while os.getppid() == parent:
        write() if number % 4 == 3 else compute()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--load", type=int, default=10, help="processes that run beside the command (default: 10)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    parent = os.getpid()
    children = []
    for number in range(options.load):
        pid = os.fork()
        if pid == 0:
            try:
                burden(number, parent)
            finally:
                os._exit(0)
        children.append(pid)
    try:
        return subprocess.run(options.command).returncode
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(main())
