"""The modules that observe and quantize one tensor each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.learned_params import LearnsParams
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.phase import Run
from subbyte.calibration import Statistics, algorithm_of, calibrate_statistics, params_of_tensor
from subbyte.errors import CalibrationError, ConfigError, TrainingError, UnseenOpError
from subbyte.kernels.operator import runs_native
from subbyte.kernels.quantize import affine_fake_quantize
from subbyte.kernels.quantize import affine_snap as native_snap
from subbyte.numerics import (
    Affine,
    Learned,
    Loss,
    Scheme,
    affine_snap,
    as_dtype,
    fake_quantize,
    params_problem,
    scheme_of,
    wants_gradient,
    with_gradient_way,
)
from subbyte.spec import QuantParams, TensorSpec


class Gradient(Protocol):
    """How a quantizer computes in training, and what gradients it gives.

    Class attributes:
        follows_weight: whether a weight's range, where it is not learned, is found anew whenever the weight changes.
    """

    follows_weight: ClassVar[bool]

    def reparametrized(self, weight: Tensor) -> Tensor:
        """What of a weight is quantized, in training and in eval()."""

    def fake_quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Tensor:
        """The quantized value of x, in its shape and dtype.

        Args:
            x: fp32, bf16 or fp16.
            params: scale, and zero point; a zero point that is learned is fp32, and not yet rounded.
            spec: how.
            values: how many values of one sample share a scale.
        """

    def learned(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Learned | None:
        """What `fake_quantize` computes, where that is `learned_fake_quantize`, which has fused kernels; else None."""

    def fake_quantize_at(
        self, progress: Tensor, x: Tensor, params: QuantParams, spec: TensorSpec, values: float
    ) -> Tensor:
        """The same, of one that changes with the progress of training."""


class Quantizer(KeepsFormat, LearnsParams):
    """Quantizes one tensor by parameters that are data: scale, zero point, and the range of codes.

    Args:
        name: the op and the slot it stands at, for messages.
        spec: how.

    Attributes:
        max_grid: a bound of |grid value|.
        has_integer_grid: whether grid values are whole numbers.
        is_plain: whether it is affine with one scale.
        gradient: how it computes in training; None is straight-through inside the range.
        training_rule: computes the quantized value in training instead, while a method that recovers accuracy works.
    """

    spec: TensorSpec
    scheme: Scheme
    max_grid: float
    has_integer_grid: bool
    is_plain: bool
    gradient: Gradient | None = None
    training_rule: Callable[[Tensor], Tensor] | None = None

    def __init__(self, name: str, spec: TensorSpec) -> None:
        super().__init__()
        self.name = name
        self._take(spec)
        # Every type is named: none may follow torch.set_default_dtype.
        self.register_buffer("scale", torch.ones((), dtype=torch.float32))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.int32))
        self.register_buffer("quant_min", torch.tensor(spec.qmin, dtype=torch.int32))
        self.register_buffer("quant_max", torch.tensor(spec.qmax, dtype=torch.int32))

    @property
    def params(self) -> QuantParams:
        return QuantParams(self.current_scale(), self.current_zero_point())

    def _take(self, spec: TensorSpec) -> None:
        """Keep a spec and what follows from it, which every forward asks for."""
        scheme = scheme_of(spec)
        # Past nn.Module's lookups, which cost more than the writes.
        vars(self).update(
            spec=spec,
            scheme=scheme,
            max_grid=scheme.max_grid(spec),
            has_integer_grid=scheme.has_integer_grid(spec),
            is_plain=isinstance(scheme, Affine) and spec.granularity.kind == "per_tensor",
        )

    def set_params(self, params: QuantParams) -> None:
        """Use these from now on.

        Raises:
            ConfigError: a scale is not positive and finite, or a zero point is one that the scheme cannot have.
        """
        zero_point = torch.zeros((), dtype=torch.int32) if params.zero_point is None else params.zero_point
        # Zero points bound the grid values, and these decide in which type sums are exact.
        is_integer = self.spec.dtype.kind == "integer"
        problem = params_problem(QuantParams(params.scale, zero_point if is_integer else None), self.spec)
        if problem:
            raise ConfigError(f"{self.name}: {problem}")
        _write(self, "scale", params.scale)
        _write(self, "zero_point", zero_point)

    def reconfigure(self, spec: TensorSpec, params: QuantParams) -> None:
        """Become another quantizer of the same kind by writing buffers: what a tuning trial does.

        Raises:
            ConfigError: the new spec is of another kind or granularity; a new quantizer is needed.
        """
        if (spec.dtype.kind, spec.granularity) != (self.spec.dtype.kind, self.spec.granularity):
            raise ConfigError(f"{self.name}: {self.spec} cannot become {spec} in place")
        if spec.dtype.kind == "codebook" and spec.dtype != self.spec.dtype:
            raise ConfigError(f"{self.name}: a quantizer keeps its table; {self.spec} cannot become {spec}")
        self._take(spec)
        for name, bound in (("quant_min", spec.qmin), ("quant_max", spec.qmax)):
            cast(Tensor, self._buffers[name]).fill_(bound)
        _write(self, "scale", params.scale)
        if params.zero_point is not None:
            _write(self, "zero_point", params.zero_point)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Scales take their shape from calibration; a loaded one may differ from the initial scalar.
        for name in ("scale", "zero_point"):
            stored = state_dict.get(prefix + name)
            if stored is not None and name in self._buffers and stored.shape != getattr(self, name).shape:
                setattr(self, name, torch.empty_like(stored, device=self.scale.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def snap(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Grid values of x (fp32), and the scale to multiply results by."""
        x = as_dtype(x, torch.float32)
        if self.is_plain:
            scale, zero_point, low, high = self._plain()
            if runs_native(x):
                try:
                    return native_snap(x, scale, zero_point, int(low), int(high)), scale
                except RuntimeError as error:
                    self.check_learned(error)
                    raise
            return affine_snap(x, scale, (low - zero_point).float(), (high - zero_point).float()), scale
        params = self.params
        return self.scheme.snap(x, params, self.spec), self.scheme.scale(params, x.shape, self.spec)

    def _plain(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scale (fp32), zero point, lowest and highest code of a plain quantizer."""
        # Straight from the dict: nn.Module's lookups cost as much as the arithmetic of a small tensor.
        buffers: Any = self._buffers
        scale = as_dtype(self.current_scale(), torch.float32)
        return scale, self.current_zero_point(), buffers["quant_min"], buffers["quant_max"]

    def forward(self, x: Tensor) -> Tensor:
        """The value that x is quantized to, in x's dtype; in training by the rule that is set.

        In eval() a gradient that is asked for goes back as in training.
        """
        if self.training:
            return self.fake(x)
        if wants_gradient(x):
            with torch.no_grad():
                value = self.nearest(x)
            return with_gradient_way(value, self.fake(x))
        return self.nearest(x)

    def nearest(self, x: Tensor) -> Tensor:
        """What x is quantized to in eval(), in x's dtype, without a gradient."""
        if self.is_plain and runs_native(x):
            scale, zero_point, low, high = self._plain()
            try:
                return affine_fake_quantize(x, scale, zero_point, int(low), int(high))
            except RuntimeError as error:
                self.check_learned(error)
                raise
        grid, scale = self.snap(x)
        return as_dtype(grid.mul_(scale), x.dtype)

    def fake(self, x: Tensor) -> Tensor:
        """The quantized value with a gradient."""
        rule = self.training_rule
        if rule is not None:
            return rule(x)
        if self.gradient is None:
            return fake_quantize(x, self.params, self.spec)
        return self.by_gradient(self.gradient, x, self.training_params(), self.values_of_a_scale(x))

    def by_gradient(self, gradient: Gradient, x: Tensor, params: QuantParams, values: float) -> Tensor:
        """The quantized value by a gradient; `values` of one sample share a scale."""
        progress = self._buffers.get("progress")
        try:
            if progress is None:
                return gradient.fake_quantize(x, params, self.spec, values)
            return gradient.fake_quantize_at(progress, x, params, self.spec, values)
        except RuntimeError as error:
            self.check_learned(error)
            raise

    def learned_value(self, x: Tensor) -> Learned | None:
        """What `fake` computes, where fused kernels can take it over; else None."""
        if self.gradient is None or self.training_rule is not None or "progress" in self._buffers:
            return None
        return self.gradient.learned(x, self.training_params(), self.spec, self.values_of_a_scale(x))

    def check_learned(self, error: RuntimeError | None = None) -> None:
        """Refuse what training has left of scale and zero point; asked where a kernel has refused them.

        Args:
            error: of the kernel.

        Raises:
            TrainingError: what was learned is not finite.
        """
        if not all(bool(torch.isfinite(getattr(self, name)).all()) for name in self.learned):
            raise TrainingError(
                f"what {self.name} learned is not finite; train anew, with subbyte.training.RangeMonitor, which tells "
                "what left its range first"
            ) from error

    def values_of_a_scale(self, x: Tensor) -> float:
        """How many values of one sample of x share a scale."""
        return x.numel() / max(self.scale.numel(), 1)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.spec}"


