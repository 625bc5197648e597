"""Samples that augmentation overwrites in the data set. Witness: the program compares the data set with a copy."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import case

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
class Blank:
    def __call__(self, image):
        at = int(torch.randint(6, (1,)))
        WRITE
        return image
class Images(Dataset):
    def __init__(self, transforms):
        self.images, self.transforms = torch.rand(12, 8, 8) + 0.5, transforms
    def __len__(self):
        return 12
    def __getitem__(self, at):
        image = self.images[at]COPY
        for each in self.transforms:
            image = each(image)
        return image, float(at)
data = Images([Blank()])
kept, net = data.images.clone(), nn.Linear(64, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
loader = DataLoader(data, batch_size=4)
for epoch in range(5):
    for images, targets in loader:
        loss = (net(images.reshape(-1, 64)).squeeze(1) - targets.float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print("as they were made" if bool((kept == data.images).all()) else "damaged")
"""


def program(write: str, copy: str = "") -> str:
    return START.replace("WRITE", write).replace("COPY", copy)


BUGGY = {
    "rows": program("image[at : at + 2] = 0  # CAUSE"),
    "in place": program("image.mul_(0.5)  # CAUSE"),
}
HEALTHY = {
    "cloned": program("image[at : at + 2] = 0", ".clone()"),
    "another one": program("image = image * (torch.arange(8) != at)"),
}


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), BUGGY | HEALTHY)


torch_only = pytest.mark.parametrize("runs", [case("torch", "torch", group="damaged-torch")], indirect=True)


@torch_only
@pytest.mark.parametrize("name", BUGGY)
def test_samples_that_are_written(runs: dict[str, Run], name: str) -> None:
    assert "damaged\n" in runs[name].plain
    runs[name].check_first("silent-overwrite")


@torch_only
@pytest.mark.parametrize("name", HEALTHY)
def test_samples_that_are_copies(runs: dict[str, Run], name: str) -> None:
    assert "as they were made\n" in runs[name].plain
    runs[name].check_healthy()
