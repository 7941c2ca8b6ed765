"""reconstruct: rounding and activation ranges, learned so that each block gives what it gave in float."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.algorithms.drops import Drops
from subbyte.algorithms.learned_range import LearnedRange
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.registry import register_algorithm
from subbyte.algorithms.soft_rounding import SoftRounding, sharpness_at


@register_algorithm("reconstruct")
class Reconstruct(RecoveryMethod):
    """Learn, block by block, which way each weight is rounded and how wide each activation's range is.

    Minimizes `mean ||block(x~) - float block(x)||^2 + rounding_weight * sum 1 - |2h - 1|^b` by Adam, over the
    choices and scales of SoftRounding and the scales of LearnedRange: BRECQ (Li et al., 2021) with the drops of QDrop
    (Wei et al., 2022). x~ is what the part before the block, quantized already, gives; of it too each value is the
    float one with probability `1 - keep`.

    Args:
        steps: of each block.
        batch_size: samples (a sequence is one) of each step.
        keep: the probability that an activation is quantized in a step; 1 drops none.
        learning_rate: of the choices.
        scale_learning_rate: of the factors by which scales change; 0 keeps them.
        rounding_weight: of the regularizer.
        warm_up: the part of the steps without it.
    """

    stage: ClassVar[Stage] = Stage.ROUNDING
    excludes: ClassVar[frozenset[str]] = frozenset({"adaround", "gptq"})

    steps: Annotated[int, Field(gt=0)] = 1000
    batch_size: Annotated[int, Field(gt=0)] = 32
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    scale_learning_rate: Annotated[float, Field(ge=0)] = 0.001
    rounding_weight: Annotated[float, Field(ge=0)] = 0.01
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def obstacle(self, op: WeightedOp) -> str:
        return "" if op.handler.takes_activation else "its rows are looked up, so that the nearest codes are best"

    def units(self, model: PreparedModel) -> list[str]:
        supported = set(self.supported(model))
        return [block for block in model.blocks() if supported & set(model.ops_of(block))]

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        samples = _Samples.of(model, unit)
        roundings = {
            name: SoftRounding(model.ops[name]) for name in model.ops_of(unit) if not self.obstacle(model.ops[name])
        }
        drops = Drops(self.keep, generator)
        ranges = [LearnedRange(each, drops, learns=own) for each, own in _quantizers_of(model, unit)]
        with _training(model, unit, roundings, ranges):
            self._learn(model.part(unit), samples, list(roundings.values()), ranges, drops)
        for name, rounding in roundings.items():
            rounding.finish(model.ops[name])
        for learned in ranges:
            learned.quantizer.set_params(learned.params())

    def _learn(
        self,
        block: Callable[[Call], Tensor],
        samples: "_Samples",
        roundings: list[SoftRounding],
        ranges: list[LearnedRange],
        drops: Drops,
    ) -> None:
        choices = [rounding.choice for rounding in roundings]
        factors = [
            factor
            for factor in (*(each.factor for each in roundings), *(each.factor for each in ranges))
            if factor.requires_grad
        ]
        optimizer = torch.optim.Adam(
            [{"params": choices, "lr": self.learning_rate}, {"params": factors, "lr": self.scale_learning_rate}]
        )
        # Choices harden under the regularizer; scales settle by smaller and smaller steps.
        settling = [lambda step: 1.0, lambda step: 0.5 * (1 + math.cos(math.pi * step / self.steps))]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, settling)
        for step in range(self.steps):
            call, target = samples.draw(self.batch_size, drops)
            with torch.enable_grad():
                loss = _distance(block(call), target)
                progress = step / self.steps
                if progress >= self.warm_up:
                    sharpness = sharpness_at(progress, warm_up=self.warm_up)
                    loss = loss + self.rounding_weight * sum(each.regularizer(sharpness) for each in roundings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def _distance(output: Tensor, target: Tensor) -> Tensor:
    """The squared error summed over channels, on average over samples and places."""
    channels = 1 if output.ndim > 3 else -1  # of images, and of sequences
    return (output - target).square().sum(channels).mean()


@dataclass(frozen=True)
class _Samples:
    """What a block was given in the quantized and in the float model, and what it gave in the float one."""

    quantized: list[Call]
    reference: list[Call]

    @classmethod
    def of(cls, model: PreparedModel, block: str) -> "_Samples":
        return cls(*model.block_calls(block))

    def draw(self, count: int, drops: Drops) -> tuple[Call, Tensor]:
        """Some samples of one call: what the block is given, and what it is to give."""
        index = int(torch.randint(len(self.quantized), (), generator=drops.generator))
        given, wanted = self.quantized[index], self.reference[index]
        length = len(wanted.result)
        rows = torch.randperm(length, generator=drops.generator)[:count]

        def chosen(leaf: Any) -> Any:
            return leaf[rows] if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == length else leaf

        def mixed(leaf: Any, other: Any) -> Any:
            leaf, other = chosen(leaf), chosen(other)
            is_signal = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 1
            return drops.mix(leaf, other) if is_signal else leaf

        args, kwargs = tree_map(mixed, (given.args, dict(given.kwargs)), (wanted.args, dict(wanted.kwargs)))
        return Call(args, kwargs, None), chosen(wanted.result)


def _quantizers_of(model: PreparedModel, block: str) -> list[tuple[ActivationQuantizer, bool]]:
    """The static quantizers at the inputs of the ops of a block, functions included, and whether they are its own.

    One whose value other blocks read too keeps its scale: those may be done.
    """
    inside = {op.name for op in model.state.graph if not block or op.name == block or op.name.startswith(f"{block}.")}
    keys = [key for op, keys in model.state.input_keys.items() if op in inside for key in keys]
    outside = {key for op, keys in model.state.input_keys.items() if op not in inside for key in keys}
    quantizers = model.input_quantizers
    return [(quantizers[key], key not in outside) for key in dict.fromkeys(keys) if key in quantizers]


@contextmanager
def _training(
    model: PreparedModel, unit: str, roundings: dict[str, SoftRounding], ranges: list[LearnedRange]
) -> Iterator[None]:
    """Let the block compute with what is learned; BatchNorm and dropout stay as in eval()."""
    ops = [model.ops[name] for name in model.ops_of(unit)]
    switched: list[Any] = [
        *(op.module for op in ops),
        *(op.quantizer for op in ops),
        *(learned.quantizer for learned in ranges),
    ]
    rules: list[tuple[Any, Any]] = [(model.ops[name].quantizer, rounding) for name, rounding in roundings.items()]
    rules += [(learned.quantizer, learned) for learned in ranges]
    block = model.model.get_submodule(unit)
    frozen = [parameter for parameter in block.parameters() if parameter.requires_grad]
    try:
        for module in switched:
            module.training = True
        for quantizer, rule in rules:
            quantizer.training_rule = rule
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        for module in switched:
            module.training = False
        for quantizer, _ in rules:
            quantizer.training_rule = None
        for parameter in frozen:
            parameter.requires_grad_(True)
