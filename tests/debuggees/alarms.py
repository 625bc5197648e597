"""Hundreds of time-outs at random moments of a training: ``alarms.py FRAMEWORK KIND TIMES``.

KIND is how the program is interrupted: ``own`` and ``builtin`` are raised by a handler of SIGALRM, ``interrupt`` is its
KeyboardInterrupt, ``thread`` comes from another thread. Each must reach the loop, as it was raised. At the end a step
without any is made: gradients and grad mode are those of a program that was never interrupted.
"""

import ctypes
import random
import signal
import sys
import threading
import time

FRAMEWORK, KIND, TIMES = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Timeout(Exception):
    pass


kind = {"own": Timeout, "builtin": TimeoutError, "interrupt": KeyboardInterrupt, "thread": Timeout}[KIND]
raised = []


def handler(number, frame):
    raised.append(kind(f"number {len(raised)}"))
    raise raised[-1]


signal.signal(signal.SIGALRM, handler)

if FRAMEWORK == "torch":
    import torch

    torch.set_num_threads(1)
    weights = [torch.full((8, 8), 0.1, requires_grad=True) for _ in range(8)]

    def step():
        value = torch.ones(4, 8)
        for weight in weights:
            value = (value @ weight).tanh()
        value.sum().backward()

    def clear():
        for weight in weights:
            weight.grad = None

    recording = torch.is_grad_enabled
else:
    import paddle

    weights = [paddle.full([8, 8], 0.1) for _ in range(8)]
    for weight in weights:
        weight.stop_gradient = False

    def step():
        value = paddle.ones([4, 8])
        for weight in weights:
            value = paddle.tanh(paddle.matmul(value, weight))
        value.sum().backward()

    def clear():
        for weight in weights:
            weight.clear_gradient()

    recording = paddle.is_grad_enabled


def gradients():
    clear()
    step()
    return [weight.grad.numpy().tobytes() for weight in weights]


expected = gradients()
started = time.perf_counter()
for _ in range(5):
    step()
duration = (time.perf_counter() - started) / 5


def from_a_thread(delay, main):
    time.sleep(delay)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(kind))
    raised.append(None)  # behind it: who sees this has the exception waiting


random.seed(5)
caught, others = 0, []
for _ in range(TIMES):
    before = len(raised)
    delay = random.uniform(1e-5, duration)
    worker = threading.Thread(target=from_a_thread, args=(delay, threading.get_ident()))
    try:
        if KIND == "thread":
            worker.start()
        else:
            signal.setitimer(signal.ITIMER_REAL, delay)
        step()
        until = time.perf_counter() + 2
        while time.perf_counter() < until and len(raised) == before:
            pass
        for _ in range(100_000):
            pass
    except BaseException as error:
        if type(error) is kind and (KIND == "thread" or error is raised[-1]):
            caught += 1
        else:
            others.append(repr(error)[:300])
    if KIND == "thread":
        worker.join()
print("lost", len(raised) - caught - len(others), "others", others, "interrupted", len(raised))
print("recording", recording(), "equal", gradients() == expected)
