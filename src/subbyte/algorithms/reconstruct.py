"""reconstruct: rounding and activation ranges, learned so that each block gives what it gave in float."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

from subbyte.adaptor.pytorch.prepared import Call, PreparedModel, WeightedOp
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.algorithms.drops import Drops
from subbyte.algorithms.learned_range import LearnedRange
from subbyte.algorithms.learned_rounding import LearnedRounding
from subbyte.algorithms.least_error import find_least_error
from subbyte.algorithms.method import RecoveryMethod, Stage
from subbyte.algorithms.obstacles import fixed_codes
from subbyte.algorithms.parameters import Parameters
from subbyte.algorithms.registry import register_algorithm
from subbyte.algorithms.samples import Samples, distance
from subbyte.algorithms.soft_rounding import SoftRounding
from subbyte.algorithms.straight_through import StraightThrough

_QUICK_STEPS = 25

_ROUNDINGS: dict[str, type[LearnedRounding]] = {"straight_through": StraightThrough, "soft": SoftRounding}


@register_algorithm("reconstruct")
class Reconstruct(RecoveryMethod):
    """Learn, block by block, the codes and scales of weights and the ranges of activations.

    Minimizes `mean ||block(x~) - float block(x)||^2` by Adam, over what a LearnedRounding learns of each weight and the
    scales of LearnedRange: BRECQ (Li et al., 2021) with the drops of QDrop (Wei et al., 2022). x~ is what the part
    before the block, quantized already, gives; of it too each value is the float one with probability `1 - keep`.
    Scales of weights begin at those of least squared error: by themselves they may do harm, as rounding without
    correction does, but they are a better start. A block that is no nearer to the float one afterwards stays as it was.

    Args:
        steps: of each block.
        batch_size: samples (a sequence is one) of each step.
        keep: the probability that an activation is quantized in a step; 1 drops none.
        rounding: `straight_through`, the better one in few steps; or `soft`, BRECQ's own: see the classes.
        learning_rate: of weights, in steps of their scale; of soft choices.
        scale_learning_rate: of the factors by which scales change.
    """

    stage: ClassVar[Stage] = Stage.ROUNDING
    excludes: ClassVar[frozenset[str]] = frozenset({"adaround", "gptq"})

    steps: Annotated[int, Field(gt=0)] = 600
    batch_size: Annotated[int, Field(gt=0)] = 32
    keep: Annotated[float, Field(gt=0, le=1)] = 0.5
    rounding: Literal["straight_through", "soft"] = "straight_through"
    learning_rate: Annotated[float, Field(gt=0)] = 0.03
    scale_learning_rate: Annotated[float, Field(ge=0)] = 0.01

    def obstacle(self, op: WeightedOp) -> str:
        return fixed_codes(op)

    def quick(self) -> "Reconstruct":
        return self.model_copy(update={"steps": min(self.steps, _QUICK_STEPS)})

    def units(self, model: PreparedModel) -> list[str]:
        supported = set(self.supported(model))
        return [block for block in model.blocks() if supported & set(model.ops_of(block))]

    def apply(self, model: PreparedModel, unit: str, generator: Generator) -> None:
        samples = Samples.of(*model.block_calls(unit), model.reference_part(unit))
        ops = [model.ops[name] for name in model.ops_of(unit) if not self.obstacle(model.ops[name])]
        quantizers = _quantizers_of(model, unit)
        block, before = model.part(unit), Parameters.of(ops, [quantizer for quantizer, _ in quantizers])
        error = samples.error(block)
        for op in ops:
            find_least_error(op)
        roundings = {op.name: _ROUNDINGS[self.rounding](op) for op in ops}
        drops = Drops(self.keep, generator)
        ranges = [LearnedRange(each, drops, learns=own) for each, own in quantizers]
        with _training(model, unit, roundings, ranges):
            self._learn(block, samples, list(roundings.values()), ranges, drops)
        for name, rounding in roundings.items():
            rounding.finish(model.ops[name])
        for learned in ranges:
            learned.quantizer.set_params(learned.params())
        if not samples.error(block) < error:
            before.put_back()

    def _learn(
        self,
        block: Callable[[Call], Tensor],
        samples: Samples,
        roundings: list[LearnedRounding],
        ranges: list[LearnedRange],
        drops: Drops,
    ) -> None:
        factors = [rounding.factor for rounding in roundings] + [learned.factor for learned in ranges]
        groups = [{"params": [each.learned], "lr": self.learning_rate * each.unit} for each in roundings]
        groups.append({"params": [x for x in factors if x.requires_grad], "lr": self.scale_learning_rate})
        optimizer = torch.optim.Adam(groups)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        for step in range(self.steps):
            call, target = samples.draw(self.batch_size, drops)
            with torch.enable_grad():
                loss = distance(block(call), target)
                loss = loss + sum(rounding.penalty(step / self.steps) for rounding in roundings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


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
    model: PreparedModel, unit: str, roundings: dict[str, LearnedRounding], ranges: list[LearnedRange]
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
