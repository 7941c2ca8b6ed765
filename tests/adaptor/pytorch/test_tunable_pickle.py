"""A tunable model that is sent to another process computes there what it does here."""

import pickle

import torch
from torch import nn

from subbyte import PostTrainingQuantConfig, load_capability
from subbyte.adaptor.pytorch.tunable import PyTorchTunableModel
from subbyte.spec import TuneConfig


def test_it_is_made_anew() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    data = [torch.randn(32, 8), torch.randn(32, 8)]
    tunable = PyTorchTunableModel(model, load_capability("pytorch_cpu"), PostTrainingQuantConfig(), iter(data))
    narrow = TuneConfig({key: found[-2] for key, found in tunable.alternatives.items()})
    output = tunable.apply(narrow)(data[0])
    sent = pickle.loads(pickle.dumps(tunable))
    assert sent.alternatives == tunable.alternatives
    assert sent.identity == tunable.identity
    assert sent.size(narrow) == tunable.size(narrow)
    assert torch.equal(sent.apply(narrow)(data[0]), output)
    assert not torch.equal(output, model(data[0]))
