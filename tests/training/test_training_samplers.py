"""Samples come in the same order in a training that is taken up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

import subbyte
from networks import randomized, seeded

DATA = TensorDataset(seeded((32, 4, 6, 6)), torch.arange(32) % 5)


def _in_the_sampler() -> DataLoader:
    return DataLoader(DATA, 8, sampler=RandomSampler(DATA, generator=torch.Generator().manual_seed(1)))


def _in_the_batch_sampler() -> DataLoader:
    sampler = RandomSampler(DATA, generator=torch.Generator().manual_seed(1))
    return DataLoader(DATA, batch_sampler=BatchSampler(sampler, 8, drop_last=False))


def _by_epoch() -> DataLoader:
    return DataLoader(DATA, 8, sampler=DistributedSampler(DATA, num_replicas=2, rank=0, seed=3))


def _train(loader: DataLoader, checkpoint: Path | None, interrupted_in: int = 0, seen: Any = None) -> Any:
    calls = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == interrupted_in:
            raise KeyboardInterrupt
        if seen is not None:
            seen.append(target.tolist())
        return F.cross_entropy(output, target)

    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", DATA.tensors[0])
    return subbyte.train(model, loader, loss, epochs=3, optimizer={"SGD": {"lr": 0.05}}, checkpoint=checkpoint)


@pytest.mark.parametrize("loader", [_in_the_sampler, _in_the_batch_sampler, _by_epoch])
def test_an_interrupted_training_goes_on_bit_for_bit(loader: Any, tmp_path: Path) -> None:
    whole = _train(loader(), None)
    with pytest.raises(KeyboardInterrupt):
        _train(loader(), tmp_path / "kept.pt", interrupted_in=len(loader()) + 2)
    again = _train(loader(), tmp_path / "kept.pt")
    assert [epoch.loss for epoch in again.history] == [epoch.loss for epoch in whole.history]
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in whole.model.state_dict().items())


def test_samplers_are_told_of_epochs() -> None:
    seen: list[list[int]] = []
    _train(_by_epoch(), None, seen=seen)
    want = []
    loader = _by_epoch()
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        want += [target.tolist() for _, target in loader]
    assert seen == want
    assert seen[:2] != seen[2:4]


def test_a_loader_of_other_generators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _train(_in_the_sampler(), tmp_path / "kept.pt", interrupted_in=6)
    with pytest.raises(subbyte.CheckpointError, match="the loader had 1 random generators and has 0"):
        _train(DataLoader(DATA, 8), tmp_path / "kept.pt")


class _Batches(IterableDataset):
    """No DataLoader, but what gives batches itself."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        yield DATA[:8]


def test_batches_without_samplers_are_taken_as_they_come(tmp_path: Path) -> None:
    assert len(_train(_Batches(), tmp_path / "kept.pt").history) == 3
