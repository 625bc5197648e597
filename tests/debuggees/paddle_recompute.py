"""Both kinds of paddle.distributed.fleet.utils.recompute, with dropout inside: a recomputation too many would show.

Per iteration: one backward for the non-reentrant kind; for the reentrant kind one, and one more inside each of its two
checkpoints. 2 iterations: 4 backward calls at top level, 4 nested ones.
"""

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddle_digest import Digest

paddle.seed(5)


class Block(nn.Layer):
    runs = 0

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        Block.runs += 1
        return x + self.second(nn.functional.dropout(nn.functional.relu(self.first(x)), 0.3))


model = nn.LayerList([Block(), Block(), nn.Linear(8, 1)])
optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
inputs = paddle.randn([16, 8])
result = Digest()
for _ in range(2):
    for reentrant in (False, True):
        x = inputs.clone()
        x.stop_gradient = False
        for block in (model[0], model[1]):
            x = recompute(block, x, use_reentrant=reentrant)
        loss = model[2](x).square().mean()
        optimizer.clear_grad()
        loss.backward()
        result.add(loss, model, Block.runs)
        optimizer.step()
print("forward runs", Block.runs)
result.add(model)
result.close()
