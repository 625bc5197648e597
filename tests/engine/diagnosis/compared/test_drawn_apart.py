"""A picture and its mask that are turned at random, each by numbers of its own. Witness: the share of pixels in which
the turned mask is not that of the turned picture, by the program's own numbers."""

from __future__ import annotations

import pytest
from support.diagnosing_many import Run, diagnose_each
from support.frameworks import FRAMEWORKS, case, named

HEAD = {
    "torch": """
import random
import numpy as np
import torch as fw
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
fw.manual_seed(0)
random.seed(0)
np.random.seed(0)
tensor, flipped, rolled, Conv = fw.as_tensor, fw.flip, fw.roll, nn.Conv2d
def sgd(net):
    optimizer = fw.optim.SGD(net.parameters(), 0.1)
    return optimizer, optimizer.zero_grad
""",
    "paddle": """
import random
import numpy as np
import paddle as fw
from paddle import nn
import paddle.nn.functional as F
from paddle.io import DataLoader, Dataset
fw.seed(0)
random.seed(0)
np.random.seed(0)
tensor, flipped, rolled, Conv = fw.to_tensor, fw.flip, fw.roll, nn.Conv2D
def sgd(net):
    optimizer = fw.optimizer.SGD(0.1, parameters=net.parameters())
    return optimizer, optimizer.clear_grad
""",
}
# Where a picture is bright, its mask is 1.
START = """
coarse = np.sign(np.random.randn(32, 1, 4, 4)).astype("float32")
pictures = coarse.repeat(3, 2).repeat(3, 3)
masks = (pictures > 0).astype("float32")
"""
TURN = """
def turn(value):
    if random.random() < 0.5:
        value = np.flip(value, 2).copy()
    return value
"""
STEPS = """
class Steps:
    def __init__(self, size=3):
        self.size = size
    def shift(self, value):
        return np.roll(value, random.randint(-self.size, self.size), axis=2)
    def __call__(self, picture, mask):
        BODY
        return picture, mask
steps = Steps()
"""
LAYER = """
class RandomHorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p
    def __call__(self, value):
        return np.flip(value, 2).copy() if random.random() < self.p else value
"""
DATA = """
class Pairs(Dataset):
    def __init__(self, pictures, masks, transform=None):
        super().__init__()
        self.pictures, self.masks, self.transform = pictures, masks, transform
    def __len__(self):
        return len(self.pictures)
    def __getitem__(self, at):
        BODY
"""
FIT = """
net = nn.Sequential(Conv(1, 4, 3, padding=1), nn.ReLU(), Conv(4, 1, 3, padding=1))
optimizer, clear = sgd(net)
apart = []
for picture, mask in DataLoader(DATA, batch_size=4):
    apart.append(((picture > 0) != (mask > 0.5)).numpy().mean())
    loss = F.binary_cross_entropy_with_logits(net(picture), mask)
    clear()
    loss.backward()
    optimizer.step()
print("apart:", bool(np.mean(apart) > 0.05))
"""


def lines(text: str, *body: str) -> str:
    return text.replace("BODY", "\n        ".join(body))


def loaded(before: str, *body: str, transform: str = "None") -> str:
    return START + before + lines(DATA, *body) + FIT.replace("DATA", f"Pairs(pictures, masks, {transform})")


def by_steps(*body: str, before: str = STEPS) -> str:
    return loaded(lines(before, *body), "return self.transform(self.pictures[at], self.masks[at])", transform="steps")


