"""Filters on names that say what is trained. Witness: what the program prints of the weights that move."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import fnmatch, re
import torch
from torch import nn
torch.manual_seed(0)
Module, noise = nn.Module, torch.randn
def new(*shape):
    return nn.Parameter(0.1 * torch.randn(*shape))
def adam(parameters):
    return torch.optim.Adam(list(parameters), lr=0.01)
def clear(optimizer):
    optimizer.zero_grad()
def is_free(p):
    return p.requires_grad
""",
    "paddle": """
import fnmatch, re
import paddle
from paddle import nn
paddle.seed(0)
Module, noise = nn.Layer, lambda *shape: paddle.randn(shape)
def new(*shape):
    return paddle.create_parameter(list(shape), "float32")
def adam(parameters):
    return paddle.optimizer.Adam(0.01, parameters=list(parameters))
def clear(optimizer):
    optimizer.clear_grad()
def is_free(p):
    return not p.stop_gradient
""",
}
NET = """
class SideLinear(Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.lora_scale = base, 2.0
        self.down, self.up = new(6, 2), new(2, 6)
    def forward(self, x):
        return self.base(x) + self.lora_scale * (x @ self.down @ self.up)
class Net(Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 6)
        self.side = SideLinear(nn.Linear(6, 6))
        self.norm = nn.LayerNorm(6)
        self.classifier = nn.Linear(6, 2)
    def forward(self, x):
        return self.classifier(self.norm(self.side(self.encoder(x).tanh())))
net = Net()
def choose():
    CHOOSE
choose()
optimizer = GIVEN
before = {name: float(p.sum()) for name, p in net.named_parameters()}
for _ in range(6):
    loss = (net(noise(8, 4)) - 1).square().mean()
    clear(optimizer)
    loss.backward()
    optimizer.step()
print("moved", [name for name, p in net.named_parameters() if float(p.sum()) != before[name]])
"""
FREE = "adam(p for p in net.parameters() if is_free(p))"
ALL = "for name, p in net.named_parameters():\n        "
NONE = "for p in net.parameters():\n        FROZEN\n    "


def _program(choose: str = "pass", given: str = FREE) -> str:
    return NET.replace("CHOOSE", choose).replace("GIVEN", given)


FROZEN = {
    "computed": _program(ALL + 'SET["lora" in name or name.startswith("classifier")]  # CAUSE'),
    "freed": _program(
        NONE + ALL + 'if "classifer" in name or "side.up" in name:  # CAUSE\n            TRAINED'
    ),
    "kept": _program(
        ALL + 'if "side.down" not in name and not name.startswith("clasifier"):  # CAUSE\n            FROZEN'
    ),
    "left by": _program(
        ALL + 'if "Classifier" in name or "up" in name:  # CAUSE\n            continue\n        FROZEN'
    ),
    "listed": _program(
        ALL + 'free = any(key in name for key in KEYS) or "norm" in name  # CAUSE\n        SET[free]'
    ).replace("net = Net()", 'KEYS = ("lora_down", "lora_up")\nnet = Net()'),
    "by its class": _program(ALL + 'SET[fnmatch.fnmatch(name, "*sidelinear*") or "norm" in name]  # CAUSE'),
}  # fmt: skip
NOT_GIVEN = {
    "given": _program(
        given='adam([p for n, p in net.named_parameters() if "lora" in n or "classifier" in n])  # CAUSE'
    ),
    "appended": _program(given="adam(chosen)").replace("choose()\noptimizer", """chosen = []
for n, p in net.named_parameters():
    if n.startswith("encodr.") or "classifier" in n:  # CAUSE
        chosen.append(p)
optimizer"""),
}  # fmt: skip
GROUPS = """adam_of([
    {"params": [p for n, p in net.named_parameters() if not any(each in n for each in NO_DECAY)], "weight_decay": 0.1},
    {"params": [p for n, p in net.named_parameters() if any(each in n for each in NO_DECAY)], "weight_decay": 0.0},
])"""
HEALTHY = {
    "all are found": _program(ALL + 'SET["up" in name or "down" in name or name.startswith("classifier")]'),
    "a list for many models": _program(ALL + 'SET[any(key in name for key in ["classifier", "fc", "head", "out"])]'),
    "freezes what is not there": _program(ALL + 'if "embed" in name or "encoder" in name:\n            FROZEN'),
    "groups": _program(given=GROUPS).replace("net = Net()", 'NO_DECAY = ["bias", "LayerNorm.weight"]\nnet = Net()'),
    "of a part": _program(
        "for name, p in net.side.named_parameters():\n        SET[name.startswith('up') or name == 'down']"
    ),
    "never called": _program().replace("choose()\noptimizer", "optimizer").replace(
        "    pass", f'    {ALL}SET["lora" in name]'
    ),
}  # fmt: skip
UNSURE = _program(ALL + 'SET["head" in name or "classifier" in name]')


def _text(framework: str, text: str) -> str:
    flags = {
        "torch": ("p.requires_grad_({})", "p.requires_grad = True", "p.requires_grad = False"),
        "paddle": ("p.stop_gradient = not ({})", "p.stop_gradient = False", "p.stop_gradient = True"),
    }[framework]
    lines = []
    for line in text.split("\n"):
        if "SET[" in line:
            before, _, rest = line.partition("SET[")
            inner, _, after = rest.rpartition("]")
            line = before + flags[0].format(inner) + after
        lines.append(line.replace("TRAINED", flags[1]).replace("FROZEN", flags[2]))
    of = {"torch": "torch.optim.AdamW(", "paddle": "paddle.optimizer.AdamW(0.01, parameters="}[framework]
    return HEAD[framework] + "\n".join(lines).replace("adam_of(", of)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    programs = FROZEN | NOT_GIVEN | HEALTHY | {"unsure": UNSURE}
    texts = {name: _text(request.param, text) for name, text in programs.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"training-by-name-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", [*FROZEN, *NOT_GIVEN])
def test_a_filter_that_finds_nothing(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first("not-optimized" if name in NOT_GIVEN else "frozen-in-optimizer")
    assert "no parameter has" in first["message"] and first["severity"] == "error", first


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_filters(runs: dict[str, Run], name: str) -> None:
    assert "moved []" not in runs[name].plain
    runs[name].check_healthy()


@each
def test_a_name_of_other_models_is_a_note(runs: dict[str, Run]) -> None:
    runs["unsure"].check_healthy("frozen-in-optimizer")
