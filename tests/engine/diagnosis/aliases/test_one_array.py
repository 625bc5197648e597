"""States that are one array of the environment's own, stored as it is. Witness: whether all that the program's memory
holds is the same."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS

pytestmark = pytest.mark.timeout(400)  # its programs run in turn: 100 s of two shared cores

HEAD = {
    "torch": """
import random
from collections import deque, namedtuple
import numpy as np
import torch as fw
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
fw.manual_seed(0)
random.seed(0)
np.random.seed(0)
tensor = fw.as_tensor
def made(value):
    return fw.tensor(value)
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import random
from collections import deque, namedtuple
import numpy as np
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.io import DataLoader, Dataset
fw.seed(0)
random.seed(0)
np.random.seed(0)
tensor = made = fw.to_tensor
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
NET = """
net = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer, clear = sgd(net)
def fit(loss):
    clear()
    loss.backward()
    optimizer.step()
def told(values):
    print("all the same:", all(np.array_equal(each, values[0]) for each in values))
"""
ENV = """
class Env:
    def __init__(self):
        self.state = np.zeros(3, "float32")
        self.left = 0
    def reset(self):
        self.state[:] = np.random.randn(3)
        self.left = 10
        return self.state
    def step(self, action):
        self.state[:2] += 0.1 * (2 * action - 1)
        self.state[2] *= 0.9
        self.left -= 1
        return self.state, -float(np.abs(self.state).sum()), self.left == 0
"""
PLAY = """
env, memory = Env(), []
def learn(batch):
    states = tensor(np.stack([each[0] for each in batch]))
    later = tensor(np.stack([each[3] for each in batch]))
    wanted = tensor(np.array([each[2] for each in batch], "float32")) + 0.9 * net(later).detach().max(1)
    fit((net(states)[:, 0] - wanted).square().mean())
state = env.reset()
for at in range(60):
    action = random.randrange(2)
    following, reward, done = env.step(action)
    memory.append((state, action, reward, following))
    state = env.reset() if done else following
    if len(memory) >= 16:
        learn(random.sample(memory, 8))
told([each[0] for each in memory])
"""


def changed(text: str, *parts: tuple[str, str]) -> str:
    for old, new in parts:
        assert old in text, old
        text = text.replace(old, new)
    return text