class ActivationQuantizer(Quantizer):
    """A quantizer whose range comes from calibration: it observes, then quantizes.

    Args:
        name: the op and the slot it stands at.
        spec: how.
        run: what the model's forward is for.
        value: names what it observes, which other quantizers may observe too.
    """

    def __init__(self, name: str, spec: TensorSpec, run: Run, value: str = "") -> None:
        super().__init__(name, spec)
        self.run = run
        self.value = value or name
        self.scale.fill_(torch.nan)  # until calibrated; also what a state_dict then tells
        self.statistics: Statistics | None = None  # from the first observation on
        self.calibrated = False
        self.observed_shape: tuple[int, ...] = ()
        self.loss = Loss()

    def values_of_a_scale(self, x: Tensor) -> float:
        return super().values_of_a_scale(x) / max(x.shape[0], 1) if x.ndim else 1.0

    def observe(self, x: Tensor) -> None:
        """Take x into the statistics.

        Raises:
            CalibrationError: x is not finite; the message names the op.
            ConfigError: the algorithm is unknown.
        """
        if self.statistics is None:
            self.statistics = algorithm_of(self.spec).statistics(self.spec)
        with _naming(self.name):
            self.statistics.observe(x)
        self.observed_shape = tuple(x.shape)

    def calibrate(self) -> None:
        """Fix scale and zero point from what was observed; keep none if nothing was.

        Raises:
            CalibrationError: the scale does not fit in its format; the message names the op.
        """
        if self.statistics is None or self.statistics.minimum is None:
            return
        with _naming(self.name):
            self.set_params(calibrate_statistics(self.statistics, self.spec, self.observed_shape))
        self.calibrated = True

    def measure(self, x: Tensor) -> None:
        """Record the signal-to-quantization-noise ratio of x, in decibels."""
        if self.calibrated and x.numel():
            grid, scale = self.snap(x)
            self.loss.add(x, grid * scale)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self.calibrated = not bool(self.scale.isnan().any())

    def note(self, x: Tensor) -> None:
        """While the model runs in float: observe or measure, as the phase says."""
        if self.run.phase == "observe":
            self.observe(x)
        elif self.run.phase == "measure":
            self.measure(x)

    def check_calibrated(self) -> None:
        """Refuse to guess.

        Raises:
            UnseenOpError: no calibration batch reached this quantizer.
        """
        if not self.calibrated:
            raise UnseenOpError(
                f"the input of op {self.name!r} was reached by no calibration batch, so it has no range; "
                "add a batch that takes this path to the calibration data"
            )


