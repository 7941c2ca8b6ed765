"""Measure how each alternative of each op changes the model's output, before the first trial."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

import numpy as np

from subbyte.adaptor import OutputError
from subbyte.spec import OpConfig, OpKey, TuneConfig
from subbyte.tuning.deviation import Deviations, Vector, angle
from subbyte.tuning.search import Search

Errors = dict[OpKey, dict[OpConfig, float]]
Parts = Mapping[OpKey, Mapping[OpConfig, OutputError]]
Among = Mapping[OpKey, Sequence[OpConfig]]

_NEGLIGIBLE = 0.01  # of the tolerable loss, as an angle: what recovery makes of it matters little
_FINE = 0.02  # angle (14 dB): below it deviations are in proportion to the step of rounding, recovered or not


def errors_of(search: Search, among: Among) -> Errors:
    """Measure the squared output error of each alternative: the error of its weight plus that of its inputs.

    Args:
        search: that keeps them.
        among: the alternatives of each op that are measured.
    """
    for index, (key, alternatives) in enumerate(among.items()):
        found = {part: search.op_error(key, part).squared for part in _every_part(alternatives)}
        search.part_errors[key] = found
        search.errors[key] = {config: sum(found[part] for part in parts(config)) for config in alternatives}
        search.measuring("measuring each op", (index + 1) / len(among))
    return search.errors


def parts_of(search: Search, among: Among) -> Parts:
    """Measure the output deviation with only one op's weight quantized, and with only its inputs quantized.

    Store the angles in `search.part_errors` and `search.errors`.

    Args:
        search: that keeps them.
        among: the alternatives of each op that are measured.
    """
    found = {}
    for index, (key, alternatives) in enumerate(among.items()):
        found[key] = measured = {part: search.op_error(key, part) for part in _every_part(alternatives)}
        search.measuring("measuring each op", (index + 1) / len(among))
        search.part_errors[key] = {part: error.angle for part, error in measured.items()}
        search.errors[key] = {
            config: float(angle(deviation)) for config, deviation in _alone(measured, alternatives).items()
        }
    return found


def recovered_parts(search: Search, measured: Parts) -> Parts:
    """Estimate the deviations after recovery, by one quick recovery for each weight configuration.

    All ops that may have a weight configuration get it at once, and the model is recovered quickly. The fraction of the
    deviation that remains is used for each of these ops. It is measured from the configuration with the largest
    deviation down to the first with an angle of at most `_FINE`. Configurations that deviate less reuse the last
    fraction, except negligible ones, which keep their deviation. Deviations also stay as they are if the time is over
    or the methods cannot work.

    Args:
        search: whose recipes recover.
        measured: without recovery.
    """
    weights = dict.fromkeys(part for of_op in measured.values() for part in of_op if part.quant_mode == "weight_only")
    wholes = {part: _everywhere(search, measured, part) for part in weights}
    plain = {part: search.model.error(whole) for part, whole in wholes.items()}
    angles = {part: error.angle if isfinite(error.angle) else inf for part, error in plain.items()}
    left: dict[OpConfig, float] = {}
    share, fine = 1.0, False
    for part in sorted(angles, key=angles.__getitem__, reverse=True):
        if angles[part] <= _NEGLIGIBLE * search.tolerable or search.is_late():
            break
        if not fine:
            share = _left(search, wholes[part], plain[part])
        fine = angles[part] <= _FINE
        left[part] = share
        search.progress("recovering by each data type", len(left) / len(plain))
    return {
        key: {part: _scaled(error, left.get(part, 1.0)) for part, error in of_op.items()}
        for key, of_op in measured.items()
    }


def _everywhere(search: Search, measured: Parts, part: OpConfig) -> TuneConfig:
    """Return the widest configuration with this one for every op that may have it."""
    keys = [key for key, of_op in measured.items() if part in of_op]
    return TuneConfig({**search.space.widest().op, **dict.fromkeys(keys, part)})


def _left(search: Search, config: TuneConfig, plain: OutputError) -> float:
    """Return which share of the deviation of a configuration is left when it is recovered."""
    try:
        recovered = search.recovered_error(config)
    except Exception:  # the time is over, or a method of the user's cannot work, which a trial then says
        return 1.0
    left = float(np.linalg.norm(recovered.deviation) / np.linalg.norm(plain.deviation))
    return left if np.isfinite(left) else 1.0


def _scaled(error: OutputError, share: float) -> OutputError:
    if share == 1.0:
        return error
    return OutputError(error.squared * share**2, (error.deviation * share).astype(np.float32))


def deviations(measured: Parts, among: Among) -> Deviations:
    """Return the deviation of the model's outputs for each alternative: that of its weight plus that of its inputs.

    Alternatives with infinite or NaN outputs are left out. If all alternatives of an op are, the first one is kept
    with a deviation of zero.

    Args:
        measured: by parts.
        among: the alternatives of each op.
    """
    return Deviations({key: _alone(of_op, among[key]) for key, of_op in measured.items()})


def _alone(measured: Mapping[OpConfig, OutputError], among: Sequence[OpConfig]) -> dict[OpConfig, Vector]:
    none = np.zeros(1)
    alone = {
        config: sum((measured[part].deviation.astype(np.float64) for part in parts(config)), start=none)
        for config in among
    }
    alone = {config: deviation for config, deviation in alone.items() if np.isfinite(deviation).all()}
    return alone or {among[0]: none}


def _every_part(alternatives: Iterable[OpConfig]) -> Iterable[OpConfig]:
    return dict.fromkeys(part for config in alternatives for part in parts(config))


def parts(config: OpConfig) -> Iterator[OpConfig]:
    """A configuration with only its weight quantized, and one with only its inputs; one in 16 bits as a whole."""
    if config.half is not None:
        yield config
    if config.weight is not None and not config.weight.is_float:
        yield OpConfig(weight=config.weight, quant_mode="weight_only")
    if config.activation is not None and not config.activation.is_float and config.quant_mode != "weight_only":
        yield replace(config, weight=None)
