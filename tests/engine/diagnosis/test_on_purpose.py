"""What is done on purpose and looks like a mistake of the loop, beside the mistake that it looks like: weights that are
clamped, set back or updated by hand, parts that wait, gates, margins that are kept."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch, copy
from torch import nn
torch.manual_seed(0)
F = nn.functional
noise, cat, no_grad, relu = torch.randn, torch.cat, torch.no_grad, torch.relu
def sgd(parameters, rate):
    return torch.optim.SGD(list(parameters), lr=rate)
def adam(parameters, rate=1e-2):
    return torch.optim.Adam(list(parameters), lr=rate)
def set_rate(optimizer, rate):
    optimizer.param_groups[0]["lr"] = rate
def parameter(value):
    return nn.Parameter(value)
def write(parameter, value):
    with torch.no_grad():
        parameter.copy_(value)
def load(module, state):
    module.load_state_dict(state)
def at_least_zero(value):
    return value.clamp(min=0)
def softmax(value):
    return value.softmax(-1)
def turned(value):
    return value.transpose(1, 2)
def norm(width):
    return nn.BatchNorm1d(width)
def clip(parameters):
    nn.utils.clip_grad_norm_(list(parameters), 0.1)
""",
    "paddle": """
import paddle, copy
from paddle import nn
paddle.seed(0)
F = nn.functional
noise, cat, no_grad, relu = lambda *shape: paddle.randn(shape), paddle.concat, paddle.no_grad, F.relu
def sgd(parameters, rate):
    return paddle.optimizer.SGD(rate, parameters=list(parameters))
def adam(parameters, rate=1e-2):
    return paddle.optimizer.Adam(rate, parameters=list(parameters))
def set_rate(optimizer, rate):
    optimizer.set_lr(rate)
def parameter(value):
    return paddle.create_parameter(value.shape, "float32", default_initializer=nn.initializer.Assign(value))
def write(parameter, value):
    parameter.set_value(value)
def load(module, state):
    module.set_state_dict(state)
def at_least_zero(value):
    return value.clip(min=0)
def softmax(value):
    return F.softmax(value, axis=-1)
def turned(value):
    return value.transpose([0, 2, 1])
def norm(width):
    return nn.BatchNorm1D(width)
def clip(parameters):
    nn.utils.clip_grad_norm_(list(parameters), 0.1)
""",
}
NETS = """
def net(inner=8, outer=1, *extra):
    return nn.Sequential(nn.Linear(inner, 16), *extra, nn.ReLU(), nn.Linear(16, outer))
def values(module):
    return {name: value.clone() for name, value in module.state_dict().items()}
def fit(model, optimizer, steps=12, batch=lambda: noise(16, 8)):
    for _ in range(steps):
        x = batch()
        F.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()
        optimizer.CLEAR()
"""

BOUND = """
theta = parameter(0 * noise(3).abs())
features = noise(20, 3).abs()
target, optimizer = -features.sum(1), sgd([theta], 0.01)
for _ in range(10):
    ((features * theta).sum(1) - target).square().mean().backward()
    optimizer.step()
    optimizer.CLEAR()
    write(theta, at_least_zero(theta.detach()))
"""
# What does not help is taken back, and tried with half the rate.
LINE_SEARCH = """
model, x = nn.Linear(8, 1), noise(64, 8)
rate, optimizer = 5.0, sgd(model.parameters(), 5.0)
for _ in range(20):
    old, before = values(model), F.mse_loss(model(x), x[:, :1])
    before.backward()
    optimizer.step()
    optimizer.CLEAR()
    with no_grad():
        worse = float(F.mse_loss(model(x), x[:, :1])) > float(before)
    if worse:
        load(model, old)
        rate /= 2
        set_rate(optimizer, rate)
"""
# From the first weights, by the sum of all gradients.
DUAL_AVERAGING = """
model = nn.Linear(8, 1)
first, optimizer = [each.detach().clone() for each in model.parameters()], sgd(model.parameters(), 1.0)
for step in range(1, 12):
    x = noise(32, 8)
    F.mse_loss(model(x), x[:, :1]).backward()
    for each, value in zip(model.parameters(), first):
        write(each, value)
    set_rate(optimizer, 0.2 / step**0.5)
    optimizer.step()
"""
# The same with gradients that are cleared: each step is the first one.
SET_BACK = DUAL_AVERAGING.replace("    optimizer.step()\n", "    optimizer.step()\n    optimizer.CLEAR()\n")

