"""A conv net on Paddle with batch norm, a residual connection, max pooling: 3 steps of Momentum. 3 backward calls."""

import paddle
from paddle import nn
from paddle_digest import Digest

paddle.seed(1)


class ConvNet(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2D(8, 8, 3, padding=1), nn.BatchNorm2D(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        features = self.stem(images)
        features = nn.functional.max_pool2d(features + self.block(features), 2)
        return self.head(features.mean([2, 3]))


model = ConvNet()
optimizer = paddle.optimizer.Momentum(0.1, momentum=0.9, parameters=model.parameters())
images, labels = paddle.randn([8, 3, 12, 12]), paddle.randint(0, 5, [8])
result = Digest()
for _ in range(3):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.clear_grad()
    loss.backward()
    result.add(loss, model, *model.buffers())
    optimizer.step()
result.add(model)
result.close()