STEP = "return self.state, -float(np.abs(self.state).sum()), self.left == 0"
MARKED = (STEP, f"{STEP}  # CAUSE")
TORCH_MAX = {"torch": ".max(1)[0]", "paddle": ".max(1)"}
ADDED = """
class Pendulum:
    def __init__(self):
        self.state = np.zeros(3, "float32")
    def reset(self):
        self.state = np.random.randn(3).astype("float32")
        return self.state
    def step(self, action):
        self.state += np.float32(0.05) * np.array([action, 1, -1], "float32")
        done = abs(self.state[0]) > 4
        return self.state, 1.0, done  # CAUSE
"""
# What has not ended is one episode.
LONG = changed(PLAY, ("env, memory = Env()", "env, memory = Pendulum()"))
READER = """
class Reader:
    def __init__(self, rows):
        self.rows, self.buffer = rows, np.empty(3, "float32")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        self.buffer[:] = self.rows[at]
        return self.buffer  # CAUSE
rows = np.random.randn(64, 3).astype("float32")
reader = Reader(rows)
"""
READ = """
for at in range(12):
    x = [reader[i] for i in random.sample(range(64), 8)]
    fit(net(tensor(np.stack(x))).square().mean())
told(x)
"""
LOADED = """
class Rows(Dataset):
    def __init__(self):
        super().__init__()
        self.rows, self.buffer = np.random.randn(96, 3).astype("float32"), np.empty(3, "float32")
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, at):
        self.buffer[:] = self.rows[at]
        return self.buffer  # CAUSE
rows = Rows()
for x in DataLoader(rows, batch_size=8, shuffle=True, collate_fn=lambda rows: np.stack(rows)):
    fit(net(tensor(x)).square().mean())
told(list(x))
"""
KEPT = """
Step = namedtuple("Step", "state action reward following")
class Memory:
    def __init__(self, most):
        self.steps = deque(maxlen=most)
    def push(self, *step):
        self.steps.append(Step(*step))
    def sample(self, count):
        return Step(*zip(*random.sample(self.steps, count)))
env, memory = Env(), Memory(40)
def learn():
    batch = memory.sample(8)
    states = made(np.array(batch.state))
    fit((net(states)[:, 0] - made(np.array(batch.reward, "float32"))).square().mean())
state = env.reset()
for at in range(60):
    following, reward, done = env.step(at % 2)
    memory.push(state, at % 2, reward, following)
    state = env.reset() if done else following
    if len(memory.steps) >= 16:
        learn()
told([each.state for each in memory.steps])
"""
ROLLOUT = """
env = Env()
for episode in range(12):
    states, rewards, state, done = [], [], env.reset(), False
    while not done:
        states.append(state)
        state, reward, done = env.step(random.randrange(2))
        rewards.append(reward)
    x = tensor(np.array(states))
    fit((net(x)[:, 0] - tensor(np.array(rewards, "float32"))).square().mean())
told(states)
"""
BUGGY = {
    "rows of a state": changed(ENV, MARKED) + NET + PLAY,
    "added in place": ADDED + NET + changed(LONG, (" if done else following", " if False else following")),
    "a buffer that is filled": READER + NET + READ,
    "a memory of its own": changed(ENV, MARKED) + NET + KEPT,
    "an episode at a time": changed(ENV, MARKED) + NET + ROLLOUT,
    "written by a method": changed(ENV, MARKED, ("        self.state[:2] += 0.1 * (2 * action - 1)\n"
                                   "        self.state[2] *= 0.9\n", "        self.move(action)\n"), (
        "    def step(", "    def move(self, action):\n        self.state[:2] += 0.1 * (2 * action - 1)\n"
        "        self.state[2] *= 0.9\n    def step(")) + NET + PLAY,
    "two arrays": changed(ENV, MARKED, ("        self.left = 0\n", "        self.left, self.seen = 0, np.zeros(2)\n"),
                          ("    def step(", "    def look(self):\n        self.seen[:] = self.state[:2]\n"
                           "        return self.seen\n    def step(")) + NET + PLAY,
    "with a loader": NET + LOADED,
    "put together by the loader": NET + changed(
        LOADED, (", collate_fn=lambda rows: np.stack(rows)", ""), ("net(tensor(x))", "net(x)"),
        ("told(list(x))", "told(list(x.numpy()))")),
    "a dictionary": changed(ENV, (STEP, "return {'state': self.state}, -float(np.abs(self.state).sum()), "
                                  "self.left == 0  # CAUSE"), ("        return self.state\n",
                            "        return {'state': self.state}\n")) + NET + changed(
        PLAY, ("each[0] for each in batch", "each[0]['state'] for each in batch"), ("each[3] for", "each[3]['state'] "
               "for"), ("each[0] for each in memory", "each[0]['state'] for each in memory")),
}  # fmt: skip
COPIES = ("return self.state,", "return self.state.copy(),")
# What is stored differs.
HEALTHY = {
    "a copy": changed(ENV, COPIES, ("        return self.state\n", "        return self.state.copy()\n")) + NET + PLAY,
    "a new array": changed(ADDED, ("  # CAUSE", ""), ("self.state += np", "self.state = self.state + np")) + NET + LONG,
    "the memory copies": ENV + NET + changed(
        PLAY, ("(state, action, reward, following)", "(state.copy(), action, reward, following.copy())")),
    "the memory writes rows": ENV + NET + changed(
        PLAY, ("(state, action", "(np.array(state), action"), ("following))", "np.array(following)))")),
    "rows of a table": changed(READER, ("  # CAUSE", ""), ("        self.buffer[:] = self.rows[at]\n", ""),
                               ("return self.buffer", "return self.rows[at]")) + NET + READ,
    "copies of a buffer": changed(READER, ("return self.buffer  # CAUSE", "return self.buffer.copy()")) + NET + READ,
}  # fmt: skip
# One state in each row of a batch, for all that may be done in it; the environment's array is stored nowhere.
REPEATED = {
    "a plan": changed(ENV, COPIES, ("        return self.state\n", "        return self.state.copy()\n")) + NET + """
env = Env()
state = env.reset()
for at in range(24):
    rows = tensor(np.repeat(state[None], 8, 0)) + 0.1 * tensor(np.random.randn(8, 3).astype("float32"))
    fit((net(rows)[:, 0] - 1).square().mean())
    state, _, done = env.step(at % 2)
    state = env.reset() if done else state
""",
    "a plan, of the array itself": ENV + NET + """
env = Env()
state = env.reset()
for at in range(24):
    rows = tensor(np.repeat(state[None], 8, 0)) + 0.1 * tensor(np.random.randn(8, 3).astype("float32"))
    fit((net(rows)[:, 0] - 1).square().mean())
    state, _, done = env.step(at % 2)
    state = env.reset() if done else state
""",
}  # fmt: skip
OF_TORCH = {
    # FAULT: reset, which stands first, is named, and not step, which gave what was stored.
    "written by a method": "the line of reset is named",
    # FAULT: only attributes that a return names by themselves are seen.
    "a dictionary": "an array in a dictionary that is returned is not seen",
    # FAULT: whether the array is stored at all is not asked.
    "a plan, of the array itself": "a batch of one state, repeated on purpose",
    # FAULT: rows that are made tensors one by one, and then put together.
    "put together by the loader": "rows that the loader puts together are not looked at",
}  # fmt: skip
# FAULT: Paddle's to_tensor is no operator that detectors are told of: no batch is looked at. Told as one, it becomes
# the cause of other findings (data that is not finite, or not scaled), in the place of the line that computes it.
FAULTS = {"torch": OF_TORCH, "paddle": dict.fromkeys(BUGGY, "to_tensor of Paddle's is not told of")}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    parts |= {f"repeated, {name}": part for name, part in REPEATED.items()}
    texts = {name: HEAD[request.param] + part.replace(".max(1)", TORCH_MAX[request.param])
             for name, part in parts.items()}  # fmt: skip
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


