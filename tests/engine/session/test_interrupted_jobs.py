"""A job at a stop is ended from outside when its client is gone: at once, and without a trace in the program."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import sys, threading, time
    from adbg.engine.session.parking import Abandoned, Parked

    parked = Parked(None, None, None)
    seen = []

    def job():
        try:
            seen.append("begun")
            {body}
        except Abandoned:
            seen.append("ended")
            raise

    def front_end():
        while not seen:
            time.sleep(0.001)
        {when}
        parked.interrupt()
        parked.resume()

    {before}
    parked.post(job)
    threading.Thread(target=front_end).start()
    parked.stay()
    {after}
    for _ in range(10_000):  # whatever is still on its way comes here
        pass

    def traced():
        seen.append("traced")

    sys.settrace(lambda frame, event, argument: None)
    traced()
    sys.settrace(None)
    print(*seen)
"""


def run(body: str, when: str = "pass", after: str = "pass", before: str = "pass") -> list[str]:
    program = textwrap.dedent(PROGRAM).format(body=body, when=when, after=after, before=before)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_a_job_that_goes_on_for_ever_is_ended_and_the_program_can_be_traced() -> None:
    assert run("while True: time.sleep(0.001)") == ["begun", "ended", "traced"]


def test_an_interrupt_that_comes_too_late_for_its_job_is_not_left_behind() -> None:
    """Set by the job itself as the last thing it does."""
    assert run("parked.resume(); parked.interrupt()", "return") in (
        ["begun", "ended", "traced"],
        ["begun", "traced"],
    )


def test_an_interrupt_at_the_very_end_of_a_job() -> None:
    for _ in range(5):
        words = run("time.sleep(0.002)", "time.sleep(0.0019)")
        assert words[0] == "begun" and words[-1] == "traced"


WAITS = {
    "sleep": "time.sleep(9999)",
    "queue": "import queue; queue.Queue().get()",
    "queue in C": "import queue; queue.SimpleQueue().get()",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "event": "threading.Event().wait()",
    "thread": "threading.Thread(target=time.sleep, args=(20,), daemon=True).start(); threading.enumerate()[-1].join()",
    "socket": "import socket; pair = socket.socketpair(); pair[0].recv(1)",
    "pipe": "import os; ends = os.pipe(); os.read(ends[0], 1)",
    "input": "import os; os.dup2(os.pipe()[0], 0); input()",
    "process": "import subprocess; subprocess.run(['sleep', '20'])",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_in_c_is_ended(wait: str) -> None:
    assert run(WAITS[wait], "time.sleep(0.2)") == ["begun", "ended", "traced"]


def test_the_waking_signal_is_put_back() -> None:
    body = "import signal; seen.append(signal.getsignal(signal.SIGURG).__name__)"
    after = "parked.close(); import signal; seen.append(signal.getsignal(signal.SIGURG).name)"
    words = run(body, after=after)
    assert words == ["begun", "_wake", "SIG_DFL", "traced"]


def test_a_program_that_uses_the_signal_keeps_it() -> None:
    mine = "import signal; signal.signal(signal.SIGURG, lambda number, frame: None)"
    body = "import signal; seen.append(signal.getsignal(signal.SIGURG).__name__)"
    assert run(body, before=mine) == ["begun", "<lambda>", "traced"]
