"""A source of channels and the quantized ops that read them: how much a scale between the two gains."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import PreparedModel, WeightedOp
from subbyte.adaptor.pytorch.prepared.data_flow import ChannelLink
from subbyte.adaptor.pytorch.prepared.scaling import input_axis, over_inputs, scaled_inputs
from subbyte.calibration import calibrate_tensor, params_of_tensor
from subbyte.errors import RecoveryError
from subbyte.numerics import fake_quantize


def quantized_links(model: PreparedModel, method: str, unsupported: str) -> list[ChannelLink]:
    """The links that end in a quantized op.

    Args:
        model: with batches.
        method: for the message.
        unsupported: of the method: `skip` allows that there is none.

    Raises:
        RecoveryError: there is none.
    """
    links = [link for link in model.flow.links() if any(name in model.ops for name in link.readers)]
    if not links and unsupported == "error":
        raise RecoveryError(
            f"recovery method {method!r} has no meaning for this model: nowhere is what a norm or an op gives read by "
            "quantized ops alone, so nothing can take up a scale of their inputs; leave the method out, or pass over "
            f"that with {{{method!r}: {{'unsupported': 'skip'}}}}"
        )
    return links


@dataclass(frozen=True)
class LinkedLayers:
    """The quantized ops behind one source, with samples of what they are given in float.

    Args:
        link: source and readers.
        ops: the readers that are quantized.
        inputs: of each of them, samples.
    """

    link: ChannelLink
    ops: Sequence[WeightedOp]
    inputs: Sequence[Sequence[Tensor]]

    def best(self, factors: Sequence[Tensor]) -> Tensor:
        """The factor s with the least `sum ||Q(W s) Q(x / s) - W x||^2` over ops and samples; of equal ones the first.

        Args:
            factors: each [channels of the source].
        """
        with torch.no_grad():
            wanted = [
                [op.apply(x.float(), op.weight) for x in inputs]
                for op, inputs in zip(self.ops, self.inputs, strict=True)
            ]
            errors = [sum(self._errors(factor, wanted)) for factor in factors]
        return factors[errors.index(min(errors))]

    def _errors(self, factor: Tensor, wanted: Sequence[Sequence[Tensor]]) -> Iterator[float]:
        for op, inputs, outputs in zip(self.ops, self.inputs, wanted, strict=True):
            over = over_inputs(factor, self.link.readers[op.name])
            scaled = scaled_inputs(op.module, op.weight, over)
            quantized = fake_quantize(scaled, calibrate_tensor(scaled, op.spec), op.spec)
            divisor = over.reshape(-1, *[1] * (-input_axis(op.module) - 1))
            for x, output in zip(inputs, outputs, strict=True):
                given = x.float() / divisor
                for quantizer in op.input_quantizers[:1]:
                    given = fake_quantize(given, params_of_tensor(given, quantizer.spec), quantizer.spec)
                yield float((op.apply(given, quantized) - output).double().square().sum())
