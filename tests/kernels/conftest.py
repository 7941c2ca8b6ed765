"""Tests of an operator run on every instruction set that this CPU has, and in PyTorch."""

from collections.abc import Iterator

import pytest
import torch

from subbyte.kernels import isas, use_isa


@pytest.fixture(params=[*(isa.name for isa in isas() if isa.available and isa.name != "torch"), "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One instruction set after another; at last PyTorch, by what the module's IN_TORCH has for each operator."""
    if request.param == "torch":
        for name, implementation in request.module.IN_TORCH.items():
            monkeypatch.setattr(torch.ops.subbyte, name, implementation)
        yield request.param
        return
    use_isa(request.param)
    yield request.param
    use_isa("")
