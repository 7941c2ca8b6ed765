"""Ranges that every process of a sharded model has whole, and that all learn together."""

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.errors import ModelError


def replicate_ranges(model: nn.Module, group: "dist.ProcessGroup | None" = None) -> set[nn.Parameter]:
    """Keep the ranges of a model equal in all processes, while something else shards its weights.

    The ranges become those of the group's first process, whatever data each process calibrated on, and each backward
    averages the gradients of those that are learned. FSDP2 takes no parameter without axes, as most ranges are, so it
    is to leave them alone: `fully_shard(layer, ignored_params=replicate_ranges(model))`. DistributedDataParallel needs
    none of this.

    Args:
        model: made by `prepare_qat` in every process, by one configuration; not sharded yet. Changed.
        group: of processes; all, where left out.

    Returns:
        the parameters that are learned ranges.

    Raises:
        ModelError: the model is not prepared, or the processes have different quantizers.
    """
    state_of(model)
    quantizers = {name: module for name, module in model.named_modules() if isinstance(module, Quantizer)}
    _check_alike(quantizers, group)
    for quantizer in quantizers.values():
        for tensor in (*quantizer.parameters(recurse=False), *quantizer.buffers(recurse=False)):
            dist.broadcast(tensor.detach(), group=group, group_src=0)
        quantizer.train(quantizer.training)  # what is cached was computed of other ranges
    learned = {parameter for quantizer in quantizers.values() for parameter in quantizer.parameters(recurse=False)}

    def average(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad.div_(dist.get_world_size(group))

    for parameter in learned:
        parameter.register_post_accumulate_grad_hook(average)
    return learned


def _check_alike(quantizers: dict[str, Quantizer], group: Any) -> None:
    own = {
        f"{name}.{key}": tuple(tensor.shape)
        for name, quantizer in quantizers.items()
        for key, tensor in quantizer.state_dict().items()
    }
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, own, group=group)
    different = {key for one in every for key, shape in one.items() if any(other.get(key) != shape for other in every)}
    if different:
        raise ModelError(
            f"the processes have different quantizers ({min(different)!r} and {len(different) - 1} more); give all of "
            "them one configuration, and calibration data that takes the same paths"
        )