BOTH = "picture, mask = self.pictures[at], self.masks[at]"
RETURN = "return picture, mask"
ASSIGNED = "self.pictures, self.masks, self.transform = pictures, masks, transform"
BY_ITSELF = "self.pictures, self.masks = pictures, masks\n        self.transform = transform"
BUGGY = {
    "a method, on one line": by_steps("picture, mask = self.shift(picture), self.shift(mask)  # CAUSE"),
    "a method, on two lines": by_steps("picture = self.shift(picture)", "mask = self.shift(mask)  # CAUSE"),
    "a function": loaded(TURN, BOTH, "picture = turn(picture)", "mask = turn(mask)  # CAUSE", RETURN),
    "in __getitem__, both at once": loaded(
        TURN, "picture, mask = turn(self.pictures[at]), turn(self.masks[at])  # CAUSE", RETURN),
    "where a transformation is given": loaded(
        TURN, BOTH, "if self.transform is not None:", "    picture = turn(picture)", "    mask = turn(mask)  # CAUSE",
        RETURN, transform="True"),
    "a layer": loaded(LAYER, BOTH, "picture = self.transform(picture)", "mask = self.transform(mask)  # CAUSE", RETURN,
                      transform="transform=RandomHorizontalFlip()").replace(ASSIGNED, BY_ITSELF),
    "a layer, assigned beside others": loaded(
        LAYER, BOTH, "picture = self.transform(picture)", "mask = self.transform(mask)  # CAUSE", RETURN,
        transform="transform=RandomHorizontalFlip()"),
    "of a batch": START + """
def crop(batch):
    at = fw.randint(0, 4, [1]).item()
    return batch[:, :, :, at:at + 9]
net = Conv(1, 1, 3, padding=1)
optimizer, clear = sgd(net)
apart = []
for at in range(8):
    def made():
        picture, mask = tensor(pictures[at * 4:at * 4 + 4]), tensor(masks[at * 4:at * 4 + 4])
        picture = crop(picture)
        mask = crop(mask)  # CAUSE
        return picture, mask
    picture, mask = made()
    apart.append(((picture > 0) != (mask > 0.5)).numpy().mean())
    loss = F.mse_loss(net(picture), mask)
    clear()
    loss.backward()
    optimizer.step()
print("apart:", bool(np.mean(apart) > 0.05))
""",
    "as they are returned": loaded(TURN, "return turn(self.pictures[at]), turn(self.masks[at])  # CAUSE"),
    "with an argument": loaded(TURN.replace("(value)", "(value, often=0.5)", 1), BOTH, "picture = turn(picture, 0.5)",
                               "mask = turn(mask, 0.5)  # CAUSE", RETURN),
    "in the loop": START + TURN + FIT.replace("DataLoader(DATA, batch_size=4):", "zip(pictures, masks):\n"
        "    picture = tensor(turn(picture)[None])\n    mask = tensor(turn(mask)[None])  # CAUSE"),
}  # fmt: skip
PAIR = """
def turn(picture, mask):
    if random.random() < 0.5:
        picture, mask = np.flip(picture, 2).copy(), np.flip(mask, 2).copy()
    return picture, mask
"""
SAMPLE = """
def turn(sample):
    if random.random() < 0.5:
        sample = [np.flip(each, 2).copy() for each in sample]
    return sample
"""
SEEDED = ("seed = random.randrange(1 << 30)", "random.seed(seed)", "picture = self.shift(picture)",
          "random.seed(seed)", "mask = self.shift(mask)")  # fmt: skip
