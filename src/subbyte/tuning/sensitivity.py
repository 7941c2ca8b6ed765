"""What each alternative of each op does to the model's output, measured once before the first trial."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.search import Search

Errors = dict[OpKey, dict[OpConfig, float]]


def errors_of(search: Search) -> Errors:
    """The error of the model's outputs by each alternative of each op: that of its weight plus that of its inputs."""
    found, ops = search.errors, search.space.tunable
    for index, op in enumerate(ops):
        if op.key in found:
            continue
        alternatives = search.space.alternatives[op.key]
        alone = {part: search.model.output_error(op.key, part) for part in dict.fromkeys(_all_parts(alternatives))}
        search.part_errors[op.key] = alone
        found[op.key] = {config: sum(alone[part] for part in parts(config)) for config in alternatives}
        search.progress("measuring each op", (index + 1) / len(ops))
    return found


def _all_parts(alternatives: Sequence[OpConfig]) -> Iterator[OpConfig]:
    for config in alternatives:
        yield from parts(config)


def parts(config: OpConfig) -> Iterator[OpConfig]:
    """A configuration with only its weight quantized, and one with only its inputs."""
    if config.weight is not None and not config.weight.is_float:
        yield OpConfig(weight=config.weight, quant_mode="weight_only")
    if config.activation is not None and not config.activation.is_float and config.quant_mode != "weight_only":
        yield replace(config, weight=None)
