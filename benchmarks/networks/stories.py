"""A small Llama that tells stories."""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from networks.llama import Llama, LlamaConfig
from networks.metrics import Mean
from networks.network import Network, Source, read_tensors

_CALIBRATION_STORIES = 20
_WEIGHTS, _TOKENS = "stories260k.safetensors", "tinystories_tokens.npz"


def _nats(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each position predicts the next token; a story is one sample."""
    loss = F.cross_entropy(outputs[:, :-1].transpose(1, 2), targets[:, 1:], reduction="none").double()
    return loss.sum(1), torch.full((len(loss),), loss.shape[1], dtype=torch.float64)


_NATS = Mean("nats per token", higher_is_better=False, digits=3, sums=_nats)


def _stories(name: str, data: Path, quick: bool, seed: int) -> Network:
    tensors, metadata = read_tensors(data / _WEIGHTS)
    config = json.loads(metadata["config"])
    tied, rope = config.pop("tied"), config.pop("rope")
    assert tied
    assert rope == "interleaved"
    model = Llama(LlamaConfig(**config))
    model.load_state_dict(tensors | {"head.weight": tensors["embed.weight"]})
    file = np.load(data / _TOKENS)
    ends = np.cumsum(file["length"].astype(np.int64))[:-1]
    stories = [torch.from_numpy(ids.astype(np.int64))[None] for ids in np.split(file["ids"], ends)]
    order = torch.randperm(len(stories), generator=torch.Generator().manual_seed(seed)).tolist()
    calibration = [stories[index] for index in order[:_CALIBRATION_STORIES]]
    judged = [stories[index] for index in sorted(order[_CALIBRATION_STORIES:])]
    judged = judged[:10] if quick else judged
    return Network(
        name,
        model.eval(),
        _NATS,
        data=f"{len(calibration)} TinyStories to calibrate, {len(judged)} others to judge",
        calibration=calibration,
        test=[(story, story) for story in judged],
    )


SOURCES = {"stories260K": Source((_WEIGHTS, _TOKENS), _NATS, _stories)}
