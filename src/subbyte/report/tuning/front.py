"""The Pareto front: trials that no other beats in both loss and an objective."""

from collections.abc import Iterable

from subbyte.tuning import Trial


def pareto_front(trials: Iterable[Trial], objective: str) -> list[Trial]:
    """Those that are not dominated, from the cheapest to the most accurate; of equal ones the first.

    Args:
        trials: of which those that failed do not count.
        objective: by name.
    """
    usable = [trial for trial in trials if not trial.failed and objective in trial.objectives]
    found: list[Trial] = []
    for trial in sorted(usable, key=lambda each: (each.objectives[objective], each.loss, each.number)):
        if not found or trial.loss < found[-1].loss:
            found.append(trial)
    return found
