"""Data sets and returns in another order. Witness: the samples' own numbers, which say where they belong."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named
from support.short_programs import HEAD

LOADERS = {
    "torch": "from torch.utils.data import DataLoader, Dataset\nimport numpy as np\n",
    "paddle": "from paddle.io import DataLoader, Dataset\nimport numpy as np\n",
}


def dataset(*lines: str, take: str = "self.rows[i], self.labels[i]") -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"""
class Rows(Dataset):
    def __init__(self):
        rng = np.random.RandomState(0)
        rows = rng.randn(40, 6).astype("float32")
        labels = (rows[:, 0] > 0).astype("int64")
{body}
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return {take}
net = nn.Linear(6, 2)
optimizer = Sgd(net.parameters())
data = Rows()
print("paired", all(int(data[i][0][0] > 0) == int(data[i][1]) for i in range(40)))
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=10):
        loss = F.cross_entropy(net(x), y)
        getattr(optimizer, clear)()
        loss.backward()
        optimizer.step()
"""


ORDER = "order = np.argsort(rows[:, 1])"
BUGGY = {
    "sorted": dataset(ORDER, "self.rows = rows[order]", "self.labels = labels  # CAUSE"),
    "a list": dataset(ORDER, "self.rows = [rows[i] for i in order]", "self.labels = labels.astype('int64')  # CAUSE"),
    "shuffled": dataset("order = rng.permutation(40)", "self.labels = labels  # CAUSE", "self.rows = rows[order]"),
}
HEALTHY = {
    "both": dataset(ORDER, "self.rows = rows[order]", "self.labels = labels[order]"),
    "made of it": dataset(ORDER, "self.rows = rows[order]", "self.labels = (self.rows[:, 0] > 0).astype('int64')"),
    "one name": dataset(ORDER, "rows, labels = rows[order], labels[order]", "self.rows = rows", "self.labels = labels"),
    "neither": dataset("self.rows = rows", "self.labels = labels"),
}
POLICY = """
net = nn.Linear(4, 2)
optimizer = Sgd(net.parameters(), 0.01)
def returns_of(rewards, gamma=0.9):
    {first}
    g = 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        {append}
    {last}
for step in range(4):
    x = noise(10, 4)
    rewards = [1.0 * (at == 0) for at in range(10)]
    weights = {call}
    print("first", step, weights[0] == 1.0)
    loss = -(F.log_softmax(net(x), -1)[:, 0] * fw.ones([10]) * float(sum(weights))).mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""


def policy(append: str, last: str = "return out", call: str = "returns_of(rewards)") -> str:
    return POLICY.format(first="out = []", append=append, last=last, call=call)


TURNED = {
    "a list": policy("out.append(g)  # CAUSE"),
    "an array": policy("out.append(g)  # CAUSE", "return list(np.array(out))"),
    "a name": policy("out.append(g)  # CAUSE", "result = [each * 1.0 for each in out]\n    return list(out)"),
}
RIGHT = {
    "inserted": policy("out.insert(0, g)"),
    "turned": policy("out.append(g)", "return out[::-1]"),
    "turned in place": policy("out.append(g)", "out.reverse()\n    return out"),
    "turned by the caller": policy("out.append(g)", call="returns_of(rewards)[::-1]"),
}
PICK = {"torch": "(alphas, 0, t)", "paddle": "(alphas, t, 0)"}
STEPS = """
net = nn.Linear(7, 6)
optimizer = Sgd(net.parameters(), 0.01)
betas = fw.linspace(1e-4, 0.05, 50)
alphas = 1.0 - betas
bars = fw.cumprod(alphas, 0)
for step in range(4):
    x, eps = noise(8, 6), noise(8, 6)
    t = fw.randint(0, 50, [8])
{lines}
    noisy = fw.sqrt(a) * x + fw.sqrt(1.0 - a) * eps
    loss = (net(fw.concat([noisy, a], 1) if fw.__name__ == "paddle" else fw.cat([noisy, a], 1)) - eps).square().mean()
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
print("left at the end", float(RATE[-1]) > 0.9)
"""


def noised(*lines: str, rate: str = "alphas") -> str:
    return STEPS.format(lines="".join(f"    {line}\n" for line in lines)).replace("RATE", rate)


ONE_STEP = {
    "an index": noised("a = alphas[t].unsqueeze(-1)  # CAUSE"),
    "an index of a view": noised("a = alphas.reshape([-1, 1])[t]  # CAUSE"),
    "a selection": noised("a = fw.index_select(*PICK).unsqueeze(-1)  # CAUSE"),
}
ALL_STEPS = {
    "the products": noised("a = bars[t].unsqueeze(-1)", rate="bars"),
    "the sampler": noised(
        "a = bars[t].unsqueeze(-1)",
        "with fw.no_grad():",
        "    back = x / fw.sqrt(alphas[0]) + fw.sqrt(1.0 - alphas[0]) * eps",
        rate="bars",
    ),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"data, {name}": LOADERS[request.param] + part for name, part in BUGGY.items()}
    parts |= {f"data, healthy, {name}": LOADERS[request.param] + part for name, part in HEALTHY.items()}
    parts |= {f"returns, {name}": LOADERS[request.param] + part for name, part in TURNED.items()}
    parts |= {f"returns, healthy, {name}": LOADERS[request.param] + part for name, part in RIGHT.items()}
    parts |= {f"noise, {name}": part.replace("PICK", PICK[request.param]) for name, part in ONE_STEP.items()}
    parts |= {f"noise, healthy, {name}": part for name, part in ALL_STEPS.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"reordered-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, {})
def test_a_part_of_the_samples_in_another_order(runs: dict[str, Run], name: str) -> None:
    run = runs[f"data, {name}"]
    assert "paired False" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "error" and "takes place i of both" in first["message"], first


@each
@named(HEALTHY, {})
def test_samples_that_stay_together(runs: dict[str, Run], name: str) -> None:
    run = runs[f"data, healthy, {name}"]
    assert "paired True" in run.plain, run
    assert not [found for found in run.every if "takes place i" in found["message"]], run


@each
@named(TURNED, {})
def test_returns_that_begin_at_the_end(runs: dict[str, Run], name: str) -> None:
    run = runs[f"returns, {name}"]
    assert "first 3 False" in run.plain, run
    assert "turn it round" in run.check_first("loss-input")["message"]


@each
@named(RIGHT, {})
def test_returns_that_begin_at_the_beginning(runs: dict[str, Run], name: str) -> None:
    run = runs[f"returns, healthy, {name}"]
    assert "first 3 True" in run.plain, run
    assert not [found for found in run.every if "turn it round" in found["message"]], run


@each
@named(ONE_STEP, {})
def test_noise_of_one_step(runs: dict[str, Run], name: str) -> None:
    run = runs[f"noise, {name}"]
    assert "left at the end True" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "error" and "rates of single steps" in first["message"], first


@each
@named(ALL_STEPS, {})
def test_noise_of_all_steps(runs: dict[str, Run], name: str) -> None:
    run = runs[f"noise, healthy, {name}"]
    assert "left at the end False" in run.plain, run
    assert not [found for found in run.every if "rates of single steps" in found["message"]], run
