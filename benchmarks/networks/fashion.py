"""Fashion-MNIST, and a small convolutional network for it."""

import lzma
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks.images import TOP1
from networks.network import Network
from subbyte.training.binary import LearnableShift, RPReLU

FILES = ("fashion_mnist_train.xz", "fashion_mnist_test.xz")
_TO_CALIBRATE, _IN_A_BATCH = 1024, 256
_PIXELS = 28 * 28
_MEAN, _DEVIATION = 0.2860, 0.3530  # of the training images, from 0 to 1


def read(path: Path) -> tuple[Tensor, Tensor]:
    """Images, uint8 [n, 1, 28, 28], and labels [n]; the file holds all labels first."""
    with lzma.open(path) as file:
        content = np.frombuffer(file.read(), np.uint8)
    count = len(content) // (_PIXELS + 1)
    labels, pixels = content[:count].astype(np.int64), content[count:].reshape(count, 1, 28, 28).copy()
    return torch.from_numpy(pixels), torch.from_numpy(labels)


def untrained(data: Path, *, for_signs: bool, quick: bool, seed: int) -> Network:
    """A network to be trained, with the seed's weights, and the test images to judge it on."""
    torch.manual_seed(seed)
    model = FashionNet(for_signs=for_signs)
    images, _ = read(data / FILES[0])
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:_TO_CALIBRATE]
    test, labels = (each[:500] if quick else each for each in read(data / FILES[1]))
    return Network(
        "for signs" if for_signs else "plain",
        model,
        TOP1,
        data=f"{len(test):,} test images to judge (Fashion-MNIST)",
        calibration=list(normalized(images[chosen]).split(_IN_A_BATCH)),
        test=list(zip(normalized(test).split(_IN_A_BATCH), labels.split(_IN_A_BATCH), strict=True)),
    )


def normalized(pixels: Tensor) -> Tensor:
    """What the network takes, of pixels from 0 to 255."""
    return (pixels / 255.0 - _MEAN) / _DEVIATION


class FashionNet(nn.Module):
    """A convolution, five blocks of one convolution each, a global mean, a Linear: [n, 1, 28, 28] to logits [n, 10].

    Args:
        for_signs: with the parts that binary inputs need: a learned shift before the convolution of each block, and
            RPReLU in the place of ReLU, whose values have no sign to tell (ReActNet, Liu et al., 2020).
        channels: of the first convolution.
    """

    def __init__(self, *, for_signs: bool = False, channels: int = 16) -> None:
        super().__init__()
        two, four = 2 * channels, 4 * channels
        self.stem = nn.Conv2d(1, channels, 5, stride=2, padding=2, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.act = RPReLU(channels) if for_signs else nn.ReLU()
        shapes = [(channels, channels, 1), (channels, two, 2), (two, two, 1), (two, four, 2), (four, four, 1)]
        self.blocks = nn.Sequential(*(Block(*shape, for_signs=for_signs) for shape in shapes))
        self.head = nn.Linear(four, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.act(self.norm(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class Block(nn.Module):
    """A 3x3 convolution and its BatchNorm beside a shortcut without parameters (Bi-Real Net, Liu et al., 2018).

    Args:
        inputs, outputs: channels; outputs are a whole multiple of inputs.
        stride: of the convolution; the shortcut takes means.
        for_signs: as of the network.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, for_signs: bool) -> None:
        super().__init__()
        self.shift = LearnableShift(inputs) if for_signs else nn.Identity()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = RPReLU(outputs) if for_signs else nn.ReLU()
        self.stride, self.copies = stride, outputs // inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(self.shift(x)))
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, ceil_mode=True)
        if self.copies > 1:
            x = x.repeat(1, self.copies, 1, 1)
        joined: Tensor = self.act(y + x)
        return joined
