"""What can be told of a training before its first step."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.state import STATE, is_quantized
from subbyte.config import as_request, sampling_size
from subbyte.errors import ConfigError, ModelError
from subbyte.training.batch_norm import has_statistics
from subbyte.training.distillation import WRAPPERS
from subbyte.training.optimizers import check_length
from subbyte.training.plan import TrainingPlan


def check_model(model: Any) -> None:
    """Refuse what cannot be trained.

    Raises:
        ModelError: it is no module, it is converted, it is quantized and wrapped, or no parameter of it takes
            gradients.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"a model is trained that is a torch.nn.Module, not a {type(model).__name__}")
    if getattr(getattr(model, STATE, None), "converted", False):
        raise ModelError("the model is converted, so there is nothing to train: train the prepared one, then convert")
    if isinstance(model, WRAPPERS) and is_quantized(model):
        raise ModelError(
            f"a quantized model in a {type(model).__name__} is trained by a loop of one's own; of its .module each "
            "process would train one apart"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError("there is nothing to train: no parameter of the model requires a gradient")


def check_functions(loss_fn: Any, evaluate: Any) -> None:
    """Refuse what cannot be called.

    Raises:
        ConfigError: one is no function, or the loss is a class.
    """
    if isinstance(loss_fn, type):
        raise ConfigError(f"loss_fn: {loss_fn.__name__} is a class; make one: {loss_fn.__name__}()")
    if not callable(loss_fn):
        raise ConfigError(f"loss_fn: a function of output and target is expected, not {loss_fn!r}")
    if evaluate is not None and not callable(evaluate):
        raise ConfigError(f"evaluate: a function of the model is expected, not {evaluate!r}")


def length_of(loader: Any) -> int:
    """How many batches an epoch has.

    Raises:
        ConfigError: it has none, does not know, or gives no batches.
    """
    single = isinstance(loader, Dataset) and not isinstance(loader, IterableDataset)
    if isinstance(loader, Tensor) or single:
        raise ConfigError(
            f"loader: batches (inputs, target) are expected, not a {type(loader).__name__}; give a DataLoader, or a "
            "list of batches"
        )
    try:
        count = len(loader)
    except TypeError:
        raise ConfigError(
            f"loader: the length of an epoch must be known, and a {type(loader).__name__} has none; give a "
            "DataLoader, or a list of batches"
        ) from None
    if not count:
        raise ConfigError("loader: it is empty: give at least one batch (inputs, target)")
    return count


def check_plan(model: nn.Module, plan: TrainingPlan, steps: int, data: Any) -> None:
    """Refuse a plan that would fail late.

    Args:
        model: before the first step; not changed.
        plan: how it is trained.
        steps: of the whole training.
        data: calibration data, which can be gone through more than once.

    Raises:
        ConfigError: there are no statistics to freeze or to find anew, or the learning-rate schedule is shorter.
        CalibrationError: the model does not take the data.
    """
    for name in ("freeze_batch_norm", "reestimate_batch_norm"):
        if getattr(plan, name) and not has_statistics(model):
            raise ConfigError(f"{name}: the model has no BatchNorm with running statistics; leave it out")
    if plan.lr_schedule is not None:
        check_length(plan.lr_schedule, plan.optimizer, steps)
    if data is not None and (plan.stages or plan.reestimate_batch_norm):
        limit = sampling_size(as_request(plan.stages[0].config)) if plan.stages else None
        with torch.no_grad():
            next(batches(data, limit)).run(copy.deepcopy(model).eval())


def repeatable(data: Any) -> Any:
    """Data that can be gone through more than once: an iterator's batches as a list."""
    return list(data) if isinstance(data, Iterator) else data
