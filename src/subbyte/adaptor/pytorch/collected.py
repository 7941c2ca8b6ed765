"""What calibration collected of the values that ops read: one calibration serves every configuration."""

from collections.abc import Iterable, Mapping, Sequence

from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.calibration import Statistics, algorithm_of
from subbyte.errors import UnseenOpError
from subbyte.spec import Granularity, OpConfig, OpKey, QuantParams, TensorSpec

Kind = tuple[type[Statistics], Granularity]  # of what is collected, and over which elements


class Collected:
    """Statistics by value and kind; a value is what one op makes, or one input of an op where that is not known.

    Args:
        quantizers: that have observed.
    """

    def __init__(self, quantizers: Iterable[ActivationQuantizer]) -> None:
        self._statistics: dict[tuple[str, Kind], tuple[Statistics, tuple[int, ...]]] = {}
        self._params: dict[tuple[str, TensorSpec], QuantParams] = {}  # once found: some algorithms search
        self.add(quantizers)

    def add(self, quantizers: Iterable[ActivationQuantizer]) -> None:
        """Take over what they have observed."""
        for quantizer in quantizers:
            if quantizer.statistics is not None:
                key = (quantizer.value, _kind(quantizer.spec))
                self._statistics[key] = (quantizer.statistics, quantizer.observed_shape)

    def calibrate(self, quantizer: ActivationQuantizer) -> None:
        """Fix scale and zero point of a new quantizer.

        Raises:
            UnseenOpError: nothing reached its place while statistics were collected.
        """
        found = self._found(quantizer.value, _kind(quantizer.spec))
        if found is None:
            raise UnseenOpError(f"no calibration batch reached {quantizer.name}")
        quantizer.statistics, quantizer.observed_shape = found
        known = self._params.get((quantizer.value, quantizer.spec))
        if known is not None:
            quantizer.set_params(known)
            quantizer.calibrated = True
            return
        quantizer.calibrate()
        if quantizer.calibrated:
            params = QuantParams(quantizer.scale.clone(), quantizer.zero_point.clone())
            self._params[quantizer.value, quantizer.spec] = params

    def _found(self, value: str, kind: Kind) -> tuple[Statistics, tuple[int, ...]] | None:
        held = (each for (name, other), each in self._statistics.items() if name == value and covers(other, kind))
        return self._statistics.get((value, kind)) or next(held, None)


def further_observers(
    alternatives: Mapping[OpKey, Sequence[OpConfig]], observed: Mapping[OpKey, OpConfig]
) -> list[dict[OpKey, OpConfig]]:
    """What is left to be collected: for each kind of statistics the ops that need it, each in such an alternative.

    Args:
        alternatives: of each op.
        observed: the one of each op in which its inputs have been observed.
    """
    found: dict[Kind, dict[OpKey, OpConfig]] = {}
    for key, choices in alternatives.items():
        has = kind_of(observed[key])
        for config in choices:
            kind = kind_of(config)
            if kind is not None and not (has is not None and covers(has, kind)):
                found.setdefault(kind, {}).setdefault(key, config)
    return list(found.values())


def covers(kind: Kind, other: Kind) -> bool:
    """Whether what one collects holds what another does."""
    (statistics, granularity), (wanted, over) = kind, other
    return granularity == over and (wanted is statistics or wanted in _included(statistics))


def _included(statistics: type[Statistics]) -> tuple[type[Statistics], ...]:
    """As the class itself says; one derived from it may keep less."""
    found: tuple[type[Statistics], ...] = vars(statistics).get("includes", ())
    return found


def kind_of(config: OpConfig) -> Kind | None:
    """What an op's inputs collect; None where they have no static range."""
    spec = config.activation
    return None if not config.calibrates or spec is None or spec.is_float else _kind(spec)


def _kind(spec: TensorSpec) -> Kind:
    return algorithm_of(spec).statistics, spec.granularity
