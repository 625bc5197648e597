"""A loop over parameters that gives its own variable the new value. Witness: the program prints whether what the loop
was to change has other bits behind it."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case
from support.small_net import small_net

START = """
decay, twin = 0.9, copy.deepcopy(net)
changed = []
def bits(module):
    return [each.tolist() for each in module.state_dict().values()]
def watched(module, update):
    before = bits(module)
    update()
    changed.append(bits(module) != before)
"""
FIT = """
for step in range(6):
    loss = (net(noise(6, 4)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    clear()
    watched(WATCHED, update)
print("changed:", sum(changed[1:]))
"""
AVERAGE = """
class Average:
    def __init__(self, net):
        self.module = twin
    @framework.no_grad()
    def update(self, net):
        for ema_p, p in zip(self.module.parameters(), net.parameters()):
            LINES
average = Average(net)
def update():
    average.update(net)
"""
CLAMP = """
doubled = {}
@framework.no_grad()
def update():
    for name, p in net.named_parameters():
        LINES
    for p in net.parameters():
        p.grad = None if False else p.grad
"""
LISTS = """
old, new = list(twin.parameters()), list(net.parameters())
def update():
    with framework.no_grad():
        for e, p in zip(old, new):
            LINES
"""
STATES = """
def update():
    with framework.no_grad():
        now, kept = net.state_dict(), twin.state_dict()
        for name, value in kept.items():
            LINES
"""


def program(framework: str, frame: str, *lines: str, watched: str = "twin") -> str:
    indent = next(line for line in frame.splitlines() if "LINES" in line).partition("LINES")[0]
    body = frame.replace("LINES", f"\n{indent}".join(lines))
    return small_net(framework) + START + body + FIT.replace("WATCHED", watched)


BUGGY = {
    "an average": (AVERAGE, "ema_p = decay * ema_p + (1.0 - decay) * p  # CAUSE"),
    "an average over several lines": (
        AVERAGE, "new = p.detach()", "ema_p = (  # CAUSE", "    decay * ema_p", "    + (1.0 - decay) * new", ")",
    ),
    "weights that are clamped": (CLAMP, "if 'weight' in name:", "    p = p.clip(-0.01, 0.01)  # CAUSE"),
    "lists of them": (LISTS, "e = e + (1.0 - decay) * (p - e)  # CAUSE"),
    "a state dict": (STATES, "value = decay * value + (1.0 - decay) * now[name]  # CAUSE"),
}  # fmt: skip
HEALTHY = {
    "written into": (AVERAGE, "put(ema_p, decay * ema_p + (1.0 - decay) * p)"),
    "written into later": (AVERAGE, "old = ema_p", "ema_p = decay * ema_p + (1.0 - decay) * p", "put(old, ema_p)"),
    "stored": (
        STATES, "value = decay * value + (1.0 - decay) * now[name]", "put(dict(twin.state_dict())[name], value)",
    ),
    "clamped, and read": (CLAMP, "old = p", "p = p.clip(-0.01, 0.01)", "put(old, p)"),
    "in place": (LISTS, "e = e.scale_(decay).add_((1 - decay) * p)"),
}  # fmt: skip
NOTHING = {
    "a norm": (CLAMP, "total = 0.0", "total = total + p.norm()", "p = p.reshape([-1])"),
    "a cast that is used": (CLAMP, "p = p.detach().astype('float64') * 2", "changed.append(bool(p.isnan().any()))"),
    "gathered": (CLAMP, "kept = []", "p = p * 2.0", "kept.append(p)"),
    "kept by a function": (CLAMP, "read = lambda: p", "p = p * 2.0", "read()"),
    "kept by a call": (CLAMP, "p = doubled.setdefault(name, p * 2.0)"),
    "a copy": (CLAMP, "p = p.detach().clone()"),
    "an average of its own": (
        "def update():\n    for p in net.parameters():\n        LINES\n",
        "p = p.detach() * 2.0", "if p.sum() > 1e9:", "    print(p)",
    ),
}  # fmt: skip
BY_HAND = """
rate = 0.05
for step in range(6):
    before = bits(net)
    loss = (net(noise(6, 4)) - 1).square().mean()
    loss.backward()
    with framework.no_grad():
        for p in net.parameters():
            LINES
    clear()
    changed.append(bits(net) != before)
print("changed:", sum(changed[1:]))
"""


def text(framework: str, part: tuple[str, ...], watched: str = "twin") -> str:
    made = program(framework, *part, watched=watched)
    if framework == "torch":
        return made.replace("e.scale_(decay)", "e.mul_(decay)").replace("astype('float64')", "double()")
    return made


def by_hand(framework: str, line: str) -> str:
    return small_net(framework) + START + BY_HAND.replace("LINES", line)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    name = request.param
    texts = {f"buggy, {key}": text(name, part, _watched(part)) for key, part in BUGGY.items()}
    texts |= {key: text(name, part, _watched(part)) for key, part in (HEALTHY | NOTHING).items()}
    texts["by hand"] = by_hand(name, "p = p - rate * p.grad  # CAUSE")
    texts["by hand, the operator in place"] = by_hand(name, "p -= rate * p.grad  # CAUSE")
    return diagnose_each(name, tmp_path_factory.mktemp("programs"), texts)


def _watched(part: tuple[str, ...]) -> str:
    return "net" if part[0] is CLAMP or part[0].startswith("def") else "twin"


cases = {name: case(name, name, group=f"rebound-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


def check_lost(run: Run) -> None:
    assert "changed: 0\n" in run.plain, run
    first = run.check_first("lost-update")
    assert first["severity"] == "error" and "gives the loop's variable" in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_lost(runs: dict[str, Run], name: str) -> None:
    check_lost(runs[f"buggy, {name}"])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_written(runs: dict[str, Run], name: str) -> None:
    assert "changed: 5\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_write(runs: dict[str, Run], name: str) -> None:
    assert "changed: 0\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
def test_by_hand(runs: dict[str, Run]) -> None:
    check_lost(runs["by hand"])


@each
def test_operator_in_place(runs: dict[str, Run], request: pytest.FixtureRequest) -> None:
    """Paddle's ``-=`` makes a new tensor."""
    run = runs["by hand, the operator in place"]
    if "import torch" in run.program:
        assert "changed: 5\n" in run.plain, run
        run.check_healthy()
    else:
        check_lost(run)
