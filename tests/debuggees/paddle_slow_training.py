"""Trains on Paddle for about two seconds and says so line by line: time enough to lose a front end on the way.

40 backward calls. Its exit status is 7, so that a status made up by someone else shows.
"""

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
for iteration in range(40):
    loss = model(batch).square().mean()
    optimizer.clear_grad()
    loss.backward()  # @backward
    result.add(loss, model)
    optimizer.step()
    print(f"iteration {iteration}", flush=True)
    time.sleep(0.05)
result.add(model)
result.close()
sys.exit(7)
