"""What findings say beside kind and line: which module, which name, which numbers. On PyTorch, in one process."""

from __future__ import annotations

import pytest
from support.diagnosing import line_of
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("torch")

# One line runs all layers. The first bad number is made by the third, in an iteration that is not looked at closely.
SHARED_LINE = """
import torch, torch.nn as nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))
    def forward(self, x):
        return torch.log(x * self.weight)  # CAUSE
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(4))
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x.abs() + 1.5)
            if not torch.isfinite(x).all():
                print(f"layers.{number}")
        return x
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(12):
    if step == 10:
        net.layers[2].weight.data[1] = 0
    loss = net(torch.rand(8, 4) + 1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SCALER = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
before = net[0].weight.detach().clone()
for step in range({steps}):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = net(torch.randn(64, 16)).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()  # CAUSE
    scaler.step(optimizer)
    scaler.update()
print("never stepped" if torch.equal(before, net[0].weight) else "stepped")
"""

NOT_HELD = """
import torch, torch.nn as nn
torch.manual_seed(0)
encoder, head = nn.Linear(4, 8), nn.Linear(8, 3)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)  # CAUSE
for step in range(40):
    loss = head(encoder(torch.randn(8, 4)).tanh()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# The same, and from the tenth iteration on it is held: what was told by then is taken back.
HELD_LATER = NOT_HELD.replace(
    "    loss.backward()",
    """    head.zero_grad()
    loss.backward()
    if step == 9:
        optimizer.add_param_group({"params": list(head.parameters())})""",
)

IN_A_LIST = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.gates = [nn.Parameter(torch.ones(1)) for _ in range(3)]  # CAUSE
    def forward(self, x):
        x = self.body(x)
        for gate in self.gates:
            x = x * gate
        return x
def main():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
main()
"""

REPLACED = """
import torch, torch.nn as nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
        self.body, self.unused, self.head = layers
    def forward(self, x):
        return self.head(self.body(x).tanh())
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # CAUSE
net.head = nn.Linear(8, 5)
for step in range(12):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

EVALUATION = """
import torch, torch.nn as nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net.eval()  # CAUSE
for step in range(17):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

HOOKS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 4)
model.weight.register_hook(lambda g: torch.where(torch.arange(3) == 1, -g, g))  # CAUSE
model.bias.register_hook(lambda g: g.clone())
for step in range(4):
    model.zero_grad()
    model(torch.randn(5, 3)).pow(2).mean().backward()
    if step == 2:
        print(f"{model.weight.grad[0, 1].item():.9g}")
"""

WARNS = """
import traceback, warnings
import torch
x = torch.ones(3, requires_grad=True)
y = x * 2
y.grad
ones = torch.ones(2, 3)
for _ in range(2):
    torch.add(ones, ones, out=torch.empty(1))  # shown once, of one line
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.add(ones, ones, out=torch.empty(1))
print([(each.filename == __file__, each.lineno) for each in caught])
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        torch.add(ones, ones, out=torch.empty(1))
    except UserWarning:
        traceback.print_exc()
torch.nn.functional.softmax(ones)
def backward(loss):
    try:
        loss.backward()
    except RuntimeError:
        traceback.print_exc()
backward(y)
loss = (y * y).sum()
backward(loss)
backward(loss)
backward((x * 3).sum())
print(x.grad.tolist())
"""

# Another shape of what is right: logarithms of what is kept away from 0, a padded batch in an attention, a hook that
# clips, a target network that follows, a warm-up from 0, an optimizer for each part, gradients over two micro-batches.
HEALTHY = """
import copy, math
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.LayerNorm(8)) for _ in range(3)])
        self.query, self.mean, self.spread = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x, padding):
        for block in self.blocks:
            x = x + block(x)
        scores = self.query(x) @ x.transpose(1, 2) / math.sqrt(8)
        x = scores.masked_fill(padding.unsqueeze(1), float("-inf")).softmax(-1) @ x
        x = (x * ~padding.unsqueeze(-1)).sum(1) / (~padding).sum(1, keepdim=True).clamp(min=1)
        return self.mean(x), F.softplus(self.spread(x)) + 1e-3
coder, decoder = Coder(), nn.Linear(4, 8)
target = copy.deepcopy(coder).requires_grad_(False)
decoder.weight.register_hook(lambda g: g.clamp(-0.5, 0.5))
optimizers = [torch.optim.AdamW(each.parameters(), 1e-3) for each in (coder, decoder)]
warm = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: min(1.0, step / 4)) for each in optimizers]
for step in range(10):
    for half in range(2):
        x, lengths = torch.randn(6, 5, 8), torch.randint(1, 6, (6,))
        padding = torch.arange(5) >= lengths.unsqueeze(1)
        mean, spread = coder(x, padding)
        with torch.no_grad():
            wanted, _ = target(x, padding)
        code = mean + spread * torch.randn_like(spread)
        divergence = (spread ** 2 + mean ** 2 - 1).mean() / 2 - spread.log().mean()
        loss = F.mse_loss(decoder(code), x.mean(1)) + 0.1 * divergence + 0.1 * F.mse_loss(mean, wanted)
        (loss / 2).backward()
    nn.utils.clip_grad_norm_(coder.parameters(), 1.0)
    for optimizer, schedule in zip(optimizers, warm):
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), coder.parameters()):
            slow.lerp_(fast, 0.05)
