"""Embedding: rows looked up by index."""

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules.handler import WeightedHandler
from subbyte.adaptor.pytorch.modules.registry import register_module
from subbyte.errors import ModelError


class EmbeddingHandler(WeightedHandler):
    """A table [rows, features]; the input is whole numbers and is not quantized."""

    op_type = "Embedding"
    is_product = False
    takes_activation = False
    forms = dict.fromkeys(("static", "dynamic", "weight_only"), frozenset({"weight"}))

    def check(self, module: Any, name: str) -> None:
        if module.max_norm is not None:
            raise ModelError(f"op {name!r}: an Embedding with max_norm rewrites its table; set max_norm=None first")

    def apply(self, module: Any, x: Tensor, weight: Tensor, *extra: Any) -> Tensor:
        return F.embedding(x, weight, module.padding_idx)

    def group_terms(
        self, module: Any, x: Tensor, grid: Tensor, scale: Tensor, size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        raise AssertionError("a lookup sums nothing: its rows are dequantized")


register_module(nn.Embedding, EmbeddingHandler())