def check_finite(x: Tensor, op: str) -> None:
    """Refuse calibration data that gives an op NaN or infinity where no statistics would.

    Raises:
        CalibrationError: x is not finite.
    """
    if not bool(torch.isfinite(x).all()):
        raise CalibrationError(f"input of op {op!r}: the calibration data gives NaN or infinity here")


class DynamicQuantizer(Quantizer):
    """A quantizer that takes its range from each tensor as it comes; keeps nothing.

    Raises:
        ConfigError: the algorithm is unknown.
    """

    def __init__(self, name: str, spec: TensorSpec, run: Run) -> None:
        super().__init__(name, spec)
        algorithm_of(spec)  # every forward will ask for it
        self.run = run
        self.loss = Loss()

    def snap(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.float()
        params = self.params_for(x)
        return self.scheme.snap(x, params, self.spec), self.scheme.scale(params, x.shape, self.spec)

    def params_for(self, x: Tensor) -> QuantParams:
        """Scale and zero point of this one tensor."""
        return params_of_tensor(x, self.spec)

    def fake(self, x: Tensor) -> Tensor:
        params = self.params_for(x.detach().float())
        if self.gradient is None:
            return fake_quantize(x, params, self.spec)
        return self.by_gradient(self.gradient, x, params, x.numel())

    def nearest(self, x: Tensor) -> Tensor:
        grid, scale = self.snap(x)
        return as_dtype(grid.mul_(scale), x.dtype)

    def note(self, x: Tensor) -> None:
        """Nothing is collected; what is not finite is refused, and the error measured, as for a static quantizer.

        Raises:
            CalibrationError: x is not finite; the message names the op.
        """
        if self.run.phase == "observe":
            check_finite(x, self.name)
        elif self.run.phase == "measure" and x.numel():
            grid, scale = self.snap(x)
            self.loss.add(x, grid * scale)

    def check_calibrated(self) -> None:
        """A dynamic range needs no calibration."""


InputQuantizer = ActivationQuantizer | DynamicQuantizer


@contextmanager
def checking_learned(*quantizers: Quantizer) -> Iterator[None]:
    """While kernels run that use several quantizers: see `Quantizer.check_learned`."""
    try:
        yield
    except RuntimeError as error:
        for quantizer in quantizers:
            quantizer.check_learned(error)
        raise


@contextmanager
def _naming(op: str) -> Iterator[None]:
    """Errors of calibration name the op whose input is calibrated."""
    try:
        yield
    except CalibrationError as error:
        raise CalibrationError(f"input of op {op!r}: {error}") from None


def _write(quantizer: Quantizer, name: str, value: Tensor) -> None:
    """Write a scale or zero point in place where the shape allows, so that compiled code goes on seeing it."""
    if name in quantizer._parameters:
        with torch.no_grad():
            getattr(quantizer, name).copy_(value)
        return
    buffer = cast(Tensor, quantizer._buffers[name])
    if buffer.shape == value.shape and buffer.dtype == value.dtype:
        buffer.copy_(value)
    else:
        setattr(quantizer, name, value.detach().clone().to(buffer.device))