LIGHT = """
def light(value):
    return value * np.float32(random.uniform(0.6, 1.4))
"""
# What was turned of a picture was turned of its mask.
HEALTHY = {
    "one draw for both": loaded(PAIR, "return turn(self.pictures[at], self.masks[at])"),
    "a number for both": by_steps("far = random.randint(-3, 3)",
                                  "picture, mask = np.roll(picture, far, 2), np.roll(mask, far, 2)"),
    "the same seed": by_steps(*SEEDED),
    "the same state": by_steps("state = random.getstate()", "picture = self.shift(picture)", "random.setstate(state)",
                               "mask = self.shift(mask)"),
    "brightness": loaded(LIGHT, BOTH, "picture = light(picture)", "mask = (light(mask) > 0.5).astype('float32')",
                         RETURN),
    "always turned": loaded(TURN.replace("random.random() < 0.5", "value.shape[1] > 8"), BOTH,
                            "picture = turn(picture)", "mask = turn(mask)", RETURN),
    "nothing turned": loaded(TURN, BOTH, "picture, mask = picture.copy(), mask.copy()", RETURN),
    "samples of both": loaded(SAMPLE, "first = turn((self.pictures[at], self.masks[at]))", "other = at // 2",
                              "second = turn((self.pictures[other], self.masks[other]))",
                              "return tuple(np.concatenate(each, 1) for each in zip(first, second))"),
    "one behind the other": loaded(TURN, "both = turn(np.concatenate([self.pictures[at], self.masks[at]]))",
                                   "return both[:1], both[1:]"),
    "two samples": loaded(
        SAMPLE + "samples = list(zip(pictures, masks))\n", "first = turn(samples[at])", "second = turn(samples[-at])",
        "return tuple(np.concatenate(each, 1) for each in zip(first, second))"),
}  # fmt: skip
# The two are no picture and its mask.
OTHER = {
    "two views": START + TURN + """
net = nn.Sequential(nn.Flatten(), nn.Linear(144, 16))
optimizer, clear = sgd(net)
for at in range(12):
    one = tensor(np.stack([turn(each) for each in pictures]))
    other = tensor(np.stack([turn(each) for each in pictures]))
    a, b = F.normalize(net(one)), F.normalize(net(other))
    loss = F.cross_entropy(a @ b.t() / 0.2, fw.arange(32))
    clear()
    loss.backward()
    optimizer.step()
""",
    "classes": START + TURN + """
kinds = tensor((coarse.mean((1, 2, 3)) > 0).astype("int64"))
def batch(first, last):
    front = np.stack([turn(each) for each in first])
    back = np.stack([turn(each) for each in last])
    return tensor(np.concatenate([front, back]))
net = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
optimizer, clear = sgd(net)
for at in range(12):
    loss = F.cross_entropy(net(batch(pictures[:16], pictures[16:])), kinds)
    clear()
    loss.backward()
    optimizer.step()
""",
    "unpaired": START + TURN + """
class Unpaired(Dataset):
    def __init__(self, horses, zebras):
        super().__init__()
        self.horses, self.zebras = horses, zebras
    def __len__(self):
        return len(self.horses)
    def __getitem__(self, at):
        horse = turn(self.horses[at])
        zebra = turn(self.zebras[random.randrange(len(self.zebras))])
        return horse, zebra
there, back = Conv(1, 1, 3, padding=1), Conv(1, 1, 3, padding=1)
optimizer, clear = sgd(nn.Sequential(there, back))
for horse, zebra in DataLoader(Unpaired(pictures[:16], pictures[16:]), batch_size=2):
    loss = F.l1_loss(back(there(horse)), horse) + F.l1_loss(there(back(zebra)), zebra)
    clear()
    loss.backward()
    optimizer.step()
""",
    "pictures of two kinds": START + TURN + """
def batch(at):
    day = turn(pictures[at])
    night = turn(-pictures[at + 1])
    return tensor(np.stack([day, night]))
code = nn.Sequential(Conv(1, 2, 3, padding=1), nn.ReLU(), Conv(2, 1, 3, padding=1))
optimizer, clear = sgd(code)
for at in range(12):
    seen = batch(at)
    loss = F.mse_loss(code(seen), seen)
    clear()
    loss.backward()
    optimizer.step()
""",
}  # fmt: skip
FAULTS = {
    # FAULT: only what is assigned by a statement of a function is looked at, and calls of one argument.
    "with an argument": "a call with another argument is not looked at",
    "in the loop": "statements outside of functions are not looked at",
    "a layer, assigned beside others": "what a tuple of names is given is not looked at",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    parts = {f"buggy, {name}": part for name, part in BUGGY.items()} | HEALTHY
    parts |= {f"other, {name}": part for name, part in OTHER.items()}
    texts = {name: HEAD[request.param] + part for name, part in parts.items()}
    return diagnose_each(request.param, tmp_path_factory.mktemp("programs"), texts)


cases = {name: case(name, name, group=f"drawn-apart-{name}") for name in FRAMEWORKS}
each = pytest.mark.parametrize("runs", list(cases.values()), indirect=True)


@each
@named(BUGGY, FAULTS)
def test_a_mask_that_is_turned_by_itself(runs: dict[str, Run], name: str) -> None:
    run = runs[f"buggy, {name}"]
    assert "apart: True\n" in run.plain, run
    first = run.check_first("loss-input")
    assert first["severity"] == "warning" and "draws random numbers of its own" in first["message"], first


@each
@named(HEALTHY, FAULTS)
def test_a_mask_that_is_turned_as_its_picture(runs: dict[str, Run], name: str) -> None:
    assert "apart: False\n" in runs[name].plain, runs[name]
    runs[name].check_healthy()


@each
@named(OTHER, FAULTS)
def test_pictures_that_are_no_pair(runs: dict[str, Run], name: str) -> None:
    runs[f"other, {name}"].check_healthy()
