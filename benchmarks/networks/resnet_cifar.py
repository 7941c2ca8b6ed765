"""The residual networks for CIFAR-10 of He et al. (2015), section 4.2, with parameter-free shortcuts (option A)."""

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Args:
        inputs, outputs: channels.
        stride: of the first convolution; the shortcut takes every stride-th pixel.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """x itself, or where the shape changes a subsampled x with zero channels on both sides."""
        if self.stride == 1 and self.padding == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))


class ResNetCifar(nn.Module):
    """Depth 6 n + 2: a convolution, three stages of n blocks of 16, 32, 64 channels, a global mean, a Linear.

    Input [N, 3, 32, 32], output logits [N, classes].
    """

    def __init__(self, depth: int = 20, classes: int = 10, block: type[BasicBlock] = BasicBlock) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(block, 16, 16, blocks, stride=1)
        self.layer2 = _stage(block, 16, 32, blocks, stride=2)
        self.layer3 = _stage(block, 32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def _stage(block: type[BasicBlock], inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = block(inputs, outputs, stride)
    return nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(blocks - 1)))
