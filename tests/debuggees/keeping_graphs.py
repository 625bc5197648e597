"""A training loop that keeps what it should not: every loss with its graph, in a list and behind an attribute."""

import sys

import torch

torch.set_num_threads(1)
losses = []


class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.history = {"loss": [], "step": []}

    def step(self, x):
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.history["loss"].append(loss * 2)
        losses.append(loss)
        self.history["step"].append(len(losses))
        return loss.item()


trainer = Trainer()
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    trainer.step(torch.ones(4, 8))
print("done", len(losses))
