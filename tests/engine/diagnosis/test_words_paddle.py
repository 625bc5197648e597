"""What findings say beside kind and line: which module, which name, which numbers. On Paddle, in one process."""

from __future__ import annotations

import pytest
from support.diagnosing import line_of
from support.diagnosing_many import Run, diagnose_each

pytest.importorskip("paddle")

# One line runs all layers. The first bad number is made by the second, in an iteration that is not looked at closely.
SHARED_LINE = """
import paddle
from paddle import nn
class Scaled(nn.Layer):
    def __init__(self):
        super().__init__()
        self.w = self.create_parameter([4], default_initializer=nn.initializer.Constant(2.0))
    def forward(self, x):
        return paddle.log(x * self.w)  # CAUSE
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layers = nn.LayerList([Scaled() for _ in range(4)])
    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x.abs() + 1.5)
            if not bool(paddle.isfinite(x).all()):
                print(f"layers.{number}")
        return x
paddle.seed(0)
net = Net()
optimizer = paddle.optimizer.SGD(1e-3, parameters=net.parameters())
for step in range(12):
    if step == 10:
        net.layers[1].w.set_value(paddle.zeros([4]))
    loss = net(paddle.rand([8, 4]) + 1).mean()
    optimizer.clear_grad()
    loss.backward()
    optimizer.step()
"""

CLIPPED = """
import paddle
from paddle import nn
paddle.seed(0)
model = nn.Linear(4, 4)
optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters(), grad_clip=nn.{clip})  # CAUSE
for step in range(14):
    model(paddle.randn([8, 4])).pow(2).mean().backward()
    sizes = [float(each.grad.norm()) for each in model.parameters()]
    print(f"{{sum(size * size for size in sizes) ** 0.5:.3g}} {{max(sizes):.3g}}")
    optimizer.step()
    optimizer.clear_grad()
"""

# The program's x is another one than that of Paddle's function.
OPERANDS = """
import paddle
def loss_of(scores, labels):
    x = scores.mean()
    return paddle.add(scores, labels) + x  # CAUSE
x = paddle.randn([1, 4])
weight = paddle.create_parameter([4, 5], "float32")
loss_of(x @ weight, paddle.ones([2, 3]))
"""

HOOKS = """
import paddle
paddle.seed(0)
model = paddle.nn.Linear(3, 4)
model.weight.register_hook(lambda g: paddle.where(paddle.arange(4) == 1, -g, g))  # CAUSE
model.bias.register_hook(lambda g: g.clone())
for step in range(4):
    model.clear_gradients()
    model(paddle.randn([5, 3])).pow(2).mean().backward()
    if step == 2:
        print(f"{model.weight.grad[0, 1].item():.9g}")
"""

REPLACED = """
import paddle
from paddle import nn
paddle.seed(0)
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(self.body(x).tanh())
net = Net()
optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())  # CAUSE
net.head = nn.Linear(8, 5)
for step in range(12):
    net(paddle.randn([8, 4])).pow(2).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
"""

