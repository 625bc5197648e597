"""A training program that nobody prepared for adbg, at its caller's command (lines on stdin, JSON on stdout): it trains
some steps, takes a census of its own process, and does what an injected snippet does (``attach``, by the file's path).

Beside the steps it keeps a graph that it made at its start (``old``), and has dropout, so that a random number too many
shows in the digest.
"""

import hashlib
import importlib
import json
import os
import sys
import warnings
from collections import Counter

warnings.simplefilter("ignore")
from support import process_census as censuses

NAME = sys.argv[1]
framework = importlib.import_module(NAME)


class Torch:
    def __init__(self):
        torch = framework
        torch.set_num_threads(1)
        torch.manual_seed(3)
        nn = torch.nn
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        x = torch.ones(3, requires_grad=True)
        self.x, self.old = x, (x.exp() * x).tanh().sum()

    def step(self):
        loss = self.model(framework.randn(4, 8)).pow(2).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def random(self):
        return framework.rand(()).item()


class Paddle:
    def __init__(self):
        paddle = framework
        paddle.seed(3)
        nn = paddle.nn
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = paddle.optimizer.Adam(1e-3, parameters=self.model.parameters())
        x = paddle.ones([3])
        x.stop_gradient = False
        self.x, self.old = x, (x.exp() * x).tanh().sum()

    def step(self):
        loss = self.model(framework.randn([4, 8])).pow(2).sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.item()

    def random(self):
        return framework.rand([1]).item()


def digest(program):
    found = hashlib.sha256()
    for _, parameter in program.model.named_parameters():
        found.update(parameter.detach().numpy().tobytes())
    found.update(repr(program.random()).encode())
    return found.hexdigest()


def attach(path, session):
    """What adbg's injector has a process run."""
    namespace = {"__name__": "adbg.engine.bootstrap.attach"}
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), namespace)
    namespace["begin"](session)


def main():
    program = Torch() if NAME == "torch" else Paddle()
    taken = None
    counted = Counter()
    losses = []
    while line := sys.stdin.readline():
        command, *words = json.loads(line)
        answer = None
        if command == "train":
            losses = [program.step() for _ in range(words[0])]
            answer = losses[-1]
        elif command == "old":
            program.old.backward(retain_graph=True)
            answer = program.x.grad.tolist()
        elif command == "attach":
            attach(*words)
        elif command == "census":
            taken = None
            taken = censuses.take(NAME)
        elif command == "differences":
            answer = censuses.differences(taken, censuses.take(NAME))
        elif command == "grown":
            now = censuses.objects()
            answer = dict(now - counted)
            counted = now
        elif command == "sizes":
            answer = {
                "resident": censuses.resident(),
                "objects": sum(censuses.objects().values()),
                "threads": len(os.listdir("/proc/self/task")),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "mappings": len(censuses.lines_of("maps")),
            }
        elif command == "run":  # a statement of the test's
            exec(words[0], {"program": program, "framework": framework})
        elif command == "digest":
            answer = digest(program)
        print(json.dumps([answer]), flush=True)


main()
