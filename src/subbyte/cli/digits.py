"""The network and the images of `subbyte demo`: handwritten digits, 8 by 8 pixels."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.errors import SubbyteError

_TEST_IMAGES = 397
_EPOCHS = 8
_BATCH = 64


class DigitNet(nn.Module):
    """Three convolutions, the third around a residual add, and a linear layer."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, 10) of images (n, 1, 8, 8)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)) + x)
        logits: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return logits


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) in fp32 from 0 to 1, and their labels (n)."""

    images: Tensor
    labels: Tensor

    def accuracy(self, model: nn.Module) -> float:
        """The share of images that a model in eval() gets right."""
        with torch.no_grad():
            return float((model(self.images).argmax(1) == self.labels).float().mean())


def load_digits(seed: int) -> tuple[Digits, Digits]:
    """Training and test images, split at random.

    Raises:
        SubbyteError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise SubbyteError(
            f"the demo takes its images from scikit-learn, which cannot be imported ({error}); "
            "install it with: pip install 'subbyte[demo]'"
        ) from error
    images, labels = load(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    test, train = order[:_TEST_IMAGES], order[_TEST_IMAGES:]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def trained_network(train: Digits, seed: int) -> DigitNet:
    """A network trained from scratch, in eval(); the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = DigitNet()
        steps = _EPOCHS * -(-len(train.images) // _BATCH)
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(train.images)).split(_BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
                optimizer.step()
                schedule.step()
    return model.eval()
