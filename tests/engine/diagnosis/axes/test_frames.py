"""A reshape that puts frames in front of channels, and moves no element. Witness: whether what a row of the result has
is of one frame of what was reshaped, which the program prints."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import torch as fw
from torch import nn
from torch.nn import functional as F
fw.manual_seed(0)
noise, deep, flat, line = fw.randn, nn.Conv3d, nn.Conv2d, nn.Conv1d
def sgd(*modules):
    return fw.optim.SGD([each for module in modules for each in module.parameters()], 0.05), "zero_grad"
def turn(x, *order):
    return x.permute(*order)
""",
    "paddle": """
import paddle as fw
from paddle import nn
from paddle.nn import functional as F
fw.seed(0)
noise, deep, flat, line = lambda *shape: fw.randn(shape), nn.Conv3D, nn.Conv2D, nn.Conv1D
def sgd(*modules):
    return fw.optimizer.SGD(0.05, parameters=[each for module in modules for each in module.parameters()]), "clear_grad"
def turn(x, *order):
    return x.transpose(order)
""",
}
LOOP = """
b, c, t, h, w = 3, 6, STEPS, 5, 2
MODULES
def witness(lay, sizes):
    # Numbers that say which frame an element is of, laid out alike.
    at = lay(fw.arange(t).reshape([1, 1, t] + [1] * (len(sizes) - 3)).expand(sizes))
    rows = at.reshape([at.shape[0], -1])
    print("one frame" if bool((rows == rows[:, :1]).all()) else "several frames")
witness(lambda f: LAID, SIZES)
optimizer, clear = sgd(NAMES)
for _ in range(3):
BODY
    getattr(optimizer, clear)()
    loss.backward()
    optimizer.step()
"""
KNOWN = {
    "video": "deep(2, c, 3, padding=1)", "sound": "line(2, c, 3, padding=1)", "picture": "flat(c, 4, 3, padding=1)",
    "map": "flat(2, c, 3, padding=1)", "along": "line(c, 4, 3)", "head": "nn.Linear(h * w, 3)",
    "tail": "nn.Linear(c, 3)", "norm": "nn.BATCH(c)", "over": "flat(t, 4, 3, padding=1)",
}  # fmt: skip


def program(laid: str, body: str, mark: str = "") -> str:
    """``laid``: how ``f`` becomes rows, which is ``LAID`` in the body."""
    body = body.strip().replace("LAID", laid + mark)
    lines = "\n".join("    " + line for line in body.splitlines())
    used = [name for name in KNOWN if f"{name}(" in body]
    modules = "\n".join(f"{name} = {KNOWN[name]}" for name in used)
    text = LOOP.replace("MODULES", modules).replace("NAMES", ", ".join(used)).replace("LAID", laid)
    sizes = "[b, c, t" + ("]" if "sound" in used else ", h]" if "map" in used else ", h, w]")
    steps = "6" if "over" in used else "4"
    return text.replace("SIZES", sizes).replace("STEPS", steps).replace("BODY", lines)


# Attention over places within each frame, and a mean over the frames of a video.
ATTENTION = """
f = video(noise(b, 2, t, h, w))
rows = LAID
near = F.softmax(turn(rows, 0, 2, 1) @ rows, -1)
found = head((rows @ near).tanh()).mean(-1).reshape([b, t, c])
loss = found.mean(1).square().mean()
"""
FRAMES = """
f = video(noise(b, 2, t, h, w))
f = F.relu(f)
frames = LAID
loss = (picture(frames).mean(-1) - 1).square().mean()
"""
NORM = """
f = video(noise(b, 2, t, h, w))
rows = LAID
loss = (norm(rows).tanh().mean(-1) - 0.5).square().mean()
"""
# Lines of a picture, each along itself.
LINES = """
f = map(noise(b, 2, t, h))
lines = LAID
loss = along(lines.tanh()).square().mean()
"""
# Steps of a sound, as rows of their channels.
STEPS = """
f = sound(noise(b, 2, t))
rows = LAID
loss = F.cross_entropy(tail(rows), rows[:, :3].detach().argmax(-1))
"""
BUGGY = {
    "taken apart": ("f.reshape([b * t, c, h * w])", ATTENTION),
    "a convolution of each frame": ("f.reshape([-1, c, h, w])", FRAMES),
    "a norm of channels": ("f.reshape([b * t, c, h * w])", NORM),
    "lines of a picture": ("f.reshape([b * t, c, h])", LINES),
    "a linear layer": ("f.reshape([b * t, c])", STEPS),
}
HEALTHY = {
    "turned": ("turn(f, 0, 2, 1, 3, 4).reshape([b * t, c, h * w])", ATTENTION),
    "turned, a convolution": ("turn(f, 0, 2, 1, 3, 4).reshape([-1, c, h, w])", FRAMES),
    "turned, lines": ("turn(f, 0, 2, 1, 3).reshape([b * t, c, h])", LINES),
    "turned, a linear layer": ("turn(f, 0, 2, 1).reshape([b * t, c])", STEPS),
    # What works on each map alone may have them in any order, and they are put back as they were.
    "each map alone": ("f.reshape([b * t, c, h * w])", """
f = video(noise(b, 2, t, h, w))
rows = LAID
bent = rows / (1 + rows.abs().mean(-1, keepdim=True))
back = bent.reshape([b, c, t, h, w])
loss = (back.mean([2, 3, 4]) - 1).square().mean()
"""),
    "each map alone, by a layer": ("f.reshape([b * t, c, h * w])", """
f = video(noise(b, 2, t, h, w))
rows = LAID
loss = head(rows).reshape([b, c, t, 3]).mean([1, 2]).square().mean()
"""),
    # Over the frames of each map, of as many frames as channels.
    "over frames": ("f.reshape([b * c, t, h, w])", """
f = video(noise(b, 2, t, h, w))
maps = LAID
loss = (over(maps).mean([1, 2, 3]) - 1).square().mean()
"""),
    # Steps stay behind the channels.
    "steps and places": ("f.reshape([b, c, t * h * w])", NORM),
}  # fmt: skip
BATCH = {"torch": "BatchNorm1d", "paddle": "BatchNorm1D"}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {f"buggy {name}": program(*each, "  # CAUSE") for name, each in BUGGY.items()}
    texts |= {f"healthy {name}": program(*each) for name, each in HEALTHY.items()}
    texts = {name: HEAD[request.param] + text.replace("BATCH", BATCH[request.param]) for name, text in texts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


each = pytest.mark.parametrize(
    "runs", [case(name, name, group=f"axes-frames-{name}") for name in FRAMEWORKS], indirect=True
)


@each
@pytest.mark.parametrize("name", BUGGY)
def test_a_row_has_several_frames(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy {name}"]
    assert "Error" not in run.plain and run.plain.startswith("several frames"), run.plain
    first = run.check_first("wrong-axis")
    assert first["severity"] == "warning" and "(permute, transpose)" in first["message"], first
    assert len(run.above_notes()) == 1, str(run)


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_frames_as_they_are(runs: dict[str, Run], name: str) -> None:
    run = runs[f"healthy {name}"]
    assert "Error" not in run.plain, run.plain
    assert run.plain.startswith("one frame") == name.startswith("turned"), "the others mind no order"
    run.check_healthy()
