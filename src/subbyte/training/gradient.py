"""What a gradient is: how a quantizer computes in training, and what goes back."""

from abc import ABC
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from subbyte.errors import ConfigError, nearest
from subbyte.numerics import Learned, is_built_in_affine, scheme_of
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.by_slopes import Point, Slopes, fake_quantize_by_slopes


class Gradient(BaseModel, ABC):
    """A way to train a quantizer, with its options as fields; subclass it and `register_gradient` to add another.

    The value is always the quantized one, so that training and eval() see the same grid. Most gradients say only how
    it goes back (`slopes`); one that is computed otherwise overrides `fake_quantize`.

    Class attributes:
        learns: which of `scale` and `zero_point` it has gradients of: they become parameters.
        follows_weight: whether a weight's range, where it is not learned, is found anew whenever the weight changes, by
            the algorithm of its spec, as in `mean_abs` of XNOR-Net; else it stays what `start` says.
        scheduled: whether it changes while training goes on: `set_progress` then tells how far that is.

    Raises:
        ConfigError: an unknown option or a wrong value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str] = ""
    learns: ClassVar[tuple[str, ...]] = ()
    follows_weight: ClassVar[bool] = True
    scheduled: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if {"fake_quantize", "slopes"} & vars(cls).keys() and "learned" not in vars(cls):
            cls.learned = Gradient.learned  # type: ignore[method-assign]  # that of its base computes something else

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ConfigError(f"gradient {self.name!r}: {_explain(error, type(self))}") from None

    def obstacle(self, spec: TensorSpec) -> str:
        """Why it has no meaning for a tensor that is quantized so; empty where it has one."""
        return ""

    def start(self, found: QuantParams, spec: TensorSpec) -> QuantParams:
        """The scale and zero point to begin with, given those that calibration found."""
        return found

    def reparametrized(self, weight: Tensor) -> Tensor:
        """What of a weight is quantized, in training and in eval(): the weight itself."""
        return weight

    def scale_factor(self, spec: TensorSpec, values: float) -> float:
        """What the gradient of the scale is multiplied by, where `values` values of one sample share one."""
        return 1.0

    def slopes(self, gradient: Tensor, at: Point, spec: TensorSpec) -> Slopes:
        """The way back of `gradient`, the one of the quantized values (fp32, of x's shape)."""
        raise NotImplementedError(f"{type(self).__name__} must define slopes or fake_quantize")

    def learned(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Learned | None:
        """What `fake_quantize` computes, where that is `learned_fake_quantize`, which has fused kernels; else None."""
        return None

    def fake_quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Tensor:
        """The quantized value of x, in its shape and dtype, with this gradient.

        Args:
            x: fp32, bf16 or fp16.
            params: scale, and zero point; a zero point that is learned is fp32, and not yet rounded.
            spec: how.
            values: how many values of one sample share a scale.
        """
        learned = self.learned(x, params, spec, values)
        if learned is not None:
            return learned.value()
        return fake_quantize_by_slopes(x, params, spec, self.slopes, self.scale_factor(spec, values))

    def fake_quantize_at(
        self, progress: Tensor, x: Tensor, params: QuantParams, spec: TensorSpec, values: float
    ) -> Tensor:
        """The same of a scheduled gradient; `progress` is from 0 to 1, [] in fp32."""
        return fake_quantize_by_slopes(x, params, spec, self.slopes, self.scale_factor(spec, values), progress)


def unlearnable(spec: TensorSpec) -> str:
    """Why a scale cannot be learned; empty where it can."""
    scheme = scheme_of(spec)
    if spec.scale_format != "fp32":
        return f"a scale in {spec.scale_format} would have to be rounded; use scale_format fp32"
    if not is_built_in_affine(scheme) and spec.dtype.kind != "codebook":
        return f"scheme {spec.scheme} says itself what its scales mean; use sym or asym"
    return ""


def _explain(error: ValidationError, gradient: type[Gradient]) -> str:
    options = list(gradient.model_fields)
    lines = []
    for problem in error.errors():
        key = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] == "extra_forbidden":
            lines.append(f"unknown option {key!r}{nearest(key, options)} (options: {', '.join(options) or 'none'})")
        else:
            lines.append(f"{key}: {problem['msg'].lower()}, found {problem['input']!r}")
    return "; ".join(dict.fromkeys(lines))
