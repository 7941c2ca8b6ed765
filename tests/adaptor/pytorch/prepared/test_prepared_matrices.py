"""Ops as matrices: the products of columns are the op's results."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import subbyte
from networks import randomized, seeded
from subbyte import ConfigError
from subbyte.adaptor.pytorch.batch import Batch
from subbyte.adaptor.pytorch.prepared import PreparedModel

MODULES = {
    "Linear": (nn.Linear(6, 4), (5, 3, 6)),
    "Conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2), (2, 4, 11)),
    "Conv2d": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 4, 7, 8)),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 5, 5)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), (2, 4, 5, 5)),
    "same": (nn.Conv2d(3, 2, (3, 5), padding="same"), (2, 3, 5, 5)),
    "reflected": (nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), (2, 3, 5, 5)),
    "Conv3d": (nn.Conv3d(2, 3, 2, padding=1), (2, 2, 4, 3, 5)),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), padding=(2, 1), dilation=(2, 1)), (2, 4, 5, 6)),
    "transposed, groups": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
}


def _prepared(module: nn.Module, shape: tuple[int, ...]) -> tuple[PreparedModel, Any, Tensor]:
    x = seeded(shape)
    model = PreparedModel(subbyte.prepare(nn.Sequential(randomized(module)), "w8a8", x), [Batch.of(x)])
    return model, model.ops["0"], x


@pytest.mark.parametrize("name", MODULES)
def test_matrix_times_columns_is_the_linear_map(name: str) -> None:
    _, op, x = _prepared(*MODULES[name])
    products = op.matrix(op.weight) @ op.columns(x)  # [groups, channels, products]
    expected = op.apply(x, op.weight)
    channels = -1 if name == "Linear" else 1
    by_channel = expected.movedim(channels, 0).flatten(1)
    assert torch.allclose(products.flatten(0, 1), by_channel, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_from_matrix_is_the_way_back(name: str) -> None:
    _, op, _ = _prepared(*MODULES[name])
    assert torch.equal(op.from_matrix(op.matrix(op.weight)), op.weight)


def test_of_hugging_faces_conv1d() -> None:
    _, op, x = _prepared(Conv1D(4, 6), (2, 3, 6))
    assert torch.allclose(
        (op.matrix(op.weight) @ op.columns(x))[0].t(), op.apply(x, op.weight).flatten(0, 1), atol=1e-5
    )
    assert torch.equal(op.from_matrix(op.matrix(op.weight)), op.weight)


def test_an_embedding_has_none() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3))
    prepared = PreparedModel(subbyte.prepare(model, "w4", torch.arange(6)[None]), [])
    with pytest.raises(ConfigError, match="Embedding is no product of a matrix"):
        prepared.ops["0"].matrix(prepared.ops["0"].weight)
