"""A job at a stop is ended from outside when its client is gone: at once, and without a trace in the program."""

from __future__ import annotations

import subprocess
import sys
import textwrap

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

    parked.post(job)
    threading.Thread(target=front_end).start()
    parked.stay()
    for _ in range(10_000):  # whatever is still on its way comes here
        pass

    def traced():
        seen.append("traced")

    sys.settrace(lambda frame, event, argument: None)
    traced()
    sys.settrace(None)
    print(*seen)
"""


def run(body: str, when: str = "pass") -> list[str]:
    program = textwrap.dedent(PROGRAM).format(body=body, when=when)
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
