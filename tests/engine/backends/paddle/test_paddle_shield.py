"""A Ctrl-C that comes while Paddle asks for a forward stack: never a SIGSEGV, always the script's KeyboardInterrupt."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from adbg.engine.backends.common import shield as paddle_shield

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import os, signal, subprocess, sys, time
import paddle
from adbg.engine.backends.paddle.native.texts import StackTexts

StackTexts().put_in()
paddle.set_flags({"FLAGS_call_stack_level": 3})
model = paddle.nn.Sequential(*[paddle.nn.Linear(4, 4) for _ in range(20)])
x = paddle.randn([2, 4])
model(x).sum().backward()
sender = '''
import os, random, sys, time
for _ in range(300):
    os.kill(int(sys.argv[1]), 2)
    time.sleep(0.005 + random.random() * 0.005)
os.kill(int(sys.argv[1]), 10)
'''
caught, raised, armed, over, others = 0, 0, False, [], []

def interrupt(number, frame):  # once for each time that the program stands ready for it
    global raised, armed
    if armed:
        armed = False
        raised += 1
        raise KeyboardInterrupt(raised)

signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGUSR1, lambda number, frame: over.append(number))
subprocess.Popen([sys.executable, "-c", sender, str(os.getpid())])
until = time.monotonic() + 60

def train():  # a loop in a try statement is not all within it on Python 3.13: its jump back is where signals are met
    while not over:
        model(x).sum().backward()

while not over and time.monotonic() < until:
    try:
        armed = True
        train()
        armed = False
    except KeyboardInterrupt as error:
        caught += 1
        if error.args != (raised,):
            others.append(repr(error))
    except BaseException as error:
        others.append(repr(error)[:200])
print(over, others, raised - caught, raised > 100, flush=True)  # a busy machine merges some
"""


def test_hundreds_of_interrupts_of_a_training_with_stacks() -> None:
    """Without the cover it died of the first ten (3.11)."""
    pytest.importorskip("paddle.autograd")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout == "[10] [] 0 True\n", (
        done.returncode,
        done.stdout,
        done.stderr[-2000:],
    )


def probed(code: Callable[[], list[str]]) -> bool:
    return paddle_shield._survives(code)


def test_the_cover_is_what_holds() -> None:
    plain = paddle_shield._function(lambda f, limit, caller: ["kept"], lambda f, limit, caller: [])
    if sys.version_info >= (3, 11):
        assert not probed(plain)
    assert paddle_shield.holds()
    plain.__code__ = paddle_shield._covered(plain.__code__)
    assert probed(plain)


def test_what_was_raised_comes_later_as_it_was() -> None:
    stopped = SystemExit(3)
    answers: list[list[str]] = []

    def quick(f: object, limit: object, caller: object) -> list[str]:
        if not answers:
            answers.append([])
            raise stopped
        return ["kept"]

    made = paddle_shield.shield(quick, lambda f, limit, caller: [])
    with pytest.raises(SystemExit) as found:
        answers.extend(map(lambda call: call(), [made]))  # noqa: C417  (from C)
        for _ in range(1000):
            pass
    assert found.value is stopped and stopped.code == 3


def test_a_call_from_python_gets_what_python_gives_and_its_errors() -> None:
    made = paddle_shield.shield(
        lambda f, limit, caller: None, lambda f, limit, caller: traceback.format_stack(f or caller, limit)
    )
    assert "test_a_call_from_python" in made()[-1] and len(made(None, 1)) == 1
    with pytest.raises(AttributeError):
        made("no frame")


@pytest.mark.parametrize("entry", [(0, 1, 2, 3), (0, 63, 64, 65), (4096, 5000, 300_000, 1)])
def test_entries_are_written_as_they_are_read(entry: tuple[int, int, int, int]) -> None:
    written = paddle_shield._written(entry)
    assert list(paddle_shield._entries(written + written)) == [entry, entry]
