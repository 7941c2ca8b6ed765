"""use_kernels: the ops of a converted model that packed codes can run directly, run so."""

from torch import nn

from subbyte.adaptor.pytorch.kernels.binary import BinaryConvolution, BinaryLinear
from subbyte.adaptor.pytorch.kernels.convolution import KernelConvolution, KernelDepthwise
from subbyte.adaptor.pytorch.kernels.float_convolution import KernelFloatConvolution
from subbyte.adaptor.pytorch.kernels.float_linear import KernelFloatLinear
from subbyte.adaptor.pytorch.kernels.kernel_module import KernelModule
from subbyte.adaptor.pytorch.kernels.linear import KernelLinear
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.state import state_of
from subbyte.adaptor.pytorch.structure import check_structure, structure
from subbyte.adaptor.pytorch.swap import swap
from subbyte.errors import ModelError
from subbyte.kernels.memory import give_back_unused

# The first that serves an op runs it.
KINDS: tuple[type[KernelModule], ...] = (
    BinaryLinear,
    BinaryConvolution,
    KernelLinear,
    KernelConvolution,
    KernelDepthwise,
    KernelFloatLinear,
    KernelFloatConvolution,
)


def use_kernels(model: nn.Module) -> nn.Module:
    """The same converted model, its ops run on packed codes where there is a kernel for them.

    Outputs stay what they were, bit for bit, where inputs are quantized and the values of the weight's type are whole
    numbers or multiples of a power of two. Other codebooks (nf4) are rounded to 8 bits where inputs are quantized;
    float inputs meet weights in fp32. What has no kernel runs as before; `subbyte.summary` shows which.

    Returns:
        the model itself.

    Raises:
        ModelError: the model is not converted.
    """
    state = state_of(model)
    if not state.converted:
        raise ModelError("kernels run converted models; call subbyte.convert(model) first")
    check_structure(model, state)
    for module in list(model.modules()):
        kind = _kind_for(module)
        if kind is not None:
            swap(module, kind)
            module.lay_out()  # type: ignore[operator]  # swapped: it is of that kind now
    state.structure = structure(model)
    give_back_unused()  # of laying weights out, several times their size
    return model


def _kind_for(module: nn.Module) -> type[KernelModule] | None:
    if not isinstance(module, ConvertedWeighted) or isinstance(module, KernelModule):
        return None
    return next((kind for kind in KINDS if kind.serves(module)), None)
