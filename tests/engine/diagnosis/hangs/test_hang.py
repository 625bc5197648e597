"""Programs that stand still, and such as only wait for a while. All of them run at once: a program is said to stand
after twelve seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_backend import FakeBackend
from support.attach_targets import eventually
from support.diagnosing import CAUSE, line_of, text_of
from support.frameworks import on_frameworks
from support.patience import patience
from support.program import DEBUGGEES

from adbg.engine.diagnosis.diagnosis import Diagnosis
from adbg.engine.session.session import Session

HEAD = {
    "torch": """\
import multiprocessing, queue, threading, time
import torch
def step(size=4):
    x = torch.ones(size, requires_grad=True)
    (x * x).sum().backward()
""",
    "paddle": """\
import multiprocessing, queue, threading, time
import paddle
def step(size=4):
    x = paddle.ones([size])
    x.stop_gradient = False
    (x * x).sum().backward()
""",
}
STANDS = {
    "workers are forked while a lock is taken": """\
guard = threading.Lock()
def work(out):
    with guard:
        out.put(1)
def warm():
    guard.acquire()  # CAUSE
step()
warm()
context = multiprocessing.get_context("fork")
out = context.Queue()
workers = [context.Process(target=work, args=(out,)) for _ in range(2)]
for each in workers:
    each.start()
for each in workers:
    each.join()
""",
    "a batch that is never full": """\
from concurrent.futures import Future
class Evaluator(threading.Thread):
    def __init__(self, size):
        super().__init__(daemon=True)
        self.size, self.requests = size, queue.Queue()
    def ask(self, x):
        answer = Future()
        self.requests.put((x, answer))
        return answer
    def run(self):
        while True:
            batch = []
            while len(batch) < self.size:
                batch.append(self.requests.get())  # CAUSE
            for x, answer in batch:
                answer.set_result(x + 1)
def play(evaluator, games):
    for _ in range(games):
        evaluator.ask(1).result()
evaluator = Evaluator(2)
evaluator.start()
players = [threading.Thread(target=play, args=(evaluator, games)) for games in (2, 3)]
for each in players:
    each.start()
for each in players:
    each.join()
step()
""",
    "no sentinel": """\
class Loader:
    def __init__(self, items):
        self.items, self.queue = items, queue.Queue(2)
        threading.Thread(target=self.fill).start()
    def fill(self):
        for item in self.items:
            self.queue.put(item)
    def __iter__(self):
        while (item := self.queue.get()) is not None:  # CAUSE
            yield item
for _ in Loader(range(5)):
    step()
""",
    "more are taken than were put": """\
