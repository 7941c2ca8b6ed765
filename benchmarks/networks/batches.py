"""Batches of training images that lie in memory: another order, and other changes, in every epoch."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4  # pixels on each side


class ShuffledBatches:
    """Pairs of inputs and labels.

    Args:
        images: uint8 [n, channels, height, width], on whatever device.
        labels: [n], there too.
        size: of a batch; what is left over at the end of an epoch is in none.
        seed: of order and changes, which are the same on all devices.
        prepare: from a batch of images, and the generator, to inputs.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        size: int,
        seed: int,
        prepare: Callable[[Tensor, torch.Generator], Tensor],
    ) -> None:
        self.images, self.labels, self.size, self.prepare = images, labels, size, prepare
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.images) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.images), generator=self.generator).to(self.images.device)
        for chosen in order.split(self.size)[: len(self)]:
            yield self.prepare(self.images[chosen], self.generator), self.labels[chosen]


def cropped_and_mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image [n, c, h, w] moved by up to four pixels, black where it was, and every other one mirrored, at random.

    As He et al. (2015), section 4.2, trained on CIFAR-10.
    """
    n, _, height, width = images.shape
    down, right = torch.randint(2 * PADDING + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    columns = torch.arange(width).expand(n, -1)
    rows = down + torch.arange(height)
    columns = right + torch.where(mirrored, columns.flip(1), columns)
    each, rows, columns = (index.to(images.device) for index in (torch.arange(n), rows, columns))
    padded = F.pad(images, (PADDING,) * 4)
    moved = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [n, h, w, c]
    return moved.permute(0, 3, 1, 2).contiguous()
