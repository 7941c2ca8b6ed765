"""The ladder of an op: which of its alternatives are worth a rung, from narrow to wide."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from subbyte.spec import OpConfig, TensorSpec

FLOAT_BITS = 32
_CONFIDENCE = 0.95  # with which a measured alternative must cost more than a wider one to leave the ladder

Figure = Callable[[OpConfig], float]


@dataclass(frozen=True)
class LeftOut:
    """Why an alternative is on no rung.

    Args:
        beside: the alternative that is kept in its place.
        more: what it costs more than that one, in the objective's unit if there is one objective, else as a share of
            what the widest model costs. 0 or less if it is cheaper but neither of both is as wide as the other.
        spread: standard error of `more`; 0 where costs are computed and not measured.
    """

    beside: OpConfig
    more: float
    spread: float


def bits(spec: TensorSpec | None) -> int:
    """Return the bits of a tensor: 32 if it is not quantized."""
    return FLOAT_BITS if spec is None else spec.dtype.bits


def width(config: OpConfig) -> tuple[int, int, int]:
    """Return the bits of weight and activation together, of the weight, of the activation."""
    weight, activation = bits(config.weight), bits(config.activation)
    return weight + activation, weight, activation


def dominated(
    configs: Iterable[OpConfig], costs: Mapping[str, Figure], spreads: Mapping[str, Figure]
) -> dict[OpConfig, LeftOut]:
    """Return the alternatives that are narrower than another one and clearly save nothing by it.

    Costs that are measured differ by chance. Such an alternative is left out only if it costs more in every objective
    with a confidence of 95 %; a computed cost has no spread, and then it is enough that it is not lower.

    Args:
        configs: alternatives of an op.
        costs: by objective, what an alternative adds.
        spreads: by objective, standard errors of these.
    """
    found: dict[OpConfig, LeftOut] = {}
    every = sorted(configs, key=width, reverse=True)
    figures = [{config: (cost(config), spreads[name](config)) for config in every} for name, cost in costs.items()]
    for one in every:
        for other in every:
            if width(one) == width(other) or not _is_as_wide(other, one):
                continue
            differences = [_difference(each[one], each[other]) for each in figures]
            if all(more >= _NORMAL * spread for more, spread in differences):
                found.setdefault(one, LeftOut(other, *differences[0]))
    return found


def ladder(configs: Sequence[OpConfig], cost: Figure, spread: Figure) -> tuple[list[OpConfig], dict[OpConfig, LeftOut]]:
    """Return the rungs of an op from narrow to wide, and what is on none of them.

    The cheapest comes first. Each rung costs more than the one before it, or too little less to be certain of it, and
    is at least as wide in weight and activation. Of equally cheap ones the widest is taken, as it is the most accurate.

    Args:
        configs: alternatives of the op.
        cost: what an alternative adds to the objective.
        spread: standard error of that; 0 where it is computed.
    """
    figures = {config: (cost(config), spread(config)) for config in configs}
    left_out = dominated(configs, {"": cost}, {"": spread})
    kept = [config for config in configs if config not in left_out]
    # A wider alternative may seem cheaper by chance: then both count as equally dear.
    counted = {one: min(figures[other][0] for other in kept if _is_as_wide(other, one)) for one in kept}

    def order(config: OpConfig) -> tuple[float, ...]:
        """Of equally dear ones first those that seemed dearer, from narrow to wide, then the widest."""
        narrow_first = counted[config] < figures[config][0]
        return counted[config], not narrow_first, *(each if narrow_first else -each for each in width(config))

    rungs: list[OpConfig] = []
    for config in sorted(kept, key=order):
        last = rungs[-1] if rungs else config
        is_above = counted[config] > counted[last] or (counted[last] < figures[last][0] and width(config) > width(last))
        if not rungs or (is_above and _is_as_wide(config, last)):
            rungs.append(config)
        else:
            left_out[config] = LeftOut(last, *_difference(figures[config], figures[last]))
    return rungs, left_out


_NORMAL = NormalDist().inv_cdf(_CONFIDENCE)


def _difference(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return what one costs more, and the standard error of that."""
    return one[0] - other[0], (one[1] ** 2 + other[1] ** 2) ** 0.5


def _is_as_wide(config: OpConfig, other: OpConfig) -> bool:
    return all(one >= two for one, two in zip(width(config)[1:], width(other)[1:], strict=True))
