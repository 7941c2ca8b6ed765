"""Native kernels and PyTorch functions give the same, wherever numerics and calibration choose between them."""

from collections.abc import Iterator
from importlib import import_module
from itertools import product

import pytest
import torch
from torch import Tensor

from subbyte.calibration import calibrate_tensor, params_of_tensor
from subbyte.numerics import fake_quantize, quantize, quantize_pack, rescale, scheme_of
from subbyte.spec import TensorSpec

CHOOSERS = ["numerics.schemes", "numerics.quantize", "numerics.integer_first", "calibration.calibrate"]
SPECS = [
    TensorSpec(dtype, scheme=scheme, granularity=granularity, scale_format=scale_format, axis=axis)
    for dtype, scheme, (granularity, axis), scale_format in product(
        ["int1", "int4", "uint3", "int8", "uint8"],
        ["sym", "asym"],
        [("per_tensor", None), ("per_token", None), ("per_channel", 1), ("per_group(3)", 1), ("per_group(2)", 0)],
        ["fp32", "bf16"],
    )
]


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """To be entered: from then on only PyTorch functions run."""
    with monkeypatch.context() as patch:
        yield patch


def choose_torch(patch: pytest.MonkeyPatch) -> None:
    for name in CHOOSERS:
        patch.setattr(import_module(f"subbyte.{name}"), "runs_native", lambda _: False)


def everything(x: Tensor, spec: TensorSpec) -> list[Tensor]:
    params, dynamic = calibrate_tensor(x, spec), params_of_tensor(x.float(), spec)
    assert dynamic.zero_point is not None
    found = [scheme_of(spec).snap(x.float(), params, spec), quantize(x, params, spec), quantize_pack(x, params, spec)]
    return [*found, fake_quantize(x, params, spec), dynamic.scale, dynamic.zero_point.expand(dynamic.scale.shape)]


@pytest.mark.parametrize("shape", [(4, 7), (2, 7, 3, 5)])
def test_tensors_of_any_layout(in_torch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 2 + 0.4
    layouts = [x, x.transpose(0, -1).contiguous().transpose(0, -1), x.bfloat16()]
    native = [everything(given, spec) for given, spec in product(layouts, SPECS)]
    choose_torch(in_torch)
    for mine, (given, spec) in zip(native, product(layouts, SPECS), strict=True):
        wanted = everything(given, spec)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, wanted, strict=True)), spec


def test_sums_of_any_shape(in_torch: pytest.MonkeyPatch) -> None:
    sums, scale, bias = torch.randn(2, 5, 3, 4) * 99, torch.rand(5, 1, 1), torch.randn(5, 1, 1)
    cases = list(product([sums, sums.double()], [torch.tensor(0.3)], [scale, torch.tensor(0.7)], [None, bias]))
    native = [rescale(total.clone(), *rest) for total, *rest in cases]
    choose_torch(in_torch)
    for mine, (total, *rest) in zip(native, cases, strict=True):
        assert torch.equal(mine, rescale(total.clone(), *rest))
