"""A stop whose client goes away at any moment: ``stay`` ends, and no interrupt of a job reaches the program."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from adbg.engine.session.parking import Parked

SECONDS = 3.0  # some 5,000 stops on an idle core


@pytest.fixture(autouse=True)
def threads_take_turns_all_the_time() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def job(length: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(length):
            pass

    return run


def stop(parked: Parked, ended: list[str]) -> None:
    try:
        parked.thread = threading.get_ident()
        parked.stay()
        job(300)()  # whatever is still on its way comes here
        ended.append("in good order")
    except BaseException as error:
        ended.append(repr(error))
    finally:
        parked.close()


def test_interrupts_at_every_moment_of_a_stop() -> None:
    rng = random.Random(1)
    rounds, interrupted = 0, 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or rounds <= 50 or interrupted <= 20:  # a busy machine gets the time it needs
        rounds += 1
        parked = Parked(None, None, None)  # type: ignore[arg-type]
        ended: list[str] = []
        for _ in range(rng.randint(1, 4)):
            parked.post(job(rng.choice((1, 10, 100, 2000))))
        thread = threading.Thread(target=stop, args=(parked, ended))
        thread.start()
        resume_after = rng.randint(1, 60)
        deadline = time.monotonic() + 20
        while not parked.over.is_set() and time.monotonic() < deadline:
            interrupted += parked.busy
            parked.interrupt()
            resume_after -= 1
            if resume_after == 0:
                parked.resume()
        parked.resume()
        thread.join(20)
        assert ended == ["in good order"], f"round {rounds}"
