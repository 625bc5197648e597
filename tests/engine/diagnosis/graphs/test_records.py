"""Records that a replay memory keeps with a graph in them: who hands it that is named, in whatever it is kept."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as framework
from torch import nn
framework.manual_seed(0)
noise = framework.randn
def sgd(module):
    return framework.optim.SGD(module.parameters(), 0.01), "zero_grad"
""",
    "paddle": """
import paddle as framework
from paddle import nn
framework.seed(0)
noise = lambda *shape: framework.randn(shape)
def sgd(module):
    return framework.optimizer.SGD(0.01, parameters=module.parameters()), "clear_grad"
""",
}
HEAD = {
    name: text
    + """
import heapq, itertools
from collections import deque
from dataclasses import dataclass
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer, clear = sgd(net)
def learn(rows):
    getattr(optimizer, clear)()
    loss = net(rows).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
    for name, text in HEAD.items()
}
LOOP = """
for step in range(60):
    s = noise(4)
    values = net(s)
"""
# Filled before the first backward, in a deque with room for all of the run.
QUEUE = (
    """
class Replay:
    def __init__(self, size):
        self.buf = deque(maxlen=size)
    def push(self, *item):
        self.buf.append(item)
replay = Replay(50000)
"""
    + LOOP
    + """
    replay.push(s, step % 3, float(step), values)  # CAUSE
    if len(replay.buf) >= 12:
        learn(framework.stack([each[0] for each in list(replay.buf)[-8:]]))
"""
)
# Dicts in a list, by way of an agent that only hands them on.
DICTS = (
    """
class Memory:
    def __init__(self):
        self.items = []
    def add(self, state, action, value):
        self.items.append({"state": state, "action": action, "value": value})
class Agent:
    def __init__(self):
        self.memory = Memory()
    def remember(self, state, action, value):
        self.memory.add(state, action, value)
agent = Agent()
"""
    + LOOP
    + """
    agent.remember(s, step % 3, value=values)  # CAUSE
    learn(agent.memory.items[step // 2]["state"])
"""
)
OBJECTS = (
    """
@dataclass
class Step:
    state: object
    reward: float
    q: object
class Memory:
    def __init__(self):
        self.steps = []
    def store(self, state, reward, q):
        self.steps.append(Step(state, reward, q=q))
memory = Memory()
"""
    + LOOP
    + """
    memory.store(s, 1.0, values)  # CAUSE
    learn(memory.steps[step // 2].state)
"""
)
# Made by whoever hands it on, by places.
BY_PLACES = (
    """
@dataclass
class Step:
    state: object
    reward: float
    q: object = None
class Memory:
    def __init__(self):
        self.steps = []
    def store(self, record):
        self.steps.append(record)
memory = Memory()
"""
    + LOOP
    + """
    memory.store(Step(s, 1.0, values))  # CAUSE
    learn(memory.steps[step // 2].state)
"""
)
# One of the lines that fill it puts in numbers alone.
PRIORITIES = (
    """
class Memory:
    def __init__(self):
        self.rows, self.priorities = [], []
    def push(self, row):
        first = framework.ones([])
        self.rows.append(row)
        self.priorities.append(first)
    def update(self, place, error):
        for each in error.abs():
            self.priorities[place] = each  # CAUSE
memory = Memory()
"""
    + LOOP
    + """
    memory.push(s)
    memory.update(step, values)
    learn(memory.rows[step // 2])
"""
)
IN_A_DICT = (
    """
kept = {"recent": deque(maxlen=100_000)}
"""
    + LOOP
    + """
    kept["recent"].append((s, values))  # CAUSE
    learn(kept["recent"][step // 2][0])
"""
)
HEAP = (
    """
best, count = [], itertools.count()
"""
    + LOOP
    + """
    heapq.heappush(best, (float(values.detach().abs().max()), next(count), s, values))  # CAUSE
    learn(best[0][2])
"""
)
# The method that stores it makes what has the graph.
MADE = (
    """
class Memory:
    def __init__(self):
        self.items = deque(maxlen=5000)
    def add(self, state, action):
        value = net(state)
        self.items.append((state, action, value))  # CAUSE
memory = Memory()
"""
    + LOOP
    + """
    memory.add(s, step % 3)
    learn(memory.items[step // 2][0])
"""
)
# A log that is handed a dictionary, of whose values one is no number.
LOGGED = (
    """
class Log:
    def __init__(self):
        self.rows = []
    def add(self, step, stats):
        self.rows.append((step, stats))
log = Log()
def measure(s):
    loss = learn(s)
    return {
        "loss": loss.item(),
        "spread": net(s).std(),  # CAUSE
    }
"""
    + LOOP
    + """
    log.add(step, measure(s))
"""
)
LOGGED_LATER = (
    """
rows = []
def keep(stats):
    rows.append(stats)
"""
    + LOOP
    + """
    stats = dict(step=step, loss=float(learn(s)))
    stats["peak"] = values.max()  # CAUSE
    keep(stats)
"""
)
WRONG = {
    "logged": LOGGED,
    "logged later": LOGGED_LATER,
    "queue": QUEUE,
    "dicts": DICTS,
    "objects": OBJECTS,
    "by places": BY_PLACES,
    "priorities": PRIORITIES,
    "in a dict": IN_A_DICT,
    "heap": HEAP,
    "made": MADE,
}
ITEMS = {
    "queue": "replay.buf[*][3]",
    "dicts": "['value']",
    "objects": ".q",
    "in a dict": "[1]",
    "heap": "best[*][3]",
    "logged": "log.rows[*][1]['spread']",
}
# Rollouts keep their graphs until the update, as they have to, and are emptied then.
ROLLOUT = """
class Rollout:
    def __init__(self):
        self.steps = deque(maxlen=2048)
    def add(self, state, score, value):
        self.steps.append((state, score, value))
rollout = Rollout()
for update in range(60):
    for _ in range(6):
        s = noise(4)
        out = net(s)
        rollout.add(s, out[0], out[1])
    loss = sum(score * 0.1 + value.square() for _, score, value in rollout.steps)
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
    rollout.steps.clear()
"""
RIGHT = {
    "numbers in a log": LOGGED.replace(".std(),  # CAUSE", ".std().item(),"),
    "detached": QUEUE.replace("values)  # CAUSE", "values.detach())"),
    "numbers": DICTS.replace("value=values)  # CAUSE", "value=values.detach().numpy())"),
    "window": QUEUE.replace("Replay(50000)", "Replay(4)").replace(">= 12", ">= 4"),
    "rollout": ROLLOUT,
    "new rollout": ROLLOUT.replace("rollout.steps.clear()", "rollout = Rollout()"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in {**WRONG, **RIGHT}.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-records-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", WRONG)
def test_who_hands_it_is_named(runs: dict[str, Run], name: str) -> None:
    message = runs[name].check_first("graph-kept")["message"]
    assert ITEMS.get(name, "") in message, message


@each
@pytest.mark.parametrize("name", RIGHT)
def test_what_keeps_no_graph(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy()
