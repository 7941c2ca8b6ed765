"""What calibration collected of the values that ops read: one calibration serves every configuration."""

from collections.abc import Iterable, Mapping, Sequence

from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.calibration import Statistics, algorithm_of
from subbyte.errors import UnseenOpError
from subbyte.spec import Granularity, OpConfig, OpKey, TensorSpec

Kind = tuple[type[Statistics], Granularity]  # of what is collected, and over which elements


class Collected:
    """Statistics by value and kind; a value is what one op makes, or one input of an op where that is not known.

    Args:
        quantizers: that have observed.
    """

    def __init__(self, quantizers: Iterable[ActivationQuantizer]) -> None:
        self._statistics: dict[tuple[str, Kind], tuple[Statistics, tuple[int, ...]]] = {}
        self._kinds: set[Kind] = set()
        self.add(quantizers)

    def add(self, quantizers: Iterable[ActivationQuantizer]) -> None:
        """Take over what they have observed."""
        for quantizer in quantizers:
            self._kinds.add(_kind(quantizer.spec))
            if quantizer.statistics is not None:
                key = (quantizer.value, _kind(quantizer.spec))
                self._statistics[key] = (quantizer.statistics, quantizer.observed_shape)

    def missing(self, alternatives: Mapping[OpKey, Sequence[OpConfig]]) -> list[dict[OpKey, OpConfig]]:
        """For each kind of statistics that alternatives need and nothing has collected, those alternatives, by op."""
        found: dict[Kind, dict[OpKey, OpConfig]] = {}
        for key, choices in alternatives.items():
            for config in choices:
                spec = config.activation
                if config.quant_mode == "static" and spec is not None and not spec.is_float:
                    found.setdefault(_kind(spec), {}).setdefault(key, config)
        return [chosen for kind, chosen in found.items() if kind not in self._kinds]

    def calibrate(self, quantizer: ActivationQuantizer) -> None:
        """Fix scale and zero point of a new quantizer.

        Raises:
            UnseenOpError: nothing reached its place while statistics were collected.
        """
        found = self._statistics.get((quantizer.value, _kind(quantizer.spec)))
        if found is None:
            raise UnseenOpError(f"no calibration batch reached {quantizer.name}")
        quantizer.statistics, quantizer.observed_shape = found
        quantizer.calibrate()


def _kind(spec: TensorSpec) -> Kind:
    return algorithm_of(spec).statistics, spec.granularity
