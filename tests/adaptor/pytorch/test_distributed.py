"""DistributedDataParallel over two processes: the same forward, averaged gradients."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((4, 3, 7, 6))


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = subbyte.prepare(randomized(ResidualNet()), "w4a4", X)
    parallel = DistributedDataParallel(model)
    with torch.no_grad():
        same = torch.equal(parallel.eval()(X), model(X))
    parallel.train()
    parallel(X[rank * 2 : rank * 2 + 2]).square().sum().backward()
    torch.save(
        {"same": same, "grad": model.conv1.weight.grad, "output": model.eval()(X).detach()}, f"{folder}/{rank}.pt"
    )
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available() or os.name == "nt", reason="needs torch.distributed with gloo")
def test_two_processes_agree(tmp_path: Path) -> None:
    mp.spawn(_work, (str(tmp_path),), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert one["same"]
    assert two["same"]
    assert torch.equal(one["grad"], two["grad"])
    assert float(one["grad"].abs().sum()) > 0
