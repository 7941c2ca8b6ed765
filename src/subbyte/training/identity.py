"""What tells one training from another: what has to be the same for one that was interrupted to go on."""

import re
from collections.abc import Iterator
from dataclasses import fields
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import STATE
from subbyte.training.asked import Asked
from subbyte.training.distillation import Distillation
from subbyte.training.plan import TrainingPlan
from subbyte.training.requantize import check_requantize

Identity = dict[str, str]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a function: each process has another
_SHOWN = 3
_LONGEST = 120  # characters of a value that a message repeats


def identity_of(
    model: nn.Module, plan: TrainingPlan, steps: int, loss_fn: Any, distill: Distillation | None, seed: int
) -> Identity:
    """What a training is made of, by name: plan, loss, seed, distillation, quantization and the values at its start.

    Args:
        model: as it is before the first step.
        plan, loss_fn, distill, seed: as for `run_training`.
        steps: of the whole training.

    Raises:
        SubbyteError: a stage's configuration is not right for the model.
    """
    found = {
        **{name: repr(getattr(plan, name)) for name in TrainingPlan.model_fields},
        "steps": str(steps),
        "seed": str(seed),
        "loss_fn": _name(loss_fn),
        **dict(_of_distillation(distill)),
        **dict(_of_quantization(model, plan)),
        "the values of the model's weights at the start": values_of(model),
    }
    return {name: _ADDRESS.sub("", value) for name, value in found.items()}


def differences(kept: Identity, now: Identity) -> str:
    """In what two trainings differ, in words.

    Args:
        kept: that of a file.
        now: that of the call.
    """
    found = []
    for name in (name for name in {**kept, **now} if kept.get(name) != now.get(name)):
        was, is_now = kept.get(name, "not there"), now.get(name, "not there")
        short = max(len(was), len(is_now)) <= _LONGEST
        found.append(f"{name} was {was} and is {is_now}" if short else f"{name} is another")
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more


def values_of(model: nn.Module) -> str:
    """A digest of a model's parameters and buffers, those of quantizers left out: calibration finds them anew."""
    found = sha256()
    for module_name, module in model.named_modules():
        if not isinstance(module, Quantizer):
            own: list[tuple[str, Tensor | None]] = [*module._parameters.items(), *module._buffers.items()]
            for name, tensor in own:
                if tensor is not None:
                    found.update(f"{module_name}.{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def _of_distillation(distill: Distillation | None) -> Iterator[tuple[str, str]]:
    yield "distill", "None" if distill is None else type(distill).__name__
    if distill is not None:
        for field in (field for field in fields(distill) if field.name != "teacher"):
            yield f"distill: {field.name}", repr(getattr(distill, field.name))
        yield "the values of the teacher's weights", values_of(distill.teacher)


def _of_quantization(model: nn.Module, plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    for name, module in model.named_modules():
        if isinstance(module, Quantizer):
            yield f"quantizer {name}", f"{module.spec}, trained by {module.gradient!r}"
    asked = getattr(getattr(model, STATE, None), "asked", None)
    if isinstance(asked, Asked):
        yield "first_last", repr(asked.first_last)
        yield "training", repr(asked.rules)
    for number, stage in enumerate(plan.stages, 1):  # the capability, as far as it matters, and files, too
        resolved = check_requantize(model, stage.config).to_dict()
        yield f"what ops get in stage {number}", sha256(repr(resolved).encode()).hexdigest()[:16]
