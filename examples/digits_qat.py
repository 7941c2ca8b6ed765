"""Quantization-aware training of scikit-learn's digits: fp32, 4 bits, 2 bits and 1 bit, in under a minute on one core.

    python examples/digits_qat.py

Each precision begins with the float network's weights and is trained as long as that was once more. First and last
layer are int8. Accuracy is that of the converted model; packed bytes are those of its weights' codes.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import subbyte
from subbyte.training.binary import FlipRatio, LearnableShift, RPReLU

Images = tuple[Tensor, Tensor]
BINARY = {"types": {"bint1": {"weight": {"clipped_identity": {"standardized": True}}, "activation": "approx_sign"}}}


class Block(nn.Module):
    """A convolution between a shift and a BatchNorm, with a skip past it, then RPReLU: [n, c, h, w] as it was."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = LearnableShift(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.act = RPReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.norm(self.conv(self.shift(x))) + x)
        return y


class Net(nn.Module):
    """Logits [n, 10] of images [n, 1, 8, 8]."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.wide = Block(channels)
        self.narrow = nn.Sequential(Block(channels), Block(channels))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.norm(self.stem(x)))
        x = self.narrow(F.avg_pool2d(x, 2))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def digits() -> tuple[Images, Images]:
    """Images [n, 1, 8, 8] from 0 to 1 and labels [n], to train on and to test on."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = order[:397], order[397:]
    return (x[train], y[train]), (x[test], y[test])


def trained(model: nn.Module, data: Images, epochs: int) -> nn.Module:
    """The model after some epochs of AdamW, in eval()."""
    loader = DataLoader(TensorDataset(*data), batch_size=64, shuffle=True)
    result = subbyte.train(
        model, loader, F.cross_entropy, epochs=epochs, optimizer={"AdamW": {"weight_decay": 1e-3}},
        lr_schedule={"OneCycleLR": {"max_lr": 1e-2}},
    )  # fmt: skip
    return result.model


@torch.no_grad()
def accuracy(model: nn.Module, data: Images) -> float:
    """In percent."""
    images, labels = data
    return 100 * float((model(images).argmax(1) == labels).float().mean())


def run(epochs: int) -> dict[str, tuple[float, int]]:
    """Print a row for each precision; returns accuracy in percent and bytes of weights, by precision."""
    train, test = digits()
    torch.manual_seed(0)
    net = trained(Net(), train, epochs)
    matrices = [module.weight for module in net.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    results = {"fp32": (accuracy(net, test), sum(weight.nbytes for weight in matrices))}
    print(f"{'':6}{'accuracy':>10}{'bytes of weights':>18}")
    print(f"{'fp32':6}{results['fp32'][0]:>9.1f}%{results['fp32'][1]:>18,}")
    for config in ("w4a4", "w2a2", "w1a1"):
        training = BINARY if config == "w1a1" else None
        prepared = subbyte.prepare_qat(net, config, train[0][:256], first_last="int8", training=training)
        flips = FlipRatio(prepared) if config == "w1a1" else None
        trained(prepared, train, epochs)
        converted = subbyte.convert(prepared)
        with torch.no_grad():
            assert torch.equal(converted(test[0]), prepared(test[0]))  # what was trained is what runs
        packed = sum(weight.packed.nbytes for weight in subbyte.weights(converted).values())
        results[config] = accuracy(subbyte.use_kernels(converted), test), packed
        print(f"{config:6}{results[config][0]:>9.1f}%{packed:>18,}")
    if flips is not None:
        print(f"{100 * flips.look():.0f}% of the signs of w1a1 changed in training")
    return results


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Quantization-aware training of digits.")
    arguments.add_argument("--epochs", type=int, default=8, help="of each training")
    begun = time.perf_counter()
    run(arguments.parse_args().epochs)
    print(f"{time.perf_counter() - begun:.0f} s")
