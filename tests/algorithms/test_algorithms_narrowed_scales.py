"""Narrowed scales, against a separate run with every ratio."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from recovering import WEIGHTS, every_op, prepared, seen
from torch import Tensor

from subbyte import TensorSpec
from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.algorithms.narrowed_scales import RATIOS, narrowed_scales
from subbyte.numerics import fake_quantize
from subbyte.spec import QuantParams

TWO_BITS = {
    "per_channel": TensorSpec("int2", "sym", "per_channel"),
    "per_group": TensorSpec("uint2", "asym", "per_group(3)"),
    "per_tensor": TensorSpec("int2", "sym", "per_tensor"),
    "ternary": WEIGHTS["ternary per_channel"],
}


def _ops(spec: TensorSpec) -> list[WeightedOp]:
    model, data = every_op()
    return list(seen(prepared(model, data, spec), data).ops.values())


def _row_errors(op: WeightedOp, candidates: Sequence[QuantParams]) -> Tensor:
    quantized = [fake_quantize(op.weight, params, op.spec) for params in candidates]
    return torch.stack([op.matrix(each - op.weight).square().sum(2).double() for each in quantized])


@pytest.mark.parametrize("name", TWO_BITS)
def test_narrowed_scales_leave_each_row_its_least_error(name: str) -> None:
    for op in _ops(TWO_BITS[name]):
        start = op.params.scale.clone()
        found = narrowed_scales(op, partial(_row_errors, op))
        errors = _row_errors(op, [replace(op.params, scale=start * ratio) for ratio in RATIOS])
        shared = name == "per_tensor"
        expected = errors.sum((1, 2)).min() if shared else errors.amin(0)
        (given,) = _row_errors(op, [found])
        torch.testing.assert_close(given.sum() if shared else given, expected)
        assert torch.equal(op.params.scale, start)


def test_narrowed_scales_stop_where_narrowing_only_clips() -> None:
    for op in _ops(TensorSpec("int8", "sym", "per_channel")):
        tried: list[QuantParams] = []

        def row_errors(
            candidates: Sequence[QuantParams], op: WeightedOp = op, tried: list[QuantParams] = tried
        ) -> Tensor:
            tried += candidates
            return _row_errors(op, candidates)

        assert torch.equal(narrowed_scales(op, row_errors).scale, op.params.scale)
        assert len(tried) == 5


def test_narrowed_scales_keep_the_scale_format() -> None:
    for op in _ops(TensorSpec("int2", "sym", "per_channel", scale_format="pow2")):
        found = narrowed_scales(op, partial(_row_errors, op))
        mantissa, _ = torch.frexp(found.scale)
        assert (mantissa == 0.5).all()
        assert _row_errors(op, [found]).sum() < _row_errors(op, [op.params]).sum()
