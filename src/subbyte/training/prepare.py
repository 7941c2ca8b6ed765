"""Making a prepared model one to train: each quantizer gets its gradient, and learns what that has gradients of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import weighted_parts
from subbyte.adaptor.pytorch.computed_weights import Sample
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, Quantizer
from subbyte.adaptor.pytorch.state import QuantizationState, state_of
from subbyte.adaptor.pytorch.weight import weight_to_quantize
from subbyte.calibration import calibrate_tensor
from subbyte.errors import ConfigError
from subbyte.training.gradient import Gradient
from subbyte.training.lost_signs import warn_of_lost_signs
from subbyte.training.rules import Slot, TrainingRules
from subbyte.training.start import observed_params, untrained_norms


@dataclass(frozen=True)
class Trained:
    """A quantizer and how it is trained.

    Args:
        op: whose weight or input it quantizes; of several the first.
        slot: which.
        quantizer: of a prepared model.
        gradient: by which it is trained.
        weight: what it quantizes, BatchNorm folded in where it is quantized with it; None of an input.
    """

    op: str
    slot: Slot
    quantizer: Quantizer
    gradient: Gradient
    weight: Tensor | None = None


def train_by(model: nn.Module, rules: TrainingRules, sample: Sample) -> None:
    """Let the quantizers of a prepared model learn.

    Args:
        model: prepared and calibrated; changed.
        rules: the gradients.
        sample: in which the scales of inputs begin.

    Raises:
        ConfigError: a gradient has no meaning for the tensor it is asked for, a key matches no op, or nothing is
            quantized.
    """
    found = list(_quantizers(model, state_of(model), rules))
    if not found:
        raise ConfigError("the configuration quantizes nothing, so there is nothing to train; ask for 'w4a4', say")
    rules.check_names([each.op for each in found])
    _start(model, found, rules.start, sample)
    state_of(model).run.trained = True
    state_of(model).activation_sqnr.clear()  # of other scales, and of weights that will change
    warn_of_lost_signs(model, {each.op: each.quantizer for each in found if each.slot == "activation"})
    for each in found:
        each.quantizer.gradient = each.gradient
        each.quantizer.learn(*each.gradient.learns)
        if each.gradient.scheduled:
            each.quantizer.follow_progress()
        each.quantizer.train(each.quantizer.training)  # what is cached was computed of the buffers


def _quantizers(model: nn.Module, state: QuantizationState, rules: TrainingRules) -> Iterator[Trained]:
    for op in (op for op in state.graph if op.kind == "module"):
        for part in weighted_parts(model.get_submodule(op.name)):
            if isinstance(part, PreparedWeighted):
                gradient = rules.gradient(op.name, "weight", part.weight_spec, is_static=True)
                yield Trained(op.name, "weight", part.weight_quantizer, gradient, weight_to_quantize(part))
    readers: dict[str, list[str]] = {}
    for name, keys in state.input_keys.items():
        for key in keys:
            readers.setdefault(key, []).append(name)
    for key, names in readers.items():
        quantizer: Any = state.quantizers[key]
        gradients = [_of_input(rules, name, quantizer) for name in names]
        if any(gradient != gradients[0] for gradient in gradients):
            asked = ", ".join(f"{gradient.name!r} of {name!r}" for name, gradient in zip(names, gradients, strict=True))
            raise ConfigError(f"training: ops that read one value through one quantizer need one gradient: {asked}")
        yield Trained(names[0], "activation", quantizer, gradients[0])


def _of_input(rules: TrainingRules, op: str, quantizer: Any) -> Gradient:
    is_static = isinstance(quantizer, ActivationQuantizer)
    return rules.gradient(op, "activation", quantizer.spec, is_static=is_static)


def _start(model: nn.Module, found: Sequence[Trained], algorithm: str | None, sample: Sample) -> None:
    """Write the scales and zero points that learning begins with."""
    specs = {
        each.quantizer: replace(each.quantizer.spec, algorithm=algorithm)
        for each in found
        if each.gradient.learns and algorithm is not None
    }
    inputs = {quantizer: spec for quantizer, spec in specs.items() if isinstance(quantizer, ActivationQuantizer)}
    if untrained_norms(model):
        others = (each.quantizer for each in found if isinstance(each.quantizer, ActivationQuantizer))
        inputs = {quantizer: quantizer.spec for quantizer in others} | inputs
    better = observed_params(model, inputs, sample) if inputs and sample.batches else {}
    for each in found:
        if each.weight is not None and each.quantizer in specs:
            weight = each.gradient.reparametrized(each.weight)
            better[each.quantizer] = calibrate_tensor(weight, specs[each.quantizer])
    for each in found:
        begun = each.gradient.start(better.get(each.quantizer, each.quantizer.params), each.quantizer.spec)
        if begun is not each.quantizer.params:
            each.quantizer.set_params(begun)