def on_each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Once per framework and name; what is known to fail there has to."""
    found = []
    for framework in FRAMEWORKS:
        for name in names:
            why = FAULTS[framework].get(name)
            marks = [getattr(pytest.mark, framework), pytest.mark.xdist_group(f"one-array-{framework}")]
            marks += [pytest.mark.xfail(strict=True, reason=why)] if why else []
            found.append(pytest.param(framework, name, id=f"{name}-{framework}", marks=marks))
    return pytest.mark.parametrize(("runs", "name"), found, indirect=["runs"])


ALONE = ("a buffer that is filled", "a memory of its own", "an episode at a time", "with a loader")


@on_each(BUGGY)
def test_states_that_are_one_array(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "all the same: True\n" in run.plain, run
    first = run.check_first("silent-overwrite")
    # Without a second batch with the same rows, that of the next states, it may be meant: a note.
    alone = name in ALONE
    assert first["severity"] == ("note" if alone else "warning"), first
    assert "itself, which is written into again" in first["message"], first


@on_each(HEALTHY)
def test_states_that_are_stored_one_by_one(runs: dict[str, Run], name: str) -> None:
    assert "all the same: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@on_each(REPEATED)
def test_rows_that_are_meant_to_be_the_same(runs: dict[str, Run], name: str) -> None:
    runs[f"repeated, {name}"].check_healthy()
