"""A training that knows nothing of a debugger: 20 iterations, then the same small backward again and again until the
file named as argument exists, then 20 more. The digest is that of the 40 iterations."""

import os
import sys
import time

import paddle
from paddle import nn
from paddle_digest import Digest

paddle.seed(19)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
batch = paddle.randn([16, 8])
result = Digest()


def train():
    for _ in range(20):
        loss = model(batch).square().mean()
        optimizer.clear_grad()
        loss.backward()
        result.add(loss, model)
        optimizer.step()


train()
print("half", os.getpid(), flush=True)
weight = paddle.ones([4])
weight.stop_gradient = False
while True:
    weight.clear_grad()
    (weight * 3).sin().sum().backward()  # @backward
    time.sleep(0.01)
    if os.path.exists(sys.argv[1]):
        break
train()
result.add(weight.grad)
result.close()
