"""Budgets: which a model can keep, and what they are worth while a model is chosen."""

from subbyte.errors import TuningError
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.objective import objective_of
from subbyte.tuning.search import Search

_LEAST = 0.1  # of a budget: what is to be saved counts as no less


def check_budgets(search: Search) -> None:
    """Refuse budgets that no configuration can keep.

    Raises:
        TuningError: naming what the model takes at the least.
    """
    for name, most in search.goal.budgets.items():
        narrowest = search.space.config(
            {
                key: min(found, key=lambda config: search.op_objectives(key, config)[name])
                for key, found in search.space.alternatives.items()
            }
        )
        objective = objective_of(name)
        least = objective.of(search.model, narrowest)
        if least > most:
            raise TuningError(
                f"the budget of {most:g} {objective.unit} for {name!r} cannot be kept: the least that the model's "
                f"alternatives allow is {least:g}, and the float model takes {search.of_float[name]:g}; give a larger "
                "budget, or allow narrower types"
            )


def priced(search: Search, key: OpKey, config: OpConfig, price: float) -> float:
    """What one op adds to the cost, as a share of the widest model's, and for a price to what is under a budget.

    Args:
        search: what is wanted.
        key, config: of the op.
        price: of saving all that the widest model has to save for each budget.
    """
    cost = search.op_cost(key, config) / (abs(search.cost(search.space.widest())) or 1)
    if not price:
        return cost
    added = search.op_objectives(key, config)
    shares = (
        added[name] / max(search.of_float[name] - most, _LEAST * most) for name, most in search.goal.budgets.items()
    )
    return cost + price * sum(shares)