print(f"{loss.item():.9g}")
"""

PROGRAMS = {
    "warns": WARNS,
    "hooks": HOOKS,
    "shared line": SHARED_LINE, "scaler, short": SCALER.format(steps=5), "scaler": SCALER.format(steps=12),
    "scaler, in the end": SCALER.format(steps=40), "scaler, hopeless": SCALER.replace("2.0**40", "2.0**100").format(
        steps=40), "not held": NOT_HELD, "held later": HELD_LATER, "in a list": IN_A_LIST, "replaced": REPLACED,
    "evaluation": EVALUATION,
    "healthy": HEALTHY,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("torch", tmp_path_factory.mktemp("programs"), PROGRAMS)


def test_layers_that_share_a_line_are_told_apart(runs: dict[str, Run]) -> None:
    run = runs["shared line"]
    first = run.check_first("nonfinite")
    assert first["node"]["module"] == run.plain.split()[0] == "layers.2"
    assert first["iteration"] == 11


def test_a_scaler_that_skips_every_step_is_told_as_that(runs: dict[str, Run]) -> None:
    for name, severity, steps in (("scaler, short", "note", 5), ("scaler", "warning", 12)):
        run = runs[name]
        first = run.check_first("nonfinite")
        assert run.plain.splitlines()[0] == "never stepped"
        assert first["severity"] == severity and not [each for each in run.every if each["severity"] == "error"]
        assert f"each of the last {steps} steps was skipped: the loss scale has not come down yet" in first["message"]
    assert runs["scaler, in the end"].plain.splitlines()[0] == "stepped"
    runs["scaler, in the end"].check_healthy()
    hopeless = runs["scaler, hopeless"].check_first("nonfinite")
    assert hopeless["severity"] == "error" and "32 steps in a row were skipped" in " ".join(hopeless["evidence"])


def test_parameters_that_nobody_holds_are_told_while_it_runs(runs: dict[str, Run]) -> None:
    first = runs["not held"].check_first("not-optimized")
    assert first["iteration"] == 6
    assert "head.bias and head.weight" in first["message"]
    assert "SGD stepped 40 times" in " ".join(first["evidence"]), "and told again with the whole run"
    runs["held later"].check_healthy()


def test_tensors_without_a_name_are_called_by_their_place(runs: dict[str, Run]) -> None:
    first = runs["in a list"].check_first("not-optimized")
    assert sorted(line.partition(":")[0] for line in first["evidence"][:3]) == [
        "Net.gates[0]", "Net.gates[1]", "Net.gates[2]",
    ]  # fmt: skip


def test_what_was_replaced_gets_no_gradient_as_a_consequence(runs: dict[str, Run]) -> None:
    run = runs["replaced"]
    first = run.check_first("stale-parameters")
    assert first["iteration"] == 6
    told = {each["message"].partition(" never")[0]: each for each in run.every if each["kind"] == "no-gradient"}
    assert told["SGD params[4] and SGD params[5]"]["victim_of"] == first["id"]
    assert told["unused.weight and unused.bias"]["victim_of"] is None, "another matter"
    assert [each["kind"] for each in run.told] == ["stale-parameters", "no-gradient"]


def test_steps_in_evaluation_mode_are_counted_to_the_end(runs: dict[str, Run]) -> None:
    first = runs["evaluation"].check_first("wrong-mode")
    assert first["iteration"] == 3 and first["evidence"][0].startswith("all 17 steps were made of forwards")


def test_a_hook_that_keeps_the_norm_shows_an_element(runs: dict[str, Run]) -> None:
    run = runs["hooks"]
    (told,) = [each for each in run.every if each["kind"] == "gradient-hook"]  # none of the one that only copies
    assert told["cause"]["line"] == line_of(HOOKS) and "the hook (a lambda) on model.weight changes" in told["message"]
    after = run.plain.splitlines()[0]
    before = after[1:] if after.startswith("-") else "-" + after
    assert f"element [0, 1]: {before} before the hook, {after} after it" in told["evidence"]


def test_warnings_and_tracebacks_are_those_of_the_plain_run(runs: dict[str, Run]) -> None:
    run = runs["warns"]
    assert run.output == run.plain and "(True, 11)" in run.plain
    assert run.plain_errors.count("Warning: ") >= 4 and run.plain_errors.count("Traceback") == 3, run.plain_errors
    assert run.errors == run.plain_errors


def test_a_healthy_training_of_another_shape(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("clipping-order")
