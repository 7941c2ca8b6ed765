"""The precisions of the tables of training, as weights/inputs, and how the library is asked for them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import subbyte

FLOAT = "fp32"
CONFIGS = {"4/4": "w4a4", "3/3": "w3a3", "2/2": "w2a2", "1/32": "wbint1", "1/1": "w1a1"}
BITS = {
    "4/4": (4, 4),
    "3/3": (3, 3),
    "2/2": (2, 2),
    "1/32": (1, None),
    "1/1": (1, 1),
}
OF_SIGNS = {"weight": "clipped_identity", "activation": "approx_sign"}


def request(precision: str) -> dict[str, Any]:
    """The products of a network quantized, its residual adds float: as published, and as peers do it."""
    return {"precision": CONFIGS.get(precision, precision), "op_type_dict": {"add": FLOAT}}


def gradients(precision: str) -> dict[str, Any]:
    """Rules for what a precision has signs of; all else is trained as usual."""
    bits = dict(zip(OF_SIGNS, BITS.get(precision, ()), strict=False))
    of_signs = {slot: gradient for slot, gradient in OF_SIGNS.items() if bits.get(slot) == 1}
    return {"types": {"bint1": of_signs}} if of_signs else {}


def to_train(model: nn.Module, precision: str, calibration: Sequence[Tensor], recover: Any = None) -> nn.Module:
    """A copy of a float network to be trained, its first and last layer int8; a precision of the table, or `w8a8`."""
    return subbyte.prepare_qat(
        model, request(precision), calibration, first_last="int8", training=gradients(precision), recover=recover
    )


@torch.no_grad()
def packed(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[nn.Module, int]:
    """The converted model on the kernels, and its bytes.

    Raises:
        AssertionError: it differs from the trained model on these inputs.
    """
    converted = subbyte.convert(model)
    for batch in inputs:
        assert torch.equal(converted(batch), model.eval()(batch)), "the converted model differs from the trained one"
    size = int(subbyte.summary(converted).totals["bytes"])
    return subbyte.use_kernels(converted), size
