"""Two attention blocks on Paddle written out by hand, with dropout and shared input and output embedding.

3 steps of AdamW with gradient clipping. 3 backward calls.
"""

import paddle
from paddle import nn
from paddle_digest import Digest

paddle.seed(2)


class Block(nn.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape([batch, length, 3, self.heads, -1]).transpose([2, 0, 3, 1, 4])
        q, k, v = parts.unbind(0)  # one node with three outputs
        scores = nn.functional.softmax(q @ k.transpose([0, 1, 3, 2]) / q.shape[-1] ** 0.5)  # @attention
        x = x + self.out((scores @ v).transpose([0, 2, 1, 3]).reshape([batch, length, width]))
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))), 0.1)


class Transformer(nn.Layer):
    def __init__(self, vocabulary=20, width=16, heads=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.LayerList(Block(width, heads) for _ in range(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embed.weight.T


model = Transformer()
clip = nn.ClipGradByGlobalNorm(1.0)
optimizer = paddle.optimizer.AdamW(1e-2, parameters=model.parameters(), grad_clip=clip)
tokens = paddle.randint(0, 20, [4, 9])
result = Digest()
for _ in range(3):
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.clear_grad()
    loss.backward()  # @backward
    result.add(loss, model)
    optimizer.step()
result.add(model)
result.close()