TARGET = """
class Pair(nn.LAYER):
    def __init__(self):
        super().__init__()
        self.online, self.ahead = net(8, 8), nn.Linear(8, 8)
        self.target = copy.deepcopy(self.online)

    def forward(self, x, y):
        with no_grad():  # CAUSE
            wanted = self.target(y)
        return F.mse_loss(self.ahead(self.online(x)), wanted)

    def follow(self):
        for mine, other in zip(self.target.parameters(), self.online.parameters()):
            write(mine, 0.9 * mine.detach() + 0.1 * other.detach())

model = Pair()
optimizer = adam(model.parameters())
for _ in range(12):
    x = noise(16, 8)
    model(x, x + 0.1 * noise(16, 8)).backward()
    optimizer.step()
    optimizer.CLEAR()
    model.follow()
"""
NEVER_FOLLOWS = TARGET.replace("    model.follow()\n", "")

FIXED_FEATURES = """
fixed, weight = noise(8, 16), parameter(0.1 * noise(16, 1))
optimizer = sgd([fixed, weight], 0.01)
for _ in range(8):
    x = noise(16, 8)
    F.mse_loss(relu(x @ fixed) @ weight, x[:, :1]).backward()
    optimizer.step()
    optimizer.CLEAR()
"""

TIMED = """
model = net()
optimizer, x = adam(model.parameters()), noise(16, 8)
loss = F.mse_loss(model(x), x[:, :1])
for _ in range(5):
    loss.backward(retain_graph=True)
optimizer.CLEAR()
fit(model, optimizer)
"""
TWICE_AND_CLIPPED = """
model = net()
optimizer = adam(model.parameters())
for _ in range(6):
    x = noise(16, 8)
    loss = F.mse_loss(model(x), x[:, :1])
    loss.backward(retain_graph=True)
    loss.backward()  # CAUSE
    clip(model.parameters())
    optimizer.step()
    optimizer.CLEAR()
"""

WAITS = """
body, head = nn.Linear(8, 8), nn.Linear(8, 1)
of_head, of_body = sgd(head.parameters(), 0.05), sgd(body.parameters(), 0.0)
for _ in range(8):
    x = noise(16, 8)
    F.mse_loss(head(relu(body(x))), x[:, :1]).backward()
    for each in (of_head, of_body):
        each.step()
        each.CLEAR()
"""

ADAPTS = """
model = net()
start = values(model)
for _ in range(10):
    load(model, start)
    optimizer = adam(model.parameters())
    fit(model, optimizer, 1)
"""
ADAPTS_BY_HAND = ADAPTS.replace(
    "    load(model, start)\n",
    """
    for name, each in model.named_parameters():
        write(each, start[name])
""",
)
REMADE_AND_CLAMPED = """
model = net()
for _ in range(10):
    optimizer = adam(model.parameters())
    fit(model, optimizer, 1)
    write(model[0].weight, at_least_zero(model[0].weight.detach()))
"""

STATISTICS = """
model = net(8, 1, norm(16))
data = [noise(16, 8) for _ in range(6)]
fit(model, adam(model.parameters()))
with no_grad():
    for x in data:
        model(x)
model.eval()
with no_grad():
    print(sum(float(F.mse_loss(model(x), x[:, :1])) for x in data))
"""
NO_EVAL = """
model = net(8, 1, norm(16))
data = [noise(16, 8) for _ in range(6)]
fit(model, adam(model.parameters()))
with no_grad():
    print(sum(float(F.mse_loss(model(x), x[:, :1])) for x in data))  # CAUSE
"""
FROM_THERE_ON = """
model = net(8, 1, nn.Dropout(0.1))
optimizer = adam(model.parameters())
fit(model, optimizer)
model.eval()
fit(model, optimizer)
"""
EACH_EPOCH = """
model, x = net(8, 1, nn.Dropout(0.1)), noise(16, 8)
optimizer = adam(model.parameters())
for epoch in range(4):
    fit(model, optimizer)
    model.eval()  # CAUSE
    with no_grad():
        print(float(F.mse_loss(model(x), x[:, :1])))
"""

ONE_KEY = """
class Attention(nn.LAYER):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights = softmax(self.q(x) @ turned(self.k(x)))
        return self.out(weights @ self.v(x))

model = Attention()
optimizer = adam(model.parameters())
for _ in range(8):
    x = noise(16, 1, 8)
    F.mse_loss(model(x), x * 0.5).backward()
    optimizer.step()
    optimizer.CLEAR()
"""
ONE_CLASS = """
model = net()
optimizer = adam(model.parameters())
for _ in range(8):
    x = noise(16, 8)
    F.mse_loss(softmax(model(x)), x[:, :1]).backward()
    optimizer.step()
    optimizer.CLEAR()
"""
MARGIN = """
model = nn.Linear(8, 8)
write(model.weight, 0 * noise(8, 8))
write(model.bias, noise(8))
optimizer = sgd(model.parameters(), 1e-4)
for _ in range(8):
    x = noise(16, 8)
    near, far = (model(x) - model(x)).square().sum(-1), (model(x) + 9).square().sum(-1)
    at_least_zero(near - far + 0.2).mean().backward()
    optimizer.step()
    optimizer.CLEAR()
"""

