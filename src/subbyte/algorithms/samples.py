"""The samples that pass through a block, and some of them at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.prepared import Call
from subbyte.algorithms.drops import Drops

IsSampled = Callable[[Any, Tensor], bool]  # of an argument, beside the result
_CLOSE = 1e-3  # of the largest value: kernels may sum in another order for another batch size


@dataclass(frozen=True)
class Samples:
    """What a block was given in the quantized and in the float model, and what it gave in the float one.

    Args:
        quantized, reference: call by call.
        is_sampled: whether a tensor of a call has an element for each sample along its first axis; None where calls
            can only be taken whole.
    """

    quantized: Sequence[Call]
    reference: Sequence[Call]
    is_sampled: IsSampled | None

    @classmethod
    def of(
        cls, quantized: Sequence[Call], reference: Sequence[Call], float_block: Callable[[Call], Tensor]
    ) -> "Samples":
        """Find out which arguments have samples: a table of positions may by chance be as long as a batch.

        Args:
            quantized, reference: as above.
            float_block: the block of the reference model.
        """
        call = max(reference, key=lambda call: len(call.result))
        ways: tuple[IsSampled, ...] = (_is_as_long, _is_as_long_and_deep)
        fitting = (way for way in ways if _gives_the_same(way, call, float_block))
        return cls(quantized, reference, next(fitting, None))

    def error(self, block: Callable[[Call], Tensor]) -> float:
        """How far a block is from giving what it is to give, on average over calls."""
        with torch.no_grad():
            pairs = zip(self.quantized, self.reference, strict=True)
            errors = [float(distance(block(call.copied()), wanted.result)) for call, wanted in pairs]
        return sum(errors) / len(errors)

    def draw(self, count: int, drops: Drops) -> tuple[Call, Tensor]:
        """Some samples of one call: what the block is given (dropped values are float) and what it is to give."""
        index = int(torch.randint(len(self.quantized), (), generator=drops.generator))
        given, wanted = self.quantized[index], self.reference[index]
        if self.is_sampled is not None:
            rows = torch.randperm(len(wanted.result), generator=drops.generator)[:count].to(wanted.result.device)
            result = wanted.result
            given, wanted = (_chosen(call, rows, result, self.is_sampled) for call in (given, wanted))

        def mixed(leaf: Any, other: Any) -> Any:
            is_signal = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 1
            return drops.mix(leaf, other) if is_signal else leaf

        args, kwargs = tree_map(mixed, (given.args, dict(given.kwargs)), (wanted.args, dict(wanted.kwargs)))
        return Call(args, kwargs, None), wanted.result


def distance(output: Tensor, target: Tensor) -> Tensor:
    """The squared error summed over channels, on average over samples and places."""
    channels = 1 if output.ndim > 3 else -1  # of images, and of sequences
    return (output - target).square().sum(channels).mean()


def _is_as_long(leaf: Any, result: Tensor) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == len(result)


def _is_as_long_and_deep(leaf: Any, result: Tensor) -> bool:
    return _is_as_long(leaf, result) and leaf.ndim >= result.ndim


def _chosen(call: Call, rows: Tensor, result: Tensor, is_sampled: IsSampled) -> Call:
    def chosen(leaf: Any) -> Any:
        return leaf[rows] if is_sampled(leaf, result) else leaf

    args, kwargs = tree_map(chosen, (call.args, dict(call.kwargs)))
    return Call(args, kwargs, result[rows])


def _gives_the_same(is_sampled: IsSampled, call: Call, block: Callable[[Call], Tensor]) -> bool:
    """Whether the block gives for some samples what it gave for them among all."""
    rows = torch.arange(len(call.result) - 1, -1, -2, device=call.result.device)  # neither all nor in order
    part = _chosen(call, rows, call.result, is_sampled).copied()
    try:
        with torch.no_grad():
            found = block(part)
    except (RuntimeError, ValueError, IndexError):  # shapes that do not fit one another
        return False
    expected = call.result[rows]
    near = _CLOSE * float(expected.abs().max()) if expected.numel() else 0.0
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0.0, atol=near)
