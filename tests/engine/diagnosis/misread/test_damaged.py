"""Data sets that each look at a sample changes. Witness: how many of the numbers of a data set are what they were as it
was made, by a copy that the program keeps."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case

HEAD = {
    "torch": """
import numpy
import torch as fw
from torch import nn
from torch.utils.data import DataLoader, Dataset
fw.manual_seed(0)
rand = fw.rand
def copied(value):
    return value.clone() if hasattr(value, "clone") else value.copy()
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.01)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import numpy
import paddle as fw
from paddle import nn
from paddle.io import DataLoader, Dataset
fw.seed(0)
def rand(*shape):
    return fw.rand(shape)
def copied(value):
    return value.clone() if hasattr(value, "clone") else value.copy()
def sgd(net):
    optimizer = fw.optimizer.SGD(0.01, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
START = """
numbers = numpy.random.RandomState(0)
def blanked(image, at):
    image[at % 6 : at % 6 + 2] = 0
    return image
class Images(Dataset):
    def __init__(self):
        self.images = rand(12, 8, 8) + 0.5
        self.arrays = numbers.random_sample((12, 8, 8)).astype("float32") + 0.5
        self.targets = numbers.random_sample(12).astype("float32")
        self.done = [False] * 12
        self.seen = 0
    def __len__(self):
        return 12
    def decoded(self, at):
        return numpy.full((8, 8), at + 1.0, "float32")
    MORE
    def __getitem__(self, at):
        self.seen += 1
        BODY
        return image, self.targets[at]
data = Images()
kept = [copied(each) for each in (data.images, data.arrays)]
net = nn.Linear(64, 1)
optimizer, clear = sgd(net)
loader = DataLoader(data, batch_size=4, shuffle=False)
for epoch in range(4):
    for images, targets in LOADER:
        loss = (net(images.reshape([-1, 64])).squeeze(1) - targets).square().mean()
        loss.backward()
        optimizer.step()
        clear()
    AFTER
same = [bool((one == other).all()) for one, other in zip(kept, (data.images, data.arrays))]
print("as they were made" if all(same) else "damaged")
"""


def program(*lines: str, more: str = "pass", after: str = "pass") -> str:
    body = START.replace("BODY", "\n        ".join(lines)).replace("AFTER", after)
    body = body.replace("LOADER", "loader")
    return body.replace("MORE", more.replace("\n", "\n    "))


BUGGY = {
    "rows of an array": program("image = self.arrays[at]  # CAUSE", "image[self.seen % 6 : self.seen % 6 + 2] = 0"),
    "a product": program("image = self.arrays[at]  # CAUSE", "image *= 0.9"),
    "a function": program("image = self.arrays[at]  # CAUSE", "image = blanked(image, self.seen)"),
    "a sum, two names": program("sample = self.arrays[at]  # CAUSE", "sample += 0.01", "image = sample * 2.0"),
    "a method of its own": program("image = self.arrays[at]  # CAUSE", "self.blank(image)",
                                   more="def blank(self, image):\n    image[:, self.seen % 6] = 0"),
    "a product of a tensor": {
        "torch": program("image = self.images[at]  # CAUSE", "image.mul_(0.9)"),
        "paddle": program("image = self.images[at]", "image.scale_(0.9)  # CAUSE"),
    },
}  # fmt: skip
HEALTHY = {
    "an array that is copied": program("image = self.arrays[at].copy()",
                                       "image[self.seen % 6 : self.seen % 6 + 2] = 0"),
    "a tensor that is cloned": program("image = self.images[at].clone()",
                                       "image[self.seen % 6 : self.seen % 6 + 2] = 0"),
    "an array made of it": program("image = numpy.array(self.arrays[at])", "image *= 0.9"),
    "another type": program("image = self.arrays[at].astype('float64').astype('float32')", "image += 0.01"),
    "picked by a list": program("image = self.arrays[[at]][0]", "image *= 0.9"),
    "computed": program("image = self.arrays[at] * 0.9", "image += 0.01"),
    "not written": program("image = self.arrays[at]", "image = numpy.where(image > 1.0, image, 0.0).astype('float32')"),
    "targets that are renewed": program(
        "image = self.arrays[at]", more="def renew(self):\n    self.targets[:] = 0.9 * self.targets",
        after="data.renew()"),
    "targets that are renewed one by one": program(
        "image = self.arrays[at]", "self.targets[at] = 0.9 * self.targets[at] + 0.05"),
}  # fmt: skip
TENSOR = program("image = self.images[at]  # CAUSE", "image[self.seen % 6 : self.seen % 6 + 2] = 0")
MISSED = {
    # FAULT: passes are counted by loader, so that nothing is seen of those that are made for one pass
    "a loader for each pass": BUGGY["a product"].replace(
        "in loader:", "in DataLoader(data, batch_size=4, shuffle=False):"),
}  # fmt: skip
# On purpose: what was put there once, stays.
FILLED = {
    "filled as it is asked for": program(
        "if not self.done[at]:", "    self.arrays[at] = self.decoded(at)", "    self.done[at] = True",
        "image = self.arrays[at]"),
}  # fmt: skip
FAULTS = {
    # FAULT: an array that is filled by views as it is asked for; from the second pass on nothing is written
    "filled as it is asked for, a view": program(
        "image = self.arrays[at]", "if not self.done[at]:", "    image[:] = self.decoded(at)",
        "    self.done[at] = True"),
}  # fmt: skip


def text(framework: str, part: str | dict[str, str]) -> str:
    return HEAD[framework] + (part if isinstance(part, str) else part[framework])


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    texts = {
        name: text(request.param, part)
        for name, part in {**BUGGY, "rows of a tensor": TENSOR, **MISSED, **HEALTHY, **FILLED, **FAULTS}.items()
    }
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"damaged-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)
torch = pytest.mark.parametrize("runs", [cases["torch"]], indirect=True)
paddle = pytest.mark.parametrize("runs", [cases["paddle"]], indirect=True)


def check_damaged(run: Run) -> None:
    assert "damaged\n" in run.plain, run
    first = run.check_first("silent-overwrite")
    assert first["severity"] == "error" and "a view" in first["message"], first


@each
@pytest.mark.parametrize("name", BUGGY)
def test_samples_that_are_written(runs: dict[str, Run], name: str) -> None:
    check_damaged(runs[name])


@torch
def test_rows_of_a_tensor_of_torch(runs: dict[str, Run]) -> None:
    check_damaged(runs["rows of a tensor"])


@paddle
@pytest.mark.xfail(reason="rows of a tensor of Paddle")
def test_rows_of_a_tensor_of_paddle(runs: dict[str, Run]) -> None:
    # FAULT: of Paddle ``image[a:b] = 0`` in a view of the data set's tensor is not found
    check_damaged(runs["rows of a tensor"])


@each
@pytest.mark.parametrize("name", MISSED)
@pytest.mark.xfail(reason="see MISSED")
def test_samples_of_other_loaders(runs: dict[str, Run], name: str) -> None:
    check_damaged(runs[name])


@each
@pytest.mark.parametrize("name", HEALTHY)
def test_samples_that_stay(runs: dict[str, Run], name: str) -> None:
    assert "as they were made\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", FILLED)
def test_samples_that_are_filled_in(runs: dict[str, Run], name: str) -> None:
    assert "damaged\n" in runs[name].plain, runs[name]  # others than it was made with
    runs[name].check_healthy()


@each
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.xfail(reason="see FAULTS")
def test_views_that_are_filled_in(runs: dict[str, Run], name: str) -> None:
    assert "damaged\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()
