"""Which of many trials passes a test: they are tested in an order that the test has no part in."""

from collections.abc import Callable, Sequence

from subbyte.tuning.trial import Trial

_FIRST = 0.8  # share of the risk of an error that the first sequence takes; the second has the rest

Passes = Callable[[Trial, float], bool]


def first_confidence(confidence: float) -> float:
    """Return the confidence of a test of the first sequence, so that both together have the one that is wanted."""
    return 1 - _FIRST * (1 - confidence)


def passed(trials: Sequence[Trial], confidence: float, passes: Passes, most: int | None = None) -> dict[int, bool]:
    """Return by number whether trials pass.

    Each sequence ends at the first trial that fails, so that it chooses a wrong one no more often than a single test
    does (fixed-sequence test; Maurer, Hothorn and Lehmacher, 1995). The first goes from the trial that seems to lose
    least to the cheapest. If none of it passes, for its trials seemed good by chance, the second goes through all that
    seem good enough, from the dearest to the cheapest, with a higher confidence.

    Args:
        trials: with the losses and verdicts of the search, on which what is tested with has had no influence.
        confidence: that all tests have together.
        passes: tests a trial with a confidence.
        most: number of trials of each sequence that are tested, evenly spaced. Default: all.
    """
    first = first_confidence(confidence)
    found = _in_order(spaced(promising(trials), most), first, passes)
    if any(found.values()):
        return found
    second = 1 - (1 - _FIRST) * (1 - confidence)
    return found | _in_order(spaced(from_dear_to_cheap(trials), most), second, passes)


def promising(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials that keep the budgets, each of which costs less than all before it and seems to lose more."""
    usable = [trial for trial in trials if not trial.failed and trial.excess == 0]
    found: list[Trial] = []
    for trial in sorted(usable, key=lambda each: (each.loss, each.cost, each.number)):
        if not found or trial.cost < found[-1].cost:
            found.append(trial)
    return found


def from_dear_to_cheap(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that seem good enough."""
    return sorted((trial for trial in trials if trial.met), key=lambda each: (-each.cost, each.loss, each.number))


def spaced(trials: Sequence[Trial], most: int | None) -> list[Trial]:
    """Return so many at most, the first and the last among them."""
    last = len(trials) - 1
    if most is None or last < most:
        return list(trials)
    return [trials[round(last * each / (most - 1))] for each in range(most)]


def _in_order(trials: Sequence[Trial], confidence: float, passes: Passes) -> dict[int, bool]:
    found: dict[int, bool] = {}
    for trial in trials:
        found[trial.number] = all(found.values()) and passes(trial, confidence)
    return found
