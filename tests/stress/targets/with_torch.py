"""Targets that train with PyTorch. See harness.py."""

import torch
from harness import Target
from torch import nn

target = Target()
torch.set_num_threads(1)
torch.manual_seed(3)


def digest_of(*tensors):
    return b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)


def random_state():
    return torch.get_rng_state().numpy().tobytes()


class Training:
    """A small classifier with dropout: its result depends on every random number drawn."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)

    def step(self, batch=None):
        batch = torch.randn(24, 16) if batch is None else batch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch), batch[:, 0].gt(0).long())
        loss.backward()
        self.optimizer.step()
        return digest_of(loss, *self.model.parameters())


def loop(pause=0.0):
    training = Training()
    target.facts.append(random_state)
    target.run(training.step, pause)


def matmul():
    """One operator of about half a second without the GIL; it gives the same each time, so the witness computes one."""
    a, b = torch.randn(2600, 2600), torch.randn(2600, 2600)
    known = []

    def step():
        if not (known and target.witness):
            known[:] = [digest_of(a @ b)]
        return known[0]

    target.run(step)


def backward():
    """Nearly all the time in one backward after the other, through a graph that was built before anybody attached.
    Every tenth node is a Function of Python's."""

    class Halve(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 0.5

        @staticmethod
        def backward(context, gradient):
            return gradient * 0.5

    leaf = torch.randn(2000, requires_grad=True)
    x = leaf
    for number in range(1000):
        x = Halve.apply(x) if number % 10 == 0 else torch.tanh(x) + x
    root = x.square().mean()

    def step():
        leaf.grad = None
        root.backward(retain_graph=True)
        return digest_of(leaf.grad)

    target.run(step)


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.randn(16, generator=torch.Generator().manual_seed(index))


def loader():
    """Two worker processes, forked anew for every pass over the data: also while somebody is attached."""
    training = Training()
    data = torch.utils.data.DataLoader(Noise(), batch_size=6, num_workers=2)

    def step():
        return b"".join(training.step(batch) for batch in data)

    target.facts.append(random_state)
    target.run(step)


{"loop": loop, "slow loop": lambda: loop(0.02), "matmul": matmul, "backward": backward, "loader": loader}[target.kind]()
