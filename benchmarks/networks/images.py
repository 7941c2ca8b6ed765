"""Residual networks for CIFAR-10."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from networks.metrics import Mean
from networks.network import Network, Source, read_tensors
from networks.resnet_cifar import BasicBlock, ResNetCifar

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IN_A_BATCH = 250
_TRAIN, _TEST = "cifar10_train_jpeg.npz", "cifar10_test_jpeg.npz"


def _right(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    right = 100.0 * (outputs.argmax(1) == targets).double()
    return right, torch.ones_like(right)


TOP1 = Mean("top-1, %", higher_is_better=True, digits=2, sums=_right)


def _resnet(name: str, data: Path, quick: bool, seed: int) -> Network:
    model = pretrained(name, data)
    train, test = _Images(data / _TRAIN), _Images(data / _TEST)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(train), generator=generator)[: 128 if quick else 1024]
    judged = torch.arange(500 if quick else len(test))
    images, labels = test.read(judged)
    return Network(
        name,
        model.eval(),
        TOP1,
        data=f"{len(chosen):,} unlabelled training images to calibrate, {len(judged):,} test images to judge "
        "(CIFAR-10 from JPEG files)",
        calibration=list(train.read(chosen)[0].split(_IN_A_BATCH)),
        test=list(zip(images.split(_IN_A_BATCH), labels.split(_IN_A_BATCH), strict=True)),
    )


SOURCES = {
    name: Source((f"{name}_cifar10.safetensors", _TRAIN, _TEST), TOP1, _resnet) for name in ("resnet20", "resnet32")
}


def pretrained(name: str, data: Path, block: type[BasicBlock] = BasicBlock) -> ResNetCifar:
    """A network in train(); parts that only another kind of block has are as they are made."""
    model = ResNetCifar(int(name.removeprefix("resnet")), block=block)
    tensors, _ = read_tensors(data / f"{name}_cifar10.safetensors")
    model.load_state_dict(tensors, strict=block is BasicBlock)
    return model


def normalized(pixels: Tensor) -> Tensor:
    """What the networks take, of pixels [n, 3, h, w] from 0 to 255."""
    mean, deviation = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
    return (pixels / 255.0 - mean) / deviation


def training_pixels(data: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Training images, uint8 [n, 3, 32, 32], and their labels: the first ones, or all."""
    images = _Images(data / _TRAIN)
    return images.pixels(torch.arange(len(images))[:count]), images.labels[:count]


def training_batches(data: Path, count: int, batch: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Training images and labels, chosen at random, every other one mirrored, in batches."""
    images = _Images(data / _TRAIN)
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: count * batch]
    inputs, labels = images.read(chosen)
    inputs[::2] = inputs[::2].flip(-1)
    return list(zip(inputs.split(batch), labels.split(batch), strict=True))


class _Images:
    """Images [n, 3, 32, 32], normalized, from JPEG streams that share one header; only those read are decoded."""

    def __init__(self, path: Path) -> None:
        file = np.load(path)
        self.header, self.body = file["header"].tobytes(), file["body"].tobytes()
        self.labels = torch.from_numpy(file["label"].astype(np.int64))
        self.ends = [0, *np.cumsum(file["length"].astype(np.int64)).tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images and labels."""
        return normalized(self.pixels(indices)), self.labels[indices]

    def pixels(self, indices: Tensor) -> Tensor:
        """uint8 [n, 3, 32, 32]."""
        decoded = np.stack([self._decode(index) for index in indices.tolist()])
        return torch.from_numpy(decoded).permute(0, 3, 1, 2).contiguous()

    def _decode(self, index: int) -> np.ndarray:
        stream = self.header + self.body[self.ends[index] : self.ends[index + 1]]
        return np.asarray(Image.open(io.BytesIO(stream)).convert("RGB"))
