"""What alternatives of each op do to the model's output, measured once before the first trial."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from subbyte.adaptor import OutputError
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.deviation import Deviations, angle
from subbyte.tuning.search import Search

Errors = dict[OpKey, dict[OpConfig, float]]
Among = Mapping[OpKey, Sequence[OpConfig]]


def errors_of(search: Search, among: Among) -> Errors:
    """The squared error of the model's outputs by alternatives of each op: that of its weight plus that of its inputs.

    Args:
        search: that keeps them.
        among: the alternatives of each op that are measured.
    """
    for key, measured in _measured(search, among):
        search.part_errors[key] = {part: error.squared for part, error in measured.items()}
        found = {config: sum(measured[part].squared for part in parts(config)) for config in among[key]}
        search.errors[key] = found
    return search.errors


def deviations_of(search: Search, among: Among) -> Deviations:
    """The deviation of the model's outputs by alternatives of each op, its weight's and its inputs' added.

    What makes outputs infinite or no numbers is left out, but for the first alternative of an op. The angles are kept
    as the search's errors.

    Args:
        search: that keeps them.
        among: the alternatives of each op that are measured.
    """
    found = {}
    for key, measured in _measured(search, among):
        search.part_errors[key] = {part: error.angle for part, error in measured.items()}
        none = np.zeros(1)
        alone = {
            config: sum((measured[part].deviation.astype(np.float64) for part in parts(config)), start=none)
            for config in among[key]
        }
        alone = {config: deviation for config, deviation in alone.items() if np.isfinite(deviation).all()}
        found[key] = alone = alone or {among[key][0]: none}
        search.errors[key] = {config: float(angle(deviation)) for config, deviation in alone.items()}
    return Deviations(found)


def _measured(search: Search, among: Among) -> Iterator[tuple[OpKey, dict[OpConfig, OutputError]]]:
    for index, (key, alternatives) in enumerate(among.items()):
        every = dict.fromkeys(part for config in alternatives for part in parts(config))
        yield key, {part: search.model.output_error(key, part) for part in every}
        search.progress("measuring each op", (index + 1) / len(among))


def parts(config: OpConfig) -> Iterator[OpConfig]:
    """A configuration with only its weight quantized, and one with only its inputs; one in 16 bits as a whole."""
    if config.half is not None:
        yield config
    if config.weight is not None and not config.weight.is_float:
        yield OpConfig(weight=config.weight, quant_mode="weight_only")
    if config.activation is not None and not config.activation.is_float and config.quant_mode != "weight_only":
        yield replace(config, weight=None)