# Another shape of what is right: logarithms of what is kept away from 0, a padded batch in an attention, a hook that
# clips, a target network that follows, a warm-up from 0, an optimizer for each part, gradients over two micro-batches.
HEALTHY = """
import math
import paddle, paddle.nn as nn, paddle.nn.functional as F
paddle.seed(0)
class Coder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.blocks = nn.LayerList([nn.Sequential(nn.Linear(8, 8), nn.Silu(), nn.LayerNorm(8)) for _ in range(3)])
        self.query, self.mean, self.spread = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
    def forward(self, x, padding):
        for block in self.blocks:
            x = x + block(x)
        scores = self.query(x) @ x.transpose([0, 2, 1]) / math.sqrt(8)
        x = F.softmax(scores - padding.unsqueeze(1) * 1e9, -1) @ x
        x = (x * (1 - padding).unsqueeze(-1)).sum(1) / (1 - padding).sum(1, keepdim=True).clip(min=1)
        return self.mean(x), F.softplus(self.spread(x)) + 1e-3
coder, decoder, target = Coder(), nn.Linear(4, 8), Coder()
target.set_state_dict(coder.state_dict())
for parameter in target.parameters():
    parameter.stop_gradient = True
decoder.weight.register_hook(lambda g: g.clip(-0.5, 0.5))
rates = [paddle.optimizer.lr.LambdaDecay(1e-3, lambda step: min(1.0, step / 4)) for _ in range(2)]
clip = nn.ClipGradByGlobalNorm(1.0)
optimizers = [
    paddle.optimizer.AdamW(rates[0], parameters=coder.parameters(), grad_clip=clip),
    paddle.optimizer.AdamW(rates[1], parameters=decoder.parameters()),
]
for step in range(10):
    for half in range(2):
        x, lengths = paddle.randn([6, 5, 8]), paddle.randint(1, 6, [6])
        padding = (paddle.arange(5) >= lengths.unsqueeze(1)).astype("float32")
        mean, spread = coder(x, padding)
        with paddle.no_grad():
            wanted, _ = target(x, padding)
        code = mean + spread * paddle.randn(spread.shape)
        divergence = (spread ** 2 + mean ** 2 - 1).mean() / 2 - spread.log().mean()
        loss = F.mse_loss(decoder(code), x.mean(1)) + 0.1 * divergence + 0.1 * F.mse_loss(mean, wanted)
        (loss / 2).backward()
    for optimizer, rate in zip(optimizers, rates):
        optimizer.step()
        rate.step()
        optimizer.clear_grad()
    with paddle.no_grad():
        for slow, fast in zip(target.parameters(), coder.parameters()):
            slow.set_value(0.95 * slow + 0.05 * fast)
print(f"{float(loss):.9g}")
"""

PROGRAMS = {
    "shared line": SHARED_LINE, "by all": CLIPPED.format(clip="ClipGradByGlobalNorm(1e-4)"),
    "by each": CLIPPED.format(clip="ClipGradByNorm(1e6)"), "at times": CLIPPED.format(clip="ClipGradByGlobalNorm(1.0)"),
    "operands": OPERANDS, "hooks": HOOKS, "replaced": REPLACED,
    "healthy": HEALTHY,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each("paddle", tmp_path_factory.mktemp("programs"), PROGRAMS)


def test_layers_that_share_a_line_are_told_apart(runs: dict[str, Run]) -> None:
    run = runs["shared line"]
    first = run.check_first("nonfinite")
    assert first["node"]["module"] == run.plain.split()[0] == "layers.1"
    assert first["iteration"] == 11


def test_clipping_by_the_optimizer_is_seen(runs: dict[str, Run]) -> None:
    """Witness: the norms as the program prints them, of all gradients and the largest of one."""
    for name, words, column in (("by all", "acts at every one of 14 steps", 0), ("by each", "clipping never acts", 1)):
        first = runs[name].check_first("clipping-order")
        printed = [line.split()[column] for line in runs[name].plain.splitlines()[:-1]]
        assert first["severity"] == "note" and words in first["message"]
        last = printed[-1] if name == "by all" else max(printed, key=float)
        assert last in first["evidence"][0].replace(",", " ").split(), first
    assert not [each for each in runs["at times"].every if each["kind"] == "clipping-order"]


def test_operands_go_by_the_names_of_the_program(runs: dict[str, Run]) -> None:
    first = runs["operands"].check_first("operator-error")
    assert "add failed on scores f32 [1, 5] and labels f32 [2, 3]" in first["message"], first["message"]
    assert not [line for line in first["evidence"] if line.startswith("x is")], first["evidence"]


def test_a_hook_that_keeps_the_norm_shows_an_element(runs: dict[str, Run]) -> None:
    run = runs["hooks"]
    (told,) = [each for each in run.every if each["kind"] == "gradient-hook"]  # none of the one that only copies
    assert told["cause"]["line"] == line_of(HOOKS)
    after = run.plain.splitlines()[0]
    before = after[1:] if after.startswith("-") else "-" + after
    assert f"element [0, 1]: {before} before the hook, {after} after it" in told["evidence"]


def test_what_was_replaced_gets_no_gradient_as_a_consequence(runs: dict[str, Run]) -> None:
    run = runs["replaced"]
    first = run.check_first("stale-parameters")
    assert first["iteration"] == 6
    assert {each["victim_of"] for each in run.every if each["kind"] == "no-gradient"} == {first["id"]}
    assert [each["kind"] for each in run.told] == ["stale-parameters"]


def test_a_healthy_training_of_another_shape(runs: dict[str, Run]) -> None:
    runs["healthy"].check_healthy("gradient-hook", "clipping-order")
