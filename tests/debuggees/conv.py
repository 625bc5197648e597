"""A conv net with batch norm, a residual connection and an in-place ReLU: 3 steps of SGD. 3 backward calls."""

import torch
from digest import Digest
from torch import nn

torch.manual_seed(1)
torch.set_num_threads(1)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        features = self.stem(images)
        features = nn.functional.max_pool2d(features + self.block(features), 2)
        return self.head(features.mean((2, 3)))


model = ConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.randn(8, 3, 12, 12), torch.randint(0, 5, (8,))
result = Digest()
for _ in range(3):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    result.add(loss, model, *model.buffers())
    optimizer.step()
result.add(model)
result.close()
