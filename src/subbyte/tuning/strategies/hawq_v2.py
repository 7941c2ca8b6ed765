"""hawq_v2: the curvature of the loss says how much an op's weights may err."""

from subbyte.errors import TuningError
from subbyte.tuning.ladder import width
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import Errors, parts
from subbyte.tuning.strategies.path import traversed
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("hawq_v2")
def hawq_v2(search: Search) -> Proposals:
    """As `sensitivity`, with the perturbation `mean trace(H) * ||Q(W) - W||^2` of each op as its error.

    H is the second derivative of `loss_fn` by the op's weights, its trace found by Hutchinson's method (Dong et al.,
    2020). It says nothing of inputs, which keep the widest type that goes with a weight's; ops without weights keep
    what they have without tuning. An estimate below zero counts by its size: taken for no curvature at all it would let
    an op go as narrow as can be.

    Raises:
        TuningError: there is no loss_fn.
    """
    if search.loss_fn is None:
        raise TuningError(
            "strategy 'hawq_v2' needs loss_fn, a function of the model and a batch of the calibration data that "
            "returns its loss: tune(..., loss_fn=lambda model, batch: ...)"
        )
    traces = search.model.hessian_traces(search.loss_fn, search.seed)
    errors: Errors = {}
    for op in search.space.tunable:
        alternatives = search.space.alternatives[op.key]
        if op.key not in traces:
            errors[op.key] = {alternatives[0]: 0.0}
            continue
        widest = {}
        for config in sorted(alternatives, key=width):
            widest[config.weight] = config
        errors[op.key] = {
            config: abs(traces[op.key]) * search.model.weight_error(op.key, config) for config in widest.values()
        }
        search.perturbations[op.key] = {
            part: error for config, error in errors[op.key].items() for part in parts(config) if part.weight is not None
        }
    yield from traversed(search, errors)
