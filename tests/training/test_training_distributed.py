"""Training in two processes: gradients are averaged, ranges stay alike, whatever data each process calibrated on."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from networks_to_train import SharedNet
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.errors import ModelError

pytestmark = pytest.mark.skipif(not dist.is_available() or os.name == "nt", reason="needs torch.distributed with gloo")

TARGET = torch.arange(16) % 5
SCHEDULED = {"types": {"bint1": {"weight": "ir_net", "activation": "ir_net"}}}
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("w4a4", {"first_last": "int8"}),
    ("w3a3", {"training": {"weight": "clipped", "activation": "straight_through"}}),
    ("w1a1", {"first_last": "int8", "training": SCHEDULED}),
]


Both = dict[str, tuple[Any, Any]]


class Dense(nn.Module):
    """Without BatchNorm, whose statistics each process has of its own. Input [n, 12], output [n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.twice(F.relu(self.first(x))))
        return self.last(F.relu(self.twice(x)))


def _ranges(model: nn.Module) -> dict[str, Tensor]:
    found = {name: module for name, module in model.named_modules() if isinstance(module, Quantizer)}
    return {f"{name}.{key}": x.clone() for name, one in found.items() for key, x in one.state_dict().items()}


def _steps(run: nn.Module, x: Tensor, target: Tensor, count: int = 3) -> None:
    ranges = [parameter for name, parameter in run.named_parameters() if name.endswith("scale")]
    known = set(ranges)
    groups = [{"params": [p for p in run.parameters() if p not in known]}, {"params": ranges, "lr": 1e-2}]
    optimizer = torch.optim.SGD(groups, 0.02, momentum=0.9)
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(run(x), target).backward()
        optimizer.step()


def _half(rank: int) -> slice:
    return slice(rank * 8, rank * 8 + 8)


def _train_parallel(rank: int) -> Any:
    x, found = seeded((16, 4, 6, 6)), {}
    for config, options in CONFIGS:
        own = seeded((16, 4, 6, 6), seed=rank) * (1 + rank)  # other weights, and other data
        model = subbyte.prepare_qat(randomized(SharedNet(), seed=rank), config, own, **options)
        with torch.no_grad():
            model.eval()(x)  # the quantized weights are cached
            parallel = DistributedDataParallel(model)
            outputs = [model.eval()(x)]
            if "training" in options and rank == 0 and options["training"] is SCHEDULED:
                subbyte.training.set_progress(model, 0.5)
        _steps(parallel.train(), x[_half(rank)], TARGET[_half(rank)])
        with torch.no_grad():
            parallel.eval()
            model(x)  # each by its own BatchNorm: cached again
            outputs += [parallel(x), model(x), subbyte.convert(parallel.module)(x)]  # now by the first one's
        found[config] = outputs, _ranges(model), {k: p.grad for k, p in model.named_parameters()}, model.state_dict()
    return found


def test_ranges_are_those_of_all_processes_under_ddp(both: Both) -> None:
    one, two = both["parallel"]
    for config, _ in CONFIGS:
        (start, *trained), ranges, gradients, state = one[config]
        outputs, other_ranges, other_gradients, other_state = two[config]
        assert torch.equal(start, outputs[0])
        assert all(torch.equal(y, trained[0]) for y in (*trained, *outputs[1:]))
        assert not torch.equal(start, trained[0])
        assert all(torch.equal(value, other_ranges[name]) for name, value in ranges.items())
        assert all(torch.equal(value, other_gradients[name]) for name, value in gradients.items())
        assert all(torch.equal(value, other_state[name]) for name, value in state.items())
    progress = [value for name, value in two["w1a1"][1].items() if name.endswith("progress")]
    assert {float(value) for value in progress} == {0.5}


def _train_dense(rank: int) -> Any:
    x = seeded((16, 12))
    found = {}
    for name, options in {"usual": {}, "static": {"static_graph": True, "gradient_as_bucket_view": True}}.items():
        model = subbyte.prepare_qat(randomized(Dense()).train(), "w4a4", x, first_last="int8")
        _steps(DistributedDataParallel(model, **options), x[_half(rank)], TARGET[_half(rank)])
        found[name] = model.state_dict()
    return found


def test_two_processes_learn_what_one_does_of_the_whole_batch(both: Both) -> None:
    x = seeded((16, 12))
    model = subbyte.prepare_qat(randomized(Dense()).train(), "w4a4", x, first_last="int8")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    _steps(model, x, TARGET)
    for rank, name in ((0, "usual"), (1, "usual"), (0, "static"), (1, "static")):
        found = both["dense"][rank][name]
        for key, want in model.state_dict().items():
            torch.testing.assert_close(found[key], want, atol=1e-5, rtol=1e-5)
            assert not key.endswith(".scale") or not torch.equal(found[key], start[key])


class Deep(nn.Module):
    """Convolutions, BatchNorms in eval(), an add, linear layers. Input [n, 3, 7, 6], output [n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.hidden, self.head = ResidualNet(8), nn.Linear(5, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.body(x))))


def _train_sharded(rank: int) -> Any:
    x = seeded((16, 3, 7, 6))
    found = []
    for by_layer in (True, False):
        model = subbyte.prepare_qat(randomized(Deep()), "w4a4", x * (1 + rank), first_last="int8")
        ranges = subbyte.training.replicate_ranges(model)
        for layer in (model.body.conv1, model.body, model.hidden, model.head) if by_layer else ():
            fully_shard(layer, ignored_params=ranges)
        fully_shard(model, ignored_params=ranges)
        _set_modes(model)
        _steps(model, x[_half(rank)], TARGET[_half(rank)])
        with torch.no_grad():
            output = model.eval()(x)
        with pytest.raises(ModelError, match="sharded"):
            subbyte.convert(model)
        with pytest.raises(ModelError, match="sharded"):
            subbyte.training.requantize(model, "w2a2", x)
        found.append((get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), output))
    other = subbyte.prepare_qat(randomized(Deep()), "w4a4" if rank else "w4", x)
    with pytest.raises(ModelError, match="different quantizers"):
        subbyte.training.replicate_ranges(other)
    return found


def _set_modes(model: nn.Module) -> None:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def test_a_sharded_model_learns_what_one_process_does_of_the_whole_batch(both: Both) -> None:
    x = seeded((16, 3, 7, 6))
    whole = subbyte.prepare_qat(randomized(Deep()), "w4a4", x, first_last="int8")
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    _set_modes(whole)
    _steps(whole, x, TARGET)
    for rank in (0, 1):
        for state, output in both["sharded"][rank]:
            for name, want in whole.state_dict().items():
                torch.testing.assert_close(state[name], want, atol=1e-5, rtol=1e-5)
                assert not name.endswith(".scale") or not torch.equal(state[name], start[name])
            again = subbyte.prepare_qat(randomized(Deep(), seed=3), "w4a4", x, first_last="int8")
            again.load_state_dict(state)
            with torch.no_grad():
                assert torch.equal(again.eval()(x), output)
                assert torch.equal(subbyte.convert(again)(x), output)


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = {"parallel": _train_parallel(rank), "dense": _train_dense(rank), "sharded": _train_sharded(rank)}
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What each of two processes found, by the kind of training."""
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(_work, (str(folder),), nprocs=2)
    one, two = (torch.load(folder / f"{rank}.pt") for rank in (0, 1))
    return {name: (one[name], two[name]) for name in one}
