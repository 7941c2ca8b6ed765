"""rescale_: exact sums of products into values, in place: `sums * (x_scale * scale) + bias`, each rounded by itself."""

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.operator import define


def rescale_(sums: Tensor, x_scale: Tensor, scale: Tensor, bias: Tensor) -> None:
    """Write values in the place of sums.

    Args:
        sums: fp32, any memory format.
        x_scale: fp32, one.
        scale: fp32, one, or several in a shape that broadcasts against `sums`.
        bias: likewise, of the same shape where both are several; empty for none.

    Raises:
        RuntimeError: something does not fit.
    """
    _RESCALE(sums, x_scale, scale, bias)


def _rescale(sums: Tensor, x_scale: Tensor, scale: Tensor, bias: Tensor) -> None:
    if any(x.dtype != torch.float32 for x in (sums, x_scale, scale, bias)):
        raise KernelError("all must be float32")
    if x_scale.numel() != 1 or scale.numel() == 0:
        raise KernelError("the scale of x is one, the other one or several")
    if scale.numel() > 1 and bias.numel() > 1 and scale.shape != bias.shape:
        raise KernelError("the bias does not fit the scale")
    for given in (scale, bias):
        if given.ndim > sums.ndim and given.numel() != 1:
            raise KernelError("the scale and the bias have at most as many axes as the sums")
    one = x_scale.reshape(())
    sums.mul_(one * scale if scale.numel() > 1 else one * scale.reshape(()))
    if bias.numel():
        sums.add_(bias if bias.numel() > 1 else bias.reshape(()))


define("rescale_(Tensor(a!) sums, Tensor x_scale, Tensor scale, Tensor bias) -> ()", _rescale, lambda *_: None)
_RESCALE = torch.ops.subbyte.rescale_.default
