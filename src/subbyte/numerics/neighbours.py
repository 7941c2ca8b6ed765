"""The two grid values between which a value lies: what rounding chooses from."""

import torch
from torch import Tensor

from subbyte.errors import ConfigError
from subbyte.numerics.blocks import expand
from subbyte.numerics.schemes import Affine, Codebook, scheme_of
from subbyte.spec import QuantParams, TensorSpec


def neighbours(x: Tensor, params: QuantParams, spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """The values (fp32) of the codes below and above `x`; where x lies beyond the range, its last two.

    Args:
        x: fp32, any shape.
        params: scale and zero point, in the shapes that QuantParams tells.
        spec: of an integer type, or of a codebook.

    Raises:
        ConfigError: the scheme has no order of codes.
    """
    scheme = scheme_of(spec)
    scale = scheme.scale(params, x.shape, spec)
    if isinstance(scheme, Affine):
        assert params.zero_point is not None
        zero_point = expand(params.zero_point, x.shape, spec)
        low, high = (spec.qmin - zero_point).float(), (spec.qmax - zero_point).float()
        below = torch.minimum(torch.maximum(torch.floor(x / scale), low), high - 1)
        return below * scale, (below + 1) * scale
    if isinstance(scheme, Codebook):
        table = torch.tensor(sorted(set(spec.dtype.values or ())), dtype=torch.float32, device=x.device)
        above = torch.bucketize((x / scale).contiguous(), table, right=True).clamp(1, len(table) - 1)
        return table[above - 1] * scale, table[above] * scale
    raise ConfigError(f"scheme {spec.scheme!r} does not tell which codes are neighbours")
