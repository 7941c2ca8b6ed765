"""A threshold of sign that is learned."""

import torch
from torch import Tensor, nn


class LearnableShift(nn.Module):
    """`y = x - shift[c]` before a sign (RSign of ReActNet, Liu et al., 2020, equation 1).

    What ReLU gives is never negative: without a shift every sign of it is +1.

    Args:
        channels: of axis 1.
        start: the shift to begin with.
    """

    def __init__(self, channels: int, start: float = 0.0) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((channels,), start))

    def forward(self, x: Tensor) -> Tensor:
        """Of x [n, channels, ...], in its shape."""
        return x - over_channels(self.shift, x)


def over_channels(vector: Tensor, x: Tensor) -> Tensor:
    """A vector of channels as it broadcasts against x [n, channels, ...]."""
    return vector.view(-1, *[1] * (x.ndim - 2))
