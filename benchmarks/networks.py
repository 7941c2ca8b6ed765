"""The real networks and real data of the benchmarks, by name.

They are trained by others and lie in a folder beside the repository; the folder is not part of it.
"""

import argparse
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from llama import Llama, LlamaConfig
from PIL import Image
from resnet_cifar import ResNetCifar
from safetensors import safe_open
from torch import Tensor, nn

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGES_A_BATCH = 250
_CALIBRATION_STORIES = 20

Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Network:
    """A trained network with data to calibrate and to judge it on.

    Args:
        name: as `--network` takes it.
        model: float, in eval().
        metric: what is reported, with its unit.
        higher_is_better: of the metric.
        data: what was used, in words.
        calibration: batches of inputs, without labels.
        test: batches of (inputs, targets).
        score: (outputs, targets) -> for each sample a sum and how many figures are in it; the metric is the sum
            of the first over the sum of the second.
    """

    name: str
    model: nn.Module
    metric: str
    higher_is_better: bool
    data: str
    calibration: Sequence[Tensor]
    test: Sequence[tuple[Tensor, Tensor]]
    score: Score


def add_arguments(parser: argparse.ArgumentParser, names: Sequence[str] = ()) -> None:
    """`--network`, one of `names` (all if empty), and `--data`."""
    parser.add_argument("--network", choices=names or list(NETWORKS), default="resnet20", help="which network")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of networks and data (%(default)s)")


def load(name: str, data: Path, *, quick: bool = False, seed: int = 0) -> Network:
    """Load a network; ends the script, and says so, where the folder lacks it.

    Args:
        name: one of NETWORKS.
        data: the folder.
        quick: a few samples only.
        seed: chooses the calibration samples.
    """
    files, build = NETWORKS[name]
    missing = [file for file in files if not (data / file).is_file()]
    if missing:
        print(f"skipped: {name} needs {', '.join(missing)} in {data}; give the folder with --data")
        sys.exit(0)
    return build(name, data, quick, seed)


def _resnet(name: str, data: Path, quick: bool, seed: int) -> Network:
    model = ResNetCifar(int(name.removeprefix("resnet")))
    tensors, _ = _read(data / f"{name}_cifar10.safetensors")
    model.load_state_dict(tensors)
    train, test = _Images(data / "cifar10_train_jpeg.npz"), _Images(data / "cifar10_test_jpeg.npz")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(train), generator=generator)[: 128 if quick else 1024]
    judged = torch.arange(500 if quick else len(test))
    images, labels = test.read(judged)
    return Network(
        name,
        model.eval(),
        metric="top-1, %",
        higher_is_better=True,
        data=f"{len(chosen):,} unlabelled training images to calibrate, {len(judged):,} test images to judge "
        "(CIFAR-10 from JPEG files)",
        calibration=train.read(chosen)[0].split(_IMAGES_A_BATCH),
        test=list(zip(images.split(_IMAGES_A_BATCH), labels.split(_IMAGES_A_BATCH), strict=True)),
        score=_top1,
    )


def _stories(name: str, data: Path, quick: bool, seed: int) -> Network:
    tensors, metadata = _read(data / f"{name.lower()}.safetensors")
    config = json.loads(metadata["config"])
    tied, rope = config.pop("tied"), config.pop("rope")
    assert tied
    assert rope == "interleaved"
    model = Llama(LlamaConfig(**config))
    model.load_state_dict(tensors | {"head.weight": tensors["embed.weight"]})
    file = np.load(data / "tinystories_tokens.npz")
    ends = np.cumsum(file["length"].astype(np.int64))[:-1]
    stories = [torch.from_numpy(ids.astype(np.int64))[None] for ids in np.split(file["ids"], ends)]
    order = torch.randperm(len(stories), generator=torch.Generator().manual_seed(seed)).tolist()
    calibration = [stories[index] for index in order[:_CALIBRATION_STORIES]]
    judged = [stories[index] for index in sorted(order[_CALIBRATION_STORIES:])]
    judged = judged[:10] if quick else judged
    return Network(
        name,
        model.eval(),
        metric="nats per token",
        higher_is_better=False,
        data=f"{len(calibration)} TinyStories to calibrate, {len(judged)} others to judge",
        calibration=calibration,
        test=[(story, story) for story in judged],
        score=_nats,
    )


IMAGE_NETWORKS = ("resnet20", "resnet32")
_CIFAR = ("cifar10_train_jpeg.npz", "cifar10_test_jpeg.npz")
NETWORKS: dict[str, tuple[tuple[str, ...], Callable[[str, Path, bool, int], Network]]] = {
    "resnet20": (("resnet20_cifar10.safetensors", *_CIFAR), _resnet),
    "resnet32": (("resnet32_cifar10.safetensors", *_CIFAR), _resnet),
    "stories260K": (("stories260k.safetensors", "tinystories_tokens.npz"), _stories),
}


def _top1(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    right = 100.0 * (outputs.argmax(1) == targets).double()
    return right, torch.ones_like(right)


def _nats(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each position predicts the next token; a story is one sample."""
    loss = F.cross_entropy(outputs[:, :-1].transpose(1, 2), targets[:, 1:], reduction="none").double()
    return loss.sum(1), torch.full((len(loss),), loss.shape[1], dtype=torch.float64)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


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
        pixels = torch.from_numpy(np.stack([self._decode(index) for index in indices.tolist()]))
        images = pixels.permute(0, 3, 1, 2).contiguous() / 255.0
        mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
        return (images - mean) / deviation, self.labels[indices]

    def _decode(self, index: int) -> np.ndarray:
        stream = self.header + self.body[self.ends[index] : self.ends[index + 1]]
        return np.asarray(Image.open(io.BytesIO(stream)).convert("RGB"))
