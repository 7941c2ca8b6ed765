"""How a quantizer's codes and range are used by the data that reaches it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.numerics import Affine, Codebook, QuantizedTensor, expand, scheme_of
from subbyte.spec import QuantParams, TensorSpec

_TAIL = 0.001  # of the values, on either side, that the bulk is without


@dataclass
class QuantizerUse:
    """Counts of one quantizer, summed over as many tensors as are added.

    Args:
        spec: of the quantizer.
        is_static: whether its range is fixed, and not taken from each tensor.

    Attributes:
        counts: how many values each code has, from spec.qmin on: int64, [codes].
        clipped: how many values lie beyond the outermost step of the range.
        scale: the smallest and the largest that were used.
        range: the smallest and the largest value that any scale represents.
        data: the smallest and the largest value.
        channels: the largest magnitude at each place of the last axis, fp32; None where that changes its length.
    """

    spec: TensorSpec
    is_static: bool = True
    counts: Tensor = field(init=False)
    clipped: int = 0
    scale: tuple[float, float] = (torch.inf, -torch.inf)
    range: tuple[float, float] = (torch.inf, -torch.inf)
    data: tuple[float, float] = (torch.inf, -torch.inf)
    channels: Tensor | None = None

    def __post_init__(self) -> None:
        self.counts = torch.zeros(self.spec.qmax - self.spec.qmin + 1, dtype=torch.int64)

    @property
    def is_ordered(self) -> bool:
        """Whether it is known which values the codes stand for: of a user's scheme it is not."""
        return isinstance(scheme_of(self.spec), Affine | Codebook)

    def add(self, x: Tensor, params: QuantParams) -> None:
        """Take in values that are quantized by `params`; those that are not finite are left out as zeros."""
        if not x.numel():
            return
        x = x.detach().float().nan_to_num(0.0, 0.0, 0.0)
        peaks = (x.abs().flatten(0, -2).amax(0) if x.ndim > 1 else x.abs()).cpu()
        if not self.count:
            self.channels = peaks
        elif self.channels is not None:
            self.channels = torch.maximum(self.channels, peaks) if self.channels.shape == peaks.shape else None
        self._count(scheme_of(self.spec).quantize(x, params, self.spec))
        self._measure(x, params)

    def add_weight(self, weight: Tensor, quantized: QuantizedTensor) -> None:
        """Take in a weight by the codes it has, which need not be the nearest ones."""
        if weight.numel():
            self._count(quantized.codes)
            self._measure(weight.detach().float(), quantized.params)

    def _count(self, codes: Tensor) -> None:
        places = codes.flatten().to(torch.int64) - self.spec.qmin
        self.counts += torch.bincount(places, minlength=len(self.counts)).cpu()

    def _measure(self, x: Tensor, params: QuantParams) -> None:
        scheme, spec = scheme_of(self.spec), self.spec
        self.data = _widened(self.data, x)
        self.scale = _widened(self.scale, params.scale.float())
        if not self.is_ordered:
            return
        low, high = _grid_ends(params, x, spec)
        scale, reach = scheme.scale(params, x.shape, spec), scheme.reach(spec)
        grid = x / scale
        self.clipped += int(((grid > high + reach) | (grid < low - reach)).sum())
        self.range = _widened(_widened(self.range, low * scale), high * scale)

    @property
    def count(self) -> int:
        """How many values were added."""
        return int(self.counts.sum())

    @property
    def saturation(self) -> float | None:
        """The share of values that are clipped; None of a user's scheme, whose ends are not known."""
        return self.clipped / max(self.count, 1) if self.is_ordered else None

    @property
    def codes_used(self) -> float:
        """The share of codes that any value has."""
        return int((self.counts > 0).sum()) / len(self.counts)

    @property
    def range_used(self) -> float | None:
        """The share of the range between the lowest and the highest value that is written."""
        return self._share_between(0.0)

    @property
    def bulk_used(self) -> float | None:
        """The same without the outermost 0.1 % of the values on either side."""
        return self._share_between(_TAIL)

    @property
    def outliers(self) -> float | None:
        """The largest magnitude of a channel over that of the median channel that is not all zero."""
        peaks = torch.empty(0) if self.channels is None else self.channels[self.channels > 0]
        return float(peaks.max() / peaks.median()) if len(peaks) else None

    def _share_between(self, tail: float) -> float | None:
        if not self.is_ordered or not self.count:
            return None
        spec = self.spec
        codes = torch.arange(spec.qmin, spec.qmax + 1)
        levels = codes.double() if spec.dtype.values is None else torch.tensor(spec.dtype.values, dtype=torch.float64)
        order = levels.argsort()
        below = self.counts[order].cumsum(0).double() / self.count
        above = self.counts[order].flip(0).cumsum(0).flip(0).double() / self.count
        within = levels[order][(below > tail) & (above > tail)]
        return float((within.max() - within.min()) / (levels.max() - levels.min()))


class WatchedQuantizer:
    """An input quantizer to the op that calls it; what it quantizes is counted.

    Args:
        quantizer: is not changed.
        use: where it is counted.
    """

    def __init__(self, quantizer: InputQuantizer, use: QuantizerUse) -> None:
        self.quantizer = quantizer
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        self._note(x)
        return self.quantizer.forward(x)

    def snap(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self._note(x)
        return self.quantizer.snap(x)

    def _note(self, x: Tensor) -> None:
        quantizer = self.quantizer
        params = quantizer.params_for(x.float()) if isinstance(quantizer, DynamicQuantizer) else quantizer.params
        self.use.add(x, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.quantizer, name)


def _grid_ends(params: QuantParams, x: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor]:
    """The lowest and the highest grid value of each element."""
    if spec.dtype.values is not None:
        values = torch.tensor(spec.dtype.values, device=x.device)
        return values.min(), values.max()
    assert params.zero_point is not None
    zero_point = expand(params.zero_point, x.shape, spec)
    return (spec.qmin - zero_point).float(), (spec.qmax - zero_point).float()


def _widened(ends: tuple[float, float], x: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(x)
    return min(ends[0], float(low)), max(ends[1], float(high))
