"""The trials that no other one beats in both accuracy and an objective."""

from collections.abc import Callable, Sequence

from subbyte.errors import TuningError
from subbyte.tuning.objective import objective_of
from subbyte.tuning.trial import Trial


def pareto(trials: Sequence[Trial], objective: str) -> list[Trial]:
    """Those to which no other is as good in one of loss and objective and better in the other.

    Args:
        trials: failed ones are left out; of equal ones the first is taken.
        objective: by name.

    Returns:
        from the cheapest to the most accurate.

    Raises:
        TuningError: the objective is unknown, or the search did not look at it.
    """
    name = objective_of(objective).name
    usable = [trial for trial in trials if not trial.failed]
    unseen = next((trial for trial in usable if name not in trial.objectives), None)
    if unseen is not None:
        seen = ", ".join(unseen.objectives)
        raise TuningError(
            f"the search did not look at {name!r}, but at: {seen}; name it as an objective, or give it a budget"
        )
    return front(usable, lambda trial: trial.objectives[name])


def front(trials: Sequence[Trial], cost: Callable[[Trial], float]) -> list[Trial]:
    """Return the trials that no other beats in loss and cost, from the cheapest to the most accurate."""
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda each: (cost(each), each.loss, each.number)):
        if not found or trial.loss < found[-1].loss:
            found.append(trial)
    return found