FROZEN_BY_HOOK = """
model = net()
model[0].weight.register_hook(lambda gradient: 0 * gradient)
fit(model, adam(model.parameters()))
"""

LEAKY = """
class Smooth(nn.LAYER):
    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = 0.7 * self.inp(x[0])
        for step in range(1, 40):
            h = 0.3 * h + 0.7 * self.inp(x[step])
        return self.out(h)

model = Smooth()
optimizer = adam(model.parameters())
for _ in range(8):
    x = noise(40, 16, 3)
    F.mse_loss(model(x), x[-1, :, :1]).backward()
    optimizer.step()
    optimizer.CLEAR()
"""
PRUNED = """
model = net(8)
for each in model[0].parameters():
    kept = each.detach().clone()
    ROWS = 0
    write(each, kept)
fit(model, sgd(model.parameters(), 0.01))
"""
# Dead by its bias, which is far below 0.
DEAD = """
model = net(8)
kept = model[0].bias.detach().clone()
kept[:14] = -50.0
write(model[0].bias, kept)
fit(model, sgd(model.parameters(), 0.01))
"""

HEALTHY: dict[str, tuple[str, tuple[str, ...]]] = {  # with the notes that are told
    "bound": (BOUND, ("lost-update",)),
    "line search": (LINE_SEARCH, ()),
    "dual averaging": (DUAL_AVERAGING, ("zero-grad",)),
    "target": (TARGET, ("no-gradient",)),
    "timed": (TIMED, ()),
    "waits": (WAITS, ("zero-learning-rate",)),
    "adapts": (ADAPTS, ()),
    "adapts by hand": (ADAPTS_BY_HAND, ()),
    "statistics": (STATISTICS, ()),
    "one key": (ONE_KEY, ("zero-gradient",)),
    "margin": (MARGIN, ("zero-gradient",)),
    "leaky": (LEAKY, ("vanishing",)),
    "pruned": (PRUNED, ()),
}
UNSURE = {  # a warning that says when it is right
    "fixed features": (FIXED_FEATURES, "frozen-in-optimizer"),
    "from there on": (FROM_THERE_ON, "wrong-mode"),
    "frozen by hook": (FROZEN_BY_HOOK, "gradient-hook"),
}
BUGGY = {
    "set back": (SET_BACK, "lost-update"),
    "never follows": (NEVER_FOLLOWS, "no-gradient"),
    "twice and clipped": (TWICE_AND_CLIPPED, "twice-backward"),
    "remade and clamped": (REMADE_AND_CLAMPED, "optimizer-remade"),
    "no eval": (NO_EVAL, "wrong-mode"),
    "each epoch": (EACH_EPOCH, "wrong-mode"),
    "one class": (ONE_CLASS, "zero-gradient"),
    "dead": (DEAD, "dead-units"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    torch = request.param == "torch"
    words = {
        "CLEAR()": "zero_grad()" if torch else "clear_grad()", "LAYER": "Module" if torch else "Layer",
        "ROWS": "kept[:14]" if torch else "kept[..., :14]",
    }  # fmt: skip
    programs = {}
    for name, (text, _) in {**HEALTHY, **UNSURE, **BUGGY}.items():
        whole = HEAD[request.param] + NETS + text
        for word, meant in words.items():
            whole = whole.replace(word, meant)
        programs[name] = whole
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), programs)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"on-purpose-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_meant_is_a_note_at_most(runs: dict[str, Run], name: str) -> None:
    runs[name].check_healthy(*HEALTHY[name][1])


@each
@pytest.mark.parametrize("name", UNSURE)
def test_what_may_be_meant_is_a_warning_that_says_so(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first(UNSURE[name][1])
    assert (first["severity"], first["confidence"]) == ("warning", 0.6), first
    assert "right if" in " ".join([first["message"], *first["evidence"]]), first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_the_mistake_that_it_looks_like_is_found(runs: dict[str, Run], name: str) -> None:
    first = runs[name].check_first(BUGGY[name][1])
    assert first["confidence"] >= 0.7, first