class Stream:
    def __init__(self, items, size):
        self.items, self.size, self.queue = items, size, queue.Queue()
    def fill(self, part):
        for at in range(len(part) // self.size):
            self.queue.put(part[at * self.size : (at + 1) * self.size])
    def __iter__(self):
        half = len(self.items) // 2
        for part in (self.items[:half], self.items[half:]):
            threading.Thread(target=self.fill, args=(part,), daemon=True).start()
        for _ in range(len(self.items) // self.size):  # CAUSE
            yield self.queue.get()
for rows in Stream(list(range(10)), 2):
    step()
""",
    "locked twice": """\
class Meter:
    def __init__(self):
        self.lock, self.sum = threading.Lock(), 0
    def add(self, value):
        with self.lock:
            self.sum += value
            self.report()
    def report(self):
        with self.lock:  # CAUSE
            print(self.sum)
meter = Meter()
step()
meter.add(1)
""",
    "locked twice by another thread": """\
class Memory:
    def __init__(self):
        self.lock, self.rows = threading.Lock(), []
    def __len__(self):
        with self.lock:  # CAUSE
            return len(self.rows)
    def add(self, row):
        with self.lock:
            self.rows.append(row)
            if len(self) > 100:
                self.rows.pop(0)
    def sample(self):
        with self.lock:
            return self.rows[-1]
memory = Memory()
step()
actor = threading.Thread(target=lambda: [memory.add(number) for number in range(200)], daemon=True)
actor.start()
time.sleep(0.5)
memory.sample()
""",
    "a worker is not told to end": """\
tasks, done = queue.Queue(), []
def work():
    while True:
        task = tasks.get()  # CAUSE
        if task is None:
            break
        done.append(task * 2)
threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(4):
    tasks.put(number)
tasks.put(None)
step()
for thread in threads:
    thread.join()
""",
    "the other lock first": """\
weights, statistics = threading.Lock(), threading.Lock()
begun = threading.Barrier(2)
def log():
    with statistics:
        begun.wait()
        with weights:
            print("logged")
threading.Thread(target=log, daemon=True).start()
step()
with weights:
    begun.wait()
    with statistics:  # CAUSE
        step()
""",
    "joined before it is read": """\
def produce(out):
    for number in range(50):
        out.put(bytes(100_000))
if __name__ == "__main__":
    step()
    out = multiprocessing.get_context("fork").Queue()
    worker = multiprocessing.get_context("fork").Process(target=produce, args=(out,))
    worker.start()
    worker.join()  # CAUSE
    print(len([out.get() for _ in range(50)]))
""",
    "joined by a parent of processes that compute first": """\
def produce(out):
    end = time.monotonic() + 8
    while time.monotonic() < end:
        sum(range(1000))
    for number in range(50):
        out.put(bytes(100_000))
if __name__ == "__main__":
    step()
    out = multiprocessing.get_context("spawn").Queue()
    workers = [multiprocessing.get_context("spawn").Process(target=produce, args=(out,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()  # CAUSE
    print(len([out.get() for _ in range(100)]))
""",
    "a worker of a pool dies": """\
import os
def work(number):
    if number == 3:
        os._exit(1)
    return number
if __name__ == "__main__":
    step()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(work, range(8))))  # CAUSE
""",
    "a flag that a dead thread should set": """\
class Prefetcher:
    def __init__(self):
        self.ready = False
        threading.Thread(target=self.fill, daemon=True).start()
    def fill(self):
        self.batch = [1, 2, 3][7]
        self.ready = True
    def take(self):
        while not self.ready:  # CAUSE
            pass
        return self.batch
step()
Prefetcher().take()
""",
    "it looks now and then": """\
step()
results = queue.Queue()
while results.empty():  # CAUSE
    time.sleep(0.05)
""",
    "beside a thread that beats": """\
beats = []
def beat():
    while True:
        beats.append(time.time())
        time.sleep(1)
def work():
    tasks.get()  # CAUSE
    done.set()
tasks, done = queue.Queue(), threading.Event()
for target in (beat, work):
    threading.Thread(target=target, daemon=True).start()
step()
done.wait()
""",
    "workers that do not come": """\
class Pool:
    def __init__(self):
        self.tasks = queue.Queue()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(2)]
        for thread in self.threads:
            thread.start()
    def work(self):
        while self.tasks.get() is not None:  # CAUSE
            pass
    def wait(self):
        while any(thread.is_alive() for thread in self.threads):
            time.sleep(0.1)
step()
Pool().wait()
""",
    "a worker that asks again": """\
class Worker(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.tasks, self.over = queue.Queue(), threading.Event()
    def run(self):
        while not self.over.is_set():
            try:
                task = self.tasks.get(timeout=0.5)  # CAUSE
            except queue.Empty:
                continue
            print(task)
worker = Worker()
worker.start()
worker.tasks.put(1)
step()
worker.join()
""",
    "asked again without end": """\
step()
tasks = queue.Queue()
while True:
    try:
        task = tasks.get(timeout=1)  # CAUSE
    except queue.Empty:
        continue
    step()
""",
}
GOES_ROUND = tuple(STANDS)[-6:]
JOINED = ("joined before it is read", "joined by a parent of processes that compute first")
# Which may wait for something outside.
OF_PROCESSES = (*JOINED, "a worker of a pool dies", "workers are forked while a lock is taken")
GOES_ON = {
    "a thread sleeps": """\
step()
thread = threading.Thread(target=time.sleep, args=(20,))
thread.start()
thread.join()
""",
    "it asks again": """\
step()
try:
    queue.Queue().get(timeout=20)
except queue.Empty:
    step()
""",
    "a process sleeps": """\
step()
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,))
worker.start()
worker.join()
""",
    "a thread sleeps and puts": """\
def work(out):
    time.sleep(30)
    out.put(1)
out = queue.Queue()
threading.Thread(target=work, args=(out,)).start()
step()
out.get()
step()
""",
    "a timer": """\
begin = threading.Event()
threading.Timer(30, begin.set).start()
step()
begin.wait()
step()
""",
    "a job of the program's own kind": """\
class Job:
    def __init__(self):
        self.begun = time.time()
    def done(self):
        return time.time() > self.begun + 30
    @property
    def ended(self):
        return self.done()
step()
job = Job()
while not job.done():
    time.sleep(0.2)
job = Job()
while not job.ended:
    time.sleep(0.2)
step()
""",
    "a handler of a signal": """\
import signal
told = False
def tell(*_):
    global told
    told = True
signal.signal(signal.SIGALRM, tell)
signal.alarm(30)
step()
while not told:
    time.sleep(0.2)
step()
""",
    "a thread that looks outside": """\
begun, there = time.monotonic(), threading.Event()
def look():
    while True:
        if time.monotonic() - begun > 30:
            there.set()
            return
        time.sleep(1)
threading.Thread(target=look, daemon=True).start()
step()
there.wait()
step()
""",
    "it asks for so long": """\
step()
tasks, begun = queue.Queue(), time.monotonic()
while True:
    try:
        tasks.get(timeout=1)
    except queue.Empty:
        if time.monotonic() - begun > 30:
            break
step()
""",
    "it counts to thirty": """\
step()
seconds = 0
while seconds < 30:
    time.sleep(1)
    seconds += 1
step()
""",
    "it looks at a clock": """\
step()
end = time.time() + 30
while time.time() < end:
    time.sleep(0.1)
step()
""",
    "it looks whether a thread has computed": """\
def work():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        sum(range(10000))
step()
thread = threading.Thread(target=work)
thread.start()
while thread.is_alive():
    time.sleep(0.1)
step()
""",
    "a thread computes": """\
def work(out):
    end = time.monotonic() + 18
    while time.monotonic() < end:
        sum(range(10000))
    out.put(1)
step()
out = queue.Queue()
threading.Thread(target=work, args=(out,)).start()
out.get()
step()
""",
}


class Program:
    """``adbg diagnose --json`` of a program, and the findings that came so far."""

    def __init__(self, folder: Path, *program: str) -> None:
        self.found: list[dict[str, Any]] = []
        self.first = threading.Event()
        command = [sys.executable, "-m", "adbg", "diagnose", "--json", "--only", "hang", *program]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if told.get("type") == "finding":
                self.found.append(told)
                self.first.set()

    def end(self) -> None:
        """adbg ends the program as it is told to end; killed itself, it would leave that to go round for ever. What
        the program forked outlives it, as it does without adbg."""
        self.process.terminate()
        try:
            self.process.wait(patience(20))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise


def program(folder: Path, text: str) -> Program:
    folder.mkdir()
    (folder / "train.py").write_text(text)
    return Program(folder, str(folder / "train.py"))


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    made: list[Program] = []
    yield made
    below = [
        found
        for each in made
        if each.process.poll() is None
        for found in psutil.Process(each.process.pid).children(True)
    ]
    for each in made:
        each.process.terminate()  # all at once
    for each in made:
        each.end()
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@on_frameworks()
def test_where_it_stands_is_told_while_it_does(framework: str, tmp_path: Path, programs: list[Program]) -> None:
    texts = {name: text_of(HEAD[framework] + text) for name, text in STANDS.items()}
    programs += [program(tmp_path / name.replace(" ", "-"), text) for name, text in texts.items()]
    for (name, text), each in zip(texts.items(), programs):
        assert each.first.wait(patience(90)), name
        found = each.found[0]
        assert (found["kind"], found["cause"]["line"]) == ("hang", line_of(text, CAUSE)), (name, found)
        assert found["severity"] == ("warning" if name in OF_PROCESSES + GOES_ROUND else "error"), (name, found)
        assert "nothing was computed, in this process or below it" in found["evidence"][0]
        assert ("before it is joined" in found["message"]) == (name in JOINED), (name, found)
        assert ("guard has been taken since" in found["message"]) == ("forked while" in name), (name, found)
        assert ("and 4 were put" in found["message"]) == (name == "more are taken than were put"), (name, found)


@on_frameworks()
def test_what_goes_on_after_a_while_is_no_hang(framework: str, tmp_path: Path, programs: list[Program]) -> None:
    for name, text in GOES_ON.items():
        programs.append(program(tmp_path / name.replace(" ", "-"), HEAD[framework] + text))
    for each in programs:
        assert each.process.wait(patience(120)) == 0
        assert each.found == []


@on_frameworks()
def test_of_a_job_that_hangs_what_its_ranks_call_is_compared(
    framework: str, tmp_path: Path, programs: list[Program]
) -> None:
    name, cause, severity, words, text = {
        "torch": ("hanging.py", "mismatch", "error", ("mismatch", "all_reduce", "broadcast"), "dist."),
        "paddle": ("paddle_hanging.py", "missing", "warning", ("rank 1 did not come to barrier",), "time.sleep("),
    }[framework]
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    job = Program(tmp_path, "--", sys.executable, str(DEBUGGEES / name), cause, "2", str(ranks))
    programs.append(job)
    assert job.first.wait(patience(90))
    found = job.found[0]
    assert (found["kind"], found["severity"], found["next"]) == ("hang", severity, ["why hang"]), found
    assert all(each in found["message"] for each in words), found
    assert found["cause"]["file"] == str(DEBUGGEES / name) and found["cause"]["text"].startswith(text), found


class Nobody:
    def event(self, body: object, droppable: bool = False) -> None: ...


@pytest.mark.parametrize("how", ["stop", "detach"])
def test_nobody_looks_any_more_once_it_is_over(how: str) -> None:
    before = set(threading.enumerate())

    def looking() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "adbg-standing" and each not in before]

    session = Session(Nobody())
    made = Diagnosis(session, lambda event: None, only=["hang"])
    session.observe(made)
    session.add_backend(FakeBackend())
    assert len(looking()) == 1
    made.stop(here=True) if how == "stop" else made.detach()
    eventually(lambda: not looking())
