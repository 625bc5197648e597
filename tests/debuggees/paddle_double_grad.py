"""A gradient penalty on Paddle (create_graph), then second order.

Per iteration 1 paddle.grad + 1 backward, 3 iterations; at the end 2 more: 8 calls.
"""

import paddle
from paddle import nn
from paddle_digest import Digest

paddle.seed(8)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = paddle.optimizer.Adam(1e-2, parameters=model.parameters())
result = Digest()
for _ in range(3):
    inputs = paddle.randn([8, 6])
    inputs.stop_gradient = False
    output = model(inputs).sum()
    (slope,) = paddle.grad(output, inputs, create_graph=True)
    loss = output.square() + (slope.square().sum(1) - 1).square().mean()
    optimizer.clear_grad()
    loss.backward()
    result.add(loss, slope, model)
    optimizer.step()
x = paddle.to_tensor(0.7, stop_gradient=False)
value = x.tanh() * x
for _ in range(2):
    (value,) = paddle.grad(value, x, create_graph=True)
    result.add(value)
result.add(model)
result.close()
