"""What every operator says of an argument that it does not take: its own name, what it takes, what it got."""

from typing import Any

import pytest
import torch

import subbyte.kernels  # noqa: F401  (it defines the operators)
from subbyte.kernels.operator import is_native

OPERATORS = sorted(
    name.removeprefix("subbyte::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("subbyte::")
)  # fmt: skip


def call(name: str, first: Any) -> str:
    """What an operator says of its first argument."""
    operator = getattr(torch.ops.subbyte, name).default
    rest: list[Any] = []
    for index, argument in enumerate(operator._schema.arguments[1:], start=1):
        rest.append({"Tensor": torch.zeros(1), "int": index, "float": 0.0, "bool": False}[str(argument.type)])
    with pytest.raises(RuntimeError) as raised:
        operator(first, *rest)
    return str(raised.value)


def test_there_are_all() -> None:
    assert {"linear_codes", "linear_float", "conv2d_codes", "pack_codes", "rescale_", "affine_snap"} <= {*OPERATORS}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    "first", [torch.zeros(2, 2, dtype=torch.int16), torch.zeros(2, dtype=torch.complex64)], ids=str
)
def test_the_name_comes_first(name: str, first: torch.Tensor) -> None:
    assert call(name, first).startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["sign_pack", "affine_snap", "affine_params", "rescale_"])
def test_a_wrong_dtype_is_named_beside_the_right_one(name: str) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.uint8, torch.bool):
        message = call(name, torch.zeros(2, 2).to(dtype))
        assert "must be float32" in message
        assert not is_native() or message.partition("\n")[0].endswith(f", not {str(dtype).removeprefix('torch.')}")


def test_one_of_several_dtypes() -> None:
    message = call("pack_codes", torch.zeros(2))
    assert "codes must be uint8 or int8" in message
    assert not is_native() or ", not float32" in message


def test_a_wrong_device_is_named() -> None:
    tensors = [torch.zeros(2, 2), torch.ones(1, device="meta"), torch.zeros(1, dtype=torch.int32)]
    with pytest.raises(RuntimeError, match=r"^affine_snap: .*(meta|device)"):
        torch.ops.subbyte.affine_snap(*tensors, 0, 15, 0)
