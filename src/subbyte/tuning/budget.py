"""Budgets: which a model can keep."""

from subbyte.errors import TuningError
from subbyte.spec import OpConfig, OpKey
from subbyte.tuning.objective import objective_of
from subbyte.tuning.search import Search


def check_budgets(search: Search) -> None:
    """Refuse budgets that no configuration can keep.

    Raises:
        TuningError: naming what the model takes at the least.
    """
    for name, most in search.goal.budgets.items():
        objective = objective_of(name)
        least = objective.of(search.model, search.space.config(cheapest(search, name)))
        if least > most:
            raise TuningError(
                f"the budget of {most:g} {objective.unit} for {name!r} cannot be kept: the least that the model's "
                f"alternatives allow is {least:g}, and the float model takes {search.of_float[name]:g}; give a larger "
                "budget, or allow narrower types"
            )


def cheapest(search: Search, name: str) -> dict[OpKey, OpConfig]:
    """What each op takes the least of an objective in."""
    return {
        key: min(found, key=lambda config: search.op_objectives(key, config)[name])
        for key, found in search.space.alternatives.items()
    }
