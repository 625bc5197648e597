"""Four threads train a model each, at the same time: 3 backward calls in each, 12 in all."""

import threading

import torch
from digest import Digest
from torch import nn

torch.manual_seed(14)
torch.set_num_threads(1)
models = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)) for _ in range(4)]
batches = [torch.randn(8, 6) for _ in models]
together = threading.Barrier(len(models))


def train(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        together.wait()
        loss.backward()
        optimizer.step()


workers = [threading.Thread(target=train, args=pair) for pair in zip(models, batches)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
result = Digest()
result.add(*models)
result.close()
