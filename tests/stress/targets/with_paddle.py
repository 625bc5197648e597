"""Targets that train with PaddlePaddle. See harness.py."""

import paddle
from harness import Target
from paddle import nn

target = Target()
paddle.seed(3)


def digest_of(*tensors):
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def loop(pause=0.0):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    optimizer = paddle.optimizer.Adam(0.003, parameters=model.parameters())

    def step():
        batch = paddle.randn([24, 16])
        loss = nn.functional.cross_entropy(model(batch), (batch[:, 0] > 0).astype("int64"))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return digest_of(loss, *model.parameters())

    target.run(step, pause)


def backward():
    """Nearly all the time in one backward after the other, through a graph that was built before anybody attached."""
    leaf = paddle.randn([2000])
    leaf.stop_gradient = False
    x = leaf
    for _ in range(500):
        x = paddle.tanh(x) + x
    root = x.square().mean()

    def step():
        leaf.clear_grad()
        root.backward(retain_graph=True)
        return digest_of(leaf.grad)

    target.run(step)


{"loop": loop, "slow loop": lambda: loop(0.02), "backward": backward}[target.kind]()
