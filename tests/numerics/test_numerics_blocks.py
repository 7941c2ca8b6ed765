"""Blocks: which elements share a scale, against plain indexing."""

import pytest
import torch

from subbyte.errors import ConfigError
from subbyte.numerics import block_axis, expand, scale_shape, to_blocks
from subbyte.spec import TensorSpec


def spec(granularity: str, axis: int | None = None) -> TensorSpec:
    return TensorSpec("int4", granularity=granularity, axis=axis)


CASES = [
    ("per_tensor", None, (3, 4), ()),
    ("per_tensor", None, (), ()),
    ("per_channel", None, (3, 4), (3, 1)),
    ("per_channel", 1, (3, 4, 5), (1, 4, 1)),
    ("per_channel", -1, (3, 4, 5), (1, 1, 5)),
    ("per_channel", None, (7,), (7,)),
    ("per_channel", None, (), ()),
    ("per_token", None, (2, 3, 4), (2, 3, 1)),
    ("per_token", None, (4,), (1,)),
    ("per_group(2)", None, (3, 4), (3, 2)),
    ("per_group(3)", None, (3, 7), (3, 3)),
    ("per_group(100)", None, (3, 7), (3, 1)),
    ("per_group(4)", 1, (2, 6, 3, 3), (2, 2, 3, 3)),
    ("per_group(2)", 0, (5, 4), (3, 4)),
    ("per_group(3)", None, (7,), (3,)),
]


@pytest.mark.parametrize(("granularity", "axis", "shape", "expected"), CASES)
def test_scale_shape(granularity: str, axis: int | None, shape: tuple, expected: tuple) -> None:
    assert scale_shape(shape, spec(granularity, axis)) == expected


@pytest.mark.parametrize(("granularity", "axis", "shape", "expected"), CASES)
def test_blocks_hold_the_elements_that_share_a_scale(
    granularity: str, axis: int | None, shape: tuple, expected: tuple
) -> None:
    x = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    blocks, counts = to_blocks(x, spec(granularity, axis))
    # The number of the block that each element belongs to, by way of expand.
    number = torch.arange(torch.Size(expected).numel()).reshape(expected)
    owner = expand(number, shape, spec(granularity, axis)).expand(shape)
    assert len(blocks) == number.numel()
    for index, row in enumerate(blocks):
        kept = row if counts is None else row[counts[index] > 0]
        assert sorted(kept.tolist()) == sorted(x[owner == index].tolist())
        if counts is not None:
            assert not row[counts[index] == 0].any()


@pytest.mark.parametrize(
    ("granularity", "axis", "shape"),
    [
        ("per_tensor", None, (0,)),
        ("per_channel", None, (0, 5)),
        ("per_channel", None, (3, 0)),
        ("per_channel", 1, (2, 0, 3)),
        ("per_token", None, (4, 0)),
        ("per_token", None, (0, 4)),
        ("per_group(3)", None, (4, 0)),
        ("per_group(3)", None, (0, 4)),
    ],
)
def test_empty_tensors_have_as_many_blocks_as_scales(granularity: str, axis: int | None, shape: tuple) -> None:
    blocks, _ = to_blocks(torch.zeros(shape), spec(granularity, axis))
    assert blocks.shape[0] == torch.Size(scale_shape(shape, spec(granularity, axis))).numel()
    assert blocks.numel() == 0


def test_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"per_channel along axis 2: the tensor has only 2 axes"):
        block_axis(spec("per_channel", 2), 2)


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 2), (5,), (3, 0)])
def test_a_group_longer_than_its_axis_is_all_of_it_and_takes_no_more_memory(shape: tuple) -> None:
    x, huge = torch.randn(shape), TensorSpec("int4", granularity="per_group(1000000000000)")
    values, counts = to_blocks(x, huge)
    assert counts is None
    assert torch.equal(values, to_blocks(x, TensorSpec("int4", granularity="per_group(5)"))[0])
    scale = torch.rand(scale_shape(shape, huge))
    assert expand(scale, shape, huge).shape == x.shape
