"""Small networks that training is tested on, and a few real steps of it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SharedNet(nn.Module):
    """Convolutions with BatchNorm, a residual add, a layer that is called twice. Input [n, 4, 6, 6], output [n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(x + self.bn2(self.conv2(x)))
        x = F.relu(self.twice(x.mean((2, 3))))
        return self.head(F.relu(self.twice(x)))


def train(model: nn.Module, x: Tensor, steps: int = 3, learning_rate: float = 0.02) -> Tensor:
    """A few steps of SGD towards fixed labels; returns the last loss."""
    target = torch.arange(len(x)) % 5
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.9)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
    return loss.detach()
