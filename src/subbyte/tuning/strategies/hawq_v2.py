"""hawq_v2: the curvature of the loss says how much an op's weights may err."""

from subbyte.errors import TuningError
from subbyte.tuning.ladder import width
from subbyte.tuning.search import Proposals, Search
from subbyte.tuning.sensitivity import Errors, parts
from subbyte.tuning.strategies.path import traversed
from subbyte.tuning.strategies.registry import register_strategy


@register_strategy("hawq_v2")
def hawq_v2(search: Search) -> Proposals:
    """Trade the perturbation `mean trace(H) * ||Q(W) - W||^2` of each op against its cost.

    H is the second derivative of `loss_fn` by the weights of the op. Hutchinson's method estimates its trace (Dong et
    al., 2020). The perturbation depends on weights only. So inputs keep the widest type that the weight type allows,
    and ops without weights keep their default configuration. A negative estimate counts by its absolute value, because
    zero would allow the narrowest type.

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
