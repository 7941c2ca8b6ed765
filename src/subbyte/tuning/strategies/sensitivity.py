"""sensitivity: measure every op once, then solve for the cheapest model that loses as little as is allowed."""

from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import errors_of
from subbyte.tuning.strategies.path import traversed
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("sensitivity")
def sensitivity(search: Search) -> Proposals:
    """Trade every op's error against what it costs (see `traversed`).

    The error of the model's outputs on calibration data is measured with the weight of each op alone quantized, in each
    data type, and with its inputs alone quantized: no trials, and no labels.
    """
    yield from traversed(search, errors_of(search))
