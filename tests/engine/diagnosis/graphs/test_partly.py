"""A state of several parts that goes from one iteration into the next, one of them with its graph. Witness: the error
of the framework, and that the same program with both parts detached ends."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
from collections import namedtuple
import torch
from torch import nn
torch.manual_seed(0)
Module, noise = nn.Module, torch.randn
def sgd(parameters):
    return torch.optim.SGD(list(parameters), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
""",
    "paddle": """
from collections import namedtuple
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def sgd(parameters):
    return paddle.optimizer.SGD(0.01, parameters=list(parameters))
def clear(optimizer):
    optimizer.clear_grad()
""",
}

NET = """
State = namedtuple("State", "h c")
class Net(Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x, state):
        h, c = OPENED
        outs = []
        for t in range(3):
            c = (self.a(x[:, t]) + self.b(h) + c).tanh()
            h = c * c.tanh()
            outs.append(self.out(h))
        return sum(outs), CLOSED
"""
# Kept by an object.
KEPT = """
class Trainer:
    def __init__(self):
        self.net = Net()
        self.optimizer = sgd(self.net.parameters())
        self.best = self.carry = FIRST
    METHOD
    def epoch(self):
        for _ in range(5):
            out, state = self.net(noise(8, 3, 3), self.carry)
            loss = (out - 1).square().mean()
            clear(self.optimizer)
            loss.backward()
            self.optimizer.step()
            STORE
            print(float(loss))
Trainer().epoch()
"""
# A variable of the loop.
LOCAL = """
net = Net()
optimizer = sgd(net.parameters())
METHOD
def run():
    state = FIRST
    for _ in range(5):
        out, NEW = net(noise(8, 3, 3), state)
        loss = (out - 1).square().mean()
        clear(optimizer)
        loss.backward()
        optimizer.step()
        STORE
        print(float(loss))
run()
"""
PAIR = {"OPENED": "state", "CLOSED": "(h, c)", "FIRST": "(noise(8, 4), noise(8, 4))"}
DICT = {
    "OPENED": 'state["h"], state["c"]', "CLOSED": '{"h": h, "c": c}', "FIRST": '{"h": noise(8, 4), "c": noise(8, 4)}'
}  # fmt: skip
NAMED = {"OPENED": "state.h, state.c", "CLOSED": "State(h, c)", "FIRST": "State(noise(8, 4), noise(8, 4))"}
REMEMBERS = "def remember(self, state):\n        "


def _program(text: str, parts: dict[str, str], store: str, method: str = "", new: str = "new") -> str:
    text = (NET + text).replace("METHOD", method).replace("STORE", store).replace("out, NEW", f"out, {new}")
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


BUGGY = {
    "unpacked": _program(
        KEPT, PAIR, "self.remember(state)",
        REMEMBERS + "hidden, memory = state\n        self.carry = (hidden.detach(), memory)  # CAUSE",
    ),
    "one by one": _program(
        KEPT, NAMED | {"self.carry)": "State(self.h, self.c))"}, "self.remember(state)",
        REMEMBERS + "hidden, memory = state\n        self.h = hidden.detach()\n        self.c = memory  # CAUSE",
    ).replace("= self.carry = ", "= self.carry = self.h, self.c = "),
    "dict": _program(KEPT, DICT, 'self.carry = {"h": state["h"].detach(), "c": state["c"]}  # CAUSE'),
    "named": _program(
        KEPT, NAMED, "self.remember(state)", REMEMBERS + "self.carry = State(state.h.detach(), state.c)  # CAUSE"
    ),
    "replaced": _program(KEPT, NAMED, "self.carry = state._replace(h=state.h.detach())  # CAUSE"),
    "a record beside": _program(
        KEPT, PAIR, "self.best = (loss.detach(), state)\n            self.carry = list(state)  # CAUSE"
    ),
    "by a method": _program(
        KEPT, PAIR, "self.carry = self.cut(state)",
        "def cut(self, state):\n        return [state[0].detach(), state[1]]  # CAUSE",
    ),
    "local": _program(LOCAL, PAIR, "state = (h.detach(), c)  # CAUSE", new="(h, c)"),
    "local dict": _program(LOCAL, DICT, 'state = {"h": new["h"].detach(), "c": new["c"]}  # CAUSE'),
    "local items": _program(
        LOCAL, DICT, 'state["h"] = new["h"].detach()\n        state["c"] = new["c"]  # CAUSE'
    ),
    "local named": _program(LOCAL, NAMED, "state = State(new.h.detach(), new.c)  # CAUSE"),
    "detached before": _program(LOCAL, PAIR, "h = h.detach()\n        state = (h, c)  # CAUSE", new="(h, c)"),
    "by a function": _program(
        LOCAL, PAIR, "state = repackage(new)",
        "def repackage(state):\n    h, c = state\n    return h.detach(), c  # CAUSE",
    ),
}  # fmt: skip
HEALTHY = {
    "both": _program(KEPT, PAIR, "self.carry = (state[0].detach(), state[1].detach())"),
    "both named": _program(LOCAL, NAMED, "state = State(new.h.detach(), new.c.detach())"),
    "one is no part of it": _program(
        LOCAL, PAIR, "last = (new[0].detach(), out)\n        state = tuple(each.detach() for each in new)"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {name: HEAD[request.param] + text for name, text in (BUGGY | HEALTHY).items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"graphs-partly-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_line_that_puts_the_state_together(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("second-backward")
    if name not in ("one by one", "local items", "a record beside"):
        assert "other parts are detached there" in first["message"], first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_all_parts_detached(runs: dict[str, Run], name: str) -> None:
    assert "Error" not in runs[name].plain
    runs[name].check_healthy()
