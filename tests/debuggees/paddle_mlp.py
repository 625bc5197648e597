"""A small perceptron on Paddle: 5 steps of Adam. 5 backward calls."""

import paddle
from paddle import nn
from paddle_digest import Digest

paddle.seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
inputs, labels = paddle.randn([64, 16]), paddle.randint(0, 4, [64])
result = Digest()
for iteration in range(5):
    loss = nn.functional.cross_entropy(model(inputs), labels)  # @forward
    optimizer.clear_grad()
    loss.backward()  # @backward
    result.add(loss, model)
    optimizer.step()
    print(f"iteration {iteration} loss {loss.item():.6f}", flush=True)
result.add(model)
result.close()
