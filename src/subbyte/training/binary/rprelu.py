"""PReLU that is moved in both directions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.training.binary.shift import over_channels


class RPReLU(nn.Module):
    """`y = prelu(x - left[c]) + up[c]` (ReActNet, Liu et al., 2020, equation 2).

    Args:
        channels: of axis 1.
        slope: of negative values, to begin with.
    """

    def __init__(self, channels: int, slope: float = 0.25) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(channels))
        self.up = nn.Parameter(torch.zeros(channels))
        self.slope = nn.Parameter(torch.full((channels,), slope))

    def forward(self, x: Tensor) -> Tensor:
        """Of x [n, channels, ...], in its shape."""
        return F.prelu(x - over_channels(self.left, x), self.slope) + over_channels(self.up, x)
