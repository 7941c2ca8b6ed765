"""What the ops that run on kernels have in common."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch import awaited
from subbyte.adaptor.pytorch.inputs import is_active
from subbyte.adaptor.pytorch.kernels.grid import Grid
from subbyte.adaptor.pytorch.kernels.panel_weight import PanelWeight
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.quantizer import DynamicQuantizer, InputQuantizer
from subbyte.kernels import used_isa
from subbyte.kernels.float_linear import dtypes_on
from subbyte.numerics import Affine, as_dtype, scheme_of
from subbyte.spec import TensorSpec

EXACT_IN_INT32 = float(1 << 31)


@dataclass(frozen=True)
class CodesOfX:
    """How an input becomes codes.

    Args:
        scale: fp32, [1] or [rows].
        zero_point: int32, likewise.
        spec: of the quantizer.
    """

    scale: Tensor
    zero_point: Tensor
    spec: TensorSpec

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return self.spec.qmin

    @property
    def highest(self) -> int:
        """The highest code."""
        return self.spec.qmax


class KernelModule(ConvertedWeighted):
    """A converted op that runs on packed codes: what modules become by `use_kernels`."""

    weight: PanelWeight
    kernel_bias: Tensor

    @classmethod
    @abstractmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        """Whether this class runs such an op."""

    @abstractmethod
    def lay_out(self) -> None:
        """Bring the weight into the order that the kernels read; called once, on a module that just became one."""

    @classmethod
    @abstractmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        """Whether such an op runs on a kernel where its input has this quantizer; else it runs as it would without."""

    @property
    @abstractmethod
    def kernel(self) -> str:
        """What the summary calls it."""

    def keep_bias(self, bias: Tensor) -> None:
        """Hold the bias as the kernels take it; it is part of no checkpoint."""
        nn.Module.register_buffer(self, "kernel_bias", bias, persistent=False)  # type: ignore[arg-type]


class FloatKernelModule(KernelModule):
    """A converted op of weight-only quantization: floats times packed codes."""

    @classmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        fits = cls.fits(module) and 0 not in module.weight.shape
        return fits and not list(module.input_quantizers) and Grid.of(module.weight.spec) is not None

    @classmethod
    @abstractmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        """Whether this is the kind of op that the kernel computes."""

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        return quantizer is None

    @abstractmethod
    def on_floats(self, x: Tensor) -> Tensor:
        """The result, of the dtype of x, which the kernels take."""

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        wants_gradient = x.requires_grad and torch.is_grad_enabled()
        if quantizer is not None or wants_gradient or not x.is_floating_point():
            return super().compute(x, quantizer, *extra)
        if self.awaits_norm:
            awaited.expect(self.input_quantizers.run, self.op_name)
        return as_dtype(self.on_floats(x if x.dtype in dtypes_on(x.device) else x.float()), x.dtype)


class IntegerKernelModule(KernelModule):
    """A converted op that runs on packed codes and a quantized input: integers first."""

    @classmethod
    def serves(cls, module: ConvertedWeighted) -> bool:
        return (
            cls.fits(module)
            and 0 not in module.weight.shape
            and Grid.of(module.weight.spec) is not None
            and any(cls.runs(module, quantizer) for quantizer in module.input_quantizers)
        )

    @classmethod
    @abstractmethod
    def fits(cls, module: ConvertedWeighted) -> bool:
        """Whether this is the kind of op that the kernel computes."""

    @classmethod
    def runs(cls, module: ConvertedWeighted, quantizer: InputQuantizer | None) -> bool:
        if quantizer is None or quantizer.spec.dtype.kind != "integer" or not cls.shares_scale(quantizer):
            return False
        grid = Grid.of(module.weight.spec)
        largest = quantizer.max_grid * module.weight.magnitude / (grid.unit if grid else 1.0)
        return largest < EXACT_IN_INT32 and isinstance(scheme_of(quantizer.spec), Affine)

    @classmethod
    def shares_scale(cls, quantizer: InputQuantizer) -> bool:
        """Whether the kernel can tell which scale an input value has."""
        return quantizer.spec.granularity.kind == "per_tensor"

    @abstractmethod
    def on_codes(self, x: Tensor, codes: CodesOfX) -> Tensor:
        """The result (fp32) of an input (fp32)."""

    def compute(self, x: Tensor, quantizer: InputQuantizer | None, *extra: Any) -> Tensor:
        wants_gradient = x.requires_grad and torch.is_grad_enabled()
        if quantizer is None or wants_gradient or not self._runs(quantizer) or not is_active(quantizer, x):
            return super().compute(x, quantizer, *extra)
        if self.awaits_norm:
            awaited.expect(self.input_quantizers.run, self.op_name)
        real = x.float()
        params = quantizer.params_for(real) if isinstance(quantizer, DynamicQuantizer) else quantizer.params
        scale = params.scale.float().reshape(-1)
        zero_point = torch.zeros_like(scale, dtype=torch.int32) if params.zero_point is None else params.zero_point
        y = self.on_codes(real, CodesOfX(scale, zero_point.reshape(-1), quantizer.spec))
        return as_dtype(y, x.dtype)

    def _runs(self, quantizer: InputQuantizer) -> bool:
        """`runs`, asked again only for another quantizer than before."""
        if torch.compiler.is_compiling():
            return self.runs(self, quantizer)
        known: tuple[InputQuantizer, bool] | None = vars(self).get("kernel_runs")
        if known is None or known[0] is not quantizer:
            known = vars(self)["kernel_runs"] = (quantizer, self.runs(self, quantizer))
        return known[1]

    @property
    def kernel(self) -> str:
        grid = Grid.of(self.weight.spec)
        rounded = "" if grid is None or grid.is_exact else "; values rounded to 8 bits"
        return f"{used_isa()}: integers first on packed codes{rounded}"
