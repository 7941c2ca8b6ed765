"""What configuration and tuning may ask of a framework."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from subbyte.adaptor.output_error import OutputError
from subbyte.errors import TuningError
from subbyte.spec import OpConfig, OpInfo, OpKey, TuneConfig

Recover = Callable[[Any], None]
"""Changes a prepared model so that it loses less."""


class TunableModel(ABC):
    """A calibrated model that takes one configuration after another, and knows what each would cost.

    It can be pickled: what it is made of is, and it is made anew, calibrated on the same data, where it is unpickled.

    Attributes:
        ops: those that can be configured, in the order they run.
        alternatives: for each op the configurations that it may have.
        batches: the calibration data.
        identity: digests that tell the model and the data from others.
    """

    ops: Sequence[OpInfo]
    alternatives: Mapping[OpKey, Sequence[OpConfig]]
    batches: Sequence[Any]
    identity: Mapping[str, str]

    @abstractmethod
    def apply(self, config: TuneConfig) -> Any:
        """The model as configured, ready to be evaluated; the same object each time, changed only where it differs."""

    def check_intact(self) -> None:
        """After an evaluation: refuse what it did to the model that cannot be undone for the next trial.

        Raises:
            ModelError: saying what.
        """
        return

    def restore_float(self) -> None:
        """After an evaluation of the float model: put back the values that the evaluation changed.

        Raises:
            EvaluationError: it changed layers or tensors, which cannot be put back.
        """
        return

    @abstractmethod
    def first_samples(self, count: int) -> Sequence[Any]:
        """Return batches of the calibration data with so many samples in total, or all data if there are fewer."""

    @abstractmethod
    def size(self, config: TuneConfig) -> int:
        """Bytes of the converted model's parameters and buffers."""

    @abstractmethod
    def bops(self, config: TuneConfig) -> int:
        """Bit operations of one sample: the sum over ops of multiply-accumulates times bits of both factors."""

    def latency(self, config: TuneConfig, samples: int = 1) -> float:
        """Seconds of one forward of so many samples on this machine: its ops are measured one by one, and add up.

        Raises:
            TuningError: the adaptor cannot tell.
        """
        raise TuningError(f"{type(self).__name__} measures no latency; choose another objective")

    def latency_spread(self, key: OpKey, config: OpConfig, samples: int = 1) -> float:
        """Return the standard error, in seconds, of what one op adds to `latency`; 0 if it is exact."""
        return 0.0

    def measured_latency(self, model: Any, samples: int = 1) -> float:
        """The same of a model as a whole, float or converted.

        Raises:
            TuningError: the adaptor cannot tell.
        """
        raise TuningError(f"{type(self).__name__} measures no latency; choose another objective")

    @abstractmethod
    def output_error(self, key: OpKey, config: OpConfig) -> OutputError:
        """How far the model's outputs are from float where one op alone is quantized, on calibration data.

        Args:
            key: of the op.
            config: that it has. Of an op with a weight, this may quantize its activation alone.
        """

    @abstractmethod
    def error(self, config: TuneConfig, recover: Recover | None = None) -> OutputError:
        """The same of a whole configuration.

        Args:
            config: of every op.
            recover: what is done before to a model of its own.
        """

    @abstractmethod
    def weight_error(self, key: OpKey, config: OpConfig) -> float:
        """The squared difference between an op's weight and its quantized one; 0 where it is not quantized."""

    @abstractmethod
    def hessian_traces(self, loss_fn: Callable[..., Any], seed: int = 0) -> dict[OpKey, float]:
        """For each op with a weight, the mean second derivative of a loss by its weights, on calibration data."""

    @abstractmethod
    def prepare(self, config: TuneConfig) -> Any:
        """A prepared model of this configuration, of its own."""

    @abstractmethod
    def copy(self, config: TuneConfig) -> Any:
        """Return a copy of the model that `apply` gives, which may be changed; not calibrated anew as by `prepare`."""

    @abstractmethod
    def quantize(self, config: TuneConfig) -> Any:
        """A converted model of this configuration, of its own."""

    @abstractmethod
    def convert(self, prepared: Any) -> Any:
        """What `prepare` gave, its weights packed."""


class Adaptor(ABC):
    """The only interface that tuning sees."""

    @abstractmethod
    def operators(self, model: Any, data: Any = None) -> Sequence[OpInfo]:
        """The operators of a model that can be quantized, in the order they run."""

    @abstractmethod
    def query_fw_capability(self, model: Any, data: Any = None) -> dict[str, Any]:
        """`{'opwise': {(name, type): [allowed configurations]}, 'optypewise': {type: [...]}}`."""

    @abstractmethod
    def quantize(self, model: Any, tune_config: TuneConfig, data: Any = None) -> Any:
        """A quantized copy of the model, exactly as configured; the model itself is not changed."""

    @abstractmethod
    def tunable(self, model: Any, request: Any, data: Any = None, first_last: str | None = None) -> TunableModel:
        """A copy of the model on which trials run; the model itself is not changed."""
