"""BatchNorm at the end of training: statistics that no longer move, and statistics of the quantized network."""

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from subbyte.adaptor.pytorch.batch import Batch, batches
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.unchanged import unchanged
from subbyte.errors import CalibrationError, ModelError

Moments = tuple[Any, Any, int]  # sums of means and variances, fp64 [channels], and of how many calls


def freeze_batch_norm(model: nn.Module) -> None:
    """Let BatchNorms use the running statistics that they have, and no longer move them; weights and biases learn on.

    So late training sees the network as it will run (Krishnamoorthi, 2018, section 4.1: freezing of BatchNorm).
    `model.train()` lets statistics move again: call this after it, in each epoch from the one on in which they are to
    stay.

    Raises:
        ModelError: there is none with running statistics.
    """
    for norm in _norms(model):
        norm.eval()


def reestimate_batch_norm(model: nn.Module, data: Any) -> None:
    """Find the running statistics of all BatchNorms anew, on the network as it is quantized now.

    In training they lag behind weights that still move, which costs low bits more than others. Here weights stand
    still: mean and variance (unbiased) are the averages over the batches of `data`, in which each BatchNorm normalizes
    by the batch, as in training; everything else is as in eval(). (Sun et al., 2019, call it tuning of statistics after
    quantization.) An average over batches of a few images says little; give them as large as those of training.

    Args:
        model: prepared or float; its BatchNorms are changed.
        data: inputs, as for `prepare_qat`, distributed as those of training.

    Raises:
        ModelError: there is no BatchNorm with running statistics.
        CalibrationError: the data is missing or empty, or gives values that are not finite.
    """
    if data is None:
        raise CalibrationError("re-estimating BatchNorm needs data: batches as they are given in training")
    norms = _norms(model)
    moments: dict[_BatchNorm, Moments] = {}
    for batch in batches(data):
        _add_moments(model, norms, batch, moments)
    if not all(bool(torch.isfinite(mean + variance).all()) for mean, variance, _ in moments.values()):
        raise CalibrationError("the data to re-estimate BatchNorm on gives NaN or infinity; the model is unchanged")
    for norm, (mean, variance, calls) in moments.items():
        norm.get_buffer("running_mean").copy_(mean / calls)
        norm.get_buffer("running_var").copy_(variance / calls)


def has_statistics(model: nn.Module) -> bool:
    """Whether a BatchNorm of the model has running statistics."""
    return bool(_with_statistics(model))


def _norms(model: nn.Module) -> list[_BatchNorm]:
    found = _with_statistics(model)
    if not found:
        raise ModelError("the model has no BatchNorm with running statistics")
    return found


def _with_statistics(model: nn.Module) -> list[_BatchNorm]:
    return [each for each in model.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None]


def _add_moments(model: nn.Module, norms: list[_BatchNorm], batch: Batch, moments: dict[_BatchNorm, Moments]) -> None:
    """Add mean and variance of what each BatchNorm is given in a forward, in which it normalizes by the batch."""

    def enter(norm: Any, args: tuple[Any, ...]) -> None:
        with torch._C.DisableTorchFunction():  # these are no functions of the model
            by_channel = args[0].movedim(1, 0).flatten(1).double()
            mean, variance, calls = moments.get(norm, (0.0, 0.0, 0))
            moments[norm] = mean + by_channel.mean(1), variance + by_channel.var(1), calls + 1

    with unchanged(model), ExitStack() as stack:
        for module in model.modules():
            if module in norms or (isinstance(module, PreparedWeighted) and module.norm):
                module.training = True
        for norm in norms:
            stack.callback(norm.register_forward_pre_hook(enter).remove)
        batch.copied().run(model)
